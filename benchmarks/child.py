"""What runs in a process of its own, so that its CPU and memory are its own. Only plain data crosses the border."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psutil
from uuid6 import uuid7

from airflow_dpone_xmin.contracts.envelope import Envelope
from airflow_dpone_xmin.contracts.progress import Cancellation, Progress
from airflow_dpone_xmin.runtime.campaign import open_campaign, publish_campaign
from airflow_dpone_xmin.runtime.lanes import run_lanes
from airflow_dpone_xmin.target.connect import engine_of
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.lease import staging_lease
from airflow_dpone_xmin.target.staging import stage_envelope
from tests.beside import beside
from tests.children import CONTEXT, Job, start
from tests.measured import idle, resident

_MIB = 2**20
_TIMEOUT_SECONDS = 3000


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call *function* in a new process; :raises RuntimeError: what it raised there."""
    answers = CONTEXT.Queue()
    child = start(_answer, answers, function, arguments)
    done, answer = answers.get(timeout=_TIMEOUT_SECONDS)
    child.join(30)
    if not done:
        raise RuntimeError(answer)
    return answer


def _answer(answers: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answers.put((True, function(*arguments)))
    except BaseException as error:
        answers.put((False, f"{type(error).__name__}: {error}"))


@contextlib.contextmanager
def statements() -> Iterator[dict[str, float]]:
    """Seconds that every labelled statement and bulk load of the target side took, summed by label."""
    seconds: dict[str, float] = {}
    begun: dict[str, float] = {}

    def observe(event: Event) -> None:
        if event.phase == "before":
            begun[event.label] = time.perf_counter()
        else:
            seconds[event.label] = seconds.get(event.label, 0.0) + time.perf_counter() - begun.pop(event.label)

    OBSERVERS.append(observe)
    try:
        yield seconds
    finally:
        OBSERVERS.remove(observe)


# ---- one whole run --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RunResult:
    """One run: seconds of every phase, rows that were extracted, MiB above idle."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    payload: int
    phases: dict[str, float]
    statements: dict[str, float]


def whole_run(warm: Job, job: Job) -> RunResult:
    """Warm up on another route, then run *job*."""
    warm.run()
    before = idle()
    cpu, started = time.process_time(), time.perf_counter()
    with statements() as told:
        outcome = job.run()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    counts = outcome.receipt.counts
    phases = {str(phase["event"]): float(phase["seconds"]) for phase in outcome.phases}
    return RunResult(seconds, cpu, (resident()[1] - before) / _MIB, counts.payload, phases, told)


# ---- staging --------------------------------------------------------------------------------------------------------------
@dataclass
class Stager:
    """Stages one extraction again and again, under a real lease; nothing is finalized."""

    job: Job
    envelope: Envelope
    load_id: UUID = field(default_factory=lambda: UUID(int=uuid7().int))

    def timed(self, count: int) -> list[tuple[dict[str, float], dict[str, float]]]:
        """Per repetition: wall and CPU seconds of every staging phase."""
        with contextlib.closing(engine_of(self.job.route, self.job.endpoints)) as engine:
            with staging_lease(engine, self.job.route, self.load_id, cancel=Cancellation()) as lease:
                results = []
                for _ in range(count):
                    clock = _Clock()
                    stage_envelope(
                        engine, lease.work, self.envelope, load_id=self.load_id, lease=lease, progress=clock, cancel=Cancellation()
                    )
                    results.append((clock.wall, clock.cpu))
                    engine.drop_stages(lease.work, [self.load_id])
            return results


class _Clock:
    """A progress listener that notes wall and CPU time between events."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self._last = (time.perf_counter(), time.process_time())

    def __call__(self, progress: Progress) -> None:
        now = (time.perf_counter(), time.process_time())
        self.wall[progress.event], self.cpu[progress.event] = now[0] - self._last[0], now[1] - self._last[1]
        self._last = now


def staging(warm: Job, job: Job, envelope: Envelope, count: int) -> list[tuple[dict[str, float], dict[str, float]]]:
    """As :meth:`Stager.timed`, in a warm process."""
    warm.run()
    return Stager(job, envelope).timed(count)


# ---- lanes ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Filled:
    """One campaign: greatest resident MiB of its processes, and seconds of its parts.

    ``start`` is the first part of ``fill``, until a lane took a chunk.
    """

    rows: int
    chunks: int
    seconds: dict[str, float]
    parent_mib: float
    lane_mib: list[float]


def campaign(warm: Job, job: Job, lanes: int) -> Filled:
    """Open, fill by *lanes* interpreters, publish."""
    warm.run()
    idle()
    known: dict[str, Any] = {"endpoints": job.endpoints}
    first: list[float] = []

    def heard(progress: Progress) -> None:
        if progress.event == "CHUNK_COMPLETE" and not first:
            first.append(time.perf_counter() - progress.seconds)

    marks = [time.perf_counter()]
    open_campaign(job.route, job.run_id, **known)
    marks.append(time.perf_counter())
    with watched() as peaks:
        done = run_lanes(job.route, job.run_id, lanes, progress=heard, **known)
    marks.append(time.perf_counter())
    publish_campaign(job.route, job.run_id, **known)
    marks.append(time.perf_counter())
    seconds = {name: after - before for name, before, after in zip(("open", "fill", "publish"), marks, marks[1:], strict=False)}
    seconds["start"] = first[0] - marks[1]
    # multiprocessing's resource tracker is a child too; a lane is far larger
    lane_mib = sorted(peaks.values(), reverse=True)[:lanes]
    return Filled(done.rows, done.chunks, seconds, resident()[1] / _MIB, [size / _MIB for size in lane_mib])


@contextlib.contextmanager
def watched() -> Iterator[dict[int, int]]:
    """Greatest resident bytes of this process's children, which the kernel keeps: process id → bytes."""
    peaks: dict[int, int] = {}

    def watch(stop: threading.Event) -> None:
        me = psutil.Process()
        while not stop.wait(0.05):
            for child in me.children(recursive=True):
                with contextlib.suppress(OSError, KeyError):  # it has just ended, or is about to
                    peaks[child.pid] = resident(child.pid)[1]

    with beside(watch):
        yield peaks


def processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))
