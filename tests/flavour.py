"""What a T-SQL server under test cannot prove, and how the set-up gets past it. The product itself knows no flavour.

Babelfish for PostgreSQL speaks T-SQL over TDS but has no database-level grants and no schema ALTER right: runs use the owner's login
there, so least privilege is not proven on it. It reads a ``time`` from the wire through a double and cuts what that makes of it.
``ALTER COLUMN`` takes neither NULL nor COLLATE there: the statement is sent without them, so that nullability is not proven on it. A
column name is stored in lower case, and none with a quote or a bracket in it can be loaded. A sum of ``decimal(38,38)`` cannot be sent.
``TABLOCK`` and ``TABLOCKX`` take no lock there. ``KILL`` ends a session, but ``sys.dm_exec_sessions`` goes on listing it, without its
number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import time
from typing import Any

import pytest

UNSUPPORTED = ("GRANT ", "IF USER_ID(")


def flavour(version: str) -> str:
    """Which T-SQL server answers ``@@VERSION`` so. Only ``sql_server`` proves SQL Server."""
    if "Babelfish" in version:
        return "babelfish"
    return "sql_server" if version.startswith(("Microsoft SQL Server", "Microsoft SQL Azure")) else "unknown"


def is_babelfish(connection: Any) -> bool:
    """Whether the server says so."""
    return flavour(str(connection.exec_driver_sql("SELECT @@VERSION").scalar())) == "babelfish"


def supported(statements: Sequence[str]) -> list[str]:
    """The statements that the flavour can run."""
    return [statement for statement in statements if not statement.startswith(UNSUPPORTED)]


def forgive_grants(monkeypatch: Any) -> None:
    """Let the engine's grant checks pass what the flavour cannot express: runs use the owner's login, which may do everything."""
    from airflow_dpone_xmin.runtime import lanes
    from airflow_dpone_xmin.target.mssql import MssqlEngine
    from airflow_dpone_xmin.target.mssql_shadow import OBSTACLES

    real = MssqlEngine.missing_grants

    def forgiving(self: MssqlEngine, *arguments: Any, **named: Any) -> list[str]:
        return [right for right in real(self, *arguments, **named) if not right.startswith(("ALTER on", "CREATE TABLE on"))]

    monkeypatch.setattr(MssqlEngine, "missing_grants", forgiving)
    for kind in ("security policy", "sensitivity classification", "audit specification"):  # the flavour lacks their views
        monkeypatch.delitem(OBSTACLES, kind, raising=False)
    _shorten_shadows(monkeypatch)
    monkeypatch.setattr(MssqlEngine, "surplus_grants", lambda *_: [])
    monkeypatch.setattr(lanes, "_main", forgiven_lane)


def forgiven_lane(*arguments: Any) -> None:
    """Body of a lane that is an interpreter of its own, which no fixture reached."""
    from airflow_dpone_xmin.runtime.lanes import _main

    forgive_grants(pytest.MonkeyPatch())
    _main(*arguments)


def _shorten_shadows(monkeypatch: Any) -> None:
    """The flavour appends the table's name and a digest to an index's name, and can rename it only while all of it fits 63 bytes."""
    from airflow_dpone_xmin.target import shadow

    monkeypatch.setattr(shadow, "_derived", lambda _, suffix: f"{suffix.split('_')[3][:1]}_{suffix[-8:]}")
    real = shadow._index_name
    monkeypatch.setattr(shadow, "_index_name", lambda campaign, name: f"d_{real(campaign, name)[-8:]}")


def needs_table_locks(target: Any) -> None:
    """Skip a case that looks at who waits for a table lock, where hints take none."""
    if getattr(target, "babelfish", False):
        pytest.skip("not provable on this flavour: it takes no table lock from a hint")


UNNAMED = ("Mixed", "it's", "a]b", "имя")
"""Column names that the flavour changes, or cannot load."""
UNSENT = ("numeric(38,38)",)
"""Declarations at the source whose fingerprint it cannot send."""


def keeps_time(value: time) -> bool:
    """Whether the flavour stores a ``time(6)`` that it is sent: it divides the ticks by ten six times, as a double, and cuts."""
    ticks = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    seconds = float(ticks)
    for _ in range(6):
        seconds /= 10
    return int(seconds * 1_000_000) == ticks


def shorten_alter_column(monkeypatch: Any) -> None:
    """Send ``ALTER COLUMN`` without collation and nullability, which the flavour does not parse."""
    from airflow_dpone_xmin.target.mssql_ddl import MssqlDdl

    real = MssqlDdl.alter_column

    def shortened(self: MssqlDdl, *arguments: Any) -> list[str]:
        return [re.sub(r"( COLLATE \w+)? (NOT )?NULL$", "", statement) for statement in real(self, *arguments)]

    monkeypatch.setattr(MssqlDdl, "alter_column", shortened)
