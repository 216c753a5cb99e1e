"""How SQL Server spells the shared types and expressions. Importing this module registers the spellings. Imports ``target/sql.py``.

Changed means different to the byte, whatever a collation says: every collation ignores trailing spaces in ``=`` and binary comparison
pads zeros, so lengths are compared too; there is no ``IS DISTINCT FROM`` before SQL Server 2022, so NULL is spelled out.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from airflow_dpone_xmin.contracts.columns import Family
from airflow_dpone_xmin.target.sql import (
    KEY_COLLATION,
    Count,
    Differs,
    Fingerprint,
    Hash,
    LongText,
    Named,
    Now,
    Physical,
    Text,
    Utc,
    Wire,
    fingerprint_weights,
)

BIN2 = f"COLLATE {KEY_COLLATION}"


_NAMES: dict[type[Named], str] = {Hash: "binary(32)", LongText: "nvarchar(max)", Utc: "datetime2(6)"}


@compiles(Named, "mssql")
def _named(type_: Named, compiler: Any, **kw: Any) -> str:
    return _NAMES[type(type_)]


@compiles(Text, "mssql")
def _text(type_: Text, compiler: Any, **kw: Any) -> str:
    return f"nvarchar({type_.length}) COLLATE {'DATABASE_DEFAULT' if type_.database_collation else KEY_COLLATION}"


@compiles(Physical, "mssql")
def _physical(type_: Physical, compiler: Any, **kw: Any) -> str:
    plan = type_.plan
    if type_.staged and plan.family is Family.UUID:
        return f"nvarchar(36) {BIN2}"
    if type_.staged and plan.family is Family.TIMESTAMPTZ:
        return "datetime2(6)"
    if plan.family is Family.TEXT and (plan.key or type_.staged):
        return f"{plan.mssql_type} {BIN2}"
    return plan.mssql_type


@compiles(Count, "mssql")
def _count(element: Count, compiler: Any, **kw: Any) -> str:
    return f"COUNT_BIG({compiler.process(element.clauses, **kw) or '*'})"


@compiles(Now, "mssql")
def _now(element: Now, compiler: Any, **kw: Any) -> str:
    return "CONVERT(datetime2(6), SYSUTCDATETIME())"


@compiles(Wire, "mssql")
def _wire(element: Wire, compiler: Any, **kw: Any) -> str:
    inner = compiler.process(element.operands[0], **kw)
    return f"CONVERT(uniqueidentifier, {inner})" if element.family is Family.UUID else f"TODATETIMEOFFSET({inner}, 0)"


_UNEQUAL: dict[Family, str] = {
    Family.TEXT: f"{{a}} {BIN2} <> {{b}} {BIN2} OR DATALENGTH({{a}}) <> DATALENGTH({{b}})",
    Family.BINARY: "{a} <> {b} OR DATALENGTH({a}) <> DATALENGTH({b})",
    Family.REAL: "CONVERT(binary(4), {a}) <> CONVERT(binary(4), {b})",
    Family.DOUBLE: "CONVERT(binary(8), {a}) <> CONVERT(binary(8), {b})",
    Family.TIMESTAMPTZ: "{a} <> {b} OR DATEPART(tzoffset, {a}) <> DATEPART(tzoffset, {b})",
}


@compiles(Differs, "mssql")
def _differs(element: Differs, compiler: Any, **kw: Any) -> str:
    a, b = (compiler.process(operand, **kw) for operand in element.operands)
    unequal = _UNEQUAL.get(element.family, "{a} <> {b}").format(a=a, b=b)
    return f"({unequal} OR ({a} IS NULL AND {b} IS NOT NULL) OR ({a} IS NOT NULL AND {b} IS NULL))"


_FINGERPRINTS: dict[Family, str] = {
    Family.BOOLEAN: "CONVERT(int, {})",
    Family.TEXT: "CONVERT(bigint, DATALENGTH({}))",
    Family.BINARY: "CONVERT(bigint, DATALENGTH({}))",
    Family.DATE: "DATEDIFF(day, CONVERT(date, '19700101', 112), {})",
    Family.TIME: "DATEDIFF_BIG(microsecond, CONVERT(time(6), '00:00:00'), {})",
    Family.TIMESTAMP: "DATEDIFF_BIG(microsecond, CONVERT(datetime2(6), '19700101', 112), {})",
    Family.TIMESTAMPTZ: "DATEDIFF_BIG(microsecond, CONVERT(datetime2(6), '19700101', 112), {})",
    Family.REAL: "CONVERT(int, CONVERT(binary(4), {}))",
    Family.DOUBLE: "CONVERT(bigint, CONVERT(binary(8), {}))",
}


@compiles(Fingerprint, "mssql")
def _fingerprint(element: Fingerprint, compiler: Any, **kw: Any) -> str:
    inner = compiler.process(element.operands[0], **kw)
    scale, form = 0, _FINGERPRINTS.get(element.family, "{}")
    weights = fingerprint_weights(element.plan)
    if element.family is Family.UUID:
        # Eight bytes of the hexadecimal text, most significant first, as a signed number.
        half = ("SUBSTRING({0}, 1, 18)", "SUBSTRING({0}, 20, 17)")[element.part]
        form = f"CONVERT(bigint, CONVERT(binary(8), REPLACE({half}, '-', ''), 2))"
    elif element.family is Family.DECIMAL and len(weights) > 1:
        # Remainder and quotient by truncation, as decimal arithmetic of 38 digits can hold them exactly.
        form = ("(({0}) - ({0}) % {1}) / {1}", "({0}) % {1}")[element.part].format("{0}", format(weights[0], "f"))
        scale = (0, element.plan.scale or 0)[element.part]
    elif element.family is Family.DECIMAL:
        scale = element.plan.scale or 0
    # Summed as decimal(38): SUM of an int column would overflow an int. ISNULL keeps that type; COALESCE would make room for the integer 0
    # and round a sum of 38 decimal places.
    return f"ISNULL(SUM(CONVERT(decimal(38, {scale}), {form.format(inner)})), 0)"
