"""The target as it is found: every foreign part is named, before any row moves."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.runtime.check import check_connections
from tests.world import MODES, Setup, World

TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, code varchar(10) NOT NULL, qty integer)", "INSERT INTO orders VALUES (1, 'a', 1)")


@pytest.fixture
def world(worlds: Setup) -> World:
    """One row, timestamp mode."""
    return worlds(*TABLE, reconciliation=MODES["timestamp_only"])


def refused(world: World) -> XminError:
    with pytest.raises(XminError) as caught:
        world.run()
    assert world.target.rows(f"SELECT count(*) FROM {world.target_name}")[0][0] == 0
    return caught.value


@pytest.mark.certify("permission_denial")
def test_missing_select_at_the_source_is_named(world: World) -> None:
    """The source role's missing grant is named."""
    world.route()
    world.source.run("REVOKE SELECT ON orders FROM dpone_reader", "GRANT SELECT (id, qty) ON orders TO dpone_reader")
    error = refused(world)
    assert error.code == "postgres_source.permission_denied"
    assert "code" in error.message
    assert "xmin" in error.message


# ---- shape ----------------------------------------------------------------------------------------------------------------
SHAPES = {
    "missing column": ("ALTER TABLE {t} DROP COLUMN qty", "column qty integer is missing"),
    "missing lineage column": ("ALTER TABLE {t} DROP COLUMN __dpone__updated_at", "column __dpone__updated_at"),
    "wrong type": ("ALTER TABLE {t} ALTER COLUMN qty TYPE text", "column qty is text, expected integer"),
    "narrower text": ("ALTER TABLE {t} ALTER COLUMN code TYPE varchar(3)", "column code is character varying(3)"),
    "NOT NULL": ("ALTER TABLE {t} ALTER COLUMN qty SET NOT NULL", "column qty is NOT NULL"),
    "foreign column": ("ALTER TABLE {t} ADD COLUMN comment text", "column comment is neither"),
    "primary key of another column": (
        "ALTER TABLE {t} DROP CONSTRAINT pk_orders; CREATE UNIQUE INDEX ux_id ON {t} (id);"
        "ALTER TABLE {t} ADD PRIMARY KEY (__dpone__load_id)",
        "unique index orders_pkey covers __dpone__load_id",
    ),
    "unique expression": ("CREATE UNIQUE INDEX ux_extra ON {t} (abs(qty)) WHERE __dpone__deleted_at IS NULL", "covers abs(qty)"),
    "trigger": (
        "CREATE FUNCTION noise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER tr_noise BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION noise()",
        "trigger tr_noise is not ours",
    ),
    "foreign key": (
        "CREATE TABLE other (id bigint PRIMARY KEY); ALTER TABLE {t} ADD CONSTRAINT fk_other FOREIGN KEY (id) REFERENCES other",
        "foreign key fk_other",
    ),
    "referenced": ("CREATE TABLE child (id bigint, CONSTRAINT fk_child FOREIGN KEY (id) REFERENCES {t})", "foreign key fk_child"),
    "check": ("ALTER TABLE {t} ADD CONSTRAINT ck_qty CHECK (qty > 0)", "check constraint ck_qty"),
    "no key index": ("ALTER TABLE {t} DROP CONSTRAINT pk_orders", "no unique index covers exactly the key"),
    "identity column": ("ALTER TABLE {t} DROP COLUMN qty; ALTER TABLE {t} ADD COLUMN qty integer GENERATED ALWAYS AS IDENTITY", "qty"),
    "generated column": ("ALTER TABLE {t} DROP COLUMN qty; ALTER TABLE {t} ADD COLUMN qty integer GENERATED ALWAYS AS (1) STORED", "qty"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shape_differences_are_named(world: World, embedded_only: None, case: str) -> None:
    """A target that is not exactly the rendered one is refused, naming the difference."""
    statement, wanted = SHAPES[case]
    world.target.run(statement.format(t=world.target_name))
    error = refused(world)
    assert error.code == "DPONE_TARGET_UNSUPPORTED", error
    assert any(wanted in text for text in error.details["differences"]), error.details


_ACTIVE = "__dpone__deleted_at IS NULL"
#: Delete mode, columns and filter of another unique index, and what the refusal says; None when it can refuse no valid row.
UNIQUE: dict[str, tuple[str, str, str | None]] = {
    "active rows": ("timestamp_only", f"(n) WHERE {_ACTIVE}", None),
    "active rows, NULL left out": ("timestamp_only", f"(qty) WHERE qty IS NOT NULL AND {_ACTIVE}", None),
    "active rows by flag": ("flag_only", "(n) WHERE __dpone__is_deleted = {false}", None),
    "the key and more": ("timestamp_only", "(code, id)", None),
    "no tombstones": ("hard_delete", "(n)", None),
    "tombstones too": ("timestamp_only", "(n)", "is not filtered on active rows"),
    "another filter": ("timestamp_only", "(n) WHERE n > 0", "is not filtered on active rows"),
    "NULL": ("timestamp_only", f"(qty) WHERE {_ACTIVE}", "admits NULL once only"),
    "NULL without tombstones": ("hard_delete", "(qty)", "admits NULL once only"),
    "text": ("timestamp_only", f"(code) WHERE code IS NOT NULL AND {_ACTIVE}", "covers code"),
    "rows that are never deleted": ("never", "(n)", "keeps the values of rows"),
}


@pytest.mark.parametrize("case", UNIQUE)
def test_other_unique_indexes(worlds: Setup, case: str) -> None:
    """Admitted when it cannot refuse what the source holds; else refused by name, in check and run."""
    mode, definition, reason = UNIQUE[case]
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, n integer NOT NULL, qty integer, code varchar(10))",
        "INSERT INTO orders VALUES (1, 1, 1, 'a'), (2, 2, NULL, NULL), (3, 3, NULL, 'b')",
        reconciliation=MODES[mode],
    )
    false = "0" if world.target.kind == "mssql" else "false"
    world.target.run(f"CREATE UNIQUE INDEX ux_other ON {world.target_name} {definition.format(false=false)}")
    report = check_connections(world.route(), endpoints=world.endpoints)
    if reason is None:
        assert report.ok, report.findings
        assert world.run().status == "committed"
        return
    error = refused(world)
    assert error.code == "DPONE_TARGET_UNSUPPORTED"
    assert [finding.subject for finding in report.findings if finding.ok is False] == error.details["differences"]
    assert any("ux_other" in text and reason in text for text in error.details["differences"]), error.details


