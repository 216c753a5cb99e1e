"""What a case hands over to the report, through pytest's ``record_property``: it crosses from pytest-xdist's workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from tests.certification.verdict import States

Record = Callable[[str, object], None]
STATES, SERVER = "certify_states", "certify_server"


def record_states(record: Record, states: States) -> None:
    """What a test of the fault matrix tried."""
    record(STATES, asdict(states))


def record_server(record: Record, *, engine: str, flavour: str, versions: dict[str, str]) -> None:
    """Which servers the cases of *engine* ran on."""
    record(SERVER, {"engine": engine, "flavour": flavour, "versions": versions})
