"""Golden T-SQL: the statements that runs really executed, compiled for SQL Server.

Recorded are Core statements on the embedded engine: what no path runs cannot be golden. Generated names are made stable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Executable, TextClause
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc
from sqlalchemy.schema import CreateTable

import airflow_dpone_xmin.target.mssql_sql as spellings
from airflow_dpone_xmin.target.engine import OBSERVERS, Event

SCHEMAS = {"target": "[DWH].[landing]", "dbo": "[DWH].[dbo]", "staging": "[DWH_Stage].[staging]", "state": "[Sys].[governance]"}
_LOAD = re.compile(r"dpone_stg_[0-9a-f]{32}")
assert spellings.BIN2  # importing it registers the spellings


class Recorder:
    """Distinct statements in order of their first execution, as (label, T-SQL)."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], None] = {}

    def event(self, event: Event) -> None:
        """An observer of the target's sessions."""
        statement = event.statement
        if event.phase == "before" and statement is not None and not isinstance(statement, TextClause):
            self.found.setdefault((event.label, tsql(statement)), None)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record every Core statement of this process."""
    recorder = Recorder()
    OBSERVERS.append(recorder.event)
    try:
        yield recorder
    finally:
        OBSERVERS.remove(recorder.event)


def tsql(statement: Executable) -> str:
    """The statement as SQL Server would get it, parameters by name."""
    with _without_prefixes(statement):
        text = str(
            statement.compile(  # type: ignore[attr-defined]
                dialect=MSDialect_pyodbc(paramstyle="named"),
                schema_translate_map=SCHEMAS,
                render_schema_translate=True,
                compile_kwargs={"render_postcompile": True},
            )
        )
    return "\n".join(line.rstrip() for line in _LOAD.sub("dpone_stg_LOAD", text).strip().splitlines())


@contextmanager
def _without_prefixes(statement: Executable) -> Iterator[None]:
    """TEMPORARY and UNLOGGED belong to the embedded engine only."""
    table: Any = statement.element if isinstance(statement, CreateTable) else None
    kept = table._prefixes if table is not None else []
    try:
        if table is not None:
            table._prefixes = []
        yield
    finally:
        if table is not None:
            table._prefixes = kept


def document(found: dict[tuple[str, str], None]) -> str:
    """One text: label, statement, blank line."""
    return "".join(f"-- {label}\n{statement};\n\n" for label, statement in found)
