"""Receipts, checkpoints, heads and owners: who may commit what, and what a disagreement means."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from tests.beside import before
from tests.world import MODES, Setup, World

COLUMNS = ("id", "qty")
TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 10) g")


@pytest.fixture
def world(worlds: Setup) -> World:
    """Ten rows, not yet loaded."""
    return worlds(*TABLE, reconciliation=MODES["timestamp_only"])


def refused(world: World, code: str, **kw: Any) -> XminError:
    """The run must be refused by *code*, with all rows, checkpoint, head and receipts as before."""

    def everything() -> list[Any]:
        return [
            world.target.rows(f"SELECT * FROM {name}")
            for name in (
                world.target_name,
                world.state_name("dpone_source_state"),
                world.dbo_name("dpone_target_head"),
                world.state_name("dpone_commit_receipt"),
            )
        ]

    before = everything()
    with pytest.raises(XminError) as caught:
        world.run(**kw)
    assert caught.value.code == code, caught.value
    assert everything() == before
    return caught.value


def during(label: str, act: Any) -> Any:
    """An observer that acts once, before the first step of that label."""
    done = []

    def observer(event: Event) -> None:
        if event.phase == "before" and event.label == label and not done:
            done.append(True)
            act()

    return observer


# ---- replay ---------------------------------------------------------------------------------------------------------------
def test_replay_needs_no_source(world: World) -> None:
    """A second attempt answers from the receipt while the source cannot be reached, and changes nothing."""
    first = world.run("r1")
    before = world.target_rows(("*",))
    world.source.run("UPDATE orders SET qty = 0")

    def endpoints(entry: str, *, conn_id: str) -> Endpoint:
        found = world.endpoints(entry, conn_id=conn_id)
        return replace(found, host="/nowhere") if entry == "src" else found

    again = world.run("r1", endpoints=endpoints)
    assert again.status == "replayed"
    assert again.attempt == 2
    assert replace(again.receipt, replayed=False) == replace(first.receipt, digests=again.receipt.digests)
    assert first.receipt.digests == again.receipt.digests
    assert world.target_rows(("*",)) == before
    with pytest.raises(XminError) as caught:
        world.run("r2", endpoints=endpoints)
    assert caught.value.code == "postgres_source.unreachable"
    assert caught.value.retryable is True


def test_a_committed_invocation_stays_committed(world: World) -> None:
    """Neither a replay nor an overlapping attempt that fails changes the status of an invocation that has its receipt."""

    def status() -> list[tuple[Any, ...]]:
        return [tuple(row) for row in world.target.rows(f"SELECT status, last_error_code FROM {world.state_name('dpone_run_state')}")]

    def the_other_attempt_wins() -> None:
        world.run("r1")
        raise XminError("mssql_transaction.lock_timeout", "A fault was injected here.")

    observer = during("stage.prove", the_other_attempt_wins)
    OBSERVERS.append(observer)
    try:
        with pytest.raises(XminError):
            world.run("r1")
    finally:
        OBSERVERS.remove(observer)
    assert status() == [("committed", None)]
    assert world.run("r1").status == "replayed"
    assert status() == [("committed", None)]


def test_the_same_run_id_of_another_process_or_partition_is_another_invocation(world: World) -> None:
    """Process, run id and map index together name an invocation."""
    from airflow_dpone_xmin.contracts.state import Invocation
    from airflow_dpone_xmin.runtime.reconcile import reconcile

    world.run("r1")
    route = world.route()
    outcome = reconcile(route, Invocation(route.process, "r1", 3), endpoints=world.endpoints)
    assert outcome.status == "committed"
    assert outcome.receipt.new_revision == 2


# ---- admission ------------------------------------------------------------------------------------------------------------
def test_route_changed_for_the_same_invocation(world: World) -> None:
    """A retry with another contract is refused; a new run with it is not the same invocation."""
    world.source.run("ALTER TABLE orders ADD COLUMN spare integer")
    with pytest.raises(XminError) as caught:
        world.run("r1")  # the target lacks the column
    assert caught.value.code == "DPONE_TARGET_UNSUPPORTED"
    world.source.run("ALTER TABLE orders DROP COLUMN spare")
    world.manifest_over = {"source": {"options": {"xmin_window": "strict"}}}
    assert refused(world, "invocation.route_changed", run_id="r1").details["run_id"] == "r1"
    assert world.run("r2").status == "committed"


def test_limits_may_change_between_attempts(world: World) -> None:
    """Guards, time-outs and the work directory are not the route's contract: an operator may adjust them for a retry."""
    world.run("r0")
    world.reconciliation = {"guards": {"max_delete_rows": 0}}
    world.source.run("DELETE FROM orders WHERE id = 1")
    refused(world, "guard.deletes_exceeded", run_id="r1")
    world.reconciliation = {"guards": {"max_delete_rows": 1}}
    assert world.run("r1").receipt.counts.soft_deleted == 1


