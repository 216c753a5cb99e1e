"""Changed means different to the byte, whatever a collation, a padding or a number format says."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.runtime.check import check_connections
from tests.flavour import UNNAMED
from tests.world import MODES, Setup, World

#: (type, value before, value after): each pair is equal to somebody who does not look at the bytes.
PAIRS = {
    "text trailing space": ("text", "'a'", "'a '"),
    "text case": ("text", "'a'", "'A'"),
    "text accent": ("varchar(20)", "'resume'", "'résumé'"),
    "text composed and decomposed": ("text", "U&'\\00E9'", "U&'e\\0301'"),
    "text tab and space": ("text", "E'a\\tb'", "'a b'"),
    "text newline kinds": ("text", "E'a\\nb'", "E'a\\r\\nb'"),
    "null and empty text": ("text", "NULL", "''"),
    "empty and null text": ("text", "''", "NULL"),
    "empty text and space": ("text", "''", "' '"),
    "zero-width": ("text", "'a'", "U&'a\\200B'"),
    "double negative zero": ("double precision", "'0'", "'-0'"),
    "real negative zero": ("real", "'0'", "'-0'"),
    "double last bit": ("double precision", "0.1::float8 + 0.2::float8", "0.3"),
    "bytea zero padding": ("bytea", r"'\x01'", r"'\x0100'"),
    "bytea empty and null": ("bytea", r"'\x'", "NULL"),
    "bytea leading zero": ("bytea", r"'\x01'", r"'\x0001'"),
    "boolean false and null": ("boolean", "false", "NULL"),
    "integer zero and null": ("integer", "0", "NULL"),
    "numeric last digit": ("numeric(38,10)", "1234567890123456789012345678.0000000001", "1234567890123456789012345678.0000000002"),
    "timestamp microsecond": ("timestamp", "'2024-01-01 00:00:00.000001'", "'2024-01-01 00:00:00.000002'"),
    "time microsecond": ("time", "'23:59:59.999998'", "'23:59:59.999999'"),
    "json spelling": ("json", "'{\"a\":1}'", "'{\"a\": 1}'"),
    "date": ("date", "'0001-01-01'", "'9999-12-31'"),
}


@pytest.fixture
def world(worlds: Setup) -> World:
    """One row and one column per pair."""
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(PAIRS.values()))
    values = ", ".join(before for _, before, _ in PAIRS.values())
    ids = ", ".join(f"({n}, {values})" for n in range(len(PAIRS)))
    return worlds(
        f"CREATE TABLE orders (id bigint PRIMARY KEY, {columns})",
        f"INSERT INTO orders VALUES {ids}",
        reconciliation=MODES["timestamp_only"],
    )


def test_every_difference_to_the_byte_is_an_update(world: World) -> None:
    """One row per pair changes only that column: every one of them is an update, and a run afterwards finds nothing."""
    columns = ("id", *[f"c{n}" for n in range(len(PAIRS))])
    world.run()
    for number, (_, _, after) in enumerate(PAIRS.values()):
        world.source.run(f"UPDATE orders SET c{number} = {after} WHERE id = {number}")
    receipt = world.run().receipt
    updated = {row[0] for row in world.target.rows(f"SELECT id FROM {world.target_name} WHERE __dpone__updated_at > __dpone__loaded_at")}
    missed = [name for number, name in enumerate(PAIRS) if number not in updated]
    assert missed == []
    assert (receipt.counts.updated, receipt.counts.unchanged) == (len(PAIRS), 0)
    as_carried = [
        f"{name}::text" if kind == "json" else name
        for name, kind in zip(columns, ("id", *[kind for kind, _, _ in PAIRS.values()]), strict=True)
    ]
    assert _binary(world.source_rows(as_carried)) == _binary(world.target_rows(columns))


def test_replayed_rows_of_every_type_are_unchanged(world: World) -> None:
    """A rewrite of the whole table gives every row a new xmin: all of them are unchanged, none is touched."""
    world.run()
    before = world.target_rows(("*",))
    world.source.run("UPDATE orders SET id = id")
    receipt = world.run().receipt
    assert (receipt.counts.payload, receipt.counts.unchanged) == (len(PAIRS), len(PAIRS))
    assert world.target_rows(("*",)) == before


@pytest.mark.parametrize(
    "values",
    [
        ("a", "A", "á", "Á", "ä", "ae", "ß", "ss"),
        ("a", "a\tb", "a\nb", "a b", "ab"),
        ("é", "e\u0301", "e"),
        ("I", "i", "İ", "ı"),
        ("😀", "😁", "\uffff", "a\u200b", "a"),
        ("", "0", "00", "-0"),
    ],
)
def test_text_keys_that_differ_only_by_case_accent_or_form(worlds: Setup, values: tuple[str, ...]) -> None:
    """Every spelling is a key of its own: all arrive, one deleted leaves the others, and ordering differences lose nothing."""
    world = worlds("CREATE TABLE orders (code varchar(20) PRIMARY KEY, qty integer)", key=("code",), reconciliation=MODES["timestamp_only"])
    with world.source.connect() as owner:
        owner.cursor().executemany("INSERT INTO orders VALUES (%s, 1)", [(value,) for value in values])
    world.run()
    assert world.source_rows(("code", "qty")) == world.target_rows(("code", "qty"))
    with world.source.connect() as owner:
        owner.execute("DELETE FROM orders WHERE code = %s", [values[0]])
        owner.execute("UPDATE orders SET qty = 2 WHERE code = %s", [values[1]])
    receipt = world.run().receipt
    assert (receipt.counts.soft_deleted, receipt.counts.updated) == (1, 1)
    assert world.source_rows(("code", "qty")) == world.target_rows(("code", "qty"))


def test_composite_key_of_every_key_type(worlds: Setup) -> None:
    """bigint, text, uuid, date and timestamp together: rows that share all parts but one stay apart."""
    world = worlds(
        "CREATE TABLE orders (a bigint, b varchar(5), c uuid, d date, e timestamp, qty integer, PRIMARY KEY (a, b, c, d, e))",
        "INSERT INTO orders SELECT a, b, ('00000000-0000-4000-8000-00000000000' || c)::uuid, date '2024-01-01' + d,"
        " timestamp '2024-01-01' + e * interval '1 microsecond', 1"
        " FROM generate_series(1, 2) a, unnest(ARRAY['x', 'X']) b, generate_series(1, 2) c,"
        " generate_series(1, 2) d,"
        " generate_series(1, 2) e",
        key=("b", "a", "e", "d", "c"),
        reconciliation=MODES["hard_delete"],
    )
    columns = ("a", "b", "c", "d", "e", "qty")
    assert world.run().receipt.counts.inserted == 32
    world.source.run(
        "DELETE FROM orders WHERE a = 1 AND b = 'x' AND e > timestamp '2024-01-01 00:00:00.000001'",
        "UPDATE orders SET qty = 2 WHERE b = 'X' AND a = 2",
    )
    receipt = world.run().receipt
    assert (receipt.counts.hard_deleted, receipt.counts.updated) == (4, 8)
    assert world.source_rows(columns) == world.target_rows(columns)


@pytest.mark.parametrize("mode", MODES)
def test_all_key_table(worlds: Setup, mode: str) -> None:
    """A table of key columns only has nothing to update; insert, delete and reactivate work."""
    world = worlds(
        "CREATE TABLE orders (a integer, b varchar(5), PRIMARY KEY (a, b))",
        "INSERT INTO orders VALUES (1, 'a'), (1, 'b'), (2, 'a')",
        key=("a", "b"),
        reconciliation=MODES[mode],
    )
    world.run()
    world.source.run("DELETE FROM orders WHERE b = 'b'", "INSERT INTO orders VALUES (3, 'c')")
    receipt = world.run().receipt
    assert (receipt.counts.inserted, receipt.counts.updated, receipt.counts.deleted) == (1, 0, 0 if mode == "never" else 1)
    world.source.run("INSERT INTO orders VALUES (1, 'b')", "UPDATE orders SET a = a WHERE a = 3")
    receipt = world.run().receipt
    assert receipt.counts.unchanged == (2 if mode == "never" else 1)
    assert world.source_rows(("a", "b")) == world.target_rows(("a", "b"))


def test_text_survives_as_it_is(worlds: Setup) -> None:
    """NULL, '', tab, newline, quotes, backslashes, emoji and other planes arrive as they were."""
    texts: list[Any] = [
        None,
        "",
        "\t",
        "\n",
        "\r\n",
        "\\",
        "\\N",
        "\\x01",
        "'",
        '"',
        ",",
        "😀",
        "👨‍👩‍👧",
        "\U0010ffff",
        "\u0001",
        " ",
        "a" * 5000,
        "NULL",
        "—",
    ]
    world = worlds("CREATE TABLE orders (id bigint PRIMARY KEY, note text)", reconciliation=MODES["timestamp_only"])
    with world.source.connect() as owner:
        owner.cursor().executemany("INSERT INTO orders VALUES (%s, %s)", list(enumerate(texts)))
    world.run()
    assert dict(world.target.rows(f"SELECT id, note FROM {world.target_name}")) == dict(enumerate(texts))


def test_a_key_with_a_trailing_space_is_refused(worlds: Setup) -> None:
    """SQL Server would take 'a' and 'a ' for one key: refused at baseline and later, and nothing changes."""
    world = worlds(
        "CREATE TABLE orders (code varchar(5) PRIMARY KEY, qty integer)",
        "INSERT INTO orders VALUES ('a', 1)",
        key=("code",),
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run("INSERT INTO orders VALUES ('a ', 2)")
    before = world.target_rows(("*",))
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "DPONE_POSTGRES_MSSQL_SOURCE_VALUE_UNREPRESENTABLE"
    assert caught.value.details["column"] == "code"
    assert world.target_rows(("*",)) == before


@pytest.mark.parametrize("mode", ["hard_delete", "timestamp_only"])
def test_a_new_row_takes_over_a_deleted_rows_unique_value(worlds: Setup, mode: str) -> None:
    """Deletes come before inserts: an index that is unique among active rows never sees both."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, place integer NOT NULL UNIQUE)",
        "INSERT INTO orders VALUES (1, 10), (2, 20)",
        reconciliation=MODES[mode],
    )
    active = " WHERE __dpone__deleted_at IS NULL" if mode == "timestamp_only" else ""
    world.target.run(f"CREATE UNIQUE INDEX ux_place ON {world.target_name} (place){active}")
    world.run()
    world.source.run("BEGIN; DELETE FROM orders WHERE id = 1; INSERT INTO orders VALUES (3, 10); COMMIT")
    receipt = world.run().receipt
    assert (receipt.counts.inserted, receipt.counts.deleted) == (1, 1)
    # A row that comes back takes the value that another one gives up, and a new one what that one had before.
    world.source.run("UPDATE orders SET place = 30 WHERE id = 2; INSERT INTO orders VALUES (1, 20)")
    receipt = world.run().receipt
    assert (receipt.counts.updated, receipt.counts.inserted + receipt.counts.reactivated) == (1, 1)
    assert world.source_rows(("id", "place")) == world.target_rows(("id", "place"))


