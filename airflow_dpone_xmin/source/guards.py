"""Refuses values that SQL Server cannot hold, batch by batch, before anything is staged.

PostgreSQL's domains are wider: dates before year 1 and after 9999, ±infinity, 24:00:00, NaN. The driver turns ±infinity and far dates
silently into other numbers, all of them outside SQL Server's domain, so a range check on the batch finds them too. Everything is
vectorised; an error names column, type and rule, never a value. Imports pyarrow and contracts only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family
from airflow_dpone_xmin.contracts.errors import XminError

CODE = "DPONE_POSTGRES_MSSQL_SOURCE_VALUE_UNREPRESENTABLE"

_EPOCH_DAY = date(1970, 1, 1)
MIN_DAY = (date.min - _EPOCH_DAY).days
MAX_DAY = (date.max - _EPOCH_DAY).days
MIN_MICROS = MIN_DAY * 86_400_000_000
MAX_MICROS = (MAX_DAY + 1) * 86_400_000_000 - 1
DAY_MICROS = 86_400_000_000
#: Smallest normal numbers: SQL Server's ``real`` and ``float`` hold no subnormal ones.
_TINY = {Family.REAL: 1.1754943508222875e-38, Family.DOUBLE: 2.2250738585072014e-308}

_KEY_HINT = "Correct the value at the source. The type of a key column says whose checkpoint it is: a wider one is another route."

Check = Callable[[pa.Array], str | None]


class Guards:
    """The value guards of one list of columns.

    :param columns: plans in the order of the batches' columns.
    """

    def __init__(self, columns: Sequence[ColumnPlan]) -> None:
        self._checks = [(index, column, check) for index, column in enumerate(columns) for check in _checks_of(column)]

    def check(self, batch: pa.RecordBatch) -> None:
        """:raises XminError: ``DPONE_POSTGRES_MSSQL_SOURCE_VALUE_UNREPRESENTABLE`` for the first column with a value outside its domain."""
        for index, column, check in self._checks:
            rule = check(batch.column(index))
            if rule is not None:
                raise XminError(
                    CODE,
                    f"Column {column.name!r} ({column.source_type}) holds a value that {column.mssql_type} cannot: {rule}.",
                    hint=_KEY_HINT if column.key else None,
                    details={"column": column.name, "type": column.source_type, "target_type": column.mssql_type, "rule": rule},
                )


def _checks_of(column: ColumnPlan) -> list[Check]:
    family = column.family
    checks: list[Check] = []
    if not column.nullable:
        checks.append(_not_null)
    if family is Family.DATE:
        checks.append(partial(_range, kind=pa.int32(), low=MIN_DAY, high=MAX_DAY, rule="between 0001-01-01 and 9999-12-31"))
    elif family in (Family.TIMESTAMP, Family.TIMESTAMPTZ):
        rule = "between 0001-01-01 00:00:00 and 9999-12-31 23:59:59.999999"
        checks.append(partial(_range, kind=pa.int64(), low=MIN_MICROS, high=MAX_MICROS, rule=rule))
    elif family is Family.TIME:
        checks.append(partial(_range, kind=pa.int64(), low=0, high=DAY_MICROS - 1, rule="before 24:00:00"))
    elif family is Family.DECIMAL:
        checks.append(_finite_text)
    elif family in _TINY:
        checks.append(partial(_finite, tiny=_TINY[family]))
    elif family is Family.BINARY and column.max_units is not None:
        checks.append(partial(_bytes, limit=column.max_units))
    elif family is Family.TEXT:
        checks.append(_valid_text)
        if column.max_units is not None:
            checks.append(partial(_utf16, limit=column.max_units))
        if column.key:
            checks.append(_no_trailing_space)
    return checks


def _not_null(array: pa.Array) -> str | None:
    return "not NULL" if array.null_count else None


def _range(array: pa.Array, *, kind: pa.DataType, low: int, high: int, rule: str) -> str | None:
    bounds = pc.min_max(array.view(kind))
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    return rule if least is not None and (least < low or greatest > high) else None


def _valid_text(array: pa.Array) -> str | None:
    """PostgreSQL checks text on its way in, but not what a binary-coercible cast or an old server left behind."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return "valid UTF-8"
    return "no NUL character" if pc.min(_characters(array)).as_py() == 0 else None


def _finite_text(array: pa.Array) -> str | None:
    """NaN and ±Infinity are the only letters in a number's text, so the greatest byte of the buffer tells."""
    greatest = pc.max(_characters(array)).as_py()
    return "neither NaN nor Infinity" if greatest is not None and greatest > ord("9") else None


def _finite(array: pa.Array, *, tiny: float) -> str | None:
    if pc.all(pc.is_finite(array)).as_py() is False:
        return "neither NaN nor Infinity"
    size = pc.abs(array)
    subnormal = pc.and_(pc.less(size, pa.scalar(tiny, array.type)), pc.greater(size, pa.scalar(0.0, array.type)))
    return "zero or a normal number" if pc.any(subnormal).as_py() else None


def _utf16(array: pa.Array, *, limit: int) -> str | None:
    """A UTF-8 text never has more UTF-16 units than bytes, nor than twice its characters: only what may be too long is counted exactly."""
    size = pc.binary_length(array)
    longest = pc.max(size).as_py()
    if longest is None or longest <= limit:
        return None
    long = array.filter(pc.greater(size, limit))
    characters = pc.utf8_length(long)
    if 2 * pc.max(characters).as_py() <= limit:
        return None
    units = pc.max(pc.add(characters, pc.count_substring_regex(long, r"[\x{10000}-\x{10FFFF}]"))).as_py()
    return f"at most {limit} UTF-16 units" if units > limit else None


def _bytes(array: pa.Array, *, limit: int) -> str | None:
    longest = pc.max(pc.binary_length(array)).as_py()
    return f"at most {limit} bytes" if longest is not None and longest > limit else None


def _no_trailing_space(array: pa.Array) -> str | None:
    """SQL Server pads character comparison, so two keys that differ in trailing spaces would be one there."""
    return "no trailing space in a key" if pc.any(pc.ends_with(array, " ")).as_py() else None


def _characters(array: pa.Array) -> pa.Array:
    """All characters of a text array as one array of bytes, without a copy."""
    if len(array) == 0:
        return pa.array([], pa.uint8())
    offsets, data = array.buffers()[1:3]
    if offsets is None or data is None:
        return pa.array([], pa.uint8())
    bounds: Any = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], offset=array.offset)
    start, stop = bounds[0].as_py(), bounds[len(array)].as_py()
    return pa.Array.from_buffers(pa.uint8(), stop - start, [None, data], offset=start)
