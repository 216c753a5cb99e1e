"""Schema evolution: safe changes of the source reach the target, by the run or by its owner; everything else stops and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Namespace
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.policy.overrides import widens
from airflow_dpone_xmin.runtime.check import check_connections
from airflow_dpone_xmin.runtime.reconcile import dry_run
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.facts import ColumnFacts
from airflow_dpone_xmin.target.mssql_ddl import MssqlDdl
from tests.flavour import shorten_alter_column
from tests.world import MODES, WRITER, Setup, World

TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer, price numeric(10,2), code varchar(10), f real, must integer NOT NULL)",
    "INSERT INTO orders SELECT g, g, g, 'c' || g, g, g FROM generate_series(1, 20) g",
)
COLUMNS = ["id", "qty", "price", "code", "f", "must"]

BOTH, MSSQL, NEITHER = ("embedded", "mssql"), ("mssql",), ()
#: Source DDL, columns afterwards, and the engines on which the target's table must change for it.
SAFE: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    "new nullable column": ("ALTER TABLE orders ADD COLUMN note text", [*COLUMNS, "note"], BOTH),
    "new column with a default": ("ALTER TABLE orders ADD COLUMN flag boolean NOT NULL DEFAULT true", [*COLUMNS, "flag"], BOTH),
    "new column with an odd name": ('ALTER TABLE orders ADD COLUMN "a:b %s ""x" integer DEFAULT 7', [*COLUMNS, '"a:b %s ""x"'], BOTH),
    "wider integer": ("ALTER TABLE orders ALTER COLUMN qty TYPE bigint", COLUMNS, BOTH),
    "wider decimal": ("ALTER TABLE orders ALTER COLUMN price TYPE numeric(14,4)", COLUMNS, BOTH),
    "wider text": ("ALTER TABLE orders ALTER COLUMN code TYPE varchar(40)", COLUMNS, MSSQL),
    "unbounded text": ("ALTER TABLE orders ALTER COLUMN code TYPE text", COLUMNS, MSSQL),
    "wider float": ("ALTER TABLE orders ALTER COLUMN f TYPE double precision", COLUMNS, BOTH),
    "narrower decimal": ("ALTER TABLE orders ALTER COLUMN price TYPE numeric(9,2)", COLUMNS, NEITHER),
    "narrower integer": ("ALTER TABLE orders ALTER COLUMN qty TYPE smallint", COLUMNS, NEITHER),
    "narrower key": ("ALTER TABLE orders ALTER COLUMN id TYPE integer", COLUMNS, NEITHER),
    "NULL allowed": ("ALTER TABLE orders ALTER COLUMN must DROP NOT NULL; INSERT INTO orders (id) VALUES (99)", COLUMNS, BOTH),
    "integer to decimal": ("ALTER TABLE orders ALTER COLUMN qty TYPE numeric(12,2)", COLUMNS, BOTH),
}
#: Source DDL and what the refusal says.
BREAKING: dict[str, tuple[str, tuple[str, ...]]] = {
    "more scale, fewer digits": ("ALTER TABLE orders ALTER COLUMN price TYPE numeric(10,3)", ("price", "(10,2)", "(10,3)")),
    "text becomes a number": ("ALTER TABLE orders ALTER COLUMN code TYPE integer USING id", ("code", "int")),
    "number becomes text": ("ALTER TABLE orders ALTER COLUMN qty TYPE text", ("qty", "int")),
    "dropped column": ("ALTER TABLE orders DROP COLUMN code", ("code", "neither a source column")),
    "renamed column": ("ALTER TABLE orders RENAME COLUMN code TO label", ("code", "neither a source column")),
    "key column": ("ALTER TABLE orders ALTER COLUMN id TYPE varchar(20)", ("id", "bigint", "expected")),
}


@pytest.fixture
def world(worlds: Setup, monkeypatch: pytest.MonkeyPatch) -> World:
    """Past the baseline, with the right to alter the target."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"])
    if getattr(world.target, "babelfish", False):
        shorten_alter_column(monkeypatch)
    grant_alter(world)
    world.run()
    return world


def grant_alter(world: World) -> None:
    """What the owner grants: ALTER on SQL Server, the table itself on the embedded engine."""
    if world.target.kind == "embedded":
        world.target.run(f"ALTER TABLE {world.target_name} OWNER TO {WRITER}")
    elif not world.target.babelfish:
        world.target.run(f"GRANT ALTER ON {world.target_name} TO {WRITER}")


