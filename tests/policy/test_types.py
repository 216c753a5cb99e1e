"""The type table: what lands as what, and everything that is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.columns import Family, SourceColumn
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.policy.types import check_key, plan_column, plan_columns

_DISPLAY = {"int4": "integer", "varchar": "character varying", "bpchar": "character", "bool": "boolean", "float4": "real"}


def column(base: str, *, name: str = "c", typmod: int = -1, nullable: bool = False, **changes: Any) -> SourceColumn:
    shown = _DISPLAY.get(base, base)
    if base == "varchar" and typmod > 4:
        shown = f"character varying({typmod - 4})"
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


@pytest.mark.parametrize("base", ["numeric", "bpchar", "interval", "timetz", "inet", "money", "bit", "xml", "oid", "point", "tsvector"])
def test_explicit_contract_types(base: str) -> None:
    error = refused("DPONE_TYPE_UNSUPPORTED", base)
    assert error.details["column"] == "c"
    made = plan(base, text=True)
    assert (made.family, made.mssql_type, made.embedded_type, made.cast_to_text) == (Family.TEXT, "nvarchar(max)", "text", True)


@pytest.mark.parametrize(
    "changes", [{"is_array": True}, {"type_kind": "d"}, {"type_kind": "e", "type_schema": "public"}, {"type_schema": "public"}]
)
def test_only_plain_built_in_types_need_no_contract(changes: dict[str, Any]) -> None:
    refused("DPONE_TYPE_UNSUPPORTED", "int4", **changes)
    assert plan("int4", text=True, **changes).family is Family.TEXT


def test_numeric_beyond_38_digits() -> None:
    assert "39 digits" in refused("DPONE_TYPE_UNSUPPORTED", "numeric", typmod=numeric(39, 0)).message


@pytest.mark.parametrize("base", ["int2", "int4", "int8", "uuid", "date", "timestamp"])
def test_key_types(base: str) -> None:
    assert plan(base, key=True).key


def test_text_keys_keep_their_declared_length() -> None:
    made = plan("varchar", key=True, typmod=24)
    assert (made.mssql_type, made.max_utf16, made.embedded_type) == ("nvarchar(20)", 20, "text")
    refused("DPONE_KEY_INVALID", "text", key=True)
    refused("DPONE_KEY_INVALID", "varchar", key=True)
    assert plan("text", key=True, override="nvarchar(30)").max_utf16 == 30


@pytest.mark.parametrize("base", ["bpchar", "bytea", "numeric", "bool", "timestamptz", "time", "float8", "json", "inet"])
def test_other_types_are_no_keys(base: str) -> None:
    error = refused("DPONE_KEY_INVALID", base, key=True, typmod=numeric(5, 0) if base == "numeric" else -1)
    assert error.details["column"] == "c"
    refused("DPONE_KEY_INVALID", base, key=True, text=True, typmod=numeric(5, 0) if base == "numeric" else -1)


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
        ("bytea", -1, "varbinary(100)"),
        ("bool", -1, "int"),
        ("int4", -1, "int; DROP TABLE x"),
    ],
)
def test_lossy_overrides(base: str, typmod: int, override: str) -> None:
    refused("DPONE_TYPE_LOSSY", base, typmod=typmod, override=override)


def test_key_overrides_stay_keys() -> None:
    assert plan("int4", key=True, override="bigint").family is Family.BIGINT
    refused("DPONE_TYPE_LOSSY", "int4", key=True, override="decimal(10)")
    refused("DPONE_TYPE_LOSSY", "varchar", key=True, typmod=24, override="nvarchar(max)")


def test_reserved_and_ambiguous_names() -> None:
    refused("DPONE_COLUMN_RESERVED", "int4", name="__DPONE__load_id")
    with pytest.raises(XminError) as caught:
        plan_columns([column("int4", name="id"), column("int4", name="ID")], key=["id"])
    assert caught.value.code == "DPONE_COLUMN_AMBIGUOUS"


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
