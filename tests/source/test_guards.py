"""Value guards, from the server through the driver to the batch: what SQL Server cannot hold is refused, its edges are not."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.source.guards import CODE, MAX_DAY, MAX_MICROS, MIN_DAY, MIN_MICROS, Guards
from tests.source.support import SourceDb, rows_of

REFUSED = [
    ("date", "infinity"),
    ("date", "-infinity"),
    ("date", "0001-12-31 BC"),
    ("date", "10000-01-01"),
    ("date", "5874897-12-31"),
    ("date", "4713-01-01 BC"),
    ("timestamp", "infinity"),
    ("timestamp", "-infinity"),
    ("timestamp", "10000-01-01 00:00:00"),
    ("timestamp", "0001-12-31 23:59:59.999999 BC"),
    ("timestamp", "294276-12-31 23:59:59.999999"),
    ("timestamptz", "infinity"),
    ("timestamptz", "-infinity"),
    ("timestamptz", "9999-12-31 23:59:59.999999-01"),
    ("timestamptz", "0001-01-01 00:00:00+01"),
    ("time", "24:00:00"),
    ("time", "23:59:60"),
    ("time(0)", "23:59:59.9"),
    ("timestamp", "9999-12-31 23:59:60"),
    ("timestamp(0)", "9999-12-31 23:59:59.9"),
    ("timestamptz(3)", "9999-12-31 23:59:59.9999+00"),
    ("numeric(10,2)", "NaN"),
    ("real", "NaN"),
    ("real", "Infinity"),
    ("real", "-Infinity"),
    ("real", "1e-40"),
    ("double precision", "NaN"),
    ("double precision", "-Infinity"),
    ("double precision", "-1e-310"),
]
ACCEPTED = [
    ("date", "0001-01-01", date.min),
    ("date", "9999-12-31", date.max),
    ("timestamp", "0001-01-01 00:00:00", datetime.min),
    ("timestamp", "9999-12-31 23:59:59.999999", datetime.max),
    ("timestamptz", "9999-12-31 23:59:59.999999+00", datetime.max.replace(tzinfo=UTC)),
    ("time", "23:59:59.999999", datetime.max.time()),
    ("numeric(38,0)", "-" + "9" * 38, "-" + "9" * 38),
    ("numeric(38,38)", "0." + "9" * 38, "0." + "9" * 38),
    ("real", "-3.4028235e38", -3.4028234663852886e38),
    ("double precision", "2.2250738585072014e-308", 2.2250738585072014e-308),
    ("double precision", "-0", -0.0),
    ("varchar(2)", "😀😀", "😀😀"),
    ("text", " padded \t\n\x01 ", " padded \t\n\x01 "),
    ("bytea", "\\x0000", b"\0\0"),
    ("jsonb", '{"a": "\\u0001"}', '{"a": "\\u0001"}'),
]


def load(db: SourceDb, type_name: str, value: str) -> None:
    """A wide range of harmless rows around one value, over several nullable rows."""
    db.run(f"CREATE TABLE t (id int PRIMARY KEY, c {type_name})", "INSERT INTO t SELECT i, NULL FROM generate_series(1, 50) i")
    db.owner.execute(f"INSERT INTO t VALUES (100, %s::{type_name})", [value])  # type: ignore[call-overload]
    db.grant()


@pytest.mark.parametrize(("type_name", "value"), REFUSED)
def test_refused(source_db: SourceDb, type_name: str, value: str) -> None:
    load(source_db, type_name, value)
    request = source_db.request()
    with pytest.raises(XminError) as caught:
        source_db.extract(request)
    error = caught.value
    assert error.code == CODE
    assert error.details["column"] == "c"
    assert error.details["rule"]
    assert value in error.details["rule"] or value not in str(error.to_dict())
    assert os.listdir(request.work_dir) == []


#: Any bytes as text, which PostgreSQL does not look at: as a database has it that an old server let them into.
AS_TEXT = [
    "CREATE TYPE bt",
    "CREATE FUNCTION bt_in(cstring) RETURNS bt LANGUAGE internal IMMUTABLE STRICT AS 'byteain'",
    "CREATE FUNCTION bt_out(bt) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'byteaout'",
    "CREATE TYPE bt (INPUT = bt_in, OUTPUT = bt_out, LIKE = bytea)",
    "CREATE CAST (bt AS text) WITHOUT FUNCTION",
]


@pytest.mark.parametrize(
    ("stored", "rule"), [("ff41", "valid UTF-8"), ("61edb080", "valid UTF-8"), ("c3", "valid UTF-8"), ("610062", "no NUL character")]
)
@pytest.mark.parametrize("type_name", ["text", "varchar(9)"])
def test_text_that_is_none_is_refused(source_db: SourceDb, type_name: str, stored: str, rule: str) -> None:
    source_db.run(*AS_TEXT)
    load(source_db, type_name, "😀")
    source_db.run(f"INSERT INTO t VALUES (101, '\\x{stored}'::bt::text)")
    request = source_db.request()
    with pytest.raises(XminError) as caught:
        source_db.extract(request)
    assert (caught.value.code, caught.value.details["column"], caught.value.details["rule"]) == (CODE, "c", rule)
    assert os.listdir(request.work_dir) == []


def test_a_value_that_cannot_be_computed(source_db: SourceDb) -> None:
    """A virtual column fails while it is read; the error is the table's, not ours."""
    source_db.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (10 / a) VIRTUAL)", "INSERT INTO t VALUES (1, 1), (2, 0)"
    )
    source_db.grant()
    request = source_db.request()
    with pytest.raises(XminError) as caught:
        source_db.extract(request)
    assert (caught.value.code, caught.value.details["sqlstate"], caught.value.retryable) == (
        "postgres_source.value_unreadable",
        "22012",
        False,
    )
    assert os.listdir(request.work_dir) == []


