"""The type table: what lands as what, and everything that is refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.columns import Family, SourceColumn
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.policy.planning import check_key, plan_column, plan_columns
from airflow_dpone_xmin.policy.types import KINDS, TYPES, Verdict, decide, table

_DISPLAY = {"int4": "integer", "varchar": "character varying", "bpchar": "character", "bool": "boolean", "float4": "real"}


def column(base: str, *, name: str = "c", typmod: int = -1, nullable: bool = False, **changes: Any) -> SourceColumn:
    shown = _DISPLAY.get(base, base)
    if base in ("varchar", "bpchar") and typmod > 4:
        shown = f"{shown}({typmod - 4})"
    if base in ("time", "timestamp") and typmod >= 0:
        shown = f"{shown}({typmod}) without time zone"
    facts: dict[str, Any] = {"type_kind": "b", "type_schema": "pg_catalog", "is_array": False}
    return SourceColumn(name=name, attnum=1, type_name=shown, base_type=base, typmod=typmod, nullable=nullable, **(facts | changes))


def numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def plan(base: str, *, key: bool = False, text: bool = False, override: str | None = None, **changes: Any) -> Any:
    return plan_column(column(base, **changes), key=key, text_contract=text, override=override, ordinal=0)


def refused(code: str, base: str, **options: Any) -> XminError:
    with pytest.raises(XminError) as caught:
        plan(base, **options)
    assert caught.value.code == code
    return caught.value


def test_every_refused_column_is_named_at_once() -> None:
    columns = [column("int4", name="id"), *(column(base, name=f"c_{base}") for base in ("interval", "int2vector", "text"))]
    with pytest.raises(XminError) as caught:
        plan_columns(columns, key=["id"])
    assert caught.value.code == "DPONE_TYPE_UNSUPPORTED"
    assert [named["column"] for named in caught.value.details["columns"]] == ["c_interval", "c_int2vector"]
    assert all(
        word in str(caught.value) for word in ("'c_interval'", "'c_int2vector'", "schema_contract.columns.c_interval", "No contract")
    )


@pytest.mark.parametrize(
    ("base", "typmod", "mssql", "embedded", "family", "cast"),
    [
        ("bool", -1, "bit", "boolean", Family.BOOLEAN, False),
        ("int2", -1, "smallint", "smallint", Family.SMALLINT, False),
        ("int4", -1, "int", "integer", Family.INTEGER, False),
        ("int8", -1, "bigint", "bigint", Family.BIGINT, False),
        ("numeric", numeric(10, 2), "decimal(10,2)", "numeric(10,2)", Family.DECIMAL, True),
        ("numeric", numeric(38, 38), "decimal(38,38)", "numeric(38,38)", Family.DECIMAL, True),
        ("numeric", numeric(5, -2), "decimal(7,0)", "numeric(7,0)", Family.DECIMAL, True),
        ("numeric", numeric(3, 5), "decimal(5,5)", "numeric(5,5)", Family.DECIMAL, True),
        ("float4", -1, "real", "real", Family.REAL, False),
        ("float8", -1, "float", "double precision", Family.DOUBLE, False),
        ("text", -1, "nvarchar(max)", "text", Family.TEXT, False),
        ("varchar", -1, "nvarchar(max)", "text", Family.TEXT, False),
        ("varchar", 24, "nvarchar(40)", "text", Family.TEXT, False),
        ("varchar", 2004, "nvarchar(4000)", "text", Family.TEXT, False),
        ("varchar", 2005, "nvarchar(max)", "text", Family.TEXT, False),
        ("bpchar", 14, "nvarchar(20)", "text", Family.TEXT, False),
        ("bpchar", 4004, "nvarchar(max)", "text", Family.TEXT, False),
        ("bpchar", -1, "nvarchar(max)", "text", Family.TEXT, False),
        ("json", -1, "nvarchar(max)", "text", Family.TEXT, True),
        ("jsonb", -1, "nvarchar(max)", "text", Family.TEXT, True),
        ("uuid", -1, "uniqueidentifier", "uuid", Family.UUID, True),
        ("date", -1, "date", "date", Family.DATE, False),
        ("time", -1, "time(6)", "time without time zone", Family.TIME, False),
        ("timestamp", -1, "datetime2(6)", "timestamp without time zone", Family.TIMESTAMP, False),
        ("timestamptz", -1, "datetimeoffset(6)", "timestamp with time zone", Family.TIMESTAMPTZ, False),
        ("bytea", -1, "varbinary(max)", "bytea", Family.BINARY, False),
    ],
)
def test_defaults(base: str, typmod: int, mssql: str, embedded: str, family: Family, cast: bool) -> None:
    made = plan(base, typmod=typmod)
    assert (made.mssql_type, made.embedded_type, made.family, made.cast_to_text) == (mssql, embedded, family, cast)


@pytest.mark.parametrize("base", ["numeric", "interval", "timetz", "inet", "bit", "xml", "oid", "point", "tsvector"])
def test_explicit_contract_types(base: str) -> None:
    error = refused("DPONE_TYPE_UNSUPPORTED", base)
    assert error.details["column"] == "c"
    made = plan(base, text=True)
    assert (made.family, made.mssql_type, made.embedded_type, made.cast_to_text) == (Family.TEXT, "nvarchar(max)", "text", True)


@pytest.mark.parametrize("changes", [{"is_array": True}, {"type_kind": "d"}, {"type_kind": "e", "type_schema": ""}, {"type_schema": ""}])
def test_only_plain_built_in_types_need_no_contract(changes: dict[str, Any]) -> None:
    refused("DPONE_TYPE_UNSUPPORTED", "int4", **changes)
    assert plan("int4", text=True, **changes).family is Family.TEXT


@pytest.mark.parametrize("typmod", [-1, 14])
def test_char_under_a_contract_keeps_its_padding(typmod: int) -> None:
    """``bpchar::text`` strips trailing spaces, which are part of an unbounded bpchar's value."""
    assert plan("bpchar", typmod=typmod, text=True) == plan("bpchar", typmod=typmod)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        *[(name, {}) for name, rule in TYPES.items() if rule.verdict is Verdict.REFUSED],
        ("pg_class", {"type_kind": "c"}),
        ("columns", {"type_kind": "c", "type_schema": "information_schema"}),
        ("record", {"type_kind": "p"}),
        ("_record", {"type_kind": "p", "is_array": True}),
        ("tomorrow", {}),
        ("_int2vector", {"is_array": True, "element": ("pg_catalog", "int2vector", "b")}),
        ("d", {"type_kind": "d", "type_schema": "", "element": ("pg_catalog", "pg_node_tree", "b")}),
        ("_pg_class", {"is_array": True, "element": ("pg_catalog", "pg_class", "c")}),
    ],
)
def test_refused_with_and_without_a_contract(base: str, changes: dict[str, Any]) -> None:
    for text in (False, True):
        assert "No contract" in refused("DPONE_TYPE_UNSUPPORTED", base, text=text, **changes).hint


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("mood", {"type_kind": "e", "type_schema": ""}),
        ("d", {"type_kind": "d", "type_schema": "", "element": ("", "mood", "e")}),
        ("yes_or_no", {"type_kind": "d", "type_schema": "information_schema", "element": ("pg_catalog", "varchar", "b")}),
        ("pair", {"type_kind": "c", "type_schema": ""}),
        ("_int4", {"is_array": True, "element": ("pg_catalog", "int4", "b")}),
        ("_pair", {"is_array": True, "type_schema": "", "element": ("", "pair", "c")}),
        ("int4range", {"type_kind": "r"}),
        ("myrange", {"type_kind": "r", "type_schema": ""}),
        ("datemultirange", {"type_kind": "m"}),
        ("citext", {"type_schema": ""}),
    ],
)
def test_kinds_need_a_contract(base: str, changes: dict[str, Any]) -> None:
    error = refused("DPONE_TYPE_UNSUPPORTED", base, **changes)
    assert "schema_contract.columns.c.type: string" in error.hint
    made = plan(base, text=True, **changes)
    assert (made.family, made.mssql_type, made.embedded_type, made.cast_to_text) == (Family.TEXT, "nvarchar(max)", "text", True)
    refused("DPONE_KEY_INVALID", base, key=True, **changes)


