"""The use cases: reconcile, check, plan, evidence. Imports everything below it; knows nothing of Airflow."""
