"""The demo's DAG: one task that keeps `landing.flights` equal to `public.flights`."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator

with DAG("flights", schedule=None, catchup=False, tags=["dpone-xmin"]) as dag:
    XminReconcileOperator(task_id="reconcile", manifest="flights.yaml", retries=3, retry_delay=timedelta(seconds=1))
