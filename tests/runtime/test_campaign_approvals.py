"""A live table that somebody owns, that has tombstones, or that nothing would replace: only under an approval, consumed with the seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.approvals import Owner, consumptions
from tests.campaigns import COLUMNS, INTEGER, TABLE, chunks, incremental, initial, lane, opened, published, refusal
from tests.world import MODES, Setup, World

SOFT = ("timestamp_only", "timestamp_and_flag", "flag_only")


@pytest.fixture
def owned(worlds: Setup) -> Callable[..., World]:
    """A route of its own history: nine hundred rows, a hundred tombstones; then its manifest becomes a campaign's."""

    def make(mode: str = "timestamp_only", **guards: Any) -> World:
        world = worlds(*TABLE, reconciliation=MODES[mode], process="first", manifest_over={})
        world.run()
        world.source.run("DELETE FROM orders WHERE id <= 100")
        world.run()
        world.source.run("INSERT INTO orders SELECT g, 0, 'again' FROM generate_series(1, 40) g")
        world.process, world.manifest_over = "orders_process", initial(INTEGER)
        world.reconciliation = {"enabled": False} if mode == "never" else {**MODES[mode], "guards": guards}
        world.target.run(*exchange_rights(world))
        return world

    return make


def exchange_rights(world: World) -> list[str]:
    """What `ddl render` grants for a campaign's manifest; the world was provisioned for another one."""
    from airflow_dpone_xmin.target.connect import ddl_dialect
    from tests.world import WRITER

    layout = world.target.layout(world.table)
    if world.target.kind == "mssql" and world.target.babelfish:
        return []
    return list(ddl_dialect(layout).admit_campaign(WRITER, layout.target))


def tombstones(world: World) -> list[tuple[Any, ...]]:
    return world.target.rows(f"SELECT id FROM {world.target_name} WHERE NOT ({world.alive()}) ORDER BY id")


def row_of_nobody(world: World, *, alive: bool) -> None:
    """Row 5000, or its tombstone, in a target that no state key owns."""
    new, now = ("gen_random_uuid()", "now()") if world.target.kind == "embedded" else ("NEWID()", "SYSUTCDATETIME()")
    names = "id, qty, note, __dpone__load_id, __dpone__loaded_at, __dpone__updated_at, __dpone__deleted_at"
    deleted = "NULL" if alive else now
    world.target.run(f"INSERT INTO {world.target_name} ({names}) SELECT 5000, 0, 'old', {new}, {now}, {now}, {deleted}")


@pytest.mark.parametrize("mode", SOFT)
def test_a_transfer_carries_the_tombstones_over(owned: Callable[..., World], tmp_path: Path, mode: str) -> None:
    """Refused, approved, opened; not published without the approval; published, and only now consumed, by the seed's receipt."""
    world = owned(mode)
    assert refusal(opened, world, "stopped").code == "target_ownership.conflict"
    assert chunks(world) == []
    approval = Owner(tmp_path).admit(world, "stopped")
    opened(world, repair=approval)
    lane(world)
    assert consumptions(world) == []
    assert refusal(published, world).code == "target_ownership.conflict"
    assert len(tombstones(world)) == 100
    receipt = published(world, repair=approval).receipt
    assert consumptions(world) == [("fix", str(receipt.receipt_id))]
    assert (receipt.kind, receipt.new_revision, receipt.counts.active_after, receipt.counts.total_after) == ("seed", 1, 940, 1000)
    assert [row[0] for row in tombstones(world)] == list(range(41, 101))
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
    assert published(world, "again", repair=approval).status == "replayed"
    world.process, world.manifest_over = "first", {}
    assert refusal(world.run).code == "target_ownership.conflict"
    world.source.run("DELETE FROM orders WHERE id = 999", "INSERT INTO orders VALUES (50, 1, 'back')")
    incremental(world)
    run = world.run()
    assert (run.receipt.payload_reason, run.receipt.counts.reactivated, run.receipt.counts.soft_deleted) == ("delta", 1, 1)
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


