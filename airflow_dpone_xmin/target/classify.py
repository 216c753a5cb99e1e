"""Classification: where a row is decided.

One ordered pass over the target's key index and the key snapshot says for every key what must happen to it. Before the DML it also
materialises the keys that will be acted upon; after the DML the same statement must find nothing left to do. Imports contracts and
the target's own modules.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Insert, Select, Table, and_, case, cast, func, insert, literal_column, null, or_, select

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.route import DeleteMode
from airflow_dpone_xmin.contracts.state import Classification
from airflow_dpone_xmin.target.sql import COUNT, KIND, PASS, Count, Physical, Stage, active

MATCHED, MISSING, ABSENT, TOMBSTONED, RETAINED = range(5)
"""Kinds: active with key; active without key; key without row; tombstone with key; tombstone without key."""

BEFORE, AFTER = 1, 2

PASS_HINT = "WITH (TABLOCK, HOLDLOCK)"
"""One table lock instead of a key-range lock per row (SQL Server, "Table hints")."""


def classification_pass(difference: Table, target: Table, keys: Stage, *, projection: Projection, mode: DeleteMode, number: int) -> Insert:
    """The pass: group all keys by kind, keeping apart only the missing and the tombstoned ones.

    Matched, absent and retained keys collapse into one counted row each, so the difference table holds no more than the rows that the
    DML will touch.

    :param number: :data:`BEFORE` or :data:`AFTER`.
    """
    first = projection.key[0]
    on_target, on_keys = target.c[first].is_not(None), keys.rows.c[first].is_not(None)
    alive = active(target, mode)
    kind = case(
        (and_(on_target, on_keys, alive), _kind(MATCHED)),
        (and_(on_target, alive), _kind(MISSING)),
        (and_(on_target, on_keys), _kind(TOMBSTONED)),
        (on_target, _kind(RETAINED)),
        else_=_kind(ABSENT),
    )
    acted = and_(on_target, or_(and_(alive, ~on_keys), and_(~alive, on_keys))) if mode.soft else and_(on_target, ~on_keys)
    columns: list[Any] = [kind.label(KIND)]
    columns += [case((acted, target.c[plan.name]), else_=null()).label(plan.name) for plan in projection.key_columns]
    joined = target.outerjoin(keys.rows, keys.matches(target), full=True)
    each = (
        select(*columns)
        .select_from(joined)
        .with_hint(target, PASS_HINT, "mssql")
        .with_hint(keys.rows, PASS_HINT, "mssql")
        .subquery("each_key")
    )
    grouped = [each.c[KIND], *[each.c[name] for name in projection.key]]
    return insert(difference).from_select(
        [PASS, KIND, *projection.key, COUNT],
        select(_kind(number), *grouped, Count().label(COUNT)).group_by(*grouped),
    )


def presence_pass(difference: Table, target: Table, rows: Stage, *, projection: Projection, mode: DeleteMode, number: int) -> Insert:
    """The pass of a route that never deletes: the payload against the target, and the target's own count as ``matched``.

    Rows of the target outside the payload are active and stay so; they are counted as matched.
    """
    absent = (
        select(_kind(number), _kind(ABSENT), *_nulls(projection), Count())
        .select_from(rows.rows.outerjoin(target, rows.matches(target)))
        .where(target.c[projection.key[0]].is_(None))
        .with_hint(target, PASS_HINT, "mssql")
        .with_hint(rows.rows, PASS_HINT, "mssql")
    )
    present = (
        select(_kind(number), _kind(MATCHED), *_nulls(projection), Count())
        .select_from(target)
        .where(active(target, mode))
        .with_hint(target, PASS_HINT, "mssql")
    )
    return insert(difference).from_select([PASS, KIND, *projection.key, COUNT], absent.union_all(present))


def unmatched_rows(target: Table, rows: Stage, *, projection: Projection, mode: DeleteMode) -> Select[Any]:
    """How many rows of the payload have no active row in the target."""
    return (
        select(Count())
        .select_from(rows.rows.outerjoin(target, and_(rows.matches(target), active(target, mode))))
        .where(target.c[projection.key[0]].is_(None))
        .with_hint(target, PASS_HINT, "mssql")
        .with_hint(rows.rows, PASS_HINT, "mssql")
    )


def summary(difference: Table, *, number: int) -> Select[Any]:
    """Counts per kind of one pass."""
    return select(difference.c[KIND], func.sum(difference.c[COUNT])).where(difference.c[PASS] == _kind(number)).group_by(difference.c[KIND])


def read_classification(rows: list[Any]) -> Classification:
    """The five counts from :func:`summary`'s rows."""
    counts = {int(kind): int(n) for kind, n in rows}
    return Classification(
        matched=counts.get(MATCHED, 0),
        missing=counts.get(MISSING, 0),
        absent=counts.get(ABSENT, 0),
        tombstoned=counts.get(TOMBSTONED, 0),
        retained=counts.get(RETAINED, 0),
    )


def _kind(number: int) -> Any:
    # A literal, not a parameter: grouping by an expression with parameters is refused by SQL Server (Msg 8120).
    return literal_column(str(number))


def _nulls(projection: Projection) -> list[Any]:
    return [cast(null(), Physical(plan)).label(plan.name) for plan in projection.key_columns]
