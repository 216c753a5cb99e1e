"""A live Airflow: scheduler, DAG processor, triggerer and API server as ``airflow standalone`` starts them, with the LocalExecutor."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

READY_SECONDS, STATE_SECONDS = 400.0, 600.0
"""Generous: they only bound how long a broken installation is waited for."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class LiveAirflow:
    """Airflow in a process group of its own, on a PostgreSQL metadata database.

    :param home: an empty directory; DAG files are in its ``dags``.
    :param variables: connections, provider configuration and other settings.
    """

    USERS: Mapping[str, str] = {"admin": "ADMIN", "viewer": "VIEWER"}

    def __init__(self, home: Path, *, metadata: str, variables: Mapping[str, str]) -> None:
        self.home, self.port = home, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        passwords = home / "passwords.json"
        passwords.write_text(json.dumps({name: f"{name}-password" for name in self.USERS}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "DPONE"))}
        self.environment = {
            **kept,
            # `airflow standalone` looks its components up by name
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in self.USERS.items()),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "4",
            **variables,
        }
        self._tokens: dict[str, str] = {}
        self._log = (home / "standalone.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self, *dags: str) -> None:
        """Wait until every component is healthy and these DAGs are known."""
        wanted = {"metadatabase", "scheduler", "triggerer", "dag_processor"}

        def healthy() -> bool:
            state = self.get("/api/v2/monitor/health", user=None)
            return all(state[name]["status"] == "healthy" for name in wanted)

        self.until(healthy, "Airflow is healthy", seconds=READY_SECONDS)
        self.until(lambda: {dag["dag_id"] for dag in self.get("/api/v2/dags")["dags"]} >= set(dags), f"{dags} are parsed")

    def close(self) -> None:
        """End every process, tasks in sessions of their own and stopped ones too."""
        everybody = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        self._process.terminate()
        _, alive = psutil.wait_procs(everybody, timeout=20)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- REST -----------------------------------------------------------------------------------------------------------------
    def call(self, method: str, path: str, body: Any = None, *, user: str | None = "admin") -> tuple[int, str]:
        """Status and text of one request."""
        headers = {"Content-Type": "application/json"} | ({} if user is None else {"Authorization": f"Bearer {self.token(user)}"})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path: str, *, user: str | None = "admin") -> Any:
        """JSON of a page."""
        status, text = self.call("GET", path, user=user)
        assert status == 200, f"{path}: {status} {text[:500]}"
        return json.loads(text)

    def send(self, method: str, path: str, body: Any) -> Any:
        """JSON answer of a change."""
        status, text = self.call(method, path, body)
        assert status in (200, 201), f"{path}: {status} {text[:500]}"
        return json.loads(text)

    def token(self, user: str) -> str:
        """A login by name and password."""
        if user not in self._tokens:
            status, text = self.call("POST", "/auth/token", {"username": user, "password": f"{user}-password"}, user=None)
            assert status == 201, text
            self._tokens[user] = json.loads(text)["access_token"]
        return self._tokens[user]

    # ---- DAG runs -------------------------------------------------------------------------------------------------------------
    def trigger(self, dag: str, run_id: str, **conf: Any) -> None:
        """Unpause a DAG and start a run of it, as the UI's form does."""
        self.send("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})
        self.send("POST", f"/api/v2/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": conf})

    def task(self, dag: str, run_id: str, task: str) -> Any:
        """The task instance."""
        return self.get(f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}")

    def wait_task(self, dag: str, run_id: str, task: str, state: str) -> Any:
        """Wait until the task is in a state; fails with its log when it ends in another one."""

        def reached() -> bool:
            seen = self.task(dag, run_id, task)["state"]
            assert seen == state or seen not in ("success", "failed", "upstream_failed"), f"{task} {seen}\n{self.log(dag, run_id, task)}"
            return bool(seen == state)

        self.until(reached, f"{dag}.{task} is {state}")
        return self.task(dag, run_id, task)

    def wait_run(self, dag: str, run_id: str) -> None:
        """Wait until all tasks of a run succeeded."""

        def ended() -> bool:
            state = self.get(f"/api/v2/dags/{dag}/dagRuns/{run_id}")["state"]
            assert state != "failed", f"{dag} {run_id} failed; see {self.home}"
            return bool(state == "success")

        self.until(ended, f"{dag} {run_id} is done")

    def xcom(self, dag: str, run_id: str, task: str, *, key: str = "return_value", map_index: int = -1) -> Any:
        """What the task returned."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/xcomEntries/{key}?deserialize=true&map_index={map_index}"
        return self.get(path)["value"]

    def log(self, dag: str, run_id: str, task: str, *, attempt: int | None = None) -> str:
        """The log of an attempt, the newest by default."""
        number = attempt or self.task(dag, run_id, task)["try_number"]
        return self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/logs/{number}?full_content=true")[1]

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = STATE_SECONDS) -> None:
        """Wait for something; a server that is not up yet counts as not yet."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            assert self._process.poll() is None, "airflow standalone has ended:\n" + self.tail()
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.tail()}"
            time.sleep(1)

    def tail(self) -> str:
        """The end of what the components printed."""
        return "\n".join((self.home / "standalone.log").read_text(errors="replace").splitlines()[-40:])
