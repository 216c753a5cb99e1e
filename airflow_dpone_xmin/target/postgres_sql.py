"""How the embedded engine spells the shared types and expressions. Importing this module registers the spellings.

Imports ``target/sql.py``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from airflow_dpone_xmin.contracts.columns import Family
from airflow_dpone_xmin.target.sql import (
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

_NAMES: dict[type[Named], str] = {Hash: "bytea", LongText: "text", Utc: "timestamp without time zone"}


@compiles(Named, "postgresql")
def _named(type_: Named, compiler: Any, **kw: Any) -> str:
    return _NAMES[type(type_)]


@compiles(Text, "postgresql")
def _text(type_: Text, compiler: Any, **kw: Any) -> str:
    return f"character varying({type_.length})" + ("" if type_.database_collation else ' COLLATE "C"')


@compiles(Physical, "postgresql")
def _physical(type_: Physical, compiler: Any, **kw: Any) -> str:
    plan = type_.plan
    if type_.staged and plan.family is Family.UUID:
        return 'text COLLATE "C"'
    return plan.embedded_type + (' COLLATE "C"' if plan.key and plan.family is Family.TEXT else "")


@compiles(Count, "postgresql")
def _count(element: Count, compiler: Any, **kw: Any) -> str:
    return f"count({compiler.process(element.clauses, **kw) or '*'})"


@compiles(Now, "postgresql")
def _now(element: Now, compiler: Any, **kw: Any) -> str:
    return "(clock_timestamp() AT TIME ZONE 'UTC')"


@compiles(Wire, "postgresql")
def _wire(element: Wire, compiler: Any, **kw: Any) -> str:
    inner = compiler.process(element.operands[0], **kw)
    return f"CAST({inner} AS uuid)" if element.family is Family.UUID else str(inner)


@compiles(Differs, "postgresql")
def _differs(element: Differs, compiler: Any, **kw: Any) -> str:
    left, right = (compiler.process(operand, **kw) for operand in element.operands)
    wrap = {Family.TEXT: '{} COLLATE "C"', Family.REAL: "float4send({})", Family.DOUBLE: "float8send({})"}.get(element.family, "{}")
    return f"({wrap.format(left)} IS DISTINCT FROM {wrap.format(right)})"


_FINGERPRINTS: dict[Family, str] = {
    Family.BOOLEAN: "sum({}::integer)",
    Family.TEXT: "sum(octet_length({}))",
    Family.BINARY: "sum(octet_length({}))",
    Family.DATE: "sum({} - DATE '1970-01-01')",
    Family.TIME: "sum(extract(epoch FROM {}) * 1000000)",
    Family.TIMESTAMP: "sum(extract(epoch FROM {}) * 1000000)",
    Family.TIMESTAMPTZ: "sum(extract(epoch FROM {}) * 1000000)",
    Family.REAL: "sum(('x' || encode(float4send({}), 'hex'))::bit(32)::integer)",
    Family.DOUBLE: "sum(('x' || encode(float8send({}), 'hex'))::bit(64)::bigint)",
}


@compiles(Fingerprint, "postgresql")
def _fingerprint(element: Fingerprint, compiler: Any, **kw: Any) -> str:
    inner = compiler.process(element.operands[0], **kw)
    form = _FINGERPRINTS.get(element.family, "sum({})")
    weights = fingerprint_weights(element.plan)
    if element.family is Family.UUID:
        form = "sum(('x' || replace(substr({}, " + ("1, 18", "20, 17")[element.part] + "), '-', ''))::bit(64)::bigint)"
    elif len(weights) > 1:
        form = (f"sum(div({{}}, {weights[0]:f}))", f"sum(mod({{}}, {weights[0]:f}))")[element.part]
    return f"CAST(coalesce({form.format(inner)}, 0) AS numeric)"