def test_every_row_of_the_table_is_complete() -> None:
    for row in table():
        assert row["type"] and row["verdict"]
        assert row["note"] or row["verdict"] == "carried"
        assert all(row[name] for name in ("family", "mssql", "embedded", "wire", "key", "comparison")) or row["verdict"] == "refused"


_LIVE = """
    SELECT n.nspname::text, t.typname::text, t.typtype::text, EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid),
           en.nspname::text, e.typname::text, e.typtype::text
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_type e ON e.oid =
        CASE WHEN t.typtype = 'd' THEN t.typbasetype WHEN t.typtype = 'b' AND t.typcategory = 'A' THEN t.typelem END
    LEFT JOIN pg_namespace en ON en.oid = e.typnamespace
"""


def test_the_live_catalog_has_no_undecided_type(source_cluster: EmbeddedCluster) -> None:
    """Every type that the server has, whatever its kind, is decided; and the table names no type that was never there."""
    with source_cluster.connect() as owner:
        owner.execute("CREATE EXTENSION IF NOT EXISTS citext")
        rows = owner.execute(_LIVE).fetchall()
    undecided, seen = [], set()
    for schema, name, kind, is_array, *element in rows:
        if is_array and element[1] is None:
            assert kind == "p", name  # _record
        live = column(name, type_schema=schema, type_kind=kind, is_array=is_array, element=tuple(element) if element[1] else None)
        if decide(live) is None:
            undecided.append(f"{schema}.{name}")
        if schema == "pg_catalog":
            seen.add(name)
    assert undecided == []
    assert set(TYPES) - seen == set()


