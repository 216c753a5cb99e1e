"""The sensor under a real triggerer: deferral, event and resume through Airflow's own processes, database and execution API."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from tests.airflow.conftest import connection
from tests.approvals import Owner, consumptions
from tests.runtime.test_repair import ended, insertion
from tests.world import World

DAG_FILE = """
import json
from pathlib import Path

from airflow.sdk import DAG

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator
from airflow_dpone_xmin.sensors.repair_authority import RepairAuthoritySensor

MANIFEST = json.loads(Path(__file__).with_name("manifest.json").read_text())


def wait(name, ref, **over):
    given = {"timeout": 600, "poke_interval": 0.5} | over
    return RepairAuthoritySensor(task_id=name, manifest=MANIFEST, repair_authority_ref=ref, **given)


with DAG("approvals", schedule=None):
    wait("ready", "fix") >> XminReconcileOperator(task_id="approved", manifest=MANIFEST, repair_authority_ref="fix")
    wait("expired", "late")
    wait("never", "nosuch", timeout=3)
    wait("never_soft", "nosuch", timeout=3, soft_fail=True)
"""
DEFERRED = 4
SECONDS = 180  # far more than it takes: only a broken installation is that slow


@pytest.fixture
def stopped(deployment: World) -> World:
    """Run ``stopped`` found 10 of 40 rows missing; the guard allows two."""
    deployment.reconciliation = {**deployment.reconciliation, "guards": {"max_delete_rows": 2}}
    deployment.run("first")
    deployment.source.run("DELETE FROM orders WHERE id <= 10")
    with pytest.raises(XminError, match=r"guard\.deletes_exceeded"):
        deployment.run("stopped")
    return deployment


@contextmanager
def process(arguments: list[str], *, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process group of its own, ended with the test whatever happens."""
    with log.open("w") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", *arguments], env=environment, stdout=errors, stderr=errors, text=True, start_new_session=True
        )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def metadata(home: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True, timeout=20)) as database:
        return database.execute(query).fetchall()


@pytest.mark.timeout(SECONDS * 3)
def test_deferral_event_and_resume(stopped: World, approver: Owner, tmp_path: Path) -> None:
    """Four sensors wait in the triggerer: for an approval that comes, for one that comes too late, for one that never comes."""
    home, dags = tmp_path / "airflow-home", tmp_path / "dags"
    dags.mkdir()
    (dags / "approvals.py").write_text(DAG_FILE)
    (dags / "manifest.json").write_text(json.dumps(stopped.manifest()))
    environment = {name: value for name, value in os.environ.items() if name != "AIRFLOW_CONN_DWH"} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",  # another test's may be in the environment
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": os.pathsep.join([os.getcwd(), *[path for path in sys.path if path]]),
        "TEST_CONNECTION": connection(stopped.target.endpoint()),
    }
    driver = ["tests.airflow.triggerer_driver", str(dags / "approvals.py"), str(tmp_path)]
    log, triggerer_log = tmp_path / "driver.log", tmp_path / "triggerer.log"
    with process(driver, environment=environment, log=log) as run:
        until((tmp_path / "ready").exists, "no metadata database")
        with process(["airflow", "triggerer", "--skip-serve-logs"], environment=environment, log=triggerer_log):
            seen: set[str] = set()

            def all_deferred() -> bool:
                seen.update(row[0] for row in metadata(home, "SELECT task_id FROM task_instance WHERE next_method IS NOT NULL"))
                return len(seen) == DEFERRED

            until(all_deferred, f"deferred: {sorted(seen)}")
            late = ended(approver.propose(stopped, "stopped", "late"))
            stopped.target.run(insertion(stopped, late, approver.sign(late)))
            approver.admit(stopped, "stopped")
            assert run.wait(SECONDS) == 0
    print(log.read_text(), triggerer_log.read_text())
    assert json.loads((tmp_path / "states.json").read_text()) == {
        "ready": "success",
        "approved": "success",
        "expired": "failed",
        "never": "failed",
        "never_soft": "skipped",
    }
    text = log.read_text()
    assert text.count("Repair authority nosuch: timeout. No repair authority 'nosuch' exists") == 2, "the triggerer did not look"
    assert "Repair authority late: refused. It was valid until" in text
    ((used, _),) = consumptions(stopped)
    assert used == "fix"
