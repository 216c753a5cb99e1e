"""THE type table: what becomes of every PostgreSQL type, decided once.

A type is carried natively, lands as canonical text under an explicit contract, or is refused; nothing is decided elsewhere and nothing is
left to a default. ``dpone-xmin types`` prints the table, ``docs/reference/types.md`` is generated from it, and a test walks the live
catalog of PostgreSQL for a type without a row. ``policy/planning.py`` applies the table to columns. Pure: imports contracts only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from airflow_dpone_xmin.contracts.columns import Family, SourceColumn


class Verdict(str, Enum):
    """What happens to the values of a type."""

    CARRIED = "carried"
    TEXT = "text contract"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FamilyRule:
    """How the values of one family travel, for every type of that family.

    :param wire: Arrow type in the artifact.
    :param guard: what every value must be before anything is staged.
    :param comparison: when two values count as changed.
    """

    wire: str
    guard: str
    comparison: str


@dataclass(frozen=True, slots=True)
class TypeRule:
    """The decision on one type, or on one kind of types.

    :param family: behaviour on the way; None when refused.
    :param mssql: type on SQL Server; length, precision and scale come from the declaration.
    :param embedded: type on the embedded engine.
    :param key_bytes: width in a SQL Server index key; 0 when the declared length decides, None when the type cannot be a key.
    :param cast: whether the extraction query casts it to text.
    :param why: reason of a refusal, of the contract, or of a limit.
    :param volatile: its text follows names in other catalogs, which change without touching the row: every payload is full.
    """

    verdict: Verdict
    family: Family | None = None
    mssql: str = ""
    embedded: str = ""
    key_bytes: int | None = None
    cast: bool = False
    why: str = ""
    volatile: bool = False


_BY_VALUE = "by value"
FAMILIES: Mapping[Family, FamilyRule] = {
    Family.BOOLEAN: FamilyRule("bool", "", _BY_VALUE),
    Family.SMALLINT: FamilyRule("int16", "", _BY_VALUE),
    Family.INTEGER: FamilyRule("int32", "", _BY_VALUE),
    Family.BIGINT: FamilyRule("int64", "", _BY_VALUE),
    Family.DECIMAL: FamilyRule("utf8, staged as decimal128(p,s)", "neither NaN nor ±Infinity", _BY_VALUE),
    Family.REAL: FamilyRule("float32", "finite; zero or a normal number", "by bits: 0 and -0 differ"),
    Family.DOUBLE: FamilyRule("float64", "finite; zero or a normal number", "by bits: 0 and -0 differ"),
    Family.TEXT: FamilyRule(
        "utf8",
        "valid UTF-8 without NUL; fits the target's UTF-16 units where it is bounded; no trailing space in a key",
        "by code units and length: case, accents, form and trailing spaces differ",
    ),
    Family.UUID: FamilyRule("utf8, 36 characters", "", _BY_VALUE),
    Family.DATE: FamilyRule("date32", "0001-01-01 to 9999-12-31, not ±infinity", _BY_VALUE),
    Family.TIME: FamilyRule("time64[us]", "before 24:00:00", _BY_VALUE),
    Family.TIMESTAMP: FamilyRule("timestamp[us]", "years 1 to 9999, not ±infinity", _BY_VALUE),
    Family.TIMESTAMPTZ: FamilyRule(
        "timestamp[us, UTC]", "years 1 to 9999 in UTC, not ±infinity", "by instant and offset; the offset is +00:00"
    ),
    Family.BINARY: FamilyRule("binary", "fits the target's bytes where it is bounded", "by bytes and length: trailing zeros differ"),
}


def _carried(family: Family, mssql: str, embedded: str, *, key: int | None = None, cast: bool = False, why: str = "") -> TypeRule:
    return TypeRule(Verdict.CARRIED, family, mssql, embedded, key_bytes=key, cast=cast, why=why)


def _text(why: str, *, volatile: bool = False) -> TypeRule:
    return TypeRule(Verdict.TEXT, Family.TEXT, "nvarchar(max)", "text", cast=True, why=why, volatile=volatile)


def _refused(why: str) -> TypeRule:
    return TypeRule(Verdict.REFUSED, why=why)


_CARRIED: Mapping[str, TypeRule] = {
    "bool": _carried(Family.BOOLEAN, "bit", "boolean"),
    "int2": _carried(Family.SMALLINT, "smallint", "smallint", key=2),
    "int4": _carried(Family.INTEGER, "int", "integer", key=4),
    "int8": _carried(Family.BIGINT, "bigint", "bigint", key=8),
    "numeric": _carried(
        Family.DECIMAL, "decimal(p,s)", "numeric(p,s)", cast=True, why="without a declared precision, or over 38 digits: text contract"
    ),
    "float4": _carried(Family.REAL, "real", "real"),
    "float8": _carried(Family.DOUBLE, "float", "double precision"),
    "text": _carried(Family.TEXT, "nvarchar(max)", "text", key=0, why="as a key: needs an override nvarchar(n)"),
    "varchar": _carried(Family.TEXT, "nvarchar(2n), over 4000: nvarchar(max)", "text", key=0, why="as a key: nvarchar(n)"),
    "bpchar": _carried(Family.TEXT, "nvarchar(2n), over 4000: nvarchar(max)", "text", why="padded as declared"),
    "json": _carried(Family.TEXT, "nvarchar(max)", "text", cast=True),
    "jsonb": _carried(Family.TEXT, "nvarchar(max)", "text", cast=True),
    "uuid": _carried(Family.UUID, "uniqueidentifier", "uuid", key=72, cast=True, why="as a key: 72 bytes, because it is staged as text"),
    "date": _carried(Family.DATE, "date", "date", key=3),
    "time": _carried(Family.TIME, "time(6)", "time without time zone"),
    "timestamp": _carried(Family.TIMESTAMP, "datetime2(6)", "timestamp without time zone", key=8),
    "timestamptz": _carried(Family.TIMESTAMPTZ, "datetimeoffset(6)", "timestamp with time zone"),
    "bytea": _carried(Family.BINARY, "varbinary(max)", "bytea"),
}
_BOUNDS = "a range has no counterpart on SQL Server"
_SHAPE = "SQL Server's spatial types do not hold every value"
_NAMES = "the text follows names in other catalogs, so every payload is full"
_SYSTEM = "an internal number of the server"
_TEXT: Mapping[str, tuple[str, ...]] = {
    "no counterpart on SQL Server": ("interval", "timetz", "bit", "varbit", "inet", "cidr", "macaddr", "macaddr8", "tsvector", "tsquery"),
    "SQL Server's xml normalises documents": ("xml",),
    "SQL Server has no type for a path expression": ("jsonpath",),
    _SHAPE: ("point", "line", "lseg", "box", "path", "polygon", "circle"),
    _BOUNDS: ("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
    "a multirange has no counterpart on SQL Server": (
        "int4multirange",
        "int8multirange",
        "nummultirange",
        "tsmultirange",
        "tstzmultirange",
        "datemultirange",
    ),
    _SYSTEM: ("oid", "xid", "xid8", "cid", "tid", "pg_lsn", "pg_snapshot", "txid_snapshot"),
    "an internal text of the server": ("name", "refcursor"),
    "as the source's lc_monetary writes it; another one makes the next payload full": ("money",),
    '"char", the one-byte type of the catalogs; char(n) is bpchar': ("char",),
}
_VOLATILE = (
    "regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator", "regproc", "regprocedure",
    "regrole", "regtype", "aclitem",
)  # fmt: skip
_REFUSED: Mapping[str, tuple[str, ...]] = {
    "an internal vector of the catalogs, not application data": ("int2vector", "oidvector"),
    "an internal statistics or index payload, not application data": (
        "gtsvector",
        "pg_brin_bloom_summary",
        "pg_brin_minmax_multi_summary",
        "pg_dependencies",
        "pg_mcv_list",
        "pg_ndistinct",
        "pg_node_tree",
    ),
}

CANONICAL = _text("")
"""How a column under a text contract travels, whatever its type."""

TYPES: Mapping[str, TypeRule] = {
    **_CARRIED,
    **{name: _text(why) for why, names in _TEXT.items() for name in names},
    **{name: _text(_NAMES, volatile=True) for name in _VOLATILE},
    **{name: _refused(why) for why, names in _REFUSED.items() for name in names},
}
"""``pg_type.typname`` of ``pg_catalog`` → rule."""

KINDS: Mapping[str, TypeRule] = {
    "enum": _text("labels may be renamed; a rename makes the next payload full"),
    "domain": _text("its definition may change, which makes the next payload full; over any type that is not refused"),
    "composite": _text("a row has no counterpart on SQL Server; of any types that are not refused"),
    "array": _text("an array has no counterpart on SQL Server; of any type that is not refused"),
    "range": _text(_BOUNDS),
    "multirange": _text("a multirange has no counterpart on SQL Server"),
    "extension": _text("its output is known to its extension only (citext, hstore, PostGIS …)"),
    "catalog row": _refused("the row type of a system catalog is not application data"),
    "pseudo": _refused("a pseudo-type has no values"),
}
"""Kinds of types that users define, and the kinds that no column should have."""

_KIND_OF = {"e": "enum", "d": "domain", "c": "composite", "r": "range", "m": "multirange", "p": "pseudo", "b": "extension"}
CATALOGS = ("pg_catalog", "information_schema")


def kind_of(column: SourceColumn) -> str | None:
    """The row of :data:`KINDS` that a column's type belongs to; None for a built-in type of :data:`TYPES`."""
    if column.is_array and column.type_kind != "p":
        return "array"
    if column.type_kind == "c" and column.type_schema in CATALOGS:
        return "catalog row"
    if column.type_schema == "pg_catalog" and column.type_kind in ("b", "r", "m"):
        return None
    return _KIND_OF.get(column.type_kind, "pseudo")