@pytest.mark.parametrize("mode", list(MODES))
def test_rows_that_no_chunk_delivered_are_deletions(owned: Callable[..., World], tmp_path: Path, mode: str) -> None:
    """Guards and bounds hold for them, and they become what the route makes of a deleted row; a route that never deletes keeps them."""
    world, owner = owned(mode, max_delete_ratio=0.05), Owner(tmp_path)
    refusal(opened, world, "stopped")
    approval = owner.admit(world, "stopped")
    world.source.run("DELETE FROM orders WHERE id > 900")
    opened(world, repair=approval)
    lane(world)
    before = world.target_rows(COLUMNS)
    if mode != "never":
        assert refusal(published, world, "judged", repair=approval).code == "guard.deletes_exceeded"
        assert (world.target_rows(COLUMNS), consumptions(world)) == (before, [])
        proposed = owner.propose(world, "judged", "enough")
        assert (proposed.allow.max_delete_rows, proposed.allow.full_baseline) == (100, True)
        approval = owner.approve(world, proposed)
    counts = published(world, repair=approval).receipt.counts
    gone = 0 if mode == "never" else 100
    assert (counts.active_before - counts.deleted + counts.inserted + counts.reactivated, counts.deleted) == (counts.active_after, gone)
    assert len(world.target_rows(COLUMNS)) == counts.active_after
    assert len(consumptions(world)) == 1
    if mode == "never":
        assert set(world.source_rows(COLUMNS)) < set(world.target_rows(COLUMNS))
        return
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
    if mode != "hard_delete":
        assert [row[0] for row in tombstones(world)] == [*range(41, 101), *range(901, 1001)]
    incremental(world)
    assert world.run().receipt.counts.deleted == 0
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_bounds_of_an_approval_hold_for_a_publication(owned: Callable[..., World], tmp_path: Path) -> None:
    """Also where no guard would have stopped it."""
    world, owner = owned(), Owner(tmp_path)
    refusal(opened, world, "stopped")
    approval = owner.admit(world, "stopped", max_delete_rows=5)
    world.source.run("DELETE FROM orders WHERE id > 994")
    opened(world, repair=approval)
    lane(world)
    assert refusal(published, world, repair=approval).code == "repair_authority.bounds_exceeded"
    assert consumptions(world) == []


def test_an_owned_table_is_not_replaced_by_nothing(owned: Callable[..., World], tmp_path: Path) -> None:
    """A transfer says whose table it becomes, not that its rows may go."""
    world, owner = owned(), Owner(tmp_path)
    refusal(opened, world, "stopped")
    approval = owner.admit(world, "stopped")
    world.source.run("DELETE FROM orders")
    opened(world, repair=approval)
    lane(world)
    assert refusal(published, world, "judged", repair=approval).code == "guard.empty_snapshot"
    assert len(world.target_rows(COLUMNS)) == 900
    receipt = published(world, repair=owner.admit(world, "judged", "all")).receipt
    assert (receipt.counts.soft_deleted, receipt.counts.active_after, len(tombstones(world))) == (900, 0, 1000)


def test_rows_of_nobody_are_replaced_only_under_an_approval(worlds: Setup, tmp_path: Path) -> None:
    world = worlds(*TABLE, manifest_over=initial(INTEGER), reconciliation=MODES["timestamp_only"])
    row_of_nobody(world, alive=True)
    assert refusal(opened, world, "stopped").code == "checkpoint.missing"
    approval = Owner(tmp_path).admit(world, "stopped")
    opened(world, repair=approval)
    lane(world)
    assert refusal(published, world).code == "checkpoint.missing"
    counts = published(world, repair=approval).receipt.counts
    assert (counts.active_before, counts.inserted, counts.soft_deleted, counts.total_after) == (1, 1000, 1, 1001)
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_a_table_whose_key_nothing_keeps_unique_is_not_published(worlds: Setup) -> None:
    """The index went after the opening: the shadow copies what the live table has, and would have none either."""
    world = worlds(*TABLE, manifest_over=initial(INTEGER), reconciliation=MODES["timestamp_only"])
    opened(world)
    lane(world)
    world.target.run(f"ALTER TABLE {world.target_name} DROP CONSTRAINT pk_orders")
    assert refusal(published, world).code == "DPONE_TARGET_UNSUPPORTED"
    assert world.target_rows(COLUMNS) == []


