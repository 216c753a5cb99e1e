"""What others do meanwhile: beside a block of the test's own until it is left, or before one step of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_dpone_xmin.target.engine import OBSERVERS, Event


@contextmanager
def beside(work: Callable[[threading.Event], None], *, seconds: float = 30) -> Iterator[None]:
    """Run *work* in a thread; what it raised fails the block.

    :param work: returns soon after its event is set.
    :param seconds: how long its end is waited for.
    """
    stop, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(seconds)
    assert not failed, failed


@contextmanager
def before(label: str, act: Callable[[Event], None], *, nth: int = 1) -> Iterator[list[Event]]:
    """Act before the *nth* step of that label."""
    seen: list[Event] = []

    def observer(event: Event) -> None:
        if event.phase == "before" and event.label == label:
            seen.append(event)
            if len(seen) == nth:
                act(event)

    OBSERVERS.append(observer)
    try:
        yield seen
    finally:
        OBSERVERS.remove(observer)
    assert len(seen) >= nth, f"{label} was not reached"