@pytest.mark.parametrize(("type_name", "value", "expected"), ACCEPTED)
def test_accepted(source_db: SourceDb, type_name: str, value: str, expected: Any) -> None:
    load(source_db, type_name, value)
    assert next(row["c"] for row in rows_of(source_db.extract()) if row["id"] == 100) == expected


@pytest.mark.parametrize(
    ("type_name", "override", "value", "rule"),
    [
        ("varchar(3)", None, "ab ", "no trailing space in a key"),
        ("varchar(3)", None, " ", "no trailing space in a key"),
        ("varchar(3)", None, "a😀😀", "at most 3 UTF-16 units"),
        ("text", "nvarchar(3)", "abcd", "at most 3 UTF-16 units"),
        ("varchar(3)", None, "\u0301a ", "no trailing space in a key"),
        ("date", None, "infinity", "between 0001-01-01 and 9999-12-31"),
        ("timestamp", None, "infinity", "between 0001-01-01 00:00:00 and 9999-12-31 23:59:59.999999"),
    ],
)
def test_keys(source_db: SourceDb, type_name: str, override: str | None, value: str, rule: str) -> None:
    source_db.run(f"CREATE TABLE t (id {type_name} PRIMARY KEY)")
    source_db.owner.execute(f"INSERT INTO t VALUES (%s::{type_name})", [value])  # type: ignore[call-overload]
    source_db.grant()
    with pytest.raises(XminError) as caught:
        source_db.extract(source_db.request(type_overrides={} if override is None else {"id": override}))
    assert (caught.value.code, caught.value.details["rule"]) == (CODE, rule)


