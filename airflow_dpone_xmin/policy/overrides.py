"""Which SQL Server types may replace a planned one: those that hold every value the plan can carry.

A bounded override of text or binary is allowed where the source declares no smaller length, because a value guard then refuses what
does not fit instead of cutting it. Pure: imports contracts only.
"""

from __future__ import annotations

import re
from dataclasses import replace

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family
from airflow_dpone_xmin.contracts.errors import XminError

_SHAPE = re.compile(r"^\s*([a-z0-9_ ]+?)\s*(?:\(\s*(max|\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*$", re.IGNORECASE)
_DECLARED = re.compile(r"^character(?: varying)?\((\d+)\)$")
_FRACTION = re.compile(r"^time(?:stamp)?\((\d)\)")
_SYNONYMS = {
    "numeric": "decimal",
    "dec": "decimal",
    "integer": "int",
    "national character varying": "nvarchar",
    "double precision": "float",
}
_INTEGERS = {Family.SMALLINT: ("smallint", "smallint", 5), Family.INTEGER: ("int", "integer", 10), Family.BIGINT: ("bigint", "bigint", 19)}
_DIGITS = {name: digits for name, _, digits in _INTEGERS.values()}
_TEMPORAL = {Family.TIME: "time", Family.TIMESTAMP: "datetime2", Family.TIMESTAMPTZ: "datetimeoffset"}
_FIXED = {Family.BOOLEAN: "bit", Family.UUID: "uniqueidentifier", Family.DATE: "date"}


def widen(plan: ColumnPlan, override: str) -> ColumnPlan:
    """*plan* with *override* as its SQL Server type, and the other facts adjusted to it.

    :param override: a SQL Server type such as ``nvarchar(200)`` or ``decimal(20,4)``; case and spaces do not matter.
    :raises XminError: ``DPONE_TYPE_LOSSY`` when some value of the column would not fit, or the type is of another kind.
    """
    parsed = _parse(override)
    if parsed is None:
        raise _lossy(plan, override, "it is not a type of SQL Server")
    name, first, second = parsed
    if plan.family is Family.TEXT:
        widened = _text(plan, name, first, second)
    elif plan.family is Family.DECIMAL or plan.family in _INTEGERS:
        widened = _number(plan, name, first, second)
    elif plan.family in _TEMPORAL:
        widened = _temporal(plan, name, first, second)
    else:
        widened = _other(plan, name, first, second)
    if widened is None:
        wanted = "nvarchar(n)" if plan.key and plan.family is Family.TEXT else plan.mssql_type
        raise _lossy(plan, override, f"the column needs {wanted} or a type that holds all of its values")
    return widened


def widens(old: str, new: str) -> bool:
    """Whether physical type *new* holds every value of *old*, exactly, and is another type.

    :param old: type of a live column, in the spelling of either engine.
    :param new: type that it should get.
    """
    before, after = _parse(old), _parse(new)
    if before is None or after is None or before == after:
        return False
    (name, first, second), (wide, size, scale) = before, after
    if name in _DIGITS and wide in _DIGITS:
        return _DIGITS[name] < _DIGITS[wide]
    if wide == "decimal" and name in ("decimal", *_DIGITS):
        whole, fraction = (_DIGITS[name], 0) if name in _DIGITS else (int(first or 18) - (second or 0), second or 0)
        return (scale or 0) >= fraction and int(size or 18) - (scale or 0) >= whole
    if (name, wide) in (("real", "float"), ("character varying", "text")):
        return True
    if name == wide and name in ("nvarchar", "varbinary", "character varying"):
        return size == "max" or (first != "max" and int(size or 1) > int(first or 1))
    return name == wide and name in _TEMPORAL.values() and int(size or 7) > int(first or 7)


def holds(live: str, planned: str) -> bool:
    """Whether a live column of type *live* may stand where *planned* is planned: it holds every value, and calls the same values equal.

    A float for a real is another type of bits; the override ``float`` makes it the planned one.
    """
    parsed = _parse(planned)
    return live == planned or (parsed is not None and (_parse(live) == parsed or (parsed[0] != "real" and widens(planned, live))))


