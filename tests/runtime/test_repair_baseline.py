"""Full baselines over a target that is not empty, transfers of ownership, and empty snapshots: with and without an approval."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import TextClause

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.runtime.reconcile import dry_run
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from tests.approvals import Owner, consumptions, everything, refused
from tests.world import MODES, Setup, World

COLUMNS = ("id", "qty")
TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 20) g")
SOFT = MODES["timestamp_only"]


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def committed(world: World, run_id: str, **kw: Any) -> Any:
    """Run; source and target are equal afterwards, and no statement truncated anything."""
    seen: list[str] = []

    def observer(event: Event) -> None:
        if isinstance(event.statement, TextClause):  # Core has no TRUNCATE
            seen.append(event.statement.text.upper())

    OBSERVERS.append(observer)
    try:
        receipt = world.run(run_id, **kw).receipt
    finally:
        OBSERVERS.remove(observer)
    assert seen, "nothing was observed"
    assert not any("TRUNCATE" in statement for statement in seen)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)
    return receipt


def states(world: World) -> dict[str, tuple[Any, ...]]:
    """state key → (process, revision, superseded by)."""
    rows = world.target.rows(f"SELECT state_key, process, revision, superseded_by_state_key FROM {world.state_name('dpone_source_state')}")
    return {bytes(row[0]).hex(): (row[1], row[2], None if row[3] is None else bytes(row[3]).hex()) for row in rows}


def tombstones(world: World) -> list[tuple[Any, ...]]:
    return [
        tuple(row)
        for row in world.target.rows(
            f"SELECT id, __dpone__deleted_at, __dpone__load_id FROM {world.target_name} WHERE __dpone__deleted_at IS NOT NULL ORDER BY id"
        )
    ]


def lose_state(world: World) -> None:
    """The state database was lost; the target, with its head, was not. Receipts only go with their table's trigger off."""
    receipts = world.state_name("dpone_commit_receipt")
    world.target.run(
        f"DELETE FROM {world.state_name('dpone_source_state')}",
        f"ALTER TABLE {receipts} DISABLE TRIGGER ALL",
        f"DELETE FROM {receipts}",
        f"ALTER TABLE {receipts} ENABLE TRIGGER ALL",
    )


def adopted(worlds: Setup, **fields: Any) -> World:
    """Another loader filled the target with 30 rows; the source has 20 of them and the guard allows one in twenty to go."""
    world = worlds(*TABLE, **({"reconciliation": {"guards": {"max_delete_ratio": 0.05}}} | fields))
    world.target.run(
        f"INSERT INTO {world.target_name} (id, qty, __dpone__load_id, __dpone__loaded_at, __dpone__updated_at)"
        " SELECT g, g, '00000000-0000-4000-8000-000000000001', now(), now() FROM generate_series(1, 30) g"
    )
    error = refused(world, "checkpoint.missing")
    assert "observed_missing" not in error.details["binding"]
    return world


# ---- missing checkpoint ---------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("embedded_only")
def test_lost_state(worlds: Setup, owner: Owner) -> None:
    """A target without its checkpoint is refused; an approved baseline keeps the tombstones and goes on above the head's revision."""
    world = worlds(*TABLE, reconciliation=SOFT)
    world.run()
    world.source.run("DELETE FROM orders WHERE id <= 5")
    world.run()
    kept = tombstones(world)
    lose_state(world)
    world.source.run("DELETE FROM orders WHERE id = 6", "UPDATE orders SET qty = 0 WHERE id = 7", "INSERT INTO orders VALUES (5, 50)")
    error = refused(world, "checkpoint.missing")
    assert (error.details["binding"]["checkpoint_revision"], error.details["binding"]["full_baseline"]) == (None, True)
    assert "repair propose" in error.details["command"]
    receipt = committed(world, "stopped", repair=owner.admit(world, "stopped"))
    assert (receipt.payload.value, receipt.payload_reason, receipt.new_revision) == ("full", "baseline", 3)
    counts = receipt.counts
    assert (counts.inserted, counts.reactivated, counts.updated, counts.soft_deleted, counts.unchanged) == (0, 1, 1, 1, 13)
    now = tombstones(world)
    assert [row for row in now if row[0] != 6] == kept[:4], "first detection time and load of a tombstone stay"
    assert [row[0] for row in now] == [1, 2, 3, 4, 6]
    committed(world, "next")


