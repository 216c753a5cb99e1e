"""The tables of one route, built from its projection: target, staging, and the temporary difference table.

Imports contracts and ``target/sql.py`` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, ColumnElement, MetaData, PrimaryKeyConstraint, SmallInteger, Table, and_, false, true

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Projection
from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, LOAD_ID, LOADED_AT, UPDATED_AT, DeleteMode
from airflow_dpone_xmin.target.sql import STAGING, TARGET, Flag, Guid, Physical, Utc, wire

STAGE_PREFIX = "dpone_stg_"
PASS, KIND, COUNT = "__dpone__pass", "__dpone__kind", "__dpone__n"
"""Columns of the difference table beside the key's, whose names may be any but the reserved ones."""


def target_table(name: str, projection: Projection, mode: DeleteMode) -> Table:
    """The target table as this route writes it.

    The computed flag of ``timestamp_and_flag`` is left out: no statement writes it, the engine's DDL adds it.
    """
    columns: list[Any] = [Column(plan.name, Physical(plan), nullable=plan.nullable, autoincrement=False) for plan in projection.columns]
    columns += [
        Column(LOAD_ID, Guid, nullable=False),
        Column(LOADED_AT, Utc, nullable=False),
        Column(UPDATED_AT, Utc, nullable=False),
    ]
    if mode.has_timestamp:
        columns.append(Column(DELETED_AT, Utc, nullable=True))
    if mode is DeleteMode.FLAG_ONLY:
        columns.append(Column(IS_DELETED, Flag, nullable=False))
    return Table(name, MetaData(), *columns, PrimaryKeyConstraint(*projection.key, name=f"pk_{name}"), schema=TARGET)


def active(table: Table, mode: DeleteMode) -> ColumnElement[bool]:
    """Whether a target row is active."""
    if mode.has_timestamp:
        return table.c[DELETED_AT].is_(None)
    if mode is DeleteMode.FLAG_ONLY:
        return table.c[IS_DELETED] == false()
    return true()


@dataclass(frozen=True, slots=True)
class Stage:
    """One staging table: a heap until loaded, then uniquely indexed on the key.

    :param table: for DDL.
    :param rows: the same table under a short name, for statements.
    :param columns: the plans of its columns in artifact order.
    """

    table: Table
    rows: Any
    columns: tuple[ColumnPlan, ...]
    key: tuple[str, ...]

    def value(self, plan: ColumnPlan) -> ColumnElement[Any]:
        """The staged column as the target's type."""
        return wire(plan, self.rows.c[plan.name])

    def matches(self, other: Table) -> ColumnElement[bool]:
        """Key equality with another table that carries target-typed key columns."""
        by_name = {plan.name: plan for plan in self.columns}
        return and_(*[other.c[name] == self.value(by_name[name]) for name in self.key])


def stage_table(load_id: UUID, suffix: str, *, columns: tuple[ColumnPlan, ...], key: tuple[str, ...]) -> Stage:
    """A staging table named after its load.

    :param suffix: ``rows`` or ``keys``.
    """
    table = Table(
        f"{STAGE_PREFIX}{load_id.hex}_{suffix}",
        MetaData(),
        *[Column(plan.name, Physical(plan, staged=True), nullable=not plan.key, autoincrement=False) for plan in columns],
        schema=STAGING,
    )
    return Stage(table=table, rows=table.alias(f"staged_{suffix}"), columns=columns, key=key)


def difference_table(name: str, projection: Projection) -> Table:
    """The temporary table that one classification pass fills: counts per kind, and the keys that will be acted upon."""
    return Table(
        name,
        MetaData(),
        Column(PASS, SmallInteger, nullable=False),
        Column(KIND, SmallInteger, nullable=False),
        *[Column(plan.name, Physical(plan), nullable=True) for plan in projection.key_columns],
        Column(COUNT, BigInteger, nullable=False),
    )