def test_numeric_beyond_38_digits() -> None:
    assert "39 digits" in refused("DPONE_TYPE_UNSUPPORTED", "numeric", typmod=numeric(39, 0)).message


@pytest.mark.parametrize("base", ["int2", "int4", "int8", "uuid", "date", "timestamp"])
def test_key_types(base: str) -> None:
    assert plan(base, key=True).key


def test_text_keys_keep_their_declared_length() -> None:
    made = plan("varchar", key=True, typmod=24)
    assert (made.mssql_type, made.max_units, made.embedded_type) == ("nvarchar(20)", 20, "text")
    refused("DPONE_KEY_INVALID", "text", key=True)
    refused("DPONE_KEY_INVALID", "varchar", key=True)
    assert plan("text", key=True, override="nvarchar(30)").max_units == 30


@pytest.mark.parametrize("base", ["bpchar", "bytea", "numeric", "bool", "timestamptz", "time", "float8", "json", "inet"])
def test_other_types_are_no_keys(base: str) -> None:
    error = refused("DPONE_KEY_INVALID", base, key=True, typmod=numeric(5, 0) if base == "numeric" else -1)
    assert error.details["column"] == "c"
    refused("DPONE_KEY_INVALID", base, key=True, text=True, typmod=numeric(5, 0) if base == "numeric" else -1)


def test_key_eligibility_of_the_whole_table() -> None:
    """Types whose equality differs between the servers are no keys: char pads, numeric knows 1.0 = 1.00, citext folds case, 0 = -0."""
    assert {name for name, rule in TYPES.items() if rule.key_bytes is not None} == {
        "int2", "int4", "int8", "text", "varchar", "uuid", "date", "timestamp",
    }  # fmt: skip
    assert all(rule.key_bytes is None for rule in KINDS.values())


