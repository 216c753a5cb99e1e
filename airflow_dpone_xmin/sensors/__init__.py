"""Airflow sensors: they wait for something that an owner does."""
