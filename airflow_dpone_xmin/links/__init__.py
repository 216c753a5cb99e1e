"""Airflow extra links."""