def not_on_babelfish(world: World) -> None:
    if getattr(world.target, "babelfish", False):
        pytest.skip("not provable on this flavour: ALTER COLUMN cannot take NOT NULL away, and a quote in a name stops the bulk load")


def test_the_spelling_of_sql_server() -> None:
    """NULL and the collation are said, because ALTER COLUMN would else take the session's and the database's."""
    dialect, place = MssqlDdl(), Namespace("DWH", "landing")
    plain = ColumnFacts("a]b", "bigint", nullable=True, collation=None, computed=False, identity=False)
    named = ColumnFacts("c", "nvarchar(20)", nullable=False, collation="Latin1_General_CI_AS", computed=False, identity=False)
    assert dialect.use(place) == ["USE [DWH]"]
    assert dialect.add_column(place, "t", plain) == ["ALTER TABLE [landing].[t] ADD [a]]b] bigint NULL"]
    assert dialect.alter_column(place, "t", plain, plain) == ["ALTER TABLE [landing].[t] ALTER COLUMN [a]]b] bigint NULL"]
    assert dialect.alter_column(place, "t", named, replace(named, type="nvarchar(max)")) == [
        "ALTER TABLE [landing].[t] ALTER COLUMN [c] nvarchar(max) COLLATE Latin1_General_CI_AS NOT NULL"
    ]


def shown(world: World, columns: list[str]) -> list[str]:
    return [name if world.target.kind == "embedded" else f"[{name}]" if not name.startswith('"') else '["a:b %s ""x"]' for name in columns]


def types(world: World) -> dict[str, tuple[str, bool]]:
    """Column → (type, nullable) of the live target."""
    engine = world.engine(owner=True)
    session = engine.connect("target", cancel=Cancellation())
    target = engine.layout.target
    facts = engine.describe(session, target.namespace, [target.name])[target.name]
    session.close()
    engine.close()
    return {column.name: (column.type, column.nullable) for column in facts.columns}


@contextmanager
def seen() -> Iterator[list[str]]:
    """Labels of the steps that ran."""
    labels: list[str] = []

    def observer(event: Event) -> None:
        if event.phase == "before":
            labels.append(event.label)

    OBSERVERS.append(observer)
    try:
        yield labels
    finally:
        OBSERVERS.remove(observer)


@pytest.mark.parametrize("case", SAFE)
def test_safe_changes_are_made(world: World, case: str) -> None:
    """The target follows, the payload is full, both sides are equal, and the next run is an ordinary delta."""
    ddl, columns, engines = SAFE[case]
    if case in ("NULL allowed", "new column with an odd name"):
        not_on_babelfish(world)
    world.source.run(*ddl.split("; "))
    report = check_connections(world.route(), endpoints=world.endpoints)
    assert report.ok, [finding for finding in report.findings if finding.ok is False]
    with seen() as labels:
        receipt = world.run().receipt
    changed = world.target.kind in engines
    assert ("evolve.ddl" in labels) is changed
    if changed:
        assert any("a run will" in finding.subject for finding in report.findings)
        assert labels.index("evolve.ddl") < labels.index("stage.create")
    assert (receipt.payload, receipt.payload_reason) == (Payload.FULL, "projection_changed")
    assert world.source_rows(columns) == world.target_rows(shown(world, columns))
    world.source.run("UPDATE orders SET must = must + 1 WHERE id = 5")
    with seen() as labels:
        receipt = world.run().receipt
    assert (receipt.payload, receipt.counts.updated) == (Payload.DELTA, 1)
    assert "evolve.ddl" not in labels


@pytest.mark.parametrize("case", BREAKING)
def test_breaking_changes_stop(world: World, case: str) -> None:
    """The refusal names the column and both types; table and rows stay; check says the same."""
    ddl, words = BREAKING[case]
    before = (types(world), world.target_rows(("*",), active=False))
    world.source.run(ddl)
    with pytest.raises(XminError) as caught:
        world.run()
    error = caught.value
    assert error.code == "DPONE_TARGET_UNSUPPORTED", error
    assert any(all(word in text for word in words) for text in error.details["differences"]), error.details
    report = check_connections(world.route(), endpoints=world.endpoints)
    refused = [finding for finding in report.findings if finding.ok is False]
    assert [finding.subject for finding in refused] == error.details["differences"]
    assert {finding.hint for finding in refused} == {error.hint}
    assert (types(world), world.target_rows(("*",), active=False)) == before


