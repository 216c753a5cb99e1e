"""One large first load, by hand: chunks filled by mapped lanes, published at once, handed over to the scheduled process.

Trigger it from the form; `lanes` tasks work beside each other on whatever executor the deployment has. A failed or killed lane costs
nothing: committed chunks have receipts, and a retry goes on with the rest. The event of `publish` starts `after_backfill`, the incremental
DAG with the same `handoff_id`; it refuses to start before.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset, Param

from airflow_dpone_xmin.operators.campaign import campaign_task_group

# Source, target, key and handoff_id are the identity that the incremental manifest repeats.
MANIFEST = {
    "name": "payments_initial",
    "source": {
        "connection_id": "oltp",
        "table": {"schema": "public", "name": "payments"},
        "options": {"xmin_execution": {"mode": "initial", "handoff_id": "payments_v1"}},
    },
    "sink": {
        "type": "mssql",
        "connection_id": "dwh",
        "table": {"schema": "landing", "name": "payments"},
        "strategy": {
            "mode": "backfill",
            "unique_key": ["id"],
            "backfill": {
                "inner_mode": "incremental_append",
                "publication": {"mode": "shadow_swap"},
                "chunk": {"column": "id", "kind": "ordered", "buckets": 64},
            },
        },
    },
    "reconciliation": {"enabled": True, "delete_policy": "soft_delete", "delete_mode": "timestamp_only"},
    "state": {"type": "mssql", "connection_id": "dwh_state"},
}

with DAG(
    "manual_backfill",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={
        "repair_authority_ref": Param(
            None,
            type=["null", "string"],
            pattern=r"^[A-Za-z0-9_.:-]{1,128}$",
            title="Repair authority",
            description="Id of the approval to replace a table that has an owner or tombstones. Empty for a new table.",
            section="Exceptional run",
        ),
    },
    tags=["dpone-xmin"],
):
    campaign_task_group(
        manifest=MANIFEST,
        lanes=4,
        repair_authority_ref="{{ params.repair_authority_ref or '' }}",
        retry_delay=timedelta(minutes=1),
        poke_interval=15,
        outlets=[Asset("payments_published")],
    )
