"""Airflow triggers: they look, in a thread, and never copy data."""
