"""Airflow triggers: they only look."""