def test_a_nondeterministic_collation_is_no_key() -> None:
    assert "collation" in refused("DPONE_KEY_INVALID", "varchar", key=True, typmod=24, deterministic=False).message
    assert plan("varchar", typmod=24, deterministic=False).max_units == 40


@pytest.mark.parametrize(
    ("base", "typmod", "override", "mssql", "embedded"),
    [
        ("int2", -1, "INT", "int", "integer"),
        ("int4", -1, "bigint", "bigint", "bigint"),
        ("int4", -1, "decimal(10)", "decimal(10,0)", "numeric(10,0)"),
        ("int8", -1, "numeric(21, 2)", "decimal(21,2)", "numeric(21,2)"),
        ("numeric", numeric(10, 2), "decimal(12,4)", "decimal(12,4)", "numeric(12,4)"),
        ("float4", -1, "float(53)", "float", "double precision"),
        ("text", -1, "nvarchar(200)", "nvarchar(200)", "text"),
        ("varchar", 24, "nvarchar(20)", "nvarchar(20)", "text"),
        ("varchar", 24, "nvarchar(max)", "nvarchar(max)", "text"),
        ("timestamp", -1, "datetime2", "datetime2(7)", "timestamp without time zone"),
        ("time", -1, "time(6)", "time(6)", "time without time zone"),
        ("time", 0, "time(0)", "time(0)", "time without time zone"),
        ("timestamp", 3, "datetime2(3)", "datetime2(3)", "timestamp without time zone"),
        ("bytea", -1, "varbinary(MAX)", "varbinary(max)", "bytea"),
        ("bool", -1, "bit", "bit", "boolean"),
    ],
)
def test_lossless_overrides(base: str, typmod: int, override: str, mssql: str, embedded: str) -> None:
    made = plan(base, typmod=typmod, override=override)
    assert (made.mssql_type, made.embedded_type) == (mssql, embedded)


@pytest.mark.parametrize(
    ("base", "typmod", "override"),
    [
        ("timestamp", 3, "datetime2(2)"),
        ("time", 6, "time(5)"),
        ("int8", -1, "int"),
        ("int4", -1, "decimal(9,0)"),
        ("int4", -1, "decimal(11,2)"),
        ("numeric", numeric(10, 2), "decimal(10,3)"),
        ("numeric", numeric(10, 2), "decimal(10,1)"),
        ("numeric", numeric(10, 2), "float"),
        ("numeric", numeric(10, 2), "decimal(39,2)"),
        ("float8", -1, "real"),
        ("float8", -1, "float(24)"),
        ("text", -1, "varchar(200)"),
        ("text", -1, "nvarchar(4001)"),
        ("text", -1, "nvarchar"),
        ("varchar", 24, "nvarchar(19)"),
        ("varchar", 5004, "nvarchar(3000)"),
        ("timestamp", -1, "datetime"),
        ("timestamp", -1, "datetime2(3)"),
        ("timestamptz", -1, "datetime2(7)"),
        ("date", -1, "datetime2(7)"),
        ("uuid", -1, "nvarchar(36)"),
        ("bytea", -1, "varbinary(8001)"),
        ("bytea", -1, "varbinary"),
        ("bytea", -1, "binary(100)"),
        ("bool", -1, "int"),
        ("int4", -1, "int; DROP TABLE x"),
    ],
)
def test_lossy_overrides(base: str, typmod: int, override: str) -> None:
    refused("DPONE_TYPE_LOSSY", base, typmod=typmod, override=override)


