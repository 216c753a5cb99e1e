"""Progress of a run on a terminal, plain lines elsewhere; Ctrl-C becomes a clean cancellation. Imports rich lazily."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress
from airflow_dpone_xmin.runtime.progress import describe_progress

if TYPE_CHECKING:
    from airflow_dpone_xmin.cli.output import Output


@contextmanager
def live_progress(output: Output) -> Iterator[tuple[Listener, Cancellation]]:
    """A listener that prints, and a cancellation that the first Ctrl-C or SIGTERM sets."""
    cancel = Cancellation()

    def stop(_: int, __: FrameType | None) -> None:
        cancel.cancel()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if output.is_json or not output.err.is_terminal:
            yield _plain(output), cancel
        else:
            with output.err.status("connecting") as status:

                def show(progress: Progress) -> None:
                    status.update(describe_progress(progress))
                    if not progress.event.endswith("_PROGRESS"):
                        output.note(describe_progress(progress))

                yield show, cancel
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plain(output: Output) -> Listener:
    def show(progress: Progress) -> None:
        if not progress.event.endswith("_PROGRESS"):
            output.note(describe_progress(progress))

    return show
