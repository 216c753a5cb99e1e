"""Runs DAGs as ``dag.test`` does, except that every attempt is a real task process under Airflow's real supervisor.

``python -m tests.airflow.supervised DAG_FILE ANSWERS DAG…``: runs each DAG, the first one twice as the same DAG run, as if it were
cleared, and writes what came of it to ANSWERS. A process of its own: the supervisor takes its signals.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_dpone_xmin.demo.scheduler_child import _WARM

WHEN = datetime(2026, 3, 1, tzinfo=UTC)


def attempt(ti: Any, task: Any, client: Any = None) -> Any:
    """One attempt, in the place of ``run_task_in_process``: fork, supervise, and say what Airflow's database says then."""
    from airflow.executors.workloads.base import BundleInfo
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task
    from airflow.serialization.serialized_objects import create_scheduler_operator
    from airflow.utils.session import create_session
    from sqlalchemy import select

    supervise_task(
        ti=ti,
        bundle_info=BundleInfo(name="supervised", version=None),
        dag_rel_path=Path(task.dag.fileloc).name,
        token="",
        client=client or InProcessTestSupervisor._api_client(task.dag),
        subprocess_logs_to_stdout=True,
    )
    mine = (TaskInstance.dag_id == ti.dag_id, TaskInstance.task_id == ti.task_id, TaskInstance.run_id == ti.run_id)
    with create_session() as session:
        seen = session.scalars(select(TaskInstance).where(*mine)).one()
        if seen.state == "running":  # a killed process told nothing: this is the scheduler's part, once its executor reports the end
            seen.task = create_scheduler_operator(task)
            seen.handle_failure("The task's process ended without a word.", session=session)
        state = seen.state
    return SimpleNamespace(msg=None, error=None, ti=SimpleNamespace(state=state, task=task))


def main(path: Path, answers: Path, names: list[str]) -> None:
    """Run the DAGs."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.execution_time import supervisor
    from airflow.utils.db import initdb

    initdb()
    for module in _WARM:  # what is imported here no forked attempt imports again
        import_module(module)
    supervisor.run_task_in_process = attempt
    dags = DagBag(dag_folder=str(path), safe_mode=False).dags
    results: dict[str, Any] = {}
    for name in names:
        results[name] = []
        for _ in range(2 if name == names[0] else 1):
            print(f"=== {name}", flush=True)
            (task,) = dags[name].test(run_after=WHEN, logical_date=WHEN).get_task_instances()
            results[name].append({"state": str(task.state), "try_number": task.try_number, "summary": task.xcom_pull(task_ids=name)})
    answers.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