NAMES = ("n", "kind", "pass", "100%", "50%%", "%s", "a b", "имя", "select", ":p", "a.b", "it's", "{x}", "a]b", "staged_rows", "Mixed")


@pytest.mark.parametrize("name", NAMES)
def test_a_column_may_have_any_name(worlds: Setup, name: str) -> None:
    """Names of the product's own columns, of keywords and of every quoting, in the key and outside of it."""
    world = worlds(
        f'CREATE TABLE orders ("{name}" varchar(10) PRIMARY KEY, "v {name}" integer)',
        "INSERT INTO orders VALUES ('x', 1), ('y', 2), ('z', 3)",
        key=(name,),
        reconciliation=MODES["timestamp_only"],
        provision=False,
    )
    if world.forgiving and name in UNNAMED:
        pytest.skip("not provable on this flavour: it changes such a name, or cannot load it")
    world.provision_target()
    report = check_connections(world.route(), endpoints=world.endpoints)
    assert report.ok, report.findings
    world.run()
    world.source.run(
        f"DELETE FROM orders WHERE \"{name}\" = 'x'",
        f'UPDATE orders SET "v {name}" = 9 WHERE "v {name}" = 2',
        "INSERT INTO orders VALUES ('w')",
    )
    receipt = world.run().receipt
    assert (receipt.counts.deleted, receipt.counts.updated, receipt.counts.inserted) == (1, 1, 1)
    quoted = [f'"{one}"' if world.target.kind == "embedded" else "[" + one.replace("]", "]]") + "]" for one in (name, f"v {name}")]
    where = world.alive()
    rows = world.target.rows(f"SELECT {', '.join(quoted)} FROM {world.target_name} WHERE {where}")
    assert sorted(rows) == sorted(world.source.rows("SELECT * FROM orders"))


def test_two_rows_swap_a_unique_value(worlds: Setup) -> None:
    """An exchange of unique values between two active rows is one set-wise update."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, email varchar(20))",
        "INSERT INTO orders VALUES (1, 'x'), (2, 'y')",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run("UPDATE orders SET email = CASE email WHEN 'x' THEN 'y' ELSE 'x' END")
    assert world.run().receipt.counts.updated == 2
    assert world.source_rows(("id", "email")) == world.target_rows(("id", "email"))


def _binary(rows: list[tuple[Any, ...]]) -> list[str]:
    """``repr`` tells -0.0 from 0.0 and 'a' from 'a '."""
    return [repr(row) for row in rows]