def test_registry_serial_rollback(world: World) -> None:
    """A registry older than one that was accepted is refused; a newer one is remembered."""
    world.serial = 5
    world.run()
    world.serial = 4
    assert refused(world, "registry.rollback").details == {"serial": 4, "accepted": 5}
    world.serial = 6
    assert world.run().status == "committed"
    world.serial = 5
    refused(world, "registry.rollback")


def test_checkpoint_missing_on_a_target_with_rows(world: World) -> None:
    """Rows without a checkpoint are somebody's: nothing is adopted."""
    world.target.run(
        f"INSERT INTO {world.target_name} (id, qty, __dpone__load_id, __dpone__loaded_at, __dpone__updated_at)"
        f" VALUES (1, 1, '{uuid.uuid4()}', '2024-01-01', '2024-01-01')"
    )
    binding = refused(world, "checkpoint.missing").details["binding"]
    assert binding["checkpoint_xmin"] is None


def test_rows_that_appear_between_admission_and_commit(world: World) -> None:
    """The same, found under the lock."""

    def intrude() -> None:
        world.target.run(
            f"INSERT INTO {world.target_name} (id, qty, __dpone__load_id, __dpone__loaded_at, __dpone__updated_at)"
            f" VALUES (99, 1, '{uuid.uuid4()}', '2024-01-01', '2024-01-01')"
        )

    observer = during("stage.create", intrude)
    OBSERVERS.append(observer)
    try:
        with pytest.raises(XminError) as caught:
            world.run()
    finally:
        OBSERVERS.remove(observer)
    assert caught.value.code == "checkpoint.missing"


def test_ownership_conflict(world: World) -> None:
    """A second process on one target is refused before the source is opened, and the first goes on."""
    world.run()
    world.process = "another_process"
    error = refused(world, "target_ownership.conflict")
    binding = error.details["binding"]
    assert binding["transfer"]["state_key"] != binding["state_key"]
    assert binding["transfer"]["revision"] == 1
    world.process = "orders_process"
    assert world.run().status == "committed"


def test_ownership_is_judged_again_under_the_lock(world: World, embedded_only: None) -> None:
    """An owner that appears while a baseline is staged wins; the late one changes nothing."""
    route = world.route()

    def other() -> None:
        world.process = "first_process"
        world.run()

    # A baseline has no subset proof: the last staging step is the statistics of its only stage.
    observer = during("stage.statistics", other)
    OBSERVERS.append(observer)
    try:
        with pytest.raises(XminError) as caught:
            world.run(route=route)
    finally:
        OBSERVERS.remove(observer)
    assert caught.value.code in ("target_ownership.conflict", "checkpoint.conflict")
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


# ---- compare and set ------------------------------------------------------------------------------------------------------
def test_stale_position_is_a_conflict(world: World) -> None:
    """A run that committed in between makes this one stale, even when xmin is the same: the revision decides."""
    world.run()
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 1")
    observer = during("stage.subset", lambda: world.run("between"))
    OBSERVERS.append(observer)
    try:
        error = refused_stale(world)
    finally:
        OBSERVERS.remove(observer)
    assert error.retryable is True
    assert [row[0] for row in world.target.rows(f"SELECT new_revision FROM {world.state_name('dpone_commit_receipt')} ORDER BY 1")] == [
        1,
        2,
    ]
    assert world.run("stale").receipt.new_revision == 3


def refused_stale(world: World) -> XminError:
    with pytest.raises(XminError) as caught:
        world.run("stale")
    assert caught.value.code == "checkpoint.conflict"
    return caught.value


@pytest.mark.parametrize("change", ["revision = revision + 5", "load_id = '{other}'"])
def test_head_and_checkpoint_disagree(world: World, change: str) -> None:
    """A head that names another commit makes the payload full; revisions go on above both; the next run is a delta again."""
    world.run()
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 1")
    world.target.run(f"UPDATE {world.dbo_name('dpone_target_head')} SET {change.format(other=uuid.uuid4())}")
    receipt = world.run().receipt
    assert (receipt.payload, receipt.payload_reason) == (Payload.FULL, "target_state_diverged")
    assert receipt.new_revision == (7 if "revision" in change else 2)
    assert (receipt.counts.updated, receipt.counts.unchanged) == (1, 9)
    assert world.run().receipt.payload_reason == "delta"


@pytest.mark.parametrize("change", ["revision = revision + 5", "load_id = '{other}'"])
def test_a_head_that_changes_while_the_run_works(world: World, change: str) -> None:
    """The target was restored or written between admission and the lock: nothing of what was decided before holds."""
    world.run()
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 1")
    rows, statement = world.target_rows(("*",)), f"UPDATE {world.dbo_name('dpone_target_head')} SET {change.format(other=uuid.uuid4())}"
    with before("lock.application", lambda _: world.target.run(statement), nth=2):
        assert refused_stale(world).retryable is True
    assert world.target_rows(("*",)) == rows
    assert world.run("stale").receipt.payload_reason == "target_state_diverged"


