"""The catalog: proven exactly, upgraded by its owner in one transaction, and state of others never adopted."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Namespace, TableName
from airflow_dpone_xmin.runtime.check import check_connections
from airflow_dpone_xmin.runtime.provision import catalog_differences, upgrade_catalog
from airflow_dpone_xmin.target.catalog import CATALOG_VERSION, build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect, engine_for
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.upgrade import Upgrade, render_upgrade, upgrade
from tests.children import CONTEXT, start
from tests.world import Setup, World

TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders VALUES (1, 1)")
CONSTRAINT = "uq_dpone_load_attempt_invocation_digest"


@pytest.fixture
def world(worlds: Setup) -> World:
    return worlds(*TABLE)


@pytest.fixture
def old(world: World) -> World:
    """The same catalog as version 1 had it."""
    world.target.run(
        f"ALTER TABLE {world.state_name('dpone_load_attempt')} DROP CONSTRAINT {CONSTRAINT}",
        f"UPDATE {world.state_name('dpone_catalog_version')} SET version = 1",
    )
    return world


def upgraded(world: World, *, owner: bool = True) -> Upgrade:
    def find(entry: str, *, conn_id: str) -> Endpoint:
        return world.target.endpoint(owner=owner)

    return upgrade_catalog(world.route(), endpoints=find, owner="owner")


def refused(world: World, code: str, *, owner: bool = True) -> XminError:
    """The upgrade refuses and changes nothing."""
    before = contract(world)
    with pytest.raises(XminError) as caught:
        upgraded(world, owner=owner)
    assert caught.value.code == code, caught.value
    assert contract(world) == before
    return caught.value


def contract(world: World) -> tuple[Any, ...]:
    """Version row and constraints of the table that the step is about."""
    schema = world.target.layout(world.table).state.schema
    query = f"SELECT constraint_name FROM information_schema.table_constraints WHERE table_schema = '{schema}'"
    query += " AND table_name = 'dpone_load_attempt'"
    names = sorted(row[0] for row in world.target.rows(query) if "not_null" not in row[0])
    return names, world.target.rows(f"SELECT version, installed_at_utc FROM {world.state_name('dpone_catalog_version')}")


def attempt(world: World, invocation: int, *, copies: int = 1) -> None:
    value = "0x{}" if world.target.kind == "mssql" else "'\\x{}'"
    for _ in range(copies):
        key, digest = (value.format(part) for part in (uuid.uuid4().hex * 2, f"{invocation:064x}"))
        world.target.run(
            f"INSERT INTO {world.state_name('dpone_load_attempt')} (attempt_key, invocation_digest, target_identity, route_fingerprint,"
            f" load_id, status, created_at_utc, updated_at_utc) VALUES ({key}, {digest}, {digest}, {digest}, '{uuid.uuid4()}', 'committed',"
            " '2026-01-01', '2026-01-01')"
        )


# ---- upgrade --------------------------------------------------------------------------------------------------------------
def test_version_1_is_refused_upgraded_and_then_proven(old: World) -> None:
    """Run and check name both versions and the command; the owner's upgrade makes the catalog exact; a rerun only proves."""
    attempt(old, 1)
    attempt(old, 2)
    with pytest.raises(XminError) as caught:
        old.run()
    assert caught.value.code == "mssql_transaction.catalog_foreign"
    assert "version 1" in caught.value.message
    assert f"version {CATALOG_VERSION}" in caught.value.message
    assert "ddl upgrade" in caught.value.hint
    (finding,) = (f for f in check_connections(old.route(), endpoints=old.endpoints).findings if f.ok is False)
    assert (finding.code, finding.subject) == ("mssql_transaction.catalog_foreign", caught.value.message)
    assert upgraded(old) == Upgrade(found=1, changed=True)
    assert catalog_differences(old.route(), endpoints=old.endpoints) == []
    after = contract(old)
    assert upgraded(old) == Upgrade(found=CATALOG_VERSION, changed=False)
    assert contract(old) == after
    with pytest.raises(Exception, match=CONSTRAINT):
        attempt(old, 1)
    assert old.run().status == "committed"


def test_duplicates_abort_with_counts_only(old: World) -> None:
    attempt(old, 1, copies=2)
    attempt(old, 2, copies=3)
    attempt(old, 3)
    error = refused(old, "mssql_transaction.catalog_duplicates")
    assert error.details == {"repeated_invocations": 2, "load_attempts": 5}
    assert f"{1:064x}" not in str(error.to_dict())


