"""Airflow operators: resolve, call one runtime function, publish, map errors once."""
