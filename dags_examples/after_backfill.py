"""What follows `manual_backfill`: the incremental process that takes the table over as soon as it is published.

Source, target, key, delete mode and `handoff_id` are the campaign's: from them both derive the same state. The first run replays what
changed since the campaign's anchor, deletes included. Before the publication a run would refuse to start (`checkpoint.seed_missing`) and
read nothing. To go on by the clock as well: `AssetOrTimeSchedule(timetable=CronTriggerTimetable("@hourly", timezone="UTC"), assets=[…])`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator

MANIFEST = {
    "name": "payments",
    "source": {
        "connection_id": "oltp",
        "table": {"schema": "public", "name": "payments"},
        "options": {"xmin_execution": {"mode": "incremental", "handoff_id": "payments_v1"}},
    },
    "sink": {
        "type": "mssql",
        "connection_id": "dwh",
        "table": {"schema": "landing", "name": "payments"},
        "strategy": {"mode": "incremental_merge", "unique_key": ["id"]},
    },
    "reconciliation": {
        "enabled": True,
        "mode": "key_snapshot",
        "delete_policy": "soft_delete",
        "delete_mode": "timestamp_only",
        "guards": {"max_delete_ratio": 0.05, "max_delete_rows": 100_000},
    },
    "state": {"type": "mssql", "connection_id": "dwh_state"},
}

with DAG(
    "after_backfill",
    schedule=[Asset("payments_published")],
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["dpone-xmin"],
):
    XminReconcileOperator(
        task_id="payments", manifest=MANIFEST, outlets=[Asset("landing.payments")], retries=3, retry_delay=timedelta(minutes=1)
    )
