"""SQL building blocks that both engines share, and the tables of one route that are built from them and its projection.

Types and expressions whose spelling differs are named once: a statement is built from these and SQLAlchemy Core; ``target/mssql.py`` and
``target/postgres.py`` register how each is spelled. The tables are the target, staging, and the temporary difference table.
Nothing here knows a dialect. Imports contracts only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Uuid,
    and_,
    false,
    true,
)
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeEngine, UserDefinedType

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, Projection
from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, LOAD_ID, LOADED_AT, UPDATED_AT, DeleteMode, Layout, Namespace

TARGET = "target"
TARGET_DBO = "dbo"
STAGING = "staging"
STATE = "state"
"""Logical schemas; a session translates them."""


def namespace_of(layout: Layout, logical: str) -> Namespace:
    """The real namespace of a logical schema."""
    target = layout.target.namespace
    names = {TARGET: target, TARGET_DBO: Namespace(target.database, layout.dbo), STAGING: layout.staging, STATE: layout.state}
    return names[logical]


KEY_COLLATION = "Latin1_General_100_BIN2"
"""Collation of text keys on SQL Server; ``C`` on the embedded engine."""


class Named(UserDefinedType[Any]):
    """A type that each engine spells by one name."""


class Hash(Named):
    """A SHA-256 digest: ``binary(32)``."""

    cache_ok = True


class LongText(Named):
    """Unbounded text: ``nvarchar(max)``."""

    cache_ok = True


class Utc(Named):
    """A UTC instant without offset, microseconds: ``datetime2(6)``."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], str | None]:
        """ISO text: pyodbc keeps as many digits of a datetime as the server's type catalog tells, down to none."""
        return lambda value: None if value is None else value.isoformat(sep=" ", timespec="microseconds")


class Text(UserDefinedType[str]):
    """Bounded catalog text, compared by bytes unless it follows the database's collation.

    :param length: UTF-16 code units.
    :param database_collation: names that must follow the database's own rules of equality (``dpone_target_identity``).
    """

    cache_ok = True

    def __init__(self, length: int, database_collation: bool = False) -> None:
        self.length = length
        self.database_collation = database_collation


Guid = Uuid(as_uuid=True)
Flag = Boolean(create_constraint=False)


class Physical(UserDefinedType[Any]):
    """A column type as ``policy/types.py`` decided it, for the target table or for a staging table.

    :param staged: the staging form: uuid as text, timestamptz as UTC datetime2 on SQL Server.
    """

    cache_ok = True

    def __init__(self, plan: ColumnPlan, staged: bool = False) -> None:
        self.plan = plan
        self.staged = staged

    @property
    def _static_cache_key(self) -> Any:  # the plan is frozen and hashable
        return (Physical, self.plan, self.staged)


class Count(FunctionElement[int]):
    """``COUNT_BIG``: 64 bits on SQL Server too; of all rows, or of one column's non-NULL values."""

    type = BigInteger()
    inherit_cache = True
    name = "count_rows"


class Now(FunctionElement[Any]):
    """The server's UTC clock, microseconds."""

    type = DateTime()
    inherit_cache = True
    name = "utc_now"


class _Planned(FunctionElement[Any]):
    """An expression whose spelling depends on a column's family."""

    inherit_cache = True

    def __init__(self, family: Family, *operands: ColumnElement[Any]) -> None:
        self.family = family
        super().__init__(*operands)

    @property
    def operands(self) -> list[ColumnElement[Any]]:
        """The operand expressions in order."""
        return list(self.clauses)


class Differs(_Planned):
    """Whether two values differ to the byte, whatever a collation says; NULL is a value.

    A condition, not a value: SQL Server has no boolean values, and SQLAlchemy would compare a Boolean with 1.
    """

    inherit_cache = False
    name = "differs"


class Wire(_Planned):
    """A staged value as the target column's type: uuid from text, timestamptz from UTC."""

    inherit_cache = False
    name = "wire"

    def __init__(self, family: Family, *operands: ColumnElement[Any], type_: TypeEngine[Any] | None = None) -> None:
        super().__init__(family, *operands)
        if type_ is not None:
            self.type = type_


class Fingerprint(_Planned):
    """One part of the per-type checksum of a staged column: a sum of 38 decimal digits (design.md "Column fingerprints").

    :param part: index into :func:`fingerprint_weights`.
    """

    inherit_cache = False
    name = "fingerprint"

    def __init__(self, plan: ColumnPlan, operand: ColumnElement[Any], part: int = 0) -> None:
        super().__init__(plan.family, operand)
        self.plan, self.part = plan, part


_SIMPLE_DIGITS = 28
"""The sum of ten billion decimals of that many digits fits the 38 of SQL Server."""


def fingerprint_weights(plan: ColumnPlan) -> tuple[Decimal, ...]:
    """What each part of a column's fingerprint counts: values too wide for one sum are summed as quotient and remainder."""
    one = Decimal(1)
    if plan.family is Family.UUID:
        return Decimal(2**64), one
    if plan.family is Family.DECIMAL and (plan.precision or 0) > _SIMPLE_DIGITS:
        return one.scaleb(19 - (plan.scale or 0)), one
    return (one,)


def wire(plan: ColumnPlan, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The staged *column* as the target's type; the column itself where both forms are one."""
    if plan.family in (Family.UUID, Family.TIMESTAMPTZ):
        return Wire(plan.family, column, type_=Physical(plan))
    return column


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
