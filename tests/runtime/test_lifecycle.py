"""One row's life in every delete mode: every counter, lineage column, receipt, checkpoint and head after every run."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.state import ActionCounts
from airflow_dpone_xmin.runtime.evidence import Outcome
from tests.faults.grounds import ground_of
from tests.world import MODES, Setup, World

pytestmark = pytest.mark.certify("lifecycle")

SOFT = ("timestamp_only", "timestamp_and_flag", "flag_only")
TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, code varchar(10) NOT NULL, qty integer, price numeric(10,2), at timestamptz, u uuid)",
    "INSERT INTO orders SELECT g, 'c' || g, g, g * 1.25, timestamptz '2024-05-01 10:00:00+02' + g * interval '1 hour',"
    " ('00000000-0000-4000-8000-' || lpad(g::text, 12, '0'))::uuid FROM generate_series(1, 10) g",
)
COLUMNS = ("id", "code", "qty", "price", "at", "u")
LINEAGE = ("__dpone__load_id", "__dpone__loaded_at", "__dpone__updated_at")


@pytest.fixture(params=MODES)
def world(request: pytest.FixtureRequest, worlds: Setup) -> World:
    """Ten orders on a route of every delete mode."""
    return worlds(*TABLE, reconciliation=MODES[request.param])


def counts(outcome: Outcome) -> dict[str, int]:
    """The counters that are not zero."""
    return {name: value for name, value in outcome.receipt.counts.to_dict().items() if value}


def lineage(world: World, key: int) -> tuple[Any, ...]:
    """Load id and times of one target row."""
    (row,) = world.target.rows(f"SELECT {', '.join(LINEAGE)} FROM {world.target_name} WHERE id = {key}")
    return tuple(row)


def deleted_at(world: World, key: int) -> Any:
    """Detection time of one target row."""
    (row,) = world.target.rows(f"SELECT __dpone__deleted_at FROM {world.target_name} WHERE id = {key}")
    return row[0]


def positions(world: World) -> tuple[Any, ...]:
    """Checkpoint, head and newest receipt, each as (revision, load id)."""
    (checkpoint,) = world.target.rows(f"SELECT revision, load_id, safe_xmin FROM {world.state_name('dpone_source_state')}")
    (head,) = world.target.rows(f"SELECT revision, load_id FROM {world.dbo_name('dpone_target_head')}")
    receipts = world.target.rows(
        f"SELECT new_revision, load_id, new_xmin FROM {world.state_name('dpone_commit_receipt')} ORDER BY new_revision DESC"
    )
    return tuple(checkpoint), tuple(head), [tuple(row) for row in receipts]


def committed(world: World, revision: int, **kw: Any) -> Outcome:
    """Run once; receipt, checkpoint and head must name this commit and nothing else."""
    outcome = world.run(**kw)
    receipt = outcome.receipt
    assert outcome.status == "committed"
    assert receipt.counts.violations(reconciled=world.route().delete_mode.reconciles) == []
    checkpoint, head, receipts = positions(world)
    load = str(receipt.load_id)
    assert (checkpoint[0], str(checkpoint[1]), checkpoint[2]) == (revision, load, receipt.new_xmin)
    assert (head[0], str(head[1])) == (revision, load)
    assert [row[0] for row in receipts] == list(range(revision, 0, -1))
    assert str(receipts[0][1]) == load
    assert (receipt.new_revision, receipt.previous_revision) == (revision, revision - 1 if revision > 1 else None)
    return outcome


def test_life_of_a_route(world: World) -> None:
    """Baseline → no-op → change → delete → reactivate → delete again: every counter is exact and the target equals the source."""
    mode = world.route().delete_mode
    total = {"hard_delete": 0, "never": 0}.get(mode.value, 1)  # tombstones of one deleted row
    deleted = {"hard_delete": "hard_deleted"}.get(mode.value, "soft_deleted")

    assert counts(committed(world, 1)) == {"payload": 10, "keys": 10, "inserted": 10, "active_after": 10, "total_after": 10}
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)

    before = lineage(world, 1)
    assert counts(committed(world, 2)) == {"keys": 10, "active_before": 10, "active_after": 10, "total_after": 10}
    assert lineage(world, 1) == before, "a run without changes touches no row"

    world.source.run("UPDATE orders SET qty = -1 WHERE id = 1", "UPDATE orders SET qty = qty WHERE id = 2")
    untouched, changed = lineage(world, 2), lineage(world, 1)
    outcome = committed(world, 3)
    assert counts(outcome) == {
        "payload": 2,
        "keys": 10,
        "updated": 1,
        "unchanged": 1,
        "active_before": 10,
        "active_after": 10,
        "total_after": 10,
    }
    assert lineage(world, 2) == untouched, "an identical row is a no-op"
    assert lineage(world, 1)[1] == changed[1], "loaded_at stays"
    assert str(lineage(world, 1)[0]) == str(outcome.receipt.load_id)
    assert lineage(world, 1)[2] > changed[2], "updated_at moves"
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)

    world.source.run("DELETE FROM orders WHERE id = 3")
    outcome = committed(world, 4)
    if not mode.reconciles:
        assert counts(outcome) == {"keys": 10, "active_before": 10, "active_after": 10, "total_after": 10}, "never a delete"
        return
    gone = {"keys": 9, deleted: 1, "active_before": 10, "active_after": 9, "total_after": 9 + total}
    assert counts(outcome) == gone
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)

    world.source.run("INSERT INTO orders (id, code, qty) VALUES (3, 'again', 33)")
    outcome = committed(world, 5)
    action = "inserted" if mode.value == "hard_delete" else "reactivated"
    assert counts(outcome) == {"payload": 1, "keys": 10, action: 1, "active_before": 9, "active_after": 10, "total_after": 10}
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)

    world.source.run("DELETE FROM orders WHERE id = 3")
    assert counts(committed(world, 6)) == gone
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


@pytest.mark.parametrize("mode", ["timestamp_only", "timestamp_and_flag"])
def test_detection_time_is_kept_while_a_row_stays_deleted(worlds: Setup, mode: str) -> None:
    """Repeated absence keeps the first detection time; reappearance clears it; a later absence has a new one, equal to its receipt's."""
    world = worlds(*TABLE, reconciliation=MODES[mode])
    world.run()
    world.source.run("DELETE FROM orders WHERE id = 3")
    first = world.run().receipt.detected_at
    assert deleted_at(world, 3) == first
    row = lineage(world, 3)
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 4")
    world.run()
    assert deleted_at(world, 3) == first
    assert lineage(world, 3) == row, "lineage of a tombstone stays"
    world.source.run("INSERT INTO orders (id, code) VALUES (3, 'again')")
    world.run()
    assert deleted_at(world, 3) is None
    world.source.run("DELETE FROM orders WHERE id = 3")
    second = world.run().receipt.detected_at
    assert deleted_at(world, 3) == second > first