def _parse(text: str) -> tuple[str, str | None, int | None] | None:
    """Name, length or precision, and scale of a declared type, by one name per type."""
    match = _SHAPE.match(text)
    if match is None:
        return None
    name = " ".join(match[1].lower().split())
    return _SYNONYMS.get(name, name), None if match[2] is None else match[2].lower(), None if match[3] is None else int(match[3])


def _text(plan: ColumnPlan, name: str, first: str | None, second: int | None) -> ColumnPlan | None:
    if name != "nvarchar" or first is None or second is not None:
        return None
    if first == "max":
        return None if plan.key else replace(plan, mssql_type="nvarchar(max)", max_units=None)
    units = int(first)
    length = _DECLARED.search(plan.source_type)
    declared = None if length is None else int(length[1])
    if not 1 <= units <= 4000 or (declared is not None and units < declared):
        return None
    return replace(plan, mssql_type=f"nvarchar({units})", max_units=units)


def _number(plan: ColumnPlan, name: str, first: str | None, second: int | None) -> ColumnPlan | None:
    if plan.family in _INTEGERS:
        _, _, digits = _INTEGERS[plan.family]
        wider = {mssql: (family, embedded, size) for family, (mssql, embedded, size) in _INTEGERS.items()}
        if name in wider and first is None:
            family, embedded, size = wider[name]
            return replace(plan, family=family, mssql_type=name, embedded_type=embedded) if size >= digits else None
        whole, scale = digits, 0
        if plan.key:  # a decimal key is outside the key types of this route
            return None
    else:
        whole, scale = (plan.precision or 0) - (plan.scale or 0), plan.scale or 0
    if name != "decimal" or first is None or first == "max":
        return None
    precision, new_scale = int(first), second or 0
    if not 1 <= precision <= 38 or new_scale < scale or precision - new_scale < whole:
        return None
    suffix = f"({precision},{new_scale})"
    return replace(
        plan,
        family=Family.DECIMAL,
        cast_to_text=True,
        mssql_type=f"decimal{suffix}",
        embedded_type=f"numeric{suffix}",
        precision=precision,
        scale=new_scale,
    )


def _temporal(plan: ColumnPlan, name: str, first: str | None, second: int | None) -> ColumnPlan | None:
    """PostgreSQL keeps microseconds unless fewer digits are declared; seven hold every value."""
    declared = _FRACTION.search(plan.source_type)
    digits = "7" if first is None else first
    if name != _TEMPORAL[plan.family] or second is not None or digits == "max":
        return None
    if not (6 if declared is None else int(declared[1])) <= int(digits) <= 7:
        return None
    return replace(plan, mssql_type=f"{name}({digits})")


def _other(plan: ColumnPlan, name: str, first: str | None, second: int | None) -> ColumnPlan | None:
    if second is not None:
        return None
    if plan.family in (Family.REAL, Family.DOUBLE):
        if name == "real" and first is None:
            return plan if plan.family is Family.REAL else None
        if name != "float" or first == "max" or not 25 <= int(first or 53) <= 53:
            return None
        return replace(plan, family=Family.DOUBLE, mssql_type="float", embedded_type="double precision")
    if plan.family is Family.BINARY:
        if name != "varbinary" or first is None:
            return None
        if first == "max":
            return plan
        return replace(plan, mssql_type=f"varbinary({int(first)})", max_units=int(first)) if 1 <= int(first) <= 8000 else None
    return plan if name == _FIXED[plan.family] and first is None else None


def _lossy(plan: ColumnPlan, override: str, why: str) -> XminError:
    return XminError(
        "DPONE_TYPE_LOSSY",
        f"Column {plan.name!r} ({plan.source_type}) cannot take the target type {override!r}: {why}.",
        details={"column": plan.name, "type": plan.source_type, "override": override},
    )
