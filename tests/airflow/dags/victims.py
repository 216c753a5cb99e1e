"""DAGs for the system test: each stops itself once, at one point of its run, as its name says; the next attempt runs through.

The point is found by what the product tells its observers, in the real task process; the signal goes where Airflow's own would come from.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_dpone_xmin.operators.inline import inline_manifest
from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator

MARKS = Path(os.environ["VICTIM_MARKS"])
POINTS = {
    "sigterm_in_extraction": ("orders", "orders", "id", signal.SIGTERM, "POSTGRES_SNAPSHOT_OPEN"),
    "sigterm_in_bulk_load": ("customers", "shop:public.customers", "id", signal.SIGTERM, "stage.load"),
    "sigterm_in_transaction": ("products", "shop:public.products", "id", signal.SIGTERM, "finalize."),
    "sigkill_in_transaction": ("order_lines", "shop:public.order_lines", ["order_id", "line_no"], signal.SIGKILL, "finalize."),
}


class Victim(XminReconcileOperator):
    """The product's operator; only its environment is unfriendly."""

    def execute(self, context: Any) -> Any:
        from airflow_dpone_xmin.target.engine import OBSERVERS

        mark = MARKS / self.task_id
        _, _, _, number, point = POINTS[self.task_id]

        def strike(seen: str) -> None:
            if seen.startswith(point) and not mark.exists():
                mark.touch()
                # SIGTERM comes to the supervisor, as from a worker that is shut down; SIGKILL to the task itself, as from the kernel
                os.kill(os.getppid() if number == signal.SIGTERM else os.getpid(), number)
                time.sleep(5)

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if (progress := getattr(record, "dpone_progress", None)) is not None:
                    strike(progress.event)

        logging.getLogger("airflow_dpone_xmin.operators.task").addHandler(Listener())
        OBSERVERS.append(lambda event: strike(event.label) if event.phase == "after" or event.statement is None else None)
        return super().execute(context)


for name, (table, process, key, _, _) in POINTS.items():
    manifest = inline_manifest(
        process=process,
        source_conn="oltp",
        source_table=table,
        target_conn="dwh",
        state_conn="dwh_state",
        state_schema=None,
        target_table=f"landing.{table}",
        target_type="embedded",
        unique_key=key,
        delete_mode="timestamp_only",
        max_delete_ratio=0.05,
        max_delete_rows=100_000,
    )
    # a test holds the source's table for longer than an attempt would wait by default
    manifest["source"]["options"] = {"lock_timeout_seconds": 300}
    with DAG(name, schedule=None, catchup=False):
        Victim(task_id=name, manifest=manifest, retries=3, retry_delay=timedelta(seconds=1))