#: Everything that an author might write, against every carried type; what is not listed as accepted is refused.
OVERRIDES = (
    "bit",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "decimal(5,0)",
    "decimal(9,2)",
    "decimal(10,0)",
    "decimal(10,2)",
    "decimal(12,2)",
    "decimal(12,4)",
    "decimal(19,0)",
    "decimal(38,0)",
    "decimal(38,10)",
    "numeric(38,2)",
    "decimal",
    "decimal(max)",
    "money",
    "smallmoney",
    "real",
    "float",
    "float(24)",
    "float(25)",
    "float(53)",
    "float(54)",
    "char(10)",
    "varchar(10)",
    "varchar(max)",
    "nchar(10)",
    "nvarchar(9)",
    "nvarchar(10)",
    "nvarchar(20)",
    "nvarchar(4000)",
    "nvarchar(4001)",
    "nvarchar(max)",
    "NVARCHAR ( MAX )",
    "nvarchar(0)",
    "nvarchar(10,2)",
    "text",
    "ntext",
    "binary(10)",
    "varbinary(10)",
    "varbinary(max)",
    "image",
    "uniqueidentifier",
    "date",
    "time",
    "time(5)",
    "time(6)",
    "time(7)",
    "datetime",
    "smalldatetime",
    "datetime2",
    "datetime2(3)",
    "datetime2(6)",
    "datetime2(7)",
    "datetimeoffset",
    "datetimeoffset(0)",
    "datetimeoffset(6)",
    "datetimeoffset(7)",
    "xml",
    "sql_variant",
    "rowversion",
    "hierarchyid",
    "geometry",
    "json",
    "sysname",
    "",
    "max",
    "int; DROP TABLE t",
    "nvarchar(10) COLLATE x",
)
_WIDE = {"decimal(19,0)", "decimal(38,0)", "decimal(38,10)", "numeric(38,2)"}
_TEXTS = {"nvarchar(9)", "nvarchar(10)", "nvarchar(20)", "nvarchar(4000)", "nvarchar(max)", "NVARCHAR ( MAX )"}
LOSSLESS: dict[tuple[str, int, bool], set[str]] = {
    ("bool", -1, False): {"bit"},
    ("int2", -1, False): {"smallint", "int", "bigint", "decimal(5,0)", "decimal(9,2)", "decimal(10,0)", "decimal(10,2)", "decimal(12,2)",
                          "decimal(12,4)", *_WIDE},
    ("int4", -1, False): {"int", "bigint", "decimal(10,0)", "decimal(12,2)", *_WIDE},
    ("int8", -1, False): {"bigint", *_WIDE},
    ("numeric", numeric(10, 2), False): {"decimal(10,2)", "decimal(12,2)", "decimal(12,4)", "decimal(38,10)", "numeric(38,2)"},
    ("float4", -1, False): {"real", "float", "float(25)", "float(53)"},
    ("float8", -1, False): {"float", "float(25)", "float(53)"},
    ("text", -1, False): _TEXTS,
    ("varchar", -1, False): _TEXTS,
    ("varchar", 14, False): _TEXTS - {"nvarchar(9)"},
    ("bpchar", 14, False): _TEXTS - {"nvarchar(9)"},
    ("json", -1, False): _TEXTS,
    ("jsonb", -1, False): _TEXTS,
    ("interval", -1, True): _TEXTS,
    ("int4", -1, True): _TEXTS,
    ("uuid", -1, False): {"uniqueidentifier"},
    ("date", -1, False): {"date"},
    ("time", -1, False): {"time", "time(6)", "time(7)"},
    ("timestamp", -1, False): {"datetime2", "datetime2(6)", "datetime2(7)"},
    ("timestamptz", -1, False): {"datetimeoffset", "datetimeoffset(6)", "datetimeoffset(7)"},
    ("bytea", -1, False): {"varbinary(10)", "varbinary(max)"},
}  # fmt: skip


@pytest.mark.parametrize(("base", "typmod", "contract"), LOSSLESS)
def test_override_matrix(base: str, typmod: int, contract: bool) -> None:
    """Every override either keeps every value (a guard holds a bound that the source does not declare) or is refused as lossy."""
    accepted = set()
    for override in OVERRIDES:
        try:
            made = plan(base, typmod=typmod, text=contract, override=override)
        except XminError as error:
            assert error.code == "DPONE_TYPE_LOSSY", (override, error)
            assert error.details["override"] == override
        else:
            accepted.add(override)
            bound = re.fullmatch(r"n?var(?:char|binary)\((\d+)\)", made.mssql_type)
            assert made.max_units == (int(bound[1]) if bound else None)
    assert accepted == LOSSLESS[base, typmod, contract]