@pytest.mark.parametrize(
    ("declared", "contract", "override", "value", "fits"),
    [
        ("char(3)", False, "nvarchar(3)", "ab", True),
        ("char(3)", False, "nvarchar(3)", "😀", False),
        ("char(3)", True, "nvarchar(4)", "😀", True),
        ("text", False, "nvarchar(4)", "😀😀", True),
        ("text", False, "nvarchar(3)", "😀😀", False),
        ("varchar(3)", False, "nvarchar(3)", "a😀b", False),
        ("interval", True, "nvarchar(5)", "1 day", True),
        ("interval", True, "nvarchar(5)", "2 days", False),
        ("jsonb", False, "nvarchar(7)", '{"a":1}', False),
        ("json", False, "nvarchar(7)", '{"a":1}', True),
    ],
)
def test_a_bounded_text_is_counted_in_utf16(
    source_db: SourceDb, declared: str, contract: bool, override: str, value: str, fits: bool
) -> None:
    """A bound that the source does not have is held by a guard: nothing is cut, and the error tells the rule, not the value."""
    load(source_db, declared, value)
    strings = frozenset(["c"]) if contract else frozenset()
    request = source_db.request(type_overrides={"c": override}, string_columns=strings)
    if fits:
        assert len(rows_of(source_db.extract(request))) == 51
        return
    with pytest.raises(XminError) as caught:
        source_db.extract(request)
    assert (caught.value.code, caught.value.details["column"]) == (CODE, "c")
    assert caught.value.details["rule"] == f"at most {override[9:-1]} UTF-16 units"
    assert value not in str(caught.value.to_dict())
    assert os.listdir(request.work_dir) == []


def test_bounded_bytes(source_db: SourceDb) -> None:
    """As many bytes as the override holds, not one more."""
    load(source_db, "bytea", "\\x00ff00")
    assert len(rows_of(source_db.extract(source_db.request(type_overrides={"c": "varbinary(3)"})))) == 51
    with pytest.raises(XminError) as caught:
        source_db.extract(source_db.request(type_overrides={"c": "varbinary(2)"}))
    assert (caught.value.code, caught.value.details["rule"]) == (CODE, "at most 2 bytes")


@pytest.mark.parametrize("value", ["ä😀", "ab", "a\u00a0", "a\t"])
def test_good_keys(source_db: SourceDb, value: str) -> None:
    source_db.run("CREATE TABLE t (id varchar(3) PRIMARY KEY)")
    source_db.owner.execute("INSERT INTO t VALUES (%s)", [value])
    source_db.grant()
    assert rows_of(source_db.extract()) == [{"id": value}]


def plan(family: Family, **changes: Any) -> ColumnPlan:
    facts: dict[str, Any] = {"nullable": True, "key": False, "cast_to_text": False, "mssql_type": "x", "embedded_type": "x"}
    return ColumnPlan(name="c", family=family, source_type="x", **(facts | changes))


@pytest.mark.parametrize("bad", range(6))
def test_slices_and_nulls_are_seen_through(bad: int) -> None:
    """A batch may be a slice of a larger one: bytes outside of it do not count, those inside do."""
    values: list[str | None] = ["1.0", None, "-2", "", "3", "4"]
    values[bad] = "NaN"
    whole = pa.record_batch({"c": pa.array(values, pa.string())})
    guards = Guards([plan(Family.DECIMAL)])
    for start in range(6):
        for length in range(7 - start):
            part = whole.slice(start, length)
            if start <= bad < start + length:
                with pytest.raises(XminError):
                    guards.check(part)
            else:
                guards.check(part)


def test_empty_and_all_null_batches() -> None:
    kinds = {
        Family.DATE: pa.date32(),
        Family.TIMESTAMP: pa.timestamp("us"),
        Family.TIME: pa.time64("us"),
        Family.DECIMAL: pa.string(),
        Family.DOUBLE: pa.float64(),
        Family.TEXT: pa.string(),
        Family.BINARY: pa.binary(),
    }
    for family, kind in kinds.items():
        guards = Guards([plan(family, max_units=1)])
        guards.check(pa.record_batch({"c": pa.array([], kind)}))
        guards.check(pa.record_batch({"c": pa.nulls(3, kind)}))


def test_null_in_a_column_that_has_none() -> None:
    with pytest.raises(XminError) as caught:
        Guards([plan(Family.INTEGER, nullable=False, key=True)]).check(pa.record_batch({"c": pa.array([1, None], pa.int32())}))
    assert caught.value.details["rule"] == "not NULL"


def test_the_domain_is_that_of_the_calendar() -> None:
    assert (date.fromordinal(MIN_DAY + date(1970, 1, 1).toordinal()), MAX_DAY) == (date.min, 2932896)
    assert (MIN_MICROS, MAX_MICROS) == (-62135596800000000, 253402300799999999)