@pytest.mark.parametrize(
    "drift",
    [
        "ALTER TABLE {state}.dpone_load_attempt ADD COLUMN note text",
        "ALTER TABLE {state}.dpone_run_state DROP COLUMN attempts",
        "ALTER TABLE {state}.dpone_run_state ALTER COLUMN last_error_code SET NOT NULL",
        "ALTER TABLE {state}.dpone_campaign ALTER COLUMN shadow_name TYPE varchar(64)",
        "DROP TABLE {state}.dpone_campaign_chunk",
        "DROP TRIGGER tr_dpone_commit_receipt_immutable ON {state}.dpone_commit_receipt",
        "ALTER TABLE {state}.dpone_load_receipt DISABLE TRIGGER ALL",
        "CREATE TRIGGER busy BEFORE UPDATE ON {state}.dpone_run_state FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "CREATE UNIQUE INDEX extra ON {state}.dpone_load_attempt (load_id)",
        "ALTER TABLE {state}.dpone_load_attempt ADD UNIQUE (invocation_digest)",
        "ALTER TABLE {state}.dpone_commit_receipt DROP CONSTRAINT uq_dpone_commit_receipt_load_id",
        "DROP INDEX {state}.ux_dpone_source_state_active_owner",
    ],
)
@pytest.mark.usefixtures("embedded_only")
def test_only_the_exact_old_contract_is_upgraded(old: World, drift: str) -> None:
    """A drifted version 1 is not version 1; the difference is named."""
    old.target.run(drift.format(state=old.target.layout(old.table).state.schema))
    error = refused(old, "mssql_transaction.catalog_mismatch")
    assert len(error.details["differences"]) == 1, error.details


@pytest.mark.usefixtures("embedded_only")
def test_the_index_of_the_active_owner_filters_exactly_that(world: World) -> None:
    """A unique index under the same name and columns that lets a second owner in is not the one that the guarantee rests on."""
    index, table = "ux_dpone_source_state_active_owner", world.state_name("dpone_source_state")
    schema = world.target.layout(world.table).state.schema
    world.target.run(
        f"DROP INDEX {schema}.{index}", f"CREATE UNIQUE INDEX {index} ON {table} (target_identity) WHERE superseded_at_utc IS NOT NULL"
    )
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "mssql_transaction.catalog_mismatch"
    assert "unique filtered index (target_identity) is missing" in caught.value.message


@pytest.mark.usefixtures("embedded_only")
def test_a_drifted_current_catalog_is_not_proven(world: World) -> None:
    world.target.run(f"ALTER TABLE {world.state_name('dpone_load_attempt')} DROP CONSTRAINT {CONSTRAINT}")
    error = refused(world, "mssql_transaction.catalog_mismatch")
    assert "unique constraint (invocation_digest) is missing" in error.details["differences"][0]


@pytest.mark.parametrize("version", [0, 3, -1])
def test_other_versions(world: World, version: int) -> None:
    """A later version, or none of ours, is neither run against nor touched."""
    world.target.run(f"UPDATE {world.state_name('dpone_catalog_version')} SET version = {version}")
    refused(world, "mssql_transaction.catalog_foreign")
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "mssql_transaction.catalog_foreign"
    assert "ddl upgrade --manifest" not in caught.value.hint


def test_no_version_row(world: World) -> None:
    world.target.run(f"DELETE FROM {world.state_name('dpone_catalog_version')}")
    assert "no version row" in refused(world, "mssql_transaction.catalog_foreign").message


def test_runtime_may_not_upgrade(old: World) -> None:
    if old.target.endpoint() == old.target.endpoint(owner=True):
        pytest.skip("not provable on this flavour: runs use the owner's login there")
    refused(old, "mssql_transaction.permission_denied", owner=False)


@pytest.mark.parametrize("label", ["upgrade.constraint", "upgrade.version", "transaction.commit"])
def test_a_fault_in_the_middle_changes_nothing(old: World, label: str) -> None:
    """The step is one transaction, DDL included."""
    before = contract(old)

    def break_down(event: Event) -> None:
        if event.label == label and event.phase == ("before" if label == "transaction.commit" else "after"):
            raise XminError("mssql_transaction.statement_failed", "A fault was injected here.")

    OBSERVERS.append(break_down)
    try:
        with pytest.raises(XminError):
            upgraded(old)
    finally:
        OBSERVERS.remove(break_down)
    assert contract(old) == before
    assert upgraded(old).changed is True


