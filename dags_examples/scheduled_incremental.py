"""One PostgreSQL table kept equal in SQL Server, every 15 minutes, deletes included.

`oltp`, `dwh` and `dwh_state` are entries of the signed registry ([dpone_xmin] registry in Airflow's configuration) and, unless the
registry says otherwise, the ids of the Airflow connections that hold the credentials. `dpone-xmin check` predicts whether a run would be
refused; `dpone-xmin ddl render` prints what the target's owner installs first.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator

with DAG(
    "scheduled_incremental",
    schedule="*/15 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,  # a run reads the table as it is now; there is no past to catch up with
    max_active_runs=1,  # a second writer of the same target would only wait for the first
    tags=["dpone-xmin"],
):
    XminReconcileOperator(
        task_id="orders",
        process="orders",  # owns the checkpoint; keep it when you rename the DAG or the task
        source_conn="oltp",
        source_table="public.orders",
        target_conn="dwh",
        state_conn="dwh_state",  # database and schema of the state catalog, signed like the others
        target_table="landing.orders",
        unique_key="id",
        delete_mode="timestamp_only",  # None never deletes
        max_delete_ratio=0.05,  # more than this share of the rows gone at once: the task fails, and a human looks
        max_delete_rows=100_000,
        outlets=[Asset("landing.orders")],  # its event carries receipt and counts: consumers deduplicate on receipt_id
        retries=3,  # safe: a retry of a run that committed answers from its receipt
        retry_delay=timedelta(minutes=1),
    )