def test_without_the_right_the_ddl_is_handed_over(worlds: Setup, embedded_only: None) -> None:
    """One typed error before any row moves, with the exact DDL; after the owner ran it the same run commits."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"])
    world.run()
    world.source.run("ALTER TABLE orders ADD COLUMN note text", "ALTER TABLE orders ALTER COLUMN qty TYPE bigint")
    with seen() as labels, pytest.raises(XminError) as caught:
        world.run("r")
    error = caught.value
    assert (error.code, error.retryable) == ("DPONE_SCHEMA_EVOLUTION_REQUIRED", False)
    assert "stage.create" not in labels
    assert all(statement in error.hint for statement in error.details["ddl"])
    findings = [finding for finding in check_connections(world.route(), endpoints=world.endpoints).findings if finding.ok is False]
    assert [(finding.code, finding.hint) for finding in findings] == [("DPONE_SCHEMA_EVOLUTION_REQUIRED", error.hint)]
    world.target.run(*error.details["ddl"])
    assert world.run("r").receipt.payload is Payload.FULL
    assert world.source_rows([*COLUMNS, "note"]) == world.target_rows([*COLUMNS, "note"])


def test_disabled_or_dry_it_is_only_rendered(world: World) -> None:
    """``enabled: false`` and a dry run change nothing, whatever the login may do."""
    world.source.run("ALTER TABLE orders ADD COLUMN note text")
    before, route = types(world), world.route()
    with pytest.raises(XminError) as caught:
        dry_run(route, Invocation(route.process, "dry"), endpoints=world.endpoints)
    assert caught.value.code == "DPONE_SCHEMA_EVOLUTION_REQUIRED"
    world.manifest_over = {"schema_evolution": {"enabled": False}}
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "DPONE_SCHEMA_EVOLUTION_REQUIRED"
    assert types(world) == before
    world.manifest_over = {}
    assert world.run().status == "committed"


def test_a_crash_after_the_ddl_is_mended_by_the_next_run(world: World) -> None:
    """The DDL is committed, the load is not: the next run is full, since the checkpoint still has the old projection."""
    world.source.run("ALTER TABLE orders ADD COLUMN note text DEFAULT 'x'")

    def observer(event: Event) -> None:
        if (event.phase, event.label) == ("before", "stage.create"):
            raise XminError("mssql_transaction.connection_lost", "Broken by the test.")

    OBSERVERS.append(observer)
    try:
        with pytest.raises(XminError):
            world.run("r")
    finally:
        OBSERVERS.remove(observer)
    assert "note" in types(world)
    receipt = world.run("r").receipt
    assert (receipt.payload, receipt.counts.updated) == (Payload.FULL, 20)
    assert world.source_rows([*COLUMNS, "note"]) == world.target_rows([*COLUMNS, "note"])


def override(column: str, kind: str) -> dict[str, Any]:
    return {"physical_design": {"columns": {column: {"target_type": {"mssql": kind}}}}}


def test_a_new_contract_of_a_value_column_is_no_new_route(world: World) -> None:
    """The state key stays and nobody is asked: the payload is full, and the target follows where it can."""
    world.manifest_over = override("code", "nvarchar(max)")
    before = world.target.rows(f"SELECT state_key FROM {world.state_name('dpone_source_state')}")
    receipt = world.run().receipt
    assert (receipt.payload, receipt.payload_reason, receipt.counts.unchanged) == (Payload.FULL, "projection_changed", 20)
    assert world.target.rows(f"SELECT state_key FROM {world.state_name('dpone_source_state')}") == before
    assert world.run().receipt.payload is Payload.DELTA


def test_a_contract_that_the_target_cannot_hold_stops_by_name(world: World) -> None:
    world.manifest_over = {"schema_contract": {"columns": {"qty": {"type": "string"}}}}
    for refusal in (_refused(world), _refused(world)):
        assert refusal.code == "DPONE_TARGET_UNSUPPORTED"
        assert "column qty is int" in refusal.details["differences"][0]


def test_a_new_contract_of_the_key_is_a_new_route(world: World) -> None:
    """What the key is decides whose checkpoint it is: an approval must transfer the ownership."""
    world.manifest_over = override("id", "bigint")
    assert _refused(world).code == "target_ownership.conflict"


def _refused(world: World) -> XminError:
    with pytest.raises(XminError) as caught:
        world.run()
    return caught.value


def test_drift_of_the_target_is_no_evolution(world: World) -> None:
    """A column that vanished from the target alone is not added again: a delta would leave it empty."""
    world.target.run(f"ALTER TABLE {world.target_name} DROP COLUMN code")
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "DPONE_TARGET_UNSUPPORTED"
    assert "code" not in types(world)


@pytest.mark.parametrize("column", ["code", "must"])
def test_dropped_columns_may_be_kept(world: World, column: str) -> None:
    """With ``keep`` the target's column stays, nullable and untouched; new rows have NULL there."""
    if column == "must":
        not_on_babelfish(world)
    world.manifest_over = {"schema_evolution": {"on_dropped_column": "keep"}}
    other, value = {"code": ("must", "1"), "must": ("code", "'x'")}[column]
    world.source.run(f"ALTER TABLE orders DROP COLUMN {column}", f"INSERT INTO orders (id, qty, {other}) VALUES (99, 1, {value})")
    receipt = world.run().receipt
    assert (receipt.payload, receipt.counts.inserted, receipt.counts.updated) == (Payload.FULL, 1, 0)
    assert types(world)[column][1] is True
    kept: dict[Any, Any] = dict(world.target.rows(f"SELECT id, {column} FROM {world.target_name}"))
    assert (kept[7], kept[99]) == ({"code": "c7", "must": 7}[column], None)
    rest = [name for name in COLUMNS if name != column]
    assert world.source_rows(rest) == world.target_rows(rest)


