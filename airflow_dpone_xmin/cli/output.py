"""What a person or a program sees: one result, or one error with code, message and hint.

``human`` writes results to stdout and everything else to stderr. ``json`` writes exactly one JSON document to stdout, an error too
(``{"error": {…}}``). Imports the standard library and contracts.errors; rich lazily.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from uuid import UUID

from airflow_dpone_xmin.contracts.errors import XminError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_RETRYABLE = 75
"""``EX_TEMPFAIL`` of sysexits.h: the same invocation may be tried again."""
EXIT_INTERRUPTED = 130

#: Columns of a log: no table of ours is wider, and none is cut.
_UNBOUNDED = 1_000_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class OutputFormat(str, Enum):
    """How a command prints."""

    HUMAN = "human"
    JSON = "json"


class Output:
    """Prints results and errors of one command.

    :param format: ``human`` or ``json``.
    """

    def __init__(self, format: OutputFormat = OutputFormat.HUMAN) -> None:
        self.format = format
        self._stdout = sys.stdout  # kept, since commands run with stdout redirected: libraries print to it, too

    @property
    def is_json(self) -> bool:
        """Whether stdout carries one JSON document."""
        return self.format is OutputFormat.JSON

    @cached_property
    def console(self) -> Console:
        """Standard output for people: colours and boxes only on a terminal."""
        return _console(self._stdout)

    @cached_property
    def err(self) -> Console:
        """Standard error for people."""
        return _console(sys.stderr)

    def result(self, data: Mapping[str, Any], human: Callable[[Console], None]) -> None:
        """Print the result of a command.

        :param data: the whole result for programs.
        :param human: prints the same for people.
        """
        if self.is_json:
            self._write(data)
        else:
            human(self.console)

    def note(self, message: str) -> None:
        """Tell a person something beside the result; silent in ``json``."""
        if not self.is_json:
            self.err.print(clean(message), style="dim", markup=False, highlight=False)

    def error(self, error: XminError) -> None:
        """Print a refusal or failure."""
        if self.is_json:
            self._write({"error": error.to_dict()})
        else:
            print_error(self.err, error)

    def _write(self, data: object) -> None:
        self._stdout.write(to_json(data) + "\n")
        self._stdout.flush()


def exit_code(error: XminError) -> int:
    """The process's exit code for *error*."""
    if error.code == "run.cancelled":
        return EXIT_INTERRUPTED
    return EXIT_RETRYABLE if error.retryable else EXIT_REFUSED


def to_json(data: object) -> str:
    """JSON text of a result; digests as hexadecimal, times as ISO 8601, decimals as text."""
    return json.dumps(data, default=_plain, indent=2, ensure_ascii=False)


def clean(text: str) -> str:
    """Text without control characters, which a terminal would obey."""
    return _CONTROL.sub("�", text)


def print_error(console: Console, error: XminError) -> None:
    """Code, message, details and hint: in a panel on a terminal, as plain lines elsewhere."""
    lines = [clean(error.message)]
    lines += [f"{name}: {clean(_brief(value))}" for name, value in error.details.items()]
    lines.append("")
    lines.append(f"Hint: {clean(error.hint)}")
    if error.retryable:
        lines.append("The same command may simply be run again; a run with the same --run-id is its retry.")
    body = "\n".join(lines)
    if not console.is_terminal:
        console.print(f"error: {error.code}\n{body}", markup=False, highlight=False, soft_wrap=True)
        return
    from rich.panel import Panel
    from rich.text import Text

    console.print(Panel(Text(body), title=Text(error.code, style="bold red"), title_align="left", border_style="red"))


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table on a terminal; aligned, whole and unwrapped elsewhere: a log keeps every word."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=not console.is_terminal, overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(_brief(value))) for value in row))
    console.print(table)


def print_facts(console: Console, facts: Mapping[str, object], *, title: str | None = None) -> None:
    """Names and values, one a line."""
    from rich.text import Text

    if title is not None:
        console.print(Text(title, style="bold"))
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        console.print(Text(f"{name:<{width}}  ", style="dim").append(clean(_brief(value)), style="default"), soft_wrap=True)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=_UNBOUNDED)


def _brief(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    if isinstance(value, (int, float, bytes, UUID, datetime, Path, Decimal, Enum)):
        return str(_plain(value)) if not isinstance(value, (int, float)) else str(value)
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (UUID, Path, Decimal)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.repr}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