@pytest.mark.usefixtures("embedded_only")
def test_rows_of_another_loader_are_adopted(worlds: Setup, owner: Owner) -> None:
    """Equal rows are unchanged and keep their lineage; what the source lacks is deleted within the guards, or with bounds."""
    world = adopted(worlds)
    before = everything(world)
    proposal = owner.propose(world, "stopped")
    assert everything(world) == before, "the rehearsal behind a proposal changes nothing"
    assert (proposal.allow.full_baseline, proposal.allow.max_delete_rows, proposal.transfer) == (True, 10, None)
    assert proposal.allow.max_delete_ratio == Decimal("0.333333333333334")
    receipt = committed(world, "stopped", repair=owner.approve(world, proposal))
    assert (receipt.counts.unchanged, receipt.counts.soft_deleted, receipt.counts.inserted) == (20, 10, 0)
    assert consumptions(world) == [("fix", str(receipt.receipt_id))], "one approval suffices"


@pytest.mark.usefixtures("embedded_only")
def test_a_baseline_without_bounds_meets_the_guard(worlds: Setup, owner: Owner) -> None:
    """Approved by hand without the deletes that follow: the guard stops it, and what it says covers both."""
    world = adopted(worlds)
    whole = owner.propose(world, "stopped").model_dump(mode="json") | {"allow": {"full_baseline": True}}
    error = refused(world, "guard.deletes_exceeded", "again", repair=owner.approve(world, RepairAuthority.model_validate(whole)))
    assert (error.details["binding"]["observed_ratio"], error.details["binding"]["full_baseline"]) == ("10/30", True)
    proposal = owner.propose(world, "again", "both")
    assert (proposal.allow.full_baseline, proposal.allow.max_delete_rows) == (True, 10)
    committed(world, "again", repair=owner.approve(world, proposal))


def test_a_delete_only_approval_is_no_baseline(worlds: Setup, owner: Owner) -> None:
    world = worlds(*TABLE, reconciliation=SOFT)
    world.run()
    world.process = "renamed"
    refused(world, "target_ownership.conflict")
    proposal = owner.propose(world, "stopped")
    assert proposal.transfer is not None
    without = proposal.model_dump(mode="json") | {"transfer": None, "allow": {"max_delete_rows": 20}, "authority_id": "small"}
    refused(world, "target_ownership.conflict", repair=owner.approve(world, RepairAuthority.model_validate(without)))


# ---- transfer -------------------------------------------------------------------------------------------------------------
def test_transfer_of_ownership(worlds: Setup, owner: Owner) -> None:
    """A new identity takes the target over from exactly the old owner, whose row and receipts stay; the old process then fails."""
    world = worlds(*TABLE, reconciliation=SOFT)
    old = world.run("one").receipt
    world.process = "renamed"
    error = refused(world, "target_ownership.conflict")
    transfer = {"state_key": old.state_key.hex(), "xmin": old.new_xmin, "revision": 1}
    assert error.message.startswith("Process orders_process (state key ")
    assert error.details["binding"]["transfer"] == transfer
    assert "repair propose" in error.details["command"]
    selection = owner.admit(world, "stopped")
    world.source.run("DELETE FROM orders WHERE id = 1")
    receipt = committed(world, "stopped", repair=selection)
    assert (receipt.payload.value, receipt.new_revision, receipt.counts.soft_deleted, receipt.counts.unchanged) == ("full", 1, 1, 19)
    new_key = receipt.state_key.hex()
    assert states(world) == {old.state_key.hex(): ("orders_process", 1, new_key), new_key: ("renamed", 1, None)}
    committed(world, "after")
    world.process = "orders_process"
    conflict = refused(world, "target_ownership.conflict", "old")
    assert conflict.details["binding"]["transfer"]["state_key"] == new_key


