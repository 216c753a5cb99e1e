"""Ctrl-C and SIGTERM end a command cleanly wherever it is: in a process of its own, since a driver may take the signal for itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .test_route_commands import Shell, shell  # noqa: F401  (the fixture)

ROWS = 150_000
#: What stderr says when the run is about to read, to load, and to write.
PHASES = {"extracting": "snapshot open", "loading": "rows extracted", "in the transaction": "rows staged"}


def start(*arguments: str) -> subprocess.Popen[str]:
    program = "from airflow_dpone_xmin.cli.main import main; main()"
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def interrupted(command: subprocess.Popen[str], number: signal.Signals, *, at: str) -> str:
    """Send *number* when stderr says *at*; returns everything that stderr said."""
    said: list[str] = []
    assert command.stderr is not None
    for line in command.stderr:
        said.append(line)
        if at in line:
            command.send_signal(number)
            break
    said.append(command.stderr.read())
    command.wait(60)
    return "".join(said)


@pytest.mark.parametrize(("phase", "number"), [*((phase, signal.SIGINT) for phase in PHASES), ("loading", signal.SIGTERM)])
def test_a_signal_ends_a_run(shell: Shell, phase: str, number: signal.Signals) -> None:  # noqa: F811
    world = shell.world
    shell.write()
    world.source.run(f"INSERT INTO orders SELECT g, g, repeat('x', 100) FROM generate_series(1000, {ROWS}) g")
    command = start("run", "m.yaml")
    said = interrupted(command, number, at=PHASES[phase])
    assert (command.returncode, "error: run.cancelled" in said) == (130, True), said
    assert (world.staged(), "cleanup failed" in said) == ([], False), "values stay nowhere"
    assert shell("run", "m.yaml").code == 0
    assert world.target_rows(("id", "qty")) == world.source_rows(("id", "qty"))


@contextmanager
def waiting(shell: Shell, *options: str) -> Iterator[subprocess.Popen[str]]:  # noqa: F811
    """A run that waits for the lock of its source table."""
    with shell.world.source.connect(autocommit=False) as blocker:
        blocker.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        command = start("run", "m.yaml", *options)
        while not shell.world.source.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert command.poll() is None
            time.sleep(0.1)
        yield command


def test_a_run_that_waits_for_a_lock_hears_it(shell: Shell) -> None:  # noqa: F811
    with waiting(shell) as command:
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=60)
    shell.printed.append(said)
    assert (command.returncode, "error: run.cancelled" in said) == (130, True), said


def test_what_a_killed_run_left_is_told(shell: Shell) -> None:  # noqa: F811
    with waiting(shell, "--run-id", "killed") as command:
        command.kill()
        command.communicate(timeout=60)
    said = shell.refused("evidence.not_found", "evidence", "show", "m.yaml", "--run-id", "killed")
    assert "no attempt of it has told how it ended" in said and "same run id" in said
    assert shell("run", "m.yaml", "--run-id", "killed").code == 0
    assert shell("evidence", "show", "m.yaml", "--run-id", "killed").code == 0
