"""Rendered DDL: what the owner runs once, and what runtime then verifies exactly (``target/proof.py``).

Tables come from the same SQLAlchemy metadata that the statements use; what SQLAlchemy does not spell (triggers, grants, computed flag,
schemas) comes from the engine's :class:`DdlDialect`. Imports contracts and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Column, Index, Table
from sqlalchemy.schema import CreateIndex, CreateTable

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, DeleteMode, Namespace, TableName
from airflow_dpone_xmin.policy.limits import limit_violations
from airflow_dpone_xmin.target.catalog import CATALOG_VERSION, COMPONENT, Catalog
from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.facts import ColumnFacts
from airflow_dpone_xmin.target.sql import STAGING, STATE, TARGET, TARGET_DBO, Physical, target_table

READ, APPEND, CHANGE = ("SELECT",), ("SELECT", "INSERT"), ("SELECT", "INSERT", "UPDATE")


class DdlDialect(Protocol):
    """What an engine spells by itself."""

    separator: str
    """What follows every statement in a script."""

    def enter(self, namespace: Namespace) -> list[str]:
        """Statements that select the database (or schema) that the following ones belong to, and create the schema."""
        ...

    def use(self, namespace: Namespace) -> list[str]:
        """Statements that select the database of the following ones."""
        ...

    def add_column(self, namespace: Namespace, table: str, column: ColumnFacts) -> list[str]:
        """A new nullable column."""
        ...

    def alter_column(self, namespace: Namespace, table: str, live: ColumnFacts, wanted: ColumnFacts) -> list[str]:
        """Another type, or NULL allowed; its collation stays."""
        ...

    def immutable(self, namespace: Namespace, table: str) -> list[str]:
        """A trigger that refuses UPDATE and DELETE."""
        ...

    def immutable_text(self, namespace: Namespace, table: str) -> str:
        """The definition that the catalog then holds of it, but for white space and double quotes."""
        ...

    def computed_flag(self, namespace: Namespace, table: str) -> list[str]:
        """The computed ``__dpone__is_deleted`` of ``timestamp_and_flag``."""
        ...

    def narrow_index(self, namespace: Namespace, table: str, *, key: Sequence[str], marker: str | None) -> list[str]:
        """The index (key) INCLUDE (delete marker) that the passes read instead of whole rows."""
        ...

    def grant(self, namespace: Namespace, table: str, privileges: Sequence[str], login: str) -> list[str]:
        """Grant privileges on a table."""
        ...

    def admit_login(self, login: str, namespaces: Sequence[Namespace], *, staging: Namespace) -> list[str]:
        """Everything the login needs beside table privileges: usage, metadata visibility, staging DDL."""
        ...

    def admit_campaign(self, login: str, target: TableName) -> list[str]:
        """What a login needs beside all that to create, index and exchange tables in the target's schema."""
        ...

    def database_token(self, namespace: Namespace) -> list[str]:
        """The owner-written token that stands in for a creation date; empty where the engine has one."""
        ...

    def clock(self) -> str:
        """The UTC clock expression."""
        ...

    def literal_guid(self, value: UUID) -> str:
        """A UUID literal."""
        ...

    def literal_text(self, value: str) -> str:
        """A text literal."""
        ...

    def qualified(self, namespace: Namespace, table: str) -> str:
        """A quoted, qualified table name."""
        ...


@dataclass(frozen=True, slots=True)
class Script:
    """Rendered statements, one per entry, in order."""

    statements: tuple[str, ...]

    def text(self, *, separator: str) -> str:
        """The script as a file; *separator* follows every statement (``GO`` on SQL Server)."""
        return "".join(f"{statement.rstrip()}{separator}" for statement in self.statements)


def privileges(catalog: Catalog) -> dict[Table, tuple[str, ...]]:
    """The exact least privileges of the runtime login on the catalog."""
    return {
        catalog.version: READ,
        catalog.registry_serial: CHANGE,
        catalog.source_state: CHANGE,
        catalog.run_state: CHANGE,
        catalog.receipt: APPEND,
        catalog.repair_authority: READ,
        catalog.repair_consumption: APPEND,
        catalog.audit: APPEND,
        catalog.target_fence: CHANGE,
        catalog.load_attempt: CHANGE,
        catalog.load_operation: CHANGE,
        catalog.load_receipt: APPEND,
        catalog.campaign: CHANGE,
        catalog.campaign_chunk: CHANGE,
        catalog.identity: READ,
        catalog.head: CHANGE,
    }