def test_transfer_back(worlds: Setup, owner: Owner) -> None:
    """A rename that is taken back: the superseded key is revived above its own history."""
    world = worlds(*TABLE, reconciliation=SOFT)
    first = world.run("one").receipt
    world.process = "renamed"
    refused(world, "target_ownership.conflict")
    committed(world, "stopped", repair=owner.admit(world, "stopped", "there"))
    world.process = "orders_process"
    refused(world, "target_ownership.conflict", "home")
    world.source.run("INSERT INTO orders VALUES (21, 21)")
    receipt = committed(world, "home", repair=owner.admit(world, "home", "back"))
    assert (receipt.state_key, receipt.new_revision, receipt.previous_revision) == (first.state_key, 2, None)
    assert [(value[0], value[1], value[2] is None) for value in states(world).values()].count(("orders_process", 2, True)) == 1
    assert committed(world, "next").new_revision == 3


@pytest.mark.parametrize("field", [{"xmin": 3}, {"revision": 2}, {"state_key": "0" * 64}])
def test_transfer_from_another_owner(worlds: Setup, owner: Owner, field: dict[str, Any]) -> None:
    world = worlds(*TABLE, reconciliation=SOFT)
    world.run("one")
    world.process = "renamed"
    refused(world, "target_ownership.conflict")
    document = owner.propose(world, "stopped").model_dump(mode="json")
    document["transfer"] |= field
    refused(world, "repair_authority.transfer_mismatch", repair=owner.approve(world, RepairAuthority.model_validate(document)))


def test_unnecessary_transfer(worlds: Setup, owner: Owner) -> None:
    """A target without an owner has nothing to transfer."""
    world = worlds(TABLE[0], reconciliation=SOFT)
    refused(world, "guard.empty_snapshot")
    document = owner.propose(world, "stopped").model_dump(mode="json") | {"transfer": {"state_key": "0" * 64, "xmin": 3, "revision": 1}}
    refused(world, "repair_authority.transfer_mismatch", repair=owner.approve(world, RepairAuthority.model_validate(document)))


def test_the_old_owner_commits_before_the_transfer(worlds: Setup, owner: Owner) -> None:
    """The approver saw revision 1; the old process has moved on."""
    world = worlds(*TABLE, reconciliation=SOFT)
    world.run("one")
    world.process = "renamed"
    refused(world, "target_ownership.conflict")
    selection = owner.admit(world, "stopped")
    world.process = "orders_process"
    world.run("two")
    world.process = "renamed"
    refused(world, "repair_authority.transfer_mismatch", repair=selection)


def test_the_old_process_races_the_transfer(worlds: Setup, owner: Owner) -> None:
    """Admitted before the transfer, at the lock after it: the superseded checkpoint counts for nothing."""
    world = worlds(*TABLE, reconciliation=SOFT)
    world.run("one")
    old_route = world.route()
    world.process = "renamed"
    refused(world, "target_ownership.conflict")
    selection = owner.admit(world, "stopped")
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 1")
    done: list[Any] = []

    def observer(event: Event) -> None:
        if event.label == "stage.subset" and event.phase == "after" and not done:
            done.append(None)
            done.append(committed(world, "stopped", repair=selection))

    OBSERVERS.append(observer)
    try:
        with pytest.raises(XminError) as caught:
            world.run("late", route=old_route)
    finally:
        OBSERVERS.remove(observer)
    assert caught.value.code == "checkpoint.conflict"
    assert len(done) == 2
    before = everything(world)
    with pytest.raises(XminError) as caught:
        world.run("late", route=old_route)
    assert (caught.value.code, everything(world) == before) == ("target_ownership.conflict", True)


