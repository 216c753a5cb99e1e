"""Lanes inside one task: ``spawn``ed interpreters, each with connections of its own, that end with their parent.

The parent resolves the endpoints and hands them over the pipe; nothing secret is on a command line or in the environment. A lane's death
costs its chunk's lease, no more: the others go on. Imports everything below runtime.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from airflow_dpone_xmin.contracts.campaign import CampaignState
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress, silent
from airflow_dpone_xmin.contracts.route import EndpointResolver, FixedEndpoints, Route
from airflow_dpone_xmin.runtime.campaign import open_campaign, publish_campaign, spec_of
from airflow_dpone_xmin.runtime.evidence import Outcome
from airflow_dpone_xmin.runtime.lane import LaneResult, run_lane
from airflow_dpone_xmin.target.repair import RepairSelection

_SPAWN = multiprocessing.get_context("spawn")
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 20.0
"""How long a cancelled lane may take before it is killed; below the grace of a killed Airflow task."""
_ORPHANED = 70


def resolved(route: Route, endpoints: EndpointResolver) -> FixedEndpoints:
    """All endpoints of a route; :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``."""
    wanted = {route.source.entry: route.source_conn_id, route.sink_entry: route.sink_conn_id, route.state_entry: route.state_conn_id}
    return FixedEndpoints({entry: endpoints(entry, conn_id=conn_id) for entry, conn_id in wanted.items()})


@dataclass(slots=True)
class _Child:
    """One lane as its parent sees it.

    :param result: LaneResult, or the error that stopped it; None when it died without a word.
    """

    process: SpawnProcess
    pipe: Connection
    result: LaneResult | XminError | None = None


def run_lanes(
    route: Route,
    run_id: str,
    lanes: int,
    *,
    endpoints: EndpointResolver,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> LaneResult:
    """Run *lanes* interpreters until every chunk is committed.

    :returns: what they did together. A lane that failed is no failure as long as another one finished its work.
    :raises XminError: the first lane's error when chunks are left, ``campaign.lane_failed``, ``run.cancelled``.
    """
    cancel, fixed = cancel or Cancellation(), resolved(route, endpoints)
    children = [_start(route, run_id, lane, fixed) for lane in range(lanes)]
    try:
        _follow(children, progress=progress, cancel=cancel)
    finally:
        _end(children)
    finished = [child.result for child in children if isinstance(child.result, LaneResult)]
    if not finished:
        raise _first_failure(children)
    return LaneResult(chunks=sum(part.chunks for part in finished), rows=sum(part.rows for part in finished))


def run_campaign(
    route: Route,
    run_id: str,
    lanes: int | None = None,
    *,
    endpoints: EndpointResolver,
    repair: RepairSelection | None = None,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> Outcome:
    """Open, fill with lanes of this process, publish: the whole campaign, or what of it is left.

    :param lanes: how many; as authored by default.
    :raises XminError: as the three parts.
    """
    common: dict[str, Any] = {"endpoints": endpoints, "progress": progress, "cancel": cancel or Cancellation()}
    opened = open_campaign(route, run_id, repair=repair, **common)
    if opened.campaign.state is CampaignState.OPEN and not opened.complete:
        run_lanes(route, run_id, lanes or spec_of(route).lanes, **common)
    return publish_campaign(route, run_id, repair=repair, **common)


def _start(route: Route, run_id: str, lane: int, endpoints: FixedEndpoints) -> _Child:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_main, args=(theirs, route, run_id, lane, endpoints), name=f"dpone-xmin-lane-{lane}", daemon=True)
    with _allowed_children():
        process.start()
    theirs.close()
    return _Child(process, ours)


@contextmanager
def _allowed_children() -> Iterator[None]:
    """Celery's pool workers are daemonic, which the standard library takes as a reason to refuse children: they might be orphaned.

    Ours end with their parent (:func:`_end_with_parent`), so the flag is lifted while one starts.
    """
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    daemon = config.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            config["daemon"] = daemon


def _follow(children: list[_Child], *, progress: Listener, cancel: Cancellation) -> None:
    """Hear every lane out; a lane that finds the campaign complete ends by itself."""
    open_pipes = {child.pipe: child for child in children}
    asked_at: float | None = None
    while open_pipes:
        for ready in wait(list(open_pipes), timeout=_POLL_SECONDS):
            assert isinstance(ready, Connection)
            child = open_pipes[ready]
            try:
                kind, value = ready.recv()
            except (EOFError, OSError):
                del open_pipes[ready]
                continue
            if kind == "progress":
                progress(value)
            else:
                child.result = value
        if cancel.cancelled and asked_at is None:
            asked_at = time.monotonic()
            for child in children:
                child.process.terminate()
        if asked_at is not None and time.monotonic() - asked_at > _GRACE_SECONDS:
            break
    cancel.check()


def _end(children: list[_Child]) -> None:
    for child in children:
        child.process.join(0 if child.result is None else _POLL_SECONDS)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
        child.pipe.close()


def _first_failure(children: list[_Child]) -> XminError:
    told = next((child.result for child in children if isinstance(child.result, XminError)), None)
    return told or XminError(
        "campaign.lane_failed", f"All lanes died without a word; exit codes {[child.process.exitcode for child in children]}."
    )


# ---- in the lane's interpreter ----------------------------------------------------------------------------------------------
def _main(pipe: Connection, route: Route, run_id: str, lane: int, endpoints: FixedEndpoints) -> None:
    cancel = Cancellation()
    threading.Thread(target=_end_with_parent, name="dpone-xmin-parent", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the parent, which asks us to stop
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=cancel.cancel, daemon=True).start())

    def tell(event: Progress) -> None:
        pipe.send(("progress", event))

    result: Any
    try:
        result = run_lane(route, run_id, lane, endpoints=endpoints, progress=tell, cancel=cancel)
    except XminError as error:
        result = error
    except Exception as fault:  # its text may quote what a driver was given
        result = XminError("run.unexpected", f"Unexpected {type(fault).__name__} in lane {lane}.")
    pipe.send(("end", result))
    pipe.close()


def _end_with_parent() -> None:
    """No orphan: without a parent nobody would hear of the lane's work."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(_ORPHANED)
