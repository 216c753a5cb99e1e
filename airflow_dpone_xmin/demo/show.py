"""What the demo prints: one line per step with a bar while it runs, and one table at the end. Imports rich."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

WIDE = 112
"""Columns of a terminal from which the long headings fit."""
_TITLE = 45
_COUNTS = (
    ("payload", "payload"),
    ("inserted", "insert"),
    ("updated", "update"),
    ("reactivated", "react."),
    ("unchanged", "same"),
    ("deleted", "delete"),
    ("active", "active"),
)
_OUTCOMES = {"committed": "green", "replayed": "cyan", "rolled back": "yellow"}


@dataclass(slots=True)
class Row:
    """One line of the final table.

    :param counts: by name; a run that was killed has only ``active``.
    :param seconds: wall clock of the whole DAG run.
    """

    step: str
    outcome: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The row for programs."""
        counts = {name: self.counts[name] for name, _ in _COUNTS if name in self.counts}
        return {"run": self.step, "outcome": self.outcome, "seconds": round(self.seconds, 2), **counts}


class Step:
    """A step that is running; tell it how far it is."""

    def __init__(self, bars: Progress, task: TaskID | None) -> None:
        self._bars, self._task = bars, task
        self._started = self._ended = time.monotonic()
        self.detail = ""

    def at(self, share: float, detail: str = "") -> None:
        """Move the bar; it never moves backwards.

        :param share: 0 to 1.
        :param detail: short words beside the bar.
        """
        self.detail = detail or self.detail
        if self._task is not None:
            completed = max(share, self._bars.tasks[self._task].completed)
            self._bars.update(self._task, completed=completed, detail=self.detail)

    def end(self) -> None:
        """Stop the clock."""
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """Duration, once it has ended."""
        return self._ended - self._started


class Show:
    """The demo's screen: live bars on a terminal, one plain line per finished step elsewhere.

    :param console: where to print; None prints nothing.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._live = console is not None and console.is_terminal
        columns = (_Mark(), _Title(), _Seconds(), _BarThenDetail())
        self._bars = Progress(*columns, console=console, disable=not self._live, refresh_per_second=8)

    def __enter__(self) -> Show:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def heading(self, title: str, text: str) -> None:
        """Print the first lines."""
        if self._console is not None:
            self._console.print(Text(title, style="bold"))
            self._console.print(Text(text, style="dim"))
            self._console.print()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """A step of the demo; its line stays when it is done, and turns red when it fails."""
        task = self._bars.add_task(title, total=1.0, detail="", failed=False) if self._live else None
        step = Step(self._bars, task)
        try:
            yield step
        except BaseException:
            if task is not None:
                self._bars.stop_task(task)
                self._bars.update(task, failed=True)
            raise
        step.end()
        if task is not None:
            self._bars.update(task, completed=1.0, detail=step.detail)
        elif self._console is not None:
            self._console.print(f"{title:<{_TITLE}} {step.seconds:5.1f} s  {step.detail}".rstrip(), markup=False)

    def table(self, rows: Sequence[Row]) -> None:
        """Print the final table, narrow enough for 80 columns where it must be."""
        if self._console is not None:
            self._console.print()
            self._console.print(result_table(rows, wide=self._console.width >= WIDE))

    def lines(self, *lines: Text | str) -> None:
        """Print closing lines."""
        if self._console is not None:
            for line in lines:
                self._console.print(line, soft_wrap=True, markup=False)


def result_table(rows: Sequence[Row], *, wide: bool) -> Table:
    """The table of all runs.

    :param wide: long headings; the short ones fit 80 columns.
    """
    # the box itself draws one space between two columns
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if wide else 0), show_edge=False)
    table.add_column("run", no_wrap=True)
    for long, short in _COUNTS:
        table.add_column(long if wide else short, justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for row in rows:
        table.add_row(
            row.step, *(_count(row, name) for name, _ in _COUNTS), f"{row.seconds:.1f}", Text(row.outcome, _OUTCOMES[row.outcome])
        )
    return table


def _count(row: Row, name: str) -> Text:
    if name not in row.counts:
        return Text("·", style="dim")
    return Text(f"{row.counts[name]:,}", style="dim" if row.counts[name] == 0 else "")


class _Mark(ProgressColumn):
    """A tick when done, a cross when failed."""

    def render(self, task: Task) -> Text:
        if task.fields["failed"]:
            return Text("✗", style="red")
        return Text("✓", style="green") if task.finished else Text("·", style="cyan")


class _Title(ProgressColumn):
    def get_table_column(self) -> Column:
        return Column(no_wrap=True, width=_TITLE)

    def render(self, task: Task) -> Text:
        return Text(task.description)


class _Seconds(ProgressColumn):
    def render(self, task: Task) -> Text:
        elapsed = task.finished_time if task.finished else task.elapsed
        return Text(f"{elapsed or 0.0:5.1f} s", style="dim")


class _BarThenDetail(ProgressColumn):
    """A bar and the phase while it runs, a few words when it is over."""

    def render(self, task: Task) -> RenderableType:
        detail = Text(task.fields["detail"], style="dim", no_wrap=True, overflow="ellipsis")
        if task.finished or task.fields["failed"]:
            return detail
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=1.0, completed=task.completed, width=10, complete_style="cyan"), detail)
        return grid