def target_privileges(mode: DeleteMode) -> tuple[str, ...]:
    """Least privileges on the target table."""
    return ("SELECT", "INSERT", "UPDATE", "DELETE") if mode is DeleteMode.HARD else CHANGE


def render_catalog(engine: Engine, dialect: DdlDialect, catalog: Catalog, *, login: str) -> Script:
    """The whole catalog with triggers, version row and grants."""
    out: list[str] = []
    for logical, tables in ((STATE, catalog.state_tables), (TARGET_DBO, catalog.target_tables)):
        namespace = engine.namespace(logical)
        out += dialect.enter(namespace)
        for table in tables:
            out += _create(engine, table)
            if table in catalog.immutable:
                out += dialect.immutable(namespace, table.name)
        if logical == STATE:
            version = dialect.qualified(namespace, catalog.version.name)
            out.append(
                f"INSERT INTO {version} (component, version, installed_at_utc) VALUES ('{COMPONENT}', {CATALOG_VERSION}, {dialect.clock()})"
            )
        else:
            out += dialect.database_token(namespace)
    out += dialect.enter(engine.namespace(STAGING))
    everywhere = [engine.namespace(logical) for logical in (TARGET, TARGET_DBO, STATE, STAGING)]
    out += dialect.enter(engine.namespace(TARGET))
    out += dialect.admit_login(login, everywhere, staging=engine.namespace(STAGING))
    for table, granted in privileges(catalog).items():
        out += dialect.grant(engine.namespace(str(table.schema)), table.name, granted, login)
    return Script(tuple(out))


def render_route(
    engine: Engine,
    dialect: DdlDialect,
    catalog: Catalog,
    *,
    projection: Projection,
    mode: DeleteMode,
    binding_id: UUID,
    login: str,
    exchange: bool = False,
) -> Script:
    """One route's target table, narrow index, identity row and grants.

    :param exchange: whether the login may also replace the table by a campaign's shadow.
    :raises XminError: ``DPONE_TARGET_UNSUPPORTED`` for a table that SQL Server cannot hold.
    """
    target = engine.layout.target
    for broken in limit_violations(projection.columns, mode):
        raise XminError("DPONE_TARGET_UNSUPPORTED", f"{target.display}: {broken}.", hint="Leave columns out at the source, or split it.")
    namespace = target.namespace
    out = list(dialect.enter(namespace))
    out += _create(engine, target_table(target.name, projection, mode))
    if mode is DeleteMode.TIMESTAMP_AND_FLAG:
        out += dialect.computed_flag(namespace, target.name)
    if mode.reconciles:
        marker = DELETED_AT if mode.has_timestamp else IS_DELETED if mode.has_flag else None
        out += dialect.narrow_index(namespace, target.name, key=projection.key, marker=marker)
    registry = dialect.qualified(engine.namespace(TARGET_DBO), catalog.identity.name)
    out.append(
        f"INSERT INTO {registry} (binding_id, schema_name, table_name, created_at_utc) VALUES ({dialect.literal_guid(binding_id)}, "
        f"{dialect.literal_text(namespace.schema)}, {dialect.literal_text(target.name)}, {dialect.clock()})"
    )
    out += dialect.grant(namespace, target.name, target_privileges(mode), login)
    if exchange:
        out += dialect.admit_campaign(login, target)
    return Script(tuple(out))


def type_text(engine: Engine, column: Column[Any]) -> str:
    """A column's type as the engine's catalog spells it."""
    kind = column.type
    if isinstance(kind, Physical):
        return engine.column_type(kind.plan)
    text = str(kind.compile(dialect=engine.dialect)).partition(" COLLATE")[0].lower().replace(", ", ",")
    return engine.type_aliases.get(text, text)


def _create(engine: Engine, table: Table) -> list[str]:
    names = {logical: _schema(engine, logical) for logical in (TARGET, TARGET_DBO, STAGING, STATE)}

    def spell(element: CreateTable | CreateIndex) -> str:
        text = str(element.compile(dialect=engine.dialect, schema_translate_map=names, render_schema_translate=True)).strip()
        # For a driver that formats its statements a percent sign in a name was doubled; a script is not formatted.
        return text.replace("%%", "%") if engine.dialect.paramstyle in ("format", "pyformat") else text

    return [spell(CreateTable(table)), *[spell(CreateIndex(index)) for index in sorted(table.indexes, key=_index_name)]]


def _index_name(index: Index) -> str:
    return str(index.name)


def _schema(engine: Engine, logical: str) -> str:
    # Inside a script the current database is entered first, so one-part schemas do.
    return engine.namespace(logical).schema