def test_wider_columns_of_the_target_are_welcome(worlds: Setup) -> None:
    """Columns that hold and compare the same values may stand where narrower ones are planned, in the key too."""
    world = worlds(
        "CREATE TABLE orders (id integer, code varchar(10), n smallint, price numeric(10,2), note varchar(5), at timestamp,"
        " PRIMARY KEY (id, code))",
        "INSERT INTO orders SELECT g, 'c', g, g, 'n', now() FROM generate_series(1, 5) g",
        key=("id", "code"),
        reconciliation=MODES["timestamp_only"],
        manifest_over=_overrides(
            id="bigint", code="nvarchar(200)", n="decimal(12,1)", price="numeric(20,4)", note="nvarchar(max)", at="datetime2(7)"
        ),
    )
    world.manifest_over = {}
    assert check_connections(world.route(), endpoints=world.endpoints).ok
    world.run()
    columns = ("id", "code", "n", "price", "note")
    assert world.source_rows(columns) == world.target_rows(columns)
    # A key that only the wider columns hold is found missing, kept apart and marked as deleted.
    long = "x" * (150 if world.target.kind == "mssql" else 10)
    rest = "n, price, note, at, __dpone__load_id, __dpone__loaded_at, __dpone__updated_at"
    world.target.run(
        f"INSERT INTO {world.target_name} (id, code, {rest}) SELECT 5000000000, '{long}', {rest} FROM {world.target_name} WHERE id = 1"
    )
    world.source.run("UPDATE orders SET n = 0, price = 0.1, note = 'm' WHERE id = 2")
    receipt = world.run().receipt
    assert (receipt.counts.updated, receipt.counts.deleted) == (1, 1)
    assert world.source_rows(columns) == world.target_rows(columns)
    assert world.run().receipt.counts.updated == 0


def test_a_column_of_other_bits_is_refused(worlds: Setup) -> None:
    """A float holds every real, but is compared by other bits: only the authored override makes it the planned type."""
    world = worlds(
        "CREATE TABLE orders (id integer PRIMARY KEY, f real)",
        reconciliation=MODES["timestamp_only"],
        manifest_over=_overrides(f="float"),
    )
    world.manifest_over = {}
    assert "column f is" in refused(world).details["differences"][0]