def test_a_guard_stop_inside_a_transfer_proposes_the_transfer_again(worlds: Setup, owner: Owner) -> None:
    world = worlds(*TABLE, reconciliation={"guards": {"max_delete_ratio": 0.05}})
    world.run("one")
    world.process = "renamed"
    refused(world, "target_ownership.conflict")
    selection = owner.admit(world, "stopped")
    world.source.run("DELETE FROM orders WHERE id <= 5")
    refused(world, "guard.deletes_exceeded", "again", repair=selection)
    proposal = owner.propose(world, "again", "both")
    assert (proposal.transfer is not None, proposal.allow.full_baseline, proposal.allow.max_delete_rows) == (True, True, 5)
    committed(world, "again", repair=owner.approve(world, proposal))


# ---- empty snapshots ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_empty_source_empty_target(worlds: Setup, owner: Owner, mode: str) -> None:
    """A baseline of nothing is never implicitly safe: only an approved full baseline admits it; then nothing is left to guard."""
    world = worlds(TABLE[0], reconciliation=MODES[mode])
    refused(world, "guard.empty_snapshot")
    bounds = owner.propose(world, "stopped").model_dump(mode="json") | {
        "allow": {"max_delete_rows": 0, "max_delete_ratio": 1},
        "authority_id": "bounds",
    }
    refused(world, "guard.empty_snapshot", repair=owner.approve(world, RepairAuthority.model_validate(bounds)))
    receipt = committed(world, "stopped", repair=owner.admit(world, "stopped"))
    assert (receipt.new_revision, receipt.counts.payload, receipt.counts.active_after) == (1, 0, 0)
    assert committed(world, "next").counts.active_after == 0
    world.source.run(TABLE[1])
    assert committed(world, "more").counts.inserted == 20


@pytest.mark.parametrize("mode", [name for name in MODES if name != "never"])
def test_everything_was_deleted(worlds: Setup, owner: Owner, mode: str) -> None:
    """Both bounds, covering all rows and the ratio 1; then every row leaves, and tombstones stay where the mode keeps them."""
    world = worlds(*TABLE, reconciliation=MODES[mode])
    world.run("one")
    world.source.run("DELETE FROM orders")
    refused(world, "guard.empty_snapshot")
    exact = owner.propose(world, "stopped")
    assert (exact.allow.max_delete_rows, exact.allow.max_delete_ratio, exact.allow.full_baseline) == (20, Decimal(1), False)
    allowed: list[dict[str, Any]] = [
        {"max_delete_rows": 20},
        {"max_delete_ratio": "1"},
        {"max_delete_rows": 19, "max_delete_ratio": "1"},
        {"max_delete_rows": 20, "max_delete_ratio": "0.999999999999999"},
        {"full_baseline": True},
    ]
    for number, allow in enumerate(allowed):
        document = exact.model_dump(mode="json") | {"allow": allow, "authority_id": f"small{number}"}
        code = "guard.empty_snapshot" if "full_baseline" in allow else "repair_authority.bounds_exceeded"
        refused(world, code, repair=owner.approve(world, RepairAuthority.model_validate(document)))
    receipt = committed(world, "stopped", repair=owner.approve(world, exact))
    assert (receipt.counts.deleted, receipt.counts.active_after) == (20, 0)
    assert receipt.counts.total_after == (0 if mode == "hard_delete" else 20)


def test_empty_source_over_tombstones_only(worlds: Setup, owner: Owner) -> None:
    """After an approved deletion of everything nothing is left to guard, and the tombstones stay as they are."""
    world = worlds(*TABLE, reconciliation=SOFT)
    world.run("one")
    world.source.run("DELETE FROM orders")
    refused(world, "guard.empty_snapshot")
    committed(world, "stopped", repair=owner.admit(world, "stopped", "all"))
    kept = tombstones(world)
    committed(world, "again")
    assert tombstones(world) == kept