def test_two_upgrades_at_once(old: World) -> None:
    """The application lock serialises them: one changes the catalog, the other proves it."""
    answers, gate = CONTEXT.Queue(), CONTEXT.Barrier(2)
    children = [start(upgrade_at_gate, old.route(), old.target.endpoint(owner=True), gate, answers) for _ in range(2)]
    found = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(30)
    assert sorted(found) == [(1, True), (CATALOG_VERSION, False)]


def upgrade_at_gate(route: Any, endpoint: Endpoint, gate: Any, answers: Any) -> None:
    """Body of a child."""

    def find(entry: str, *, conn_id: str) -> Endpoint:
        return endpoint

    gate.wait(60)
    try:
        done = upgrade_catalog(route, endpoints=find, owner="owner")
        answers.put((done.found, done.changed))
    except BaseException as error:
        answers.put((type(error).__name__, str(error)))


def test_an_upgrade_needs_verified_databases(old: World) -> None:
    engine = old.engine(owner=True)
    with pytest.raises(TypeError):
        upgrade(engine, None, engine.layout.names, authority=object(), timeout=1)  # type: ignore[arg-type]
    engine.close()


def test_the_printed_statements() -> None:
    """T-SQL of the step: a query that must find nothing, the constraint, the version."""
    layout = Layout(
        engine="mssql",
        target=TableName(Namespace("DWH", "landing"), "orders"),
        staging=Namespace("DWH_Stage", "staging"),
        state=Namespace("Sys", "governance"),
    )
    nowhere = Endpoint("dwh", "server", None, "DWH", "login")
    script = render_upgrade(engine_for(layout, target=nowhere, state=nowhere), ddl_dialect(layout), layout.names)
    lines = [" ".join(statement.split()) for statement in script.statements]
    assert lines[0] == "USE [Sys]"
    assert lines[-3:] == [
        "SELECT COUNT_BIG(*) AS count_rows_1, sum(repeated.n) AS sum_1 FROM (SELECT COUNT_BIG(*) AS n FROM governance.dpone_load_attempt"
        " GROUP BY governance.dpone_load_attempt.invocation_digest HAVING COUNT_BIG(*) > 1) AS repeated",
        f"ALTER TABLE governance.dpone_load_attempt ADD CONSTRAINT {CONSTRAINT} UNIQUE (invocation_digest)",
        f"UPDATE governance.dpone_catalog_version SET version={CATALOG_VERSION}, installed_at_utc=CONVERT(datetime2(6), SYSUTCDATETIME())"
        " WHERE governance.dpone_catalog_version.component = 'catalog'",
    ]


# ---- foreign and legacy state ---------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("embedded_only")
@pytest.mark.parametrize(
    "columns", ["source_schema text, source_table text, last_xmin bigint", "id int, last_xmin bigint", "SOURCE_TABLE text, value text"]
)
def test_legacy_state_is_recognised(world: World, columns: str) -> None:
    """State keyed by source schema and table: refused by its own code in run, check, verify and upgrade, and left as it is."""
    table = world.state_name("dpone_source_state")
    world.target.run(f"DROP TABLE {table}", f"CREATE TABLE {table} ({columns})", f"INSERT INTO {table} DEFAULT VALUES")
    before = world.target.rows(f"SELECT * FROM {table}")
    for act in (world.run, lambda: catalog_differences(world.route(), endpoints=world.endpoints), lambda: upgraded(world)):
        with pytest.raises(XminError) as caught:
            act()
        assert caught.value.code == "DPONE_LEGACY_STATE"
    codes = {f.code for f in check_connections(world.route(), endpoints=world.endpoints).findings if f.ok is False}
    assert codes == {"DPONE_LEGACY_STATE"}
    assert world.target.rows(f"SELECT * FROM {table}") == before


@pytest.mark.usefixtures("embedded_only")
def test_a_table_of_somebody_else_is_a_mismatch(world: World) -> None:
    table = world.state_name("dpone_source_state")
    world.target.run(f"DROP TABLE {table}", f"CREATE TABLE {table} (a int)")
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "mssql_transaction.catalog_mismatch"


def test_version_1_lacks_one_constraint_only() -> None:
    """The step is exactly what the reference's step is."""
    now, before = build_catalog(), build_catalog(version=1)
    differing = {table.name for table in now.state_tables if len(table.constraints) != len(before.metadata.tables[table.key].constraints)}
    assert differing == {"dpone_load_attempt"}