def test_head_is_missing(world: World) -> None:
    """The same without any head."""
    world.run()
    world.target.run(f"DELETE FROM {world.dbo_name('dpone_target_head')}")
    assert world.run().receipt.payload_reason == "target_state_diverged"
    assert world.run().receipt.payload_reason == "delta"


def test_target_restored_from_an_older_copy(world: World) -> None:
    """Rows and head of an older moment under a newer checkpoint: the delta could not mend it, the full payload does."""
    world.run()
    head, schema = world.dbo_name("dpone_target_head"), world.target_name
    copies = [(name, world.target.rows(f"SELECT * FROM {name}")) for name in (head, schema)]
    world.target.run(f"SELECT * INTO kept_rows FROM {schema}", f"SELECT * INTO kept_head FROM {head}")
    world.source.run("UPDATE orders SET qty = -1 WHERE id <= 3", "DELETE FROM orders WHERE id = 4", "INSERT INTO orders VALUES (11, 11)")
    world.run()
    world.target.run(
        f"DELETE FROM {schema}",
        f"INSERT INTO {schema} SELECT * FROM kept_rows",
        f"DELETE FROM {head}",
        f"INSERT INTO {head} SELECT * FROM kept_head",
    )
    assert [rows for _, rows in copies] == [world.target.rows(f"SELECT * FROM {name}") for name, _ in copies]
    receipt = world.run().receipt
    assert receipt.payload_reason == "target_state_diverged"
    assert (receipt.counts.updated, receipt.counts.soft_deleted, receipt.counts.inserted) == (3, 1, 1)
    assert receipt.new_revision == 3
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_state_restored_from_an_older_copy(world: World) -> None:
    """An older checkpoint under a newer head: full payload, and the revision rises above the head's."""
    world.run()
    state = world.state_name("dpone_source_state")
    world.target.run(f"SELECT * INTO kept_state FROM {state}")
    world.source.run("DELETE FROM orders WHERE id = 4")
    world.run()
    world.run()
    world.target.run(f"DELETE FROM {state}", f"INSERT INTO {state} SELECT * FROM kept_state")
    receipt = world.run().receipt
    assert (receipt.payload_reason, receipt.previous_revision, receipt.new_revision) == ("target_state_diverged", 1, 4)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_a_row_that_vanished_from_the_target_is_not_invented(world: World) -> None:
    """A target row removed behind our back, whose key is not in the delta: full repair required, nothing committed."""
    world.run()
    world.target.run(f"DELETE FROM {world.target_name} WHERE id = 5")
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 1")
    binding = refused(world, "reconcile.full_repair_required").details["binding"]
    assert binding["checkpoint_revision"] == 1


def test_identity_row_missing(worlds: Setup) -> None:
    """A target without its owner's identity row is refused before any source I/O."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"], provision=False)
    columns = "id bigint NOT NULL, qty integer, __dpone__load_id int, PRIMARY KEY (id)"
    world.target.run(f"CREATE TABLE {world.target_name} ({columns})")
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code in ("target_identity.missing", "mssql_transaction.permission_denied")


def test_failure_is_audited_and_the_invocation_can_go_on(world: World) -> None:
    """A refused run leaves an audit row with its code, and its retry is attempt 2."""
    world.run()
    world.source.run("DELETE FROM orders")
    refused(world, "guard.empty_snapshot", run_id="r1")
    world.source.run("INSERT INTO orders VALUES (1, 1), (2, 2)")
    outcome = world.run("r1")
    assert (outcome.status, outcome.attempt) == ("committed", 2)
    audits = world.target.rows(
        f"SELECT outcome, error_code FROM {world.state_name('dpone_load_audit')} WHERE run_id = 'r1' ORDER BY recorded_at_utc"
    )
    assert [tuple(row) for row in audits] == [("refused", "guard.empty_snapshot"), ("committed", None)]


def test_immutable_rows(world: World, embedded_only: None) -> None:
    """Receipts and identities refuse UPDATE, DELETE and TRUNCATE, even of their owner."""
    import psycopg

    world.run()
    for name in (world.state_name("dpone_commit_receipt"), world.dbo_name("dpone_target_identity")):
        for statement in (
            f"DELETE FROM {name}",
            f"TRUNCATE {name}",
            f"UPDATE {name} SET {'process = process' if 'receipt' in name else 'table_name = table_name'}",
        ):
            with pytest.raises(psycopg.errors.RestrictViolation):
                world.target.run(statement)
