"""The demo from the outside, as a user starts it: it passes, it fails when it should, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from airflow_dpone_xmin.demo.show import WIDE, Row, result_table

# A sample of the flights: the whole story, in half the time.
COMMAND = [sys.executable, "-c", "from airflow_dpone_xmin.cli.main import main; main()", "demo", "--rows", "12000"]
SECONDS = 200


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary directory of the demo's own, with a short name: sockets live in it."""
    directory = Path(tempfile.mkdtemp(prefix="dd"))
    directory.chmod(0o755)  # the servers of root's demo run as somebody else
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def start(scratch: Path, *options: str) -> subprocess.Popen[str]:
    """Start the demo; everything that it makes is below *scratch*."""
    environment = {**os.environ, "TMPDIR": str(scratch), "AIRFLOW__DPONE_XMIN__REGISTRY": "/nowhere", "AIRFLOW_CONN_FLIGHTS_SOURCE": "x://"}
    return subprocess.Popen([*COMMAND, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def leftovers(scratch: Path) -> list[str]:
    """Files below *scratch*, and processes that know it by command line or environment."""
    found = [path.name for path in scratch.iterdir()]
    for process in psutil.process_iter():
        try:
            known = [*process.cmdline(), process.environ().get("TMPDIR", "")]
            if process.status() != psutil.STATUS_ZOMBIE and any(str(scratch) in word for word in known):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_it_ends_in_exact_parity_and_leaves_nothing(scratch: Path) -> None:
    demo = start(scratch, "--format", "json")
    out, err = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, err
    document = json.loads(out)
    assert document["parity"] == "exact"
    assert document["source_rows"] == document["target_rows"] > 12_000
    runs = {run["run"][:1]: run for run in document["runs"]}
    outcomes = [run["outcome"] for run in document["runs"]]
    assert outcomes == ["committed"] * 4 + ["rolled back", "committed", "committed", "replayed"]
    assert runs["1"]["inserted"] == runs["1"]["payload"] == runs["1"]["active"]
    assert min(runs["2"][name] for name in ("inserted", "updated", "deleted")) > 0
    assert runs["3"]["inserted"] > 0 and runs["3"]["unchanged"] == runs["2"]["payload"]  # replayed: no row is written twice
    assert runs["4"]["payload"] == 0
    assert runs["5"]["active"] == runs["4"]["active"]
    assert runs["6"]["reactivated"] > 0
    assert runs["7"]["active"] == runs["8"]["active"]
    assert leftovers(scratch) == []


def test_one_wrong_value_fails_it(scratch: Path) -> None:
    demo = start(scratch, "--plant-wrong-row")
    out, err = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 1, err
    assert "parity: different" in out, err
    assert "distance differs in 1" in out
    assert "demo.parity_failed" in err
    assert "parity: exact" not in out
    assert leftovers(scratch) == []


def interrupted(demo: subprocess.Popen[str], number: signal.Signals) -> str:
    """Ask again as a person would: Python swallows an interrupt that falls into an import's own callback."""
    for _ in range(5):
        demo.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            return demo.communicate(timeout=3)[1]  # less than the demo needs to its end
    return demo.communicate(timeout=60)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_demo_leaves_nothing(scratch: Path, number: signal.Signals) -> None:
    demo = start(scratch)
    assert demo.stdout is not None
    while "Real flights" not in (line := demo.stdout.readline()):
        assert line, demo.communicate()
    time.sleep(1)
    err = interrupted(demo, number)
    assert demo.returncode == 130, err
    assert "run.cancelled" in err
    assert leftovers(scratch) == []


@pytest.mark.parametrize(("width", "wide"), [(80, False), (WIDE, True)])
def test_the_table_fits(width: int, wide: bool) -> None:
    names = ("payload", "inserted", "updated", "reactivated", "unchanged", "deleted", "active")
    rows = [
        Row("1 baseline", "committed", 12.3, dict.fromkeys(names, 0) | dict.fromkeys(("payload", "inserted", "active"), 336_776)),
        Row("2 changes", "committed", 1.0, dict.fromkeys(names, 4_202)),
        Row("6 retry of 5", "rolled back", 99.9, {"active": 336_776}),
    ]
    out = StringIO()
    Console(file=out, width=width).print(result_table(rows, wide=wide))
    assert "…" not in out.getvalue()
    assert max(len(line.rstrip()) for line in out.getvalue().splitlines()) <= width