@pytest.mark.parametrize("mode", SOFT)
def test_a_row_reactivated_with_the_same_values_counts_as_reactivated(worlds: Setup, mode: str) -> None:
    """A tombstone whose row comes back byte for byte is reactivated, not unchanged; its loaded_at stays."""
    world = worlds(*TABLE, reconciliation=MODES[mode])
    world.run()
    loaded = lineage(world, 5)[1]
    world.source.run("CREATE TABLE kept AS SELECT * FROM orders WHERE id = 5", "DELETE FROM orders WHERE id = 5")
    world.run()
    world.source.run("INSERT INTO orders SELECT * FROM kept")
    outcome = world.run()
    assert (outcome.receipt.counts.reactivated, outcome.receipt.counts.unchanged) == (1, 0)
    assert lineage(world, 5)[1] == loaded
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_computed_flag_follows_the_timestamp(worlds: Setup) -> None:
    """``timestamp_and_flag`` derives its flag: it is set exactly where the timestamp is."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_and_flag"])
    world.run()
    world.source.run("DELETE FROM orders WHERE id <= 4")
    world.run()
    flags = world.target.rows(f"SELECT id, __dpone__is_deleted, __dpone__deleted_at FROM {world.target_name} ORDER BY id")
    assert [(row[0], bool(row[1]), row[2] is not None) for row in flags] == [(n, n <= 4, n <= 4) for n in range(1, 11)]


def test_delete_insert_change_and_reactivate_in_one_run(world: World) -> None:
    """All four actions in one commit are disjoint and counted apart."""
    mode = world.route().delete_mode
    world.run()
    world.source.run("DELETE FROM orders WHERE id = 1")
    world.run()
    world.source.run(
        "BEGIN; DELETE FROM orders WHERE id = 2; INSERT INTO orders (id, code) VALUES (1, 'back'), (11, 'new');"
        " UPDATE orders SET qty = 0 WHERE id = 5; COMMIT"
    )
    receipt = world.run().receipt
    if mode.value == "never":
        assert (receipt.counts.updated, receipt.counts.inserted, receipt.counts.deleted) == (2, 1, 0)
        return
    back = 1 if mode.soft else 0
    assert receipt.counts == ActionCounts(
        payload=3,
        keys=10,
        inserted=2 - back,
        updated=1,
        reactivated=back,
        unchanged=0,
        soft_deleted=1 if mode.soft else 0,
        hard_deleted=0 if mode.soft else 1,
        active_before=9,
        active_after=10,
        total_after=10 + back,
    )
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_every_run_leaves_an_audit_row_and_nothing_else(world: World) -> None:
    """After a commit: one audit row, the invocation closed, no staging table, no work directory, no session."""
    outcome = world.run(run_id="r1")
    (audit,) = world.target.rows(f"SELECT outcome, run_id, receipt_id FROM {world.state_name('dpone_load_audit')}")
    assert (audit[0], audit[1], str(audit[2]).lower()) == ("committed", "r1", str(outcome.receipt.receipt_id))
    (state,) = world.target.rows(f"SELECT status, attempts FROM {world.state_name('dpone_run_state')}")
    assert tuple(state) == ("committed", 1)
    assert world.staged() == []
    assert list(world.work_dir.iterdir()) == []
    ground_of(world).wait_until_quiet(world, "a run")