def test_an_owner_that_moved_on_invalidates_the_approval(owned: Callable[..., World], tmp_path: Path) -> None:
    world = owned()
    refusal(opened, world, "stopped")
    approval = Owner(tmp_path).admit(world, "stopped")
    over, world.manifest_over, world.process = world.manifest_over, {}, "first"
    world.run()
    world.manifest_over, world.process = over, "orders_process"
    assert refusal(opened, world, repair=approval).code == "repair_authority.transfer_mismatch"
    assert (chunks(world), consumptions(world)) == ([], [])


def test_tombstones_of_nobody(owned: Callable[..., World], tmp_path: Path) -> None:
    """Their state was lost: they are still somebody's memory."""
    world = owned()
    world.target.run(f"DELETE FROM {world.state_name('dpone_source_state')}")
    assert refusal(opened, world, "stopped").code == "checkpoint.missing"
    approval = Owner(tmp_path).admit(world, "stopped")
    opened(world, repair=approval)
    lane(world)
    assert refusal(published, world).code == "checkpoint.missing"
    receipt = published(world, repair=approval).receipt
    assert consumptions(world) == [("fix", str(receipt.receipt_id))]
    assert len(tombstones(world)) == 60


def test_an_unused_approval_is_refused(worlds: Setup, tmp_path: Path) -> None:
    """At the opening and at the publication; it stays unconsumed."""
    world = worlds(*TABLE, manifest_over=initial(INTEGER), reconciliation=MODES["timestamp_only"])
    row_of_nobody(world, alive=False)
    assert refusal(opened, world, "stopped").code == "checkpoint.missing"
    approval = Owner(tmp_path).admit(world, "stopped")
    world.target.run(f"DELETE FROM {world.target_name}")
    assert refusal(opened, world, repair=approval).code == "repair_authority.unused"
    opened(world)
    lane(world)
    assert refusal(published, world, repair=approval).code == "repair_authority.unused"
    assert consumptions(world) == []
    assert published(world).status == "committed"


def test_a_source_that_reads_as_empty_replaces_nothing_unapproved(worlds: Setup, tmp_path: Path) -> None:
    chunk = {"column": "id", "kind": "ordered", "buckets": 4}
    world = worlds(TABLE[0], manifest_over=initial(chunk), reconciliation=MODES["timestamp_only"])
    assert len(opened(world).chunks) == 1
    lane(world)
    assert refusal(published, world, "stopped").code == "guard.empty_snapshot"
    receipt = published(world, repair=Owner(tmp_path).admit(world, "stopped")).receipt
    assert (receipt.counts.active_after, consumptions(world)) == (0, [("fix", str(receipt.receipt_id))])


def test_a_handoff_whose_table_went_to_another_is_told_of_the_owner(worlds: Setup, tmp_path: Path) -> None:
    """Its seed is there; a second campaign superseded it."""
    world = worlds(*TABLE, manifest_over=initial(INTEGER), reconciliation=MODES["timestamp_only"])
    world.target.run(*exchange_rights(world))
    first = world.process
    opened(world)
    lane(world)
    published(world)
    incremental(world)
    world.run()
    world.process, world.manifest_over = first, initial(INTEGER, handoff="orders_v2")
    assert refusal(opened, world, "stopped").code == "target_ownership.conflict"
    approval = Owner(tmp_path).admit(world, "stopped")
    opened(world, repair=approval)
    lane(world)
    assert published(world, repair=approval).receipt.counts.updated == 1000
    incremental(world)
    assert refusal(world.run).code == "target_ownership.conflict"
    incremental(world, handoff="orders_v2")
    assert world.run().receipt.payload_reason == "delta"
