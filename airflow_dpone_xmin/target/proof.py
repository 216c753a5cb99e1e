"""Proof of the live catalog: exactly this version's, or what differs; and state that this product did not write is never adopted.

Runtime has no DDL right on the catalog: what the owner installed is read, compared and refused, never repaired. Imports contracts and the
target's own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sqlalchemy import Table, UniqueConstraint, select

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import TableName
from airflow_dpone_xmin.target.catalog import CATALOG_VERSION, COMPONENT, UPGRADABLE_FROM, Catalog
from airflow_dpone_xmin.target.ddl import type_text
from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.facts import IndexFacts, TableFacts
from airflow_dpone_xmin.target.session import Session
from airflow_dpone_xmin.target.sql import STATE, TARGET_DBO

Live = Mapping[str, Mapping[str, TableFacts]]
"""Logical schema → table → facts."""

_LEGACY_COLUMNS = frozenset({"source_schema", "source_table", "last_xmin"})


def require_catalog(engine: Engine, session: Session, catalog: Catalog) -> None:
    """The live catalog is exactly *catalog*, of this version, and nothing older or foreign stands in its place.

    :raises XminError: ``DPONE_LEGACY_STATE``, ``mssql_transaction.catalog_foreign``, ``mssql_transaction.catalog_mismatch`` with every
        difference.
    """
    live = live_catalog(engine, session, catalog)
    refuse_legacy(catalog, live)
    refuse_foreign(catalog, live, version=installed_version(session, catalog, live))
    require_exact(engine, catalog, live)


def require_exact(engine: Engine, catalog: Catalog, live: Live) -> None:
    """:raises XminError: ``mssql_transaction.catalog_mismatch`` with every difference."""
    differences = list(catalog_differences(engine, catalog, live))
    if differences:
        raise XminError(
            "mssql_transaction.catalog_mismatch",
            f"The state catalog differs from this version's in {len(differences)} places: {differences[0]}.",
            details={"differences": differences},
        )


def live_catalog(engine: Engine, session: Session, catalog: Catalog) -> Live:
    """What the server holds under the catalog's names."""
    return {
        logical: engine.describe(session, engine.namespace(logical), [table.name for table in tables])
        for logical, tables in ((STATE, catalog.state_tables), (TARGET_DBO, catalog.target_tables))
    }


def refuse_legacy(catalog: Catalog, live: Live) -> None:
    """State rows keyed by source schema and table carry neither scope nor target: two routes could share one.

    :raises XminError: ``DPONE_LEGACY_STATE``.
    """
    facts = live[STATE].get(catalog.source_state.name)
    names = set() if facts is None else {column.name.lower() for column in facts.columns}
    if "state_key" not in names and names & _LEGACY_COLUMNS:
        raise XminError(
            "DPONE_LEGACY_STATE",
            f"{catalog.source_state.name} holds state keyed by {', '.join(sorted(names & _LEGACY_COLUMNS))}, without a state key.",
            details={"table": catalog.source_state.name, "columns": sorted(names)},
        )


def installed_version(session: Session, catalog: Catalog, live: Live) -> int | None:
    """The version row of the live catalog; None when there is none, or none that can be read."""
    table = catalog.version
    facts = live[STATE].get(table.name)
    if facts is None or any(facts.column(column.name) is None for column in table.columns):
        return None
    try:
        found = session.scalar("catalog.version", select(table.c.version).where(table.c.component == COMPONENT))
    except XminError as error:
        if error.code != "mssql_transaction.permission_denied":
            raise
        return CATALOG_VERSION  # the missing grant is told by its own name
    return 0 if found is None else int(found)


def refuse_foreign(catalog: Catalog, live: Live, *, version: int | None) -> None:
    """Another version is another contract, even where its tables look alike.

    :param version: from :func:`installed_version`; 0 when the table has no row.
    :raises XminError: ``mssql_transaction.catalog_foreign``.
    """
    if version is None or version == CATALOG_VERSION:
        return
    seen = f"version {version}" if version else "no version row"
    hint = "Apply `dpone-xmin ddl upgrade --manifest … --owner …`." if version == UPGRADABLE_FROM else None
    raise XminError(
        "mssql_transaction.catalog_foreign",
        f"The state catalog has {seen}; this product needs version {CATALOG_VERSION}.",
        hint=hint,
        details={"installed": version, "needed": CATALOG_VERSION, "upgradable_from": UPGRADABLE_FROM},
    )


def catalog_differences(engine: Engine, catalog: Catalog, live: Live) -> Iterator[str]:
    """Differences as readable sentences; none when exact."""
    for table in (*catalog.state_tables, *catalog.target_tables):
        name = TableName(engine.namespace(str(table.schema)), table.name)
        facts = live[str(table.schema)].get(table.name)
        if facts is None:
            yield f"{name.display}: the table is missing or invisible"
            continue
        wanted = {f"tr_{table.name}_immutable"[: engine.dialect.max_identifier_length]} if table in catalog.immutable else set()
        for text in (*_columns(engine, table, facts), *_indexes(table, facts), *_triggers(wanted, facts)):
            yield f"{name.display}: {text}"


def _columns(engine: Engine, table: Table, facts: TableFacts) -> Iterator[str]:
    wanted = {column.name: column for column in table.columns}
    for name, column in wanted.items():
        live = facts.column(name)
        if live is None:
            yield f"column {name} is missing"
        elif (live.type, live.nullable) != (type_text(engine, column), bool(column.nullable)):
            null = "NULL" if column.nullable else "NOT NULL"
            yield f"column {name} is {live.type}{'' if live.nullable else ' NOT NULL'}, expected {type_text(engine, column)} {null}"
    for live in facts.columns:
        if live.name not in wanted:
            yield f"column {live.name} is not of this version"


def _indexes(table: Table, facts: TableFacts) -> Iterator[str]:
    """Every key that a guarantee rests on is there, and no other that could refuse a row."""
    unclaimed = [index for index in facts.indexes if index.unique]
    for what, columns, matches in _wanted_keys(table):
        found = next((index for index in unclaimed if matches(index) and index.columns == columns), None)
        if found is None:
            yield f"the {what} ({', '.join(columns)}) is missing"
        else:
            unclaimed.remove(found)
    for index in unclaimed:
        yield f"unique index {index.name} is not of this version"


def _wanted_keys(table: Table) -> Iterator[tuple[str, tuple[str, ...], Callable[[IndexFacts], bool]]]:
    yield "primary key", tuple(column.name for column in table.primary_key.columns), lambda index: index.primary
    for constraint in sorted((c for c in table.constraints if isinstance(c, UniqueConstraint)), key=lambda c: str(c.name)):
        yield "unique constraint", tuple(column.name for column in constraint.columns), lambda index: index.filter is None
    for index in table.indexes:
        yield "unique filtered index", tuple(column.name for column in index.columns), lambda live: live.filter is not None


def _triggers(wanted: set[str], facts: TableFacts) -> Iterator[str]:
    live = set(facts.triggers)
    disabled = {f"{name} (disabled)" for name in wanted}
    for name in sorted(wanted - live):
        yield f"the immutability trigger is {'disabled' if f'{name} (disabled)' in live else 'missing'}"
    for name in sorted(live - wanted - disabled):
        yield f"trigger {name} is not of this version"
