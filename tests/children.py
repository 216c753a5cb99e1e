"""Runs in processes of their own, forked from a server that has the product imported already.

Only plain data crosses the border: a route, endpoints, and where to stop.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint, Route
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.runtime.reconcile import reconcile
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.repair import RepairSelection
from tests.flavour import forgive_grants
from tests.world import World

CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Job:
    """One run of one route, as a value."""

    route: Route
    known: Mapping[str, Endpoint]
    run_id: str
    repair: RepairSelection | None = None
    forgiving: bool = False

    @classmethod
    def of(cls, world: World, run_id: str, *, repair: RepairSelection | None = None) -> Job:
        return cls(world.route(), {"src": world.source.endpoint(), "dwh": world.target.endpoint()}, run_id, repair, world.forgiving)

    def endpoints(self, entry: str, *, conn_id: str) -> Endpoint:
        return self.known[entry]

    def forgive(self) -> None:
        """What the fixtures do for the test's own process."""
        if self.forgiving and multiprocessing.parent_process() is not None:
            forgive_grants(pytest.MonkeyPatch())

    def run(self, **kw: Any) -> Any:
        self.forgive()
        invocation = Invocation(process=self.route.process, run_id=self.run_id)
        return reconcile(self.route, invocation, endpoints=self.endpoints, repair=self.repair, **kw)


def start(target: Any, *arguments: Any) -> ForkServerProcess:
    """Start a child; the first one of a test process also starts the fork server."""
    CONTEXT.set_forkserver_preload([__name__])
    child = CONTEXT.Process(target=target, args=arguments)
    child.start()
    return child


def die() -> None:
    """End this process at once, without any clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_at_gate(job: Job, gate: Any, label: str | None, answers: Any) -> None:
    """Run, but wait at *gate* before the first step *label* (before the run when None); answer with (status, receipt or code)."""
    waited = label is None
    if label is None:
        gate.wait(60)

    def observer(event: Event) -> None:
        nonlocal waited
        if event.phase == "before" and event.label == label and not waited:
            waited = True
            gate.wait(60)

    OBSERVERS.append(observer)
    try:
        answers.put(_answer(job, lambda: waited))
    except BaseException as error:
        answers.put(("crashed", f"{type(error).__name__}: {error}", None))


def _answer(job: Job, at_gate: Callable[[], bool]) -> tuple[Any, ...]:
    while True:
        try:
            outcome = job.run()
        except XminError as error:
            if error.retryable and not at_gate():
                continue  # lost a race of admissions, before the one that is looked at
            return ("refused", error.code, error.retryable)
        return (outcome.status, str(outcome.receipt.receipt_id), None)
