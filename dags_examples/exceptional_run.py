"""One exceptional run of a route, after its owner approved it: a mass delete, a full repair, a transfer of ownership.

When a guard stops `scheduled_incremental`, the task's log holds the binding and the `dpone-xmin repair propose` command. The owner reviews
the document and approves it; then this DAG is triggered with the approval's id. The sensor waits, without a worker, until the approval is
usable; the operator proves it again under the target lock and consumes it together with the receipt. Without an id the sensor passes at
once and the run is an ordinary one: nothing can be approved from here.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator
from airflow_dpone_xmin.sensors.repair_authority import RepairAuthoritySensor

# The same route as in scheduled_incremental: process, names, key and delete mode are its identity.
ROUTE = {
    "process": "orders",
    "source_conn": "oltp",
    "source_table": "public.orders",
    "target_conn": "dwh",
    "state_conn": "dwh_state",
    "target_table": "landing.orders",
    "unique_key": "id",
    "delete_mode": "timestamp_only",
}
# An absent parameter would render as the text "None".
AUTHORITY = "{{ params.repair_authority_ref or '' }}"

with DAG(
    "exceptional_run",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={
        "repair_authority_ref": Param(
            None,
            type=["null", "string"],
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$",
            title="Repair authority",
            description="Id of the one-shot approval that `dpone-xmin repair approve` inserted. Empty for an ordinary run.",
            section="Exceptional run",
        ),
    },
    tags=["dpone-xmin"],
):
    approved = RepairAuthoritySensor(
        task_id="wait_for_approval",
        repair_authority_ref=AUTHORITY,
        poke_interval=60,
        timeout=timedelta(hours=12),
        **ROUTE,
    )
    orders = XminReconcileOperator(
        task_id="orders",
        repair_authority_ref=AUTHORITY,
        retries=3,
        retry_delay=timedelta(minutes=1),
        **ROUTE,
    )
    approved >> orders
