"""Work that goes on beside a block of the test's own, until the block is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
