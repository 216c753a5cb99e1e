"""Proof of the live catalog: exactly this version's, or what differs; and state that this product did not write is never adopted.

Runtime has no DDL right on the catalog: what the owner installed is read, compared and refused, never repaired. Imports contracts and the
target's own modules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from sqlalchemy import Table, UniqueConstraint, select

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import TableName
from airflow_dpone_xmin.target.catalog import CATALOG_VERSION, COMPONENT, UPGRADABLE_FROM, Catalog
from airflow_dpone_xmin.target.connect import ddl_dialect
from airflow_dpone_xmin.target.ddl import type_text
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import IndexFacts, TableFacts, plain_predicate
from airflow_dpone_xmin.target.sql import STAGING, STATE, TARGET, TARGET_DBO

Live = Mapping[str, Mapping[str, TableFacts]]
"""Logical schema → table → facts."""

_LEGACY_COLUMNS = frozenset({"source_schema", "source_table", "last_xmin"})


def require_catalog(engine: Engine, session: Session, catalog: Catalog) -> None:
    """The live catalog is exactly *catalog*, of this version, and nothing older or foreign stands in its place.

    :raises XminError: ``mssql_transaction.schema_ambiguous``, ``DPONE_LEGACY_STATE``, ``mssql_transaction.catalog_foreign``,
        ``mssql_transaction.catalog_mismatch`` with every difference.
    """
    require_schemas(engine, session)
    live = live_catalog(engine, session, catalog)
    refuse_legacy(catalog, live)
    refuse_foreign(catalog, live, version=installed_version(session, catalog, live))
    require_exact(engine, catalog, live)


def require_schemas(engine: Engine, session: Session) -> None:
    """The schemas of target, staging and state are spelled in the live catalog as they are here, and nothing answers to their names too.

    A missing one is told by what is missing in it.

    :raises XminError: ``mssql_transaction.schema_ambiguous`` with every difference.
    """
    differences = []
    for role in (TARGET, TARGET_DBO, STAGING, STATE):
        namespace = engine.namespace(role)
        others = [name for name in engine.schemas_like(session, namespace) if name != namespace.schema]
        differences += [f"{role}: {namespace.database} has a schema {name} beside or instead of {namespace.schema}" for name in others]
    if differences:
        raise XminError("mssql_transaction.schema_ambiguous", f"{differences[0]}.", details={"differences": differences})


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
        wanted = {}
        if table in catalog.immutable:
            trigger = f"tr_{table.name}_immutable"[: engine.dialect.max_identifier_length]
            wanted[trigger] = ddl_dialect(engine.layout).immutable_text(name.namespace, table.name)
        for text in (*_columns(engine, table, facts), *_indexes(engine, table, facts), *_triggers(wanted, facts)):
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


def _indexes(engine: Engine, table: Table, facts: TableFacts) -> Iterator[str]:
    """Every key that a guarantee rests on is there, and no other that could refuse a row."""
    unclaimed = [index for index in facts.indexes if index.unique]
    for what, columns, matches in _wanted_keys(engine, table):
        found = next((index for index in unclaimed if matches(index) and index.columns == columns), None)
        if found is None:
            yield f"the {what} ({', '.join(columns)}) is missing"
        else:
            unclaimed.remove(found)
    for index in unclaimed:
        yield f"unique index {index.name} is not of this version"


def _wanted_keys(engine: Engine, table: Table) -> Iterator[tuple[str, tuple[str, ...], Callable[[IndexFacts], bool]]]:
    yield "primary key", tuple(column.name for column in table.primary_key.columns), lambda index: index.primary
    for constraint in sorted((c for c in table.constraints if isinstance(c, UniqueConstraint)), key=lambda c: str(c.name)):
        yield "unique constraint", tuple(column.name for column in constraint.columns), lambda index: index.filter is None
    for index in table.indexes:
        where = plain_predicate(str(index.dialect_options[engine.dialect.name]["where"].compile(dialect=engine.dialect)))
        # Engines qualify a column of the predicate or not; a filter on anything else is another guarantee.
        yield "unique filtered index", tuple(column.name for column in index.columns), _filtered(where.rpartition(".")[2])


def _filtered(where: str) -> Callable[[IndexFacts], bool]:
    return lambda live: live.filter is not None and plain_predicate(live.filter) == where


def _plain(definition: str | None) -> str:
    """Without white space, which scripts may change, and double quotes, which PostgreSQL writes only where they are needed."""
    return re.sub(r'[\s"]', "", definition or "")


def _triggers(wanted: Mapping[str, str], facts: TableFacts) -> Iterator[str]:
    live = set(facts.triggers)
    disabled = {f"{name} (disabled)" for name in wanted}
    for name, text in sorted(wanted.items()):
        if name not in live:
            yield f"the immutability trigger is {'disabled' if f'{name} (disabled)' in live else 'missing'}"
        elif _plain(facts.trigger_texts[name]) != _plain(text):
            yield f"the immutability trigger {name} is defined otherwise, or its definition cannot be read"
    for name in sorted(live - set(wanted) - disabled):
        yield f"trigger {name} is not of this version"
