"""A child of the triggerer test: a metadata database, and one DAG run whose deferrals are left to a real triggerer.

``dag.test()`` runs every task attempt through Airflow's own task runner and execution API; only its inline trigger is switched off. Run as
``python -m tests.airflow.triggerer_driver DAG_FILE ANSWERS``, with everything else in the environment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(dag_file: str, answers: str) -> None:
    """Make the file ``ready`` in *answers* once a triggerer may start, then ``states.json`` with the end state of every task."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models import Connection
    from airflow.sdk.definitions import dag as definitions
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:  # in the database, not in the environment: the triggerer must ask for it
        session.add(Connection(conn_id="dwh", **json.loads(os.environ["TEST_CONNECTION"])))
    (Path(answers) / "ready").touch()

    real = definitions._run_task

    def without_inline_trigger(*, ti: Any, task: Any, run_triggerer: bool) -> Any:
        return real(ti=ti, task=task)

    definitions._run_task = without_inline_trigger
    (dag,) = DagBag(dag_file).dags.values()
    run = dag.test()
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    (Path(answers) / "states.json").write_text(json.dumps(states))


if __name__ == "__main__":
    main(*sys.argv[1:])
