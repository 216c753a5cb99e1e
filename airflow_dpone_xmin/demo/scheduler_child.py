"""The demo's Airflow: a warm interpreter that never runs a task itself, and a process forked from it that does, until it is killed.

Both speak JSON lines with the demo: a command in on stdin, events out on the stream that stdout was; whatever Airflow prints goes to the
log file. Only the fault of a command is not Airflow's own: it kills the process that runs the task, with SIGKILL, at a point of the
target's transaction. The next command then meets a fresh process that knows nothing. Run as
``python -m airflow_dpone_xmin.demo.scheduler_child LOGFILE``. Imports Airflow and the target's observers.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.metadata import version
from typing import Any, TextIO

_WARM = (
    "a2wsgi",
    "airflow_dpone_xmin.demo.dags.flights",
    "airflow_dpone_xmin.hooks.endpoints",
    "airflow_dpone_xmin.hooks.mssql",
    "airflow_dpone_xmin.hooks.postgres",
    "airflow_dpone_xmin.operators.publish",
    "airflow_dpone_xmin.policy.route",
    "airflow_dpone_xmin.registry.load",
    "airflow_dpone_xmin.runtime.manifests",
    "airflow_dpone_xmin.runtime.reconcile",
    "airflow_dpone_xmin.target.postgres",
    "jinja2.ext",
    "ruamel.yaml",
)
"""What a task imports; imported before the fork."""
FAULTS = {"before_commit": "before", "after_commit": "after"}
_FIRST_RUN = datetime(2026, 1, 1, tzinfo=UTC)


class Channel:
    """The parent's end of the conversation."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def send(self, event: str, **facts: Any) -> None:
        """Write one JSON line."""
        self._stream.write(json.dumps({"event": event, **facts}) + "\n")
        self._stream.flush()


class ProgressHandler(logging.Handler):
    """Hands the operator's progress records on to the parent."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(level=logging.INFO)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send what the operator attached to the record."""
        progress = getattr(record, "dpone_progress", None)
        if progress is not None:
            self._channel.send("progress", name=progress.event, rows=progress.rows, bytes=progress.bytes, seconds=progress.seconds)


def main(log_file: str) -> None:
    """Warm up, then serve commands until stdin ends."""
    channel = Channel(_redirect(log_file))
    gc.disable()  # nothing that is built here is ever garbage
    _warm_up()
    gc.freeze()  # and its pages stay shared with every forked process
    gc.enable()
    channel.send("ready", airflow=version("apache-airflow"))
    while True:
        pid = os.fork()
        if pid == 0:
            _serve_and_exit(channel)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.WEXITSTATUS(status))  # the demo is over, or a run failed
        channel.send("ended", signal=os.WTERMSIG(status))


def _redirect(log_file: str) -> TextIO:
    """Give stdout and stderr to the log file; returns what stdout was."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    return channel


def _warm_up() -> None:
    """Create the metadata database and do the slow imports and constructions once; starts no thread, so that forking is safe."""
    from airflow import settings
    from airflow.sdk.execution_time import supervisor
    from airflow.utils.db import initdb

    initdb()
    # The execution API generates its versions at the first request: seconds in every process, unless it is done before the fork.
    initialize = getattr(supervisor.in_process_api_server().app, "_cadwyn_initialize", None)
    if initialize is not None:
        initialize()

    for name in _WARM:
        import_module(name)
    settings.dispose_orm(do_log=False)  # a connection must not cross a fork


def _serve_and_exit(channel: Channel) -> None:
    """Run what is asked for until stdin ends; only one of the forked processes lives at a time."""
    code = 1
    try:
        _prepare(channel)
        while line := sys.stdin.readline():
            _run(json.loads(line), channel)
            channel.send("ended", signal=None)
        code = 0
    except BaseException:
        logging.getLogger(__name__).exception("the demo's run failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _prepare(channel: Channel) -> None:
    from airflow import settings

    settings.configure_orm()
    logger = logging.getLogger("airflow_dpone_xmin.operators.task")
    logger.addHandler(ProgressHandler(channel))


def _run(command: dict[str, Any], channel: Channel) -> None:
    """Run the DAG once. The same number is the same DAG run: run id, logical date and run date are pinned."""
    from airflow_dpone_xmin.demo.dags.flights import dag

    if command.get("fault"):
        _install_fault(FAULTS[command["fault"]])
    when = _FIRST_RUN + timedelta(days=int(command["run"]))
    run = dag.test(run_after=when, logical_date=when)
    (instance,) = run.get_task_instances()
    summary = instance.xcom_pull(task_ids=instance.task_id) if run.state == "success" else None
    channel.send("result", state=str(run.state), run_id=run.run_id, summary=summary)


def _install_fault(phase: str) -> None:
    """Kill this process around the COMMIT that follows the target's DML."""
    from airflow_dpone_xmin.target.engine import OBSERVERS, Event

    seen: list[str] = []

    def observer(event: Event) -> None:
        if event.label.startswith("finalize."):
            seen.append(event.label)
        if seen and event.label == "transaction.commit" and event.phase == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    OBSERVERS.append(observer)


if __name__ == "__main__":
    main(sys.argv[1])