def test_the_matrix_has_every_carried_type() -> None:
    assert {base for base, _, _ in LOSSLESS} >= {name for name, rule in TYPES.items() if rule.verdict is Verdict.CARRIED}


def test_key_overrides_stay_keys() -> None:
    assert plan("int4", key=True, override="bigint").family is Family.BIGINT
    refused("DPONE_TYPE_LOSSY", "int4", key=True, override="decimal(10)")
    refused("DPONE_TYPE_LOSSY", "varchar", key=True, typmod=24, override="nvarchar(max)")


def test_reserved_and_ambiguous_names() -> None:
    refused("DPONE_COLUMN_RESERVED", "int4", name="__DPONE__load_id")
    with pytest.raises(XminError) as caught:
        plan_columns([column("int4", name="id"), column("int4", name="ID")], key=["id"])
    assert caught.value.code == "DPONE_COLUMN_AMBIGUOUS"


@pytest.mark.parametrize(
    ("one", "other"),
    [("café", "cafe"), ("Ａ", "a"), ("a", "a "), ("ｶ", "カ"), ("か", "カ"), ("straße", "STRASSE"), ("a😀", "a"), ("İd", "id"), ("ıd", "ID"),
     ("Ⅳ", "iv"), ("søk", "sok"), ("a\u200bb", "ab"), ("이", "\u110b\u1175")],
)  # fmt: skip
def test_names_that_some_collation_may_call_equal(one: str, other: str) -> None:
    with pytest.raises(XminError) as caught:
        plan_columns([column("int4", name="key"), column("int4", name=one), column("int4", name=other)], key=["key"])
    assert (caught.value.code, caught.value.details["columns"]) == ("DPONE_COLUMN_AMBIGUOUS", [one, other])
    refused("DPONE_COLUMN_RESERVED", "int4", name="＿＿dpone＿＿" + one)


def test_names_that_every_collation_tells_apart() -> None:
    names = ["a", "b", "a b", "a_b", "a-b", "a1", "щ", "ш", "日", "月", "가", "나", "ab"]
    assert len(plan_columns([column("int4", name=name) for name in names], key=["a"])) == len(names)


@pytest.mark.parametrize("options", [{"string_columns": ["nope"]}, {"overrides": {"nope": "int"}}])
def test_contracts_and_overrides_name_real_columns(options: dict[str, Any]) -> None:
    with pytest.raises(XminError) as caught:
        plan_columns([column("int4", name="id")], key=["id"], **options)
    assert caught.value.code == "postgres_source.projection_invalid"


def test_the_key_is_checked_as_a_whole() -> None:
    wide = [column("varchar", name="a", typmod=4 + 440), column("int8", name="b"), column("int8", name="n", nullable=True)]
    plans = plan_columns(wide, key=["a", "b"])
    assert check_key(plans, ["a", "b"]) == 888
    for key in ([], ["b", "b"], ["nope"], ["n"]):
        with pytest.raises(XminError) as caught:
            check_key(plans, key)
        assert caught.value.code == "DPONE_KEY_INVALID"
    with pytest.raises(XminError) as caught:
        plan_columns([column("varchar", name="a", typmod=4 + 450), column("int2", name="b")], key=["b", "a"])
    assert (caught.value.code, caught.value.details["bytes"]) == ("DPONE_KEY_INVALID", {"b": 2, "a": 900})
    with pytest.raises(XminError) as caught:  # the staging index holds a uuid as text
        plan_columns([column("varchar", name="a", typmod=4 + 415), column("uuid", name="b")], key=["b", "a"])
    assert caught.value.details["bytes"] == {"b": 72, "a": 830}
