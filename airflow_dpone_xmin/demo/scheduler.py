"""The parent's side of the demo's Airflow: start it with a home of its own, run a DAG run, end it. Imports the standard library.

Everything that Airflow would find in its environment is set here; nothing of the user's own Airflow is read or touched.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint

READY_SECONDS, RUN_SECONDS = 180.0, 180.0
"""After these the demo gives up: only a broken installation is that slow."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the process of one DAG run ended.

    :param summary: the task's XCom, None unless the run succeeded.
    :param signal: the signal that killed the process, or None.
    """

    summary: Mapping[str, Any] | None
    signal: int | None


class DemoAirflow:
    """Airflow in a process group of its own.

    :param directory: private directory for home, metadata database and log.
    :param environment: more variables, for example connections and the provider's configuration.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.log = directory / "airflow.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "DPONE", "PYTHONWARNINGS"))}
        own = {
            "AIRFLOW_HOME": str(directory / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).with_name("dags")),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "airflow_dpone_xmin.demo.scheduler_child", str(self.log)],
            env={**kept, **own, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="demo-airflow", daemon=True).start()

    def wait_ready(self) -> str:
        """Wait for the warm interpreter.

        :returns: Airflow's version.
        """
        return str(self._next(READY_SECONDS)["airflow"])

    def run(self, number: int, *, fault: str | None = None, heard: Callable[[dict[str, Any]], None]) -> RunResult:
        """Run the DAG once; the same number again is another attempt of the same DAG run.

        :param fault: ``before_commit`` or ``after_commit``: where the process is killed.
        :param heard: is told the operator's progress events.
        :raises XminError: ``run.unexpected`` when the DAG run failed, or ended otherwise than the fault asks for.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"run": number, "fault": fault}) + "\n")
        self._process.stdin.flush()
        summary, state = None, None
        while True:
            event = self._next(RUN_SECONDS)
            if event["event"] == "progress":
                heard(event)
            elif event["event"] == "result":
                summary, state = event["summary"], event["state"]
            elif event["event"] == "ended":
                break
        killed = event["signal"] == signal.SIGKILL
        if killed is not (fault is not None) or (fault is None and state != "success"):
            raise XminError("run.unexpected", f"Run {number} of the demo's DAG ended {state or 'without a result'}.")
        return RunResult(summary, event["signal"])

    def tail(self, lines: int) -> list[str]:
        """The last lines of Airflow's log."""
        try:
            return self.log.read_text(errors="replace").splitlines()[-lines:]
        except OSError:
            return []

    def close(self) -> None:
        """Kill whatever still runs; safe to call twice."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError, OSError):  # closed under us
            for line in self._process.stdout:
                self._events.put(json.loads(line))
        self._events.put({"event": "gone"})

    def _next(self, timeout: float) -> dict[str, Any]:
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            raise XminError("run.unexpected", f"The demo's Airflow did not answer within {timeout:.0f} s.") from None
        if event["event"] == "gone":
            raise XminError("run.unexpected", "The demo's Airflow ended by itself.")
        return event


def connection_variables(endpoints: Mapping[str, Endpoint]) -> dict[str, str]:
    """Airflow's environment variables for connections to these endpoints."""
    return {
        f"AIRFLOW_CONN_{entry.upper()}": json.dumps(
            {"conn_type": "postgres", "host": endpoint.host, "schema": endpoint.database, "login": endpoint.user}
        )
        for entry, endpoint in endpoints.items()
    }
