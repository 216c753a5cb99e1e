"""Many tables of one manifest, one mapped task each: their names and keys are all that a new table needs here.

Every table has a process of its own, `shop:public.<table>`, and so its own checkpoint, receipts and retries: adding, removing or
reordering tables moves nobody else's. One task that a guard stops does not hold up the others.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator

TABLES = {"customers": ["id"], "products": ["id"], "order_lines": ["order_id", "line_no"]}
MANIFEST = {
    "name": "shop",
    "source": {"type": "postgres", "connection_id": "oltp"},
    "sink": {"type": "mssql", "connection_id": "dwh", "strategy": {"mode": "incremental_merge"}},
    "schemas": {"public": {"tables": [{"name": name, "unique_key": key} for name, key in TABLES.items()]}},
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
    "many_tables",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["dpone-xmin"],
):
    XminReconcileOperator.partial(
        task_id="reconcile",
        manifest=MANIFEST,
        map_index_template="{{ task.table }}",  # the grid shows names instead of numbers
        max_active_tis_per_dag=4,
        retries=3,
        retry_delay=timedelta(minutes=1),
    ).expand(table=[f"public.{name}" for name in TABLES])
