"""Progress of a run on a terminal, plain lines elsewhere; Ctrl-C becomes a clean cancellation. Imports rich lazily."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress
from airflow_dpone_xmin.runtime.progress import describe_progress

if TYPE_CHECKING:
    from airflow_dpone_xmin.cli.output import Output
    from airflow_dpone_xmin.contracts.campaign import CampaignProgress

WATCH_SECONDS = 3.0


@contextmanager
def live_progress(output: Output) -> Iterator[tuple[Listener, Cancellation]]:
    """A listener that prints, and a cancellation that the first Ctrl-C or SIGTERM sets."""
    with _cancelled_by_signal() as cancel:
        if output.is_json or not output.err.is_terminal:
            yield _plain(output), cancel
        else:
            with output.err.status("connecting") as status:

                def show(progress: Progress) -> None:
                    status.update(describe_progress(progress))
                    if not progress.event.endswith("_PROGRESS"):
                        output.note(describe_progress(progress))

                yield show, cancel


@contextmanager
def chunk_progress(output: Output, before: CampaignProgress | None) -> Iterator[tuple[Listener, Cancellation]]:
    """The same for a campaign: one bar over its chunks on a terminal.

    :param before: where the campaign stands; None when it may not be open yet.
    """
    with _cancelled_by_signal() as cancel:
        if output.is_json or not output.err.is_terminal:
            yield _plain(output), cancel
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

            yield show, cancel


def watch_campaign(output: Output, look: Callable[[], CampaignProgress]) -> CampaignProgress:
    """Look until every chunk is committed or the first Ctrl-C; returns the last look."""
    with live_progress(output) as (_, cancel), output.err.status("looking") as status:
        while True:
            found = look()
            status.update(found.sentence())
            if found.complete or cancel.wait(WATCH_SECONDS):
                return found


@contextmanager
def _cancelled_by_signal() -> Iterator[Cancellation]:
    cancel = Cancellation()

    def stop(_: int, __: FrameType | None) -> None:
        cancel.cancel()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancel
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plain(output: Output) -> Listener:
    def show(progress: Progress) -> None:
        if not progress.event.endswith("_PROGRESS"):
            output.note(describe_progress(progress))

    return show
