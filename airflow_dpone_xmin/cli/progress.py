"""Progress of a run on a terminal, plain lines elsewhere; Ctrl-C becomes a clean cancellation. Imports rich lazily.

Work runs in a thread of its own: a driver in the main thread may keep the signal for itself.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_dpone_xmin.contracts.progress import Listener, Progress
from airflow_dpone_xmin.runtime.progress import describe_progress
from airflow_dpone_xmin.runtime.worker import cancellable

if TYPE_CHECKING:
    from airflow_dpone_xmin.cli.output import Output
    from airflow_dpone_xmin.contracts.campaign import CampaignProgress

WATCH_SECONDS = 3.0
#: How long a driver may take to answer Ctrl-C.
_GRACE_SECONDS = 30.0

Caller = Callable[..., Any]
"""Calls a use case with what it is given, ``progress`` and ``cancel``; returns its result."""


@contextmanager
def live_progress(output: Output) -> Iterator[Caller]:
    """Calls whose progress is printed, and which the first Ctrl-C or SIGTERM cancels."""
    if output.is_json or not output.err.is_terminal:
        yield _caller(_plain(output))
        return
    with output.err.status("connecting") as status:

        def show(progress: Progress) -> None:
            status.update(describe_progress(progress))
            if not progress.event.endswith("_PROGRESS"):
                output.note(describe_progress(progress))

        yield _caller(show)


@contextmanager
def chunk_progress(output: Output, before: CampaignProgress | None) -> Iterator[Caller]:
    """The same for a campaign: one bar over its chunks on a terminal.

    :param before: where the campaign stands; None when it may not be open yet.
    """
    if output.is_json or not output.err.is_terminal:
        yield _caller(_plain(output))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("chunks"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rows]:,} rows"), TimeRemainingColumn())
    with Bar(*columns, console=output.err) as bar:
        done, rows = (before.committed, before.rows) if before else (0, 0)
        task = bar.add_task("chunks", total=len(before.chunks) if before else None, completed=done, rows=rows)

        def show(progress: Progress) -> None:
            if progress.event == "CHUNK_COMPLETE":
                bar.update(task, advance=1, total=progress.total, rows=bar.tasks[0].fields["rows"] + progress.rows)
            elif not progress.event.endswith("_PROGRESS"):
                output.note(describe_progress(progress))

        yield _caller(show)


def watch_campaign(output: Output, look: Callable[[], CampaignProgress]) -> CampaignProgress:
    """Look until every chunk is committed or Ctrl-C; returns the last look."""
    found = look()
    with output.err.status("looking") as status, suppress(KeyboardInterrupt):
        while not found.complete:
            status.update(found.sentence())
            time.sleep(WATCH_SECONDS)
            found = look()
    return found


def _caller(listener: Listener) -> Caller:
    def call(use_case: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        running = cancellable(use_case, *arguments, **named, listener=listener, grace=_GRACE_SECONDS)
        before = {number: signal.signal(number, lambda *_: running.request_stop()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return running.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return call


def _plain(output: Output) -> Listener:
    def show(progress: Progress) -> None:
        if not progress.event.endswith("_PROGRESS"):
            output.note(describe_progress(progress))

    return show