def test_limits_of_sql_server_are_told_before_anything_moves(worlds: Setup) -> None:
    """More columns and wider rows than SQL Server holds: check and run name the limit, and so does the rendered DDL."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1)", reconciliation=MODES["timestamp_only"]
    )
    world.run()
    for first, count, kind in ((0, 480, "numeric(38,2)"), (480, 1100, "text")):
        world.source.run("ALTER TABLE orders " + ", ".join(f"ADD COLUMN c{n} {kind}" for n in range(first, count)))
    before = world.target.rows(f"SELECT * FROM {world.target_name}")
    with pytest.raises(XminError) as caught:
        world.run()
    error = caught.value
    assert error.code == "DPONE_TARGET_UNSUPPORTED"
    limits = [text for text in error.details["differences"] if "SQL Server holds" in text]
    assert [text.partition(",")[0] for text in limits] == [
        "1106 columns",
        "a row takes 8353 bytes in its fixed-size columns alone",
    ]
    report = check_connections(world.route(), endpoints=world.endpoints)
    assert [finding.subject for finding in report.findings if finding.ok is False] == error.details["differences"]
    assert world.target.rows(f"SELECT * FROM {world.target_name}") == before
    with pytest.raises(XminError) as caught:
        world.provision_target()
    assert caught.value.code == "DPONE_TARGET_UNSUPPORTED"


def _overrides(**types: str) -> dict[str, Any]:
    return {"physical_design": {"columns": {name: {"target_type": {"mssql": kind}} for name, kind in types.items()}}}


def test_text_key_collation(worlds: Setup, embedded_only: None) -> None:
    """A text key with another collation is refused: two keys could become one."""
    world = worlds(
        "CREATE TABLE orders (code varchar(10) PRIMARY KEY)",
        "INSERT INTO orders VALUES ('a')",
        key=("code",),
        reconciliation=MODES["timestamp_only"],
    )
    world.target.run(f'ALTER TABLE {world.target_name} ALTER COLUMN code TYPE text COLLATE "default"')
    error = refused(world)
    assert error.code == "DPONE_TARGET_UNSUPPORTED"
    assert "collation" in error.message


def test_missing_target(worlds: Setup) -> None:
    """No target table: one clear refusal."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"], provision=False)
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code in ("DPONE_TARGET_UNSUPPORTED", "mssql_transaction.permission_denied")


def test_delete_mode_of_the_table_decides(world: World, embedded_only: None) -> None:
    """Another delete mode needs other marker columns, and is another state key: the present owner keeps the target."""
    world.run()
    world.reconciliation = MODES["flag_only"]
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "target_ownership.conflict"


# ---- catalog --------------------------------------------------------------------------------------------------------------
CATALOG = {
    "missing table": ("DROP TABLE {s}.dpone_campaign_chunk", "missing"),
    "missing column": ("ALTER TABLE {s}.dpone_load_audit DROP COLUMN evidence", "column evidence is missing"),
    "extra column": ("ALTER TABLE {s}.dpone_load_audit ADD COLUMN more text", "column more is not of this version"),
    "nullable": ("ALTER TABLE {s}.dpone_source_state ALTER COLUMN revision DROP NOT NULL", "column revision"),
    "no trigger": ("DROP TRIGGER tr_dpone_commit_receipt_immutable ON {s}.dpone_commit_receipt", "immutability trigger"),
    "no active-owner index": ("DROP INDEX {s}.ux_dpone_source_state_active_owner", "unique filtered index"),
    "no invocation constraint": (
        "ALTER TABLE {s}.dpone_commit_receipt DROP CONSTRAINT uq_dpone_commit_receipt_invocation_digest",
        "invocation_digest",
    ),
    "other trigger": (
        "DROP TRIGGER tr_dpone_commit_receipt_immutable ON {s}.dpone_commit_receipt;"
        "CREATE FUNCTION {s}.noise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER noise BEFORE INSERT ON {s}.dpone_commit_receipt FOR EACH ROW EXECUTE FUNCTION {s}.noise()",
        "trigger",
    ),
}


@pytest.mark.parametrize("case", CATALOG)
def test_catalog_differences_are_named(world: World, embedded_only: None, case: str) -> None:
    """A catalog that is not exactly this version's is refused before anything is written."""
    statement, wanted = CATALOG[case]
    world.target.run(statement.format(s="governance"))
    error = refused(world)
    assert error.code == "mssql_transaction.catalog_mismatch", error
    assert any(wanted in text for text in error.details["differences"]), error.details


# ---- authority ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("field", ["database_id", "create_token", "database_guid"])
def test_database_pins(world: World, embedded_only: None, field: str) -> None:
    """Each pinned field of the target database, signed otherwise, is refused; nothing is learned."""
    document = world.registry().model_dump(by_alias=True, mode="json", exclude_none=True)
    pins = document["connections"]["dwh"]["connection"]["database_authorities"][world.target.database]
    pins[field] = {"database_id": 999999, "create_token": "other", "database_guid": "01234567-89ab-cdef-0123-456789abcdef"}[field]
    for entry in document["connections"]["dwh"]["connection"]["database_authorities"].values():
        entry.pop("replicas", None)
    world._registry = type(world.registry()).model_validate(document)
    assert refused(world).code == "mssql_transaction.target_database_authority_mismatch"


def test_a_table_that_is_read_whole_every_time_is_told(worlds: Setup) -> None:
    """Exact, but dear: whoever checks the route should know before the first run."""
    world = worlds("CREATE TABLE orders (id bigint PRIMARY KEY, twice bigint GENERATED ALWAYS AS (id * 2) VIRTUAL)")
    report = check_connections(world.route(), endpoints=world.endpoints)
    (told,) = [finding.subject for finding in report.findings if "every payload is full" in finding.subject]
    assert report.ok and "virtual generated column" in told
    world.source.run("INSERT INTO orders VALUES (1)")
    world.run()
    assert world.run().receipt.payload_reason == "projection_volatile"
    assert world.target_rows(("id", "twice")) == [(1, 2)]