def decide(column: SourceColumn) -> TypeRule | None:
    """The rule of a column's type; None for a built-in type that this version does not know.

    A type is as good as what it is made of: over a refused or unknown type it is refused or unknown itself.
    """
    kind = kind_of(column)
    if kind is None:
        return TYPES.get(column.base_type)
    if column.element is None:
        return KINDS[kind]
    schema, name, letter = column.element
    inner = decide(SourceColumn(column.name, column.attnum, name, name, letter, schema, -1, column.nullable))
    return KINDS[kind] if inner is not None and inner.verdict is not Verdict.REFUSED else inner


def admitted_types() -> tuple[str, ...]:
    """Built-in types that are carried or may land as text."""
    return tuple(name for name, rule in TYPES.items() if rule.verdict is not Verdict.REFUSED)


def volatile_types() -> tuple[str, ...]:
    """Built-in types whose text can change without the row."""
    return _VOLATILE


def key_rule(rule: TypeRule) -> str:
    """Whether a type may be a key, in words."""
    if rule.key_bytes is None:
        return "no"
    return f"yes, {rule.key_bytes} bytes" if rule.key_bytes else "yes, 2 bytes per declared UTF-16 unit"


def table() -> Iterator[dict[str, str]]:
    """The whole table as text, one row per type and kind, for the command line and the documentation."""
    for group, rules in (("pg_catalog", TYPES), ("kind", KINDS)):
        for name, rule in sorted(rules.items(), key=lambda item: (list(Verdict).index(item[1].verdict), item[0])):
            family = None if rule.family is None else FAMILIES[rule.family]
            yield {
                "group": group,
                "type": name,
                "verdict": rule.verdict.value,
                "family": "" if rule.family is None else rule.family.value,
                "mssql": rule.mssql,
                "embedded": rule.embedded,
                "wire": "" if family is None else family.wire + (" (cast to text)" if rule.cast else ""),
                "guard": "" if family is None else family.guard,
                "key": "" if family is None else key_rule(rule),
                "comparison": "" if family is None else family.comparison,
                "note": rule.why,
            }
