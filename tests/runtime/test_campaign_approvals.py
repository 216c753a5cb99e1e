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

    def make(
        mode: str = "timestamp_only", *, again: str = "INSERT INTO orders SELECT g, 0, 'again' FROM generate_series(1, 40) g"
    ) -> World:
        world = worlds(*TABLE, reconciliation=MODES[mode], process="first", manifest_over={})
        world.run()
        world.source.run("DELETE FROM orders WHERE id <= 100")
        world.run()
        world.source.run("INSERT INTO orders SELECT g, 0, 'again' FROM generate_series(1, 40) g")
        world.process, world.manifest_over = "orders_process", initial(INTEGER)
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
    values = "__dpone__load_id, __dpone__loaded_at, __dpone__updated_at, __dpone__deleted_at"
    new, now = ("gen_random_uuid()", "now()") if world.target.kind == "embedded" else ("NEWID()", "SYSUTCDATETIME()")
    world.target.run(f"INSERT INTO {world.target_name} (id, qty, note, {values}) SELECT 5000, 0, 'gone', {new}, {now}, {now}, {now}")
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
