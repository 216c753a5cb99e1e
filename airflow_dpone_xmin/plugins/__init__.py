"""The page inside Airflow's UI."""