def test_a_renamed_column_under_keep_is_a_dropped_and_a_new_one(world: World) -> None:
    """Nothing is guessed: the new column is filled by the full payload, the old one keeps what it had."""
    world.manifest_over = {"schema_evolution": {"on_dropped_column": "keep"}}
    world.source.run("ALTER TABLE orders RENAME COLUMN code TO label")
    world.run()
    rows = world.target.rows(f"SELECT id, code, label FROM {world.target_name}")
    assert all(code == label == f"c{key}" for key, code, label in rows)


def test_a_refused_statement_hands_the_ddl_over(world: World, embedded_only: None) -> None:
    """The owner's own view stands in the way: nothing is changed, and the owner gets the statements."""
    world.target.run(f"CREATE VIEW landing.v AS SELECT qty FROM {world.target_name}")
    world.source.run("ALTER TABLE orders ADD COLUMN note text", "ALTER TABLE orders ALTER COLUMN qty TYPE bigint")
    with pytest.raises(XminError) as caught:
        world.run()
    assert (caught.value.code, caught.value.details["cause"]) == ("DPONE_SCHEMA_EVOLUTION_REQUIRED", "mssql_transaction.statement_failed")
    assert "note" not in types(world)


WIDER = [
    ("smallint", "int"),
    ("int", "bigint"),
    ("smallint", "bigint"),
    ("integer", "bigint"),
    ("int", "decimal(12,2)"),
    ("bigint", "decimal(19,0)"),
    ("decimal(10,2)", "decimal(11,2)"),
    ("decimal(10,2)", "decimal(12,4)"),
    ("numeric(10,2)", "numeric(12,3)"),
    ("real", "float"),
    ("real", "double precision"),
    ("nvarchar(10)", "nvarchar(20)"),
    ("nvarchar(4000)", "nvarchar(max)"),
    ("character varying(5)", "text"),
    ("datetime2(6)", "datetime2(7)"),
    ("time(6)", "time(7)"),
    ("datetimeoffset(6)", "datetimeoffset(7)"),
]
NOT_WIDER = [
    ("int", "int"),
    ("bigint", "int"),
    ("int", "smallint"),
    ("int", "decimal(11,2)"),
    ("bigint", "decimal(18,0)"),
    ("decimal(10,2)", "decimal(10,3)"),
    ("decimal(10,2)", "decimal(12,1)"),
    ("decimal(10,2)", "int"),
    ("float", "real"),
    ("int", "real"),
    ("bigint", "float"),
    ("nvarchar(max)", "nvarchar(20)"),
    ("nvarchar(20)", "nvarchar(10)"),
    ("int", "nvarchar(max)"),
    ("integer", "text"),
    ("date", "datetime2(6)"),
    ("datetime2(7)", "datetime2(6)"),
    ("timestamp without time zone", "timestamp with time zone"),
    ("bit", "int"),
    ("uniqueidentifier", "nvarchar(36)"),
    ("text", "bytea"),
    ("varbinary(max)", "nvarchar(max)"),
    ("nvarchar(10)", "varbinary(max)"),
    ("?", "int"),
]


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_widenings(old: str, new: str) -> None:
    assert widens(old, new)
    assert not widens(new, old)


@pytest.mark.parametrize(("old", "new"), NOT_WIDER)
def test_no_widenings(old: str, new: str) -> None:
    assert not widens(old, new)
