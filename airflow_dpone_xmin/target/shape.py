"""The target table's shape: does the live table hold exactly what this route writes, and nothing that would interfere?

``check`` reports the differences, a run refuses on them before any row moves. Imports contracts, policy and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlalchemy import MetaData, Table, literal_column, select

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, Projection
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, DeleteMode, Route, TableName
from airflow_dpone_xmin.policy.limits import folded, limit_violations
from airflow_dpone_xmin.policy.overrides import holds
from airflow_dpone_xmin.target.ddl import type_text
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import TableFacts, plain_predicate
from airflow_dpone_xmin.target.sql import TARGET, Physical, target_table


def live_table(engine: Engine, session: Session, target: TableName) -> TableFacts:
    """The live target table; :raises XminError: ``DPONE_TARGET_UNSUPPORTED`` when there is none that the login can see."""
    facts = engine.describe(session, target.namespace, [target.name]).get(target.name)
    if facts is None:
        raise XminError(
            "DPONE_TARGET_UNSUPPORTED", f"{target.display} is missing, invisible or not a table.", details={"target": target.display}
        )
    return facts


def has_rows(session: Session, target: TableName) -> bool:
    """Whether the target table has any row."""
    table = Table(target.name, MetaData(), schema=TARGET)
    return session.first("target.has_rows", select(literal_column("1")).select_from(table).limit(1)) is not None


def key_types(facts: TableFacts, route: Route) -> list[tuple[str, str]]:
    """(column, physical type) of the key, from the live target.

    :raises XminError: ``DPONE_TARGET_UNSUPPORTED`` when a key column is missing.
    """
    types = []
    for name in route.key:
        column = facts.column(name)
        if column is None:
            raise XminError(
                "DPONE_TARGET_UNSUPPORTED", f"{route.layout.target.display} has no key column {name}.", details={"column": name}
            )
        types.append((name, column.type))
    return types


def require_shape(engine: Engine, facts: TableFacts, route: Route, projection: Projection) -> None:
    """:raises XminError: ``DPONE_TARGET_UNSUPPORTED`` naming every difference."""
    differences = list(shape_differences(engine, facts, route, projection))
    if differences:
        raise XminError(
            "DPONE_TARGET_UNSUPPORTED",
            f"{route.layout.target.display}: {differences[0]}"
            + (f" (and {len(differences) - 1} more)" if len(differences) > 1 else "")
            + ".",
            hint=_hint(differences),
            details={"differences": differences},
        )


def _hint(differences: list[str]) -> str | None:
    """A column without a source column is the one difference whose remedy is not the rendered table."""
    if not any("is neither a source column" in text for text in differences):
        return None
    return (
        "A column was dropped or renamed at the source, or added in the target. A rename is never guessed: the target's owner renames or "
        "drops the column, or `schema_evolution.on_dropped_column: keep` leaves nullable columns as they are."
    )


def shape_differences(engine: Engine, facts: TableFacts, route: Route, projection: Projection) -> Iterator[str]:
    """Differences as readable sentences, in column order."""
    mode = route.delete_mode
    wanted = target_table(route.layout.target.name, projection, mode)
    for column in wanted.columns:
        live = facts.column(column.name)
        expected = type_text(engine, column)
        if live is None:
            yield f"column {column.name} {expected} is missing"
        elif not (holds(live.type, expected) if isinstance(column.type, Physical) else live.type == expected):
            yield f"column {column.name} is {live.type}, expected {expected} or a type that holds and compares the same values"
        elif live.nullable is False and column.nullable:
            yield f"column {column.name} is NOT NULL, but the source may deliver NULL"
        elif live.computed or live.identity:
            yield f"column {column.name} is computed or an identity"
    yield from limit_violations(projection.columns, mode)
    yield from _key_differences(engine, facts, projection)
    yield from _unique_differences(facts, projection, mode)
    yield from _foreign_parts(facts, {column.name for column in wanted.columns}, mode, keep_dropped=route.keep_dropped_columns)


def has_key(facts: TableFacts, key: Sequence[str]) -> bool:
    """Whether a unique index covers exactly the key."""
    return any(index.unique and index.filter is None and set(index.columns) == set(key) for index in facts.indexes)


def require_key(facts: TableFacts, key: Sequence[str]) -> None:
    """:raises XminError: ``DPONE_TARGET_UNSUPPORTED`` when nothing would keep the key unique."""
    if not has_key(facts, key):
        raise XminError("DPONE_TARGET_UNSUPPORTED", f"No unique index of the live table covers exactly the key ({', '.join(key)}).")


def _key_differences(engine: Engine, facts: TableFacts, projection: Projection) -> Iterator[str]:
    key = projection.key
    if not has_key(facts, key):
        yield f"no unique index covers exactly the key ({', '.join(key)})"
    collation = engine.key_collation
    for plan in projection.key_columns:
        live = facts.column(plan.name)
        if plan.family is Family.TEXT and live is not None and (live.collation or "").lower() != collation.lower():
            yield f"key column {plan.name} has collation {live.collation or 'default'}, expected {collation}"


def _foreign_parts(facts: TableFacts, ours: set[str], mode: DeleteMode, *, keep_dropped: bool) -> Iterator[str]:
    """What is not ours and could refuse, change or silently add something."""
    alike = {folded(name) for name in ours}
    for column in facts.columns:
        flag = column.name == IS_DELETED and mode is DeleteMode.TIMESTAMP_AND_FLAG
        if flag and not column.computed:
            yield f"column {IS_DELETED} must be computed from the timestamp"
        elif column.name not in ours and folded(column.name) in alike:
            yield f"column {column.name} has the name of one of this route's under some collation"
        elif column.name not in ours and not flag and not (keep_dropped and column.nullable):
            yield f"column {column.name} is neither a source column nor one of this product's"
    if mode is DeleteMode.TIMESTAMP_AND_FLAG and facts.column(IS_DELETED) is None:
        yield f"column {IS_DELETED} is missing"
    for kind, names in (("trigger", facts.triggers), ("foreign key", facts.foreign_keys), ("check constraint", facts.checks)):
        for name in names:
            yield f"{kind} {name} is not ours"


def _unique_differences(facts: TableFacts, projection: Projection, mode: DeleteMode) -> Iterator[str]:
    """Another unique index must never refuse what the source admits; one that holds the whole key cannot."""
    plans = {plan.name: plan for plan in projection.columns}
    for index in facts.indexes:
        if not index.unique or set(projection.key) <= set(index.columns):
            continue
        if not mode.reconciles:
            yield f"unique index {index.name} keeps the values of rows that the source no longer has"
        elif mode.soft and not _follows_marker(index.filter, mode):
            yield f"unique index {index.name} is not filtered on active rows"
        for name in index.columns:
            plan = plans.get(name)
            if plan is None:
                yield f"unique index {index.name} covers {name}, which is no source column"
            elif plan.family in (Family.TEXT, Family.BINARY):
                yield f"unique index {index.name} covers {name}, of which SQL Server calls values equal that the source does not"
            elif plan.nullable and f"{plain_predicate(name)}isnotnull" not in plain_predicate(index.filter or ""):
                yield f"unique index {index.name} covers {name}, where SQL Server admits NULL once only"


def _follows_marker(filter_text: str | None, mode: DeleteMode) -> bool:
    """Whether a unique index sees active rows only, so that a new row may take over a tombstone's value."""
    if filter_text is None:
        return False
    marks = [f"{DELETED_AT}isnull"] if mode.has_timestamp else []
    marks += [f"not{IS_DELETED}", f"{IS_DELETED}=0", f"{IS_DELETED}=false"] if mode.has_flag else []
    return any(mark in plain_predicate(filter_text) for mark in marks) and " or " not in filter_text.lower()


def live_key(engine: Engine, projection: Projection, facts: TableFacts) -> Projection:
    """The projection with wider key columns as the live target has them: keys that only the target has may need them."""

    def lives(plan: ColumnPlan) -> ColumnPlan:
        column = facts.column(plan.name) if plan.key else None
        if column is None or column.type == engine.column_type(plan):
            return plan
        return replace(plan, mssql_type=column.type, embedded_type=column.type)

    return replace(projection, columns=tuple(map(lives, projection.columns)))
