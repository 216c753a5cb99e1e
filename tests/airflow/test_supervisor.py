"""Signals, retries and clearing under Airflow's real supervisor: fork, heartbeat, execution API, database; no scheduler around them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from tests.airflow.compose import ROOT, Compose
from tests.airflow.victims import VICTIMS


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Source and target, provisioned by the compose environment's own set-up."""
    with EmbeddedCluster() as source, EmbeddedCluster() as target:
        environment = Compose(source, target, tmp_path_factory.mktemp("supervised"))
        environment.init()
        yield environment


@pytest.mark.timeout(600)
def test_an_attempt_that_is_stopped_anywhere_is_retried_and_commits_once(compose: Compose) -> None:
    home = compose.directory / "airflow"
    (home / "dags").mkdir(parents=True)
    (home / "marks").mkdir()
    dag_file = Path(shutil.copy(Path(__file__).parent / "dags" / "victims.py", home / "dags"))
    bundle = {
        "name": "supervised",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(home / "dags")},
    }
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "DPONE"))},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "VICTIM_MARKS": str(home / "marks"),
        **compose.airflow(),
        **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection) for name, connection in compose.connections.items()},
    }
    answers = home / "answers.json"
    command = [sys.executable, "-m", "tests.airflow.supervised", str(dag_file), str(answers), *VICTIMS]
    log = home / "supervised.log"
    with log.open("w") as output:
        child = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait()
        finally:
            child.kill()
    whole = log.read_text(errors="replace")
    assert code == 0, whole[-5000:]
    told = dict(part.split("\n", 1) for part in reversed(whole.split("=== ")[1:]))  # the first run of each wins
    results = json.loads(answers.read_text())
    for name, (first, *_) in results.items():
        summary = first["summary"]
        assert (first["state"], first["try_number"], summary["status"], summary["attempt"]) == ("success", 2, "committed", 2), name
        assert ("run.cancelled" in told[name]) is name.startswith("sigterm"), told[name]
    (first, cleared), *_ = results.values()
    assert (cleared["state"], cleared["summary"]["status"]) == ("success", "replayed")
    assert cleared["summary"]["receipt_id"] == first["summary"]["receipt_id"]
    assert "had already committed; nothing was read or written" in whole
    assert compose.target_rows("SELECT count(*), count(DISTINCT invocation_digest) FROM dpone.dpone_commit_receipt") == [(4, 4)]
    assert compose.target_rows("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'staging'") == [(0,)]
    work = compose.directory / "work"
    assert not work.exists() or not list(work.rglob("*.arrow")), "what the killed attempt left is swept"