# ---- stops before extraction ----------------------------------------------------------------------------------------------
def renamed(worlds: Setup, **fields: Any) -> World:
    """Another process owns the target."""
    world = worlds(*TABLE, **fields)
    world.run("one")
    world.process = "renamed"
    world.source.run("DELETE FROM orders WHERE id <= 10")
    return world


def lost(worlds: Setup, **fields: Any) -> World:
    """The checkpoint went with the state database."""
    world = worlds(*TABLE, **fields)
    world.run("one")
    world.target.run(f"DELETE FROM {world.state_name('dpone_source_state')}")
    world.source.run("DELETE FROM orders WHERE id <= 10")
    return world


def emptied(worlds: Setup, **fields: Any) -> World:
    """The same, and the source is empty by now."""
    world = lost(worlds, **fields)
    world.source.run("DELETE FROM orders")
    return world


def crossing(worlds: Setup, **fields: Any) -> World:
    """A strict window, and deletes; the test ends the epoch."""
    world = worlds(*TABLE, manifest_over={"source": {"options": {"xmin_window": "strict"}}}, **fields)
    world.run("one")
    world.source.run("DELETE FROM orders WHERE id <= 10", *["UPDATE orders SET qty = 0 WHERE id = 11"] * 3)
    return world


EARLY = [
    (renamed, "target_ownership.conflict", "baseline", 10),
    (lost, "checkpoint.missing", "baseline", 10),
    (emptied, "checkpoint.missing", "baseline", 20),
    (crossing, "xmin_window.strict_stop", "strict_stop", 10),
]


@pytest.mark.parametrize(("arrange", "code", "reason", "missing"), EARLY, ids=[arrange.__name__ for arrange, *_ in EARLY])
def test_a_stop_before_extraction_needs_one_approval(
    worlds: Setup, owner: Owner, monkeypatch: pytest.MonkeyPatch, arrange: Any, code: str, reason: str, missing: int
) -> None:
    """The run stops cheaply; report-only mode and the proposal look further, change nothing, and see the deletes that follow."""
    world = arrange(worlds, reconciliation={"guards": {"max_delete_ratio": 0.05}})
    if arrange is crossing:  # four thousand million transactions are not run here: the epoch ends earlier
        ((xmin,),) = world.target.rows(f"SELECT safe_xmin FROM {world.state_name('dpone_source_state')}")
        monkeypatch.setattr("airflow_dpone_xmin.policy.window.EPOCH", xmin + 1)
    error = refused(world, code)
    assert "observed_missing" not in error.details["binding"]
    before = everything(world)
    seen = dry_run(world.route(), Invocation(world.process, "look"), endpoints=world.endpoints)
    assert (seen.refusal.code, seen.classification.missing) == (code, missing)
    proposal = owner.propose(world, "stopped")
    assert everything(world) == before
    assert world.staged() == []
    observed = seen.refusal.details["binding"]
    assert (observed["observed_missing"], observed["observed_active"], observed["observed_ratio"]) == (missing, 20, f"{missing}/20")
    assert (proposal.allow.full_baseline, proposal.allow.max_delete_rows) == (True, missing)
    assert (proposal.transfer is not None) is (arrange is renamed)
    receipt = committed(world, "stopped", repair=owner.approve(world, proposal))
    assert (receipt.payload_reason, receipt.counts.deleted, receipt.repair_authority_id) == (reason, missing, "fix")


def test_what_no_longer_stops_proposes_nothing(worlds: Setup, owner: Owner) -> None:
    """Somebody emptied the target after the stop: there is nothing to approve any more."""
    world = adopted(worlds)
    world.target.run(f"DELETE FROM {world.target_name}")
    with pytest.raises(XminError) as caught:
        owner.propose(world, "stopped")
    assert (caught.value.code, "Run it again" in caught.value.hint) == ("evidence.not_found", True)
    committed(world, "stopped")
