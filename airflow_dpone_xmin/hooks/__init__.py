"""Airflow hooks: an Airflow connection becomes an endpoint."""
