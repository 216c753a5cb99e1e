"""Exceptional runs in both directions: stopped without an approval, committed with one, and refused with the wrong one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.runtime.evidence import evidence_document, preview_document, receipt_document
from airflow_dpone_xmin.runtime.reconcile import dry_run
from airflow_dpone_xmin.runtime.repair import authority_documents
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.repair import RepairSelection
from tests.approvals import Owner, consumptions, everything, refused
from tests.world import MODES, Setup, World

COLUMNS = ("id", "qty")
TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 20) g")
GUARDED = {"guards": {"max_delete_ratio": 0.05}}


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


@pytest.fixture
def stopped(worlds: Setup) -> World:
    """Run ``stopped`` found 5 of 20 rows missing and one changed; the guard allows one in twenty."""
    world = worlds(*TABLE, reconciliation=GUARDED)
    world.run("first")
    world.source.run("DELETE FROM orders WHERE id <= 5", "UPDATE orders SET qty = 0 WHERE id = 20")
    refused(world, "guard.deletes_exceeded")
    return world


def committed(world: World, run_id: str, **kw: Any) -> Any:
    """Run; source and target are equal afterwards."""
    receipt = world.run(run_id, **kw).receipt
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)
    return receipt


def audit(world: World, run_id: str) -> dict[str, Any]:
    """Evidence of the newest attempt of a run."""
    rows = world.target.rows(
        f"SELECT evidence FROM {world.state_name('dpone_load_audit')} WHERE run_id = '{run_id}' ORDER BY recorded_at_utc DESC"
    )
    return dict(json.loads(rows[0][0]))


# ---- the stop -------------------------------------------------------------------------------------------------------------
def test_a_guard_stop_tells_the_approver_everything(worlds: Setup) -> None:
    """Error and audit evidence carry the binding, the observed numbers and the command; target, checkpoint and revision stay."""
    world = worlds(*TABLE, reconciliation=GUARDED)
    receipt = world.run("first").receipt
    world.source.run("DELETE FROM orders WHERE id <= 5")
    error = refused(world, "guard.deletes_exceeded")
    assert error.details["binding"] == {
        "environment": "test",
        "state_key": receipt.state_key.hex(),
        "scope_hash": receipt.digests["scope_hash"].hex(),
        "checkpoint_xmin": receipt.new_xmin,
        "checkpoint_revision": 1,
        "observed_missing": 5,
        "observed_active": 20,
        "observed_ratio": "5/20",
        "full_baseline": False,
        "delete_bounds": True,
    }
    assert "dpone-xmin repair propose MANIFEST --run-id stopped --id" in error.details["command"]
    assert audit(world, "stopped")["error"] == json.loads(json.dumps(error.to_dict()))


def test_reverse_drift(worlds: Setup, owner: Owner) -> None:
    """A row that vanished from the target alone: only a full payload can bring it back, and an approval of one does."""
    world = worlds(*TABLE, reconciliation=GUARDED)
    world.run()
    world.target.run(f"DELETE FROM {world.target_name} WHERE id IN (3, 4)")
    error = refused(world, "reconcile.full_repair_required")
    assert error.details["binding"]["full_baseline"] is True
    assert error.details["absent"] == 2
    proposal = owner.propose(world, "stopped")
    assert (proposal.allow.full_baseline, proposal.allow.max_delete_rows, proposal.transfer) == (True, None, None)
    receipt = committed(world, "stopped", repair=owner.approve(world, proposal))
    assert (receipt.payload.value, receipt.payload_reason, receipt.counts.inserted, receipt.counts.unchanged) == (
        "full",
        "repair_authority",
        2,
        18,
    )


def test_reverse_drift_behind_a_mass_delete_needs_one_approval(worlds: Setup, owner: Owner) -> None:
    """The guard stops first, and its proposal already covers what would stop the next attempt; report-only mode sees drift alone, too."""
    world = worlds(*TABLE, reconciliation=GUARDED)
    world.run("first")
    world.target.run(f"DELETE FROM {world.target_name} WHERE id IN (18, 19)")
    world.source.run("INSERT INTO orders VALUES (21, 21)")
    look = dry_run(world.route(), Invocation(world.process, "look"), endpoints=world.endpoints)
    assert look.refusal is not None and look.refusal.code == "reconcile.full_repair_required"
    world.source.run("DELETE FROM orders WHERE id <= 5")
    error = refused(world, "guard.deletes_exceeded")
    assert (error.details["binding"]["full_baseline"], error.details["binding"]["observed_ratio"]) == (True, "5/18")
    receipt = committed(world, "stopped", repair=owner.admit(world, "stopped"))
    assert (receipt.payload_reason, receipt.counts.inserted, receipt.counts.soft_deleted) == ("repair_authority", 3, 5)


@pytest.mark.parametrize("mode", ["timestamp_only", "hard_delete"])
def test_rows_that_the_delta_brings_are_no_drift(worlds: Setup, mode: str) -> None:
    """Inserted, reactivated and re-inserted keys are in the payload, whatever else it holds."""
    world = worlds(*TABLE, reconciliation=MODES[mode])
    world.run("first")
    world.source.run("DELETE FROM orders WHERE id <= 3")
    world.run("second")
    world.source.run("INSERT INTO orders VALUES (1, 1), (21, 21)", "UPDATE orders SET qty = 0 WHERE id = 10")
    assert committed(world, "third").payload_reason == "delta"


def test_a_strict_window_stop(worlds: Setup, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """``xmin_window: strict`` stops at an epoch change; the approval it asks for is proposed and admitted like any other."""
    world = worlds(*TABLE, reconciliation=GUARDED, manifest_over={"source": {"options": {"xmin_window": "strict"}}})
    receipt = world.run("first").receipt
    world.source.run(*["UPDATE orders SET qty = qty + 1 WHERE id = 1"] * 3)
    # Four thousand million transactions are not run here: the epoch ends earlier.
    monkeypatch.setattr("airflow_dpone_xmin.policy.window.EPOCH", receipt.new_xmin + 1)
    error = refused(world, "xmin_window.strict_stop")
    assert error.details["binding"]["checkpoint_revision"] == 1
    assert "repair propose" in error.details["command"]
    assert committed(world, "stopped", repair=owner.admit(world, "stopped")).payload_reason == "strict_stop"


# ---- the approved run -----------------------------------------------------------------------------------------------------
def test_an_approved_delete_keeps_the_delta(stopped: World, owner: Owner) -> None:
    """A delete-only approval changes nothing about the extraction; receipt, consumption and evidence name it, together."""
    proposal = owner.propose(stopped, "stopped")
    assert (proposal.allow.full_baseline, proposal.allow.max_delete_rows, proposal.allow.max_delete_ratio) == (False, 5, Decimal("0.25"))
    receipt = committed(stopped, "stopped", repair=owner.approve(stopped, proposal))
    assert (receipt.payload.value, receipt.payload_reason) == ("delta", "delta")
    assert (receipt.counts.payload, receipt.counts.soft_deleted, receipt.counts.updated) == (1, 5, 1)
    assert receipt_document(receipt)["repair_authority"] == {"id": "fix", "digest": proposal.digest.hex()}
    assert audit(stopped, "stopped")["receipt"]["repair_authority"]["id"] == "fix"
    assert consumptions(stopped) == [("fix", str(receipt.receipt_id))]
    (document,) = authority_documents(stopped.route(), endpoints=stopped.endpoints, ref="fix")
    assert (document["state"], document["signed"], document["receipt_id"]) == ("consumed", True, str(receipt.receipt_id))


def test_a_full_baseline_forces_a_full_payload(stopped: World, owner: Owner) -> None:
    receipt = committed(stopped, "stopped", repair=owner.admit(stopped, "stopped", full_baseline=True))
    assert (receipt.payload.value, receipt.payload_reason) == ("full", "repair_authority")
    assert (receipt.counts.payload, receipt.counts.unchanged, receipt.counts.soft_deleted) == (15, 14, 5)


def test_a_retry_of_the_approved_run_answers_from_its_receipt(stopped: World, owner: Owner) -> None:
    selection = owner.admit(stopped, "stopped")
    receipt = stopped.run("stopped", repair=selection).receipt
    again = stopped.run("stopped", repair=selection)
    assert (again.status, again.receipt.receipt_id) == ("replayed", receipt.receipt_id)
    assert evidence_document(stopped.route(), again)["receipt"]["repair_authority"]["id"] == "fix"


def test_a_dry_run_shows_the_stop_and_the_approved_run_without_changing_anything(stopped: World, owner: Owner) -> None:
    """Report-only: the classification, the refusal or none; the approval stays unconsumed."""

    def look(repair: RepairSelection | None) -> Any:
        before = everything(stopped)
        seen = dry_run(stopped.route(), Invocation(stopped.process, "look"), endpoints=stopped.endpoints, repair=repair)
        assert everything(stopped) == before
        assert stopped.staged() == []
        assert (seen.classification.missing, seen.classification.matched) == (5, 15)
        document = preview_document(stopped.route(), seen)
        assert (document["payload"], document["payload_reason"]) == ("delta", "delta")
        assert (document["repair_authority"] is None) is (repair is None or seen.refusal is not None)
        return seen.refusal

    assert look(None).code == "guard.deletes_exceeded"
    selection = owner.admit(stopped, "stopped")
    assert look(selection) is None
    small = owner.admit(stopped, "stopped", "small", max_delete_rows=4)
    assert look(small).code == "repair_authority.bounds_exceeded"
    assert committed(stopped, "look", repair=selection).repair_authority_id == "fix"


# ---- wrong approvals ------------------------------------------------------------------------------------------------------
def test_one_shot(stopped: World, owner: Owner) -> None:
    selection = owner.admit(stopped, "stopped")
    committed(stopped, "stopped", repair=selection)
    stopped.source.run("DELETE FROM orders WHERE id <= 10")
    refused(stopped, "repair_authority.consumed", "next", repair=selection)


def test_unknown_reference(stopped: World, owner: Owner) -> None:
    refused(stopped, "repair_authority.not_found", repair=owner.select(stopped, "fix"))


def test_expired(stopped: World, owner: Owner) -> None:
    """Neither the owner's command nor a row that was valid once is accepted."""
    past = ended(owner.propose(stopped, "stopped"))
    stopped.target.run(insertion(stopped, past, owner.sign(past)))
    refused(stopped, "repair_authority.expired", repair=owner.select(stopped, past.authority_id))
    with pytest.raises(XminError) as caught:
        owner.approve(stopped, past.model_copy(update={"authority_id": "late"}))
    assert caught.value.code == "repair_authority.expired"


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ({"state_key": "0" * 64}, "binding_mismatch"),
        ({"scope_hash": "0" * 64}, "binding_mismatch"),
        ({"checkpoint": None}, "binding_mismatch"),
        ({"checkpoint": {"xmin": 3, "revision": 1}}, "binding_mismatch"),
    ],
)
def test_bound_to_something_else(stopped: World, owner: Owner, field: dict[str, Any], code: str) -> None:
    """The owner's command refuses another route's document at once; a row that got there otherwise is refused by the run."""
    document = RepairAuthority.model_validate(owner.propose(stopped, "stopped").model_dump(mode="json") | field)
    if "checkpoint" not in field:
        with pytest.raises(XminError) as caught:
            owner.approve(stopped, document)
        assert caught.value.code == f"repair_authority.{code}"
    stopped.target.run(insertion(stopped, document, owner.sign(document)))
    error = refused(stopped, f"repair_authority.{code}", repair=owner.select(stopped, document.authority_id))
    assert "bound" in error.details


def test_another_environment(stopped: World, owner: Owner) -> None:
    """Neither the owner's command nor a row that got there otherwise is accepted."""
    foreign = owner.propose(stopped, "stopped").model_copy(update={"environment": "prod"})
    with pytest.raises(XminError) as caught:
        owner.approve(stopped, foreign)
    assert caught.value.code == "repair_authority.environment_mismatch"
    stopped.target.run(insertion(stopped, foreign, owner.sign(foreign)))
    refused(stopped, "repair_authority.environment_mismatch", repair=owner.select(stopped, "fix"))


def test_binding_drift(stopped: World, owner: Owner) -> None:
    """Another run commits between approval and use: the approver did not see that state."""
    selection = owner.admit(stopped, "stopped")
    stopped.reconciliation = {"guards": {"max_delete_rows": 5}}
    committed(stopped, "other")
    stopped.reconciliation = GUARDED
    stopped.source.run("DELETE FROM orders WHERE id <= 10")
    refused(stopped, "repair_authority.binding_mismatch", "next", repair=selection)


def test_binding_drift_while_the_run_works(stopped: World, owner: Owner) -> None:
    """Another run commits between the preview and the lock: admission is repeated and nothing is consumed."""
    selection = owner.admit(stopped, "stopped")
    stopped.reconciliation = {"guards": {"max_delete_rows": 5}}
    loose = stopped.route()
    stopped.reconciliation = GUARDED
    with (
        once_before("lock.application", lambda: stopped.run("other", route=loose), after="stage.subset"),
        pytest.raises(XminError) as caught,
    ):
        stopped.run("stopped", repair=selection)
    assert (caught.value.code, caught.value.retryable) == ("checkpoint.conflict", True)
    assert consumptions(stopped) == []


def test_consumed_while_the_run_works(stopped: World, owner: Owner) -> None:
    selection = owner.admit(stopped, "stopped")
    with (
        once_before("lock.application", lambda: stopped.run("other", repair=selection), after="stage.subset"),
        pytest.raises(XminError) as caught,
    ):
        stopped.run("stopped", repair=selection)
    assert caught.value.code == "checkpoint.conflict"
    assert len(consumptions(stopped)) == 1
    refused(stopped, "repair_authority.consumed", repair=selection)


@pytest.mark.usefixtures("embedded_only")
@pytest.mark.parametrize("column", ["allow_max_delete_rows = 20", "reason = 'other'", "expires_at_utc = expires_at_utc + interval '1 day'"])
def test_digest_drift(stopped: World, owner: Owner, column: str) -> None:
    """A database administrator disables the trigger and edits the row: its digest no longer fits; with the trigger off nothing runs."""
    selection = owner.admit(stopped, "stopped")
    table = stopped.state_name("dpone_repair_authority")
    with pytest.raises(Exception, match="never change"):
        stopped.target.run(f"UPDATE {table} SET {column}")
    stopped.target.run(f"ALTER TABLE {table} DISABLE TRIGGER ALL", f"UPDATE {table} SET {column}")
    error = refused(stopped, "mssql_transaction.catalog_mismatch", repair=selection)
    assert "disabled" in str(error.details["differences"])
    stopped.target.run(f"ALTER TABLE {table} ENABLE TRIGGER ALL")
    refused(stopped, "repair_authority.digest_mismatch", repair=selection)
    (document,) = authority_documents(stopped.route(), endpoints=stopped.endpoints, ref="fix")
    assert document == {"authority_id": "fix", "state": "digest_mismatch"}


@pytest.mark.usefixtures("embedded_only")
def test_digest_drift_with_a_recomputed_digest(stopped: World, owner: Owner) -> None:
    """Recomputing the row's digest does not help either: the signed document says something else."""
    authority = owner.propose(stopped, "stopped", max_delete_rows=4)
    selection = owner.approve(stopped, authority)
    larger = authority.model_copy(update={"allow": authority.allow.model_copy(update={"max_delete_rows": 20})})
    table = stopped.state_name("dpone_repair_authority")
    stopped.target.run(
        f"ALTER TABLE {table} DISABLE TRIGGER ALL",
        f"UPDATE {table} SET allow_max_delete_rows = 20, authority_digest = '\\x{larger.digest.hex()}'",
        f"ALTER TABLE {table} ENABLE TRIGGER ALL",
    )
    refused(stopped, "repair_authority.digest_mismatch", repair=selection)


def test_signatures(stopped: World, owner: Owner, tmp_path: Path) -> None:
    """Unsigned, an unknown key, an envelope of another document or type, or none at all: a row alone approves nothing."""
    stranger = Owner(tmp_path, name="stranger")
    proposal = owner.propose(stopped, "stopped")

    def named(name: str) -> RepairAuthority:
        return proposal.model_copy(update={"authority_id": name})

    cases: list[tuple[str, bytes | None, str]] = [
        ("unsigned", None, "repair_authority.unsigned"),
        ("stranger", stranger.sign(named("stranger")), "registry.key_unknown"),
        ("other", owner.sign(named("fix")), "repair_authority.digest_mismatch"),
        ("type", owner.sign(named("type"), payload_type="application/vnd.dpone.registry.v1+json"), "registry.payload_type"),
        ("noise", b"{}", "registry.malformed"),
    ]
    for name, envelope, code in cases:
        refused(stopped, code, repair=owner.approve(stopped, named(name), envelope=envelope))
    assert consumptions(stopped) == []
    unsigned = RepairSelection("unsigned", None)  # what select_repair gives where the registry allows it
    assert committed(stopped, "stopped", repair=unsigned).repair_authority_id == "unsigned"


def test_unused(worlds: Setup, owner: Owner, stopped: World) -> None:
    """The rows came back before the approved run: it does not need its approval and says so; without it the run commits."""
    selection = owner.admit(stopped, "stopped")
    stopped.source.run("INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")
    refused(stopped, "repair_authority.unused", repair=selection)
    committed(stopped, "stopped")


def test_a_full_baseline_of_a_fresh_target_is_unused(worlds: Setup, owner: Owner) -> None:
    """The first baseline needs no approval, so that none is consumed by it."""
    world = worlds(TABLE[0], reconciliation=GUARDED)
    refused(world, "guard.empty_snapshot")
    selection = owner.admit(world, "stopped")
    world.source.run(TABLE[1])
    refused(world, "repair_authority.unused", repair=selection)
    committed(world, "stopped")


FULL_ANYWAY: dict[str, Callable[[World], Any]] = {
    "target_state_diverged": lambda world: world.target.run(f"UPDATE {world.dbo_name('dpone_target_head')} SET revision = 9"),
    "projection_changed": lambda world: world.source.run("ALTER TABLE orders ALTER COLUMN qty SET NOT NULL"),
    "authority_rotated": lambda world: rotate(world, "source"),
    "target_authority_rotated": lambda world: rotate(world, "target"),
}


def rotate(world: World, side: str) -> None:
    """The last commit was made under another signed authority of that side; neither belongs to the state key."""
    world.target.run(f"UPDATE {world.state_name('dpone_source_state')} SET {side}_authority_digest = state_key")


@pytest.mark.parametrize("reason", FULL_ANYWAY)
def test_a_payload_that_is_full_anyway_needs_no_approval_and_keeps_its_reason(worlds: Setup, owner: Owner, reason: str) -> None:
    """An approved full baseline is refused as unused, its deletes apart; then it is used for them, and evidence names the real reason."""
    world = worlds(*TABLE, reconciliation=GUARDED)
    world.run("first")
    world.target.run(f"DELETE FROM {world.target_name} WHERE id IN (3, 4)")
    refused(world, "reconcile.full_repair_required")
    selection = owner.admit(world, "stopped")
    FULL_ANYWAY[reason](world)
    error = refused(world, "repair_authority.unused", repair=selection)
    assert error.details["payload_reason"] == reason
    assert committed(world, "again").payload_reason == reason
    assert consumptions(world) == []


def test_the_real_reason_stays_when_the_approval_is_needed_for_deletes(stopped: World, owner: Owner) -> None:
    selection = owner.admit(stopped, "stopped", full_baseline=True)
    FULL_ANYWAY["target_state_diverged"](stopped)
    receipt = committed(stopped, "stopped", repair=selection)
    assert (receipt.payload_reason, receipt.repair_authority_id) == ("target_state_diverged", "fix")
    assert audit(stopped, "stopped")["receipt"]["payload_reason"] == "target_state_diverged"


def test_the_list_tells_what_a_run_would_be_refused_for(stopped: World, owner: Owner) -> None:
    """An approval stays valid until its run, and its twin is of no use after it: the checkpoint has moved on."""

    def states() -> dict[str, str]:
        return {d["authority_id"]: d["state"] for d in authority_documents(stopped.route(), endpoints=stopped.endpoints, ref=None)}

    authority = owner.propose(stopped, "stopped")
    for name in ("one", "other"):
        owner.approve(stopped, authority.model_copy(update={"authority_id": name}))
    assert states() == {"one": "valid", "other": "valid"}
    committed(stopped, "stopped", repair=owner.select(stopped, "one"))
    assert states() == {"one": "consumed", "other": "binding_mismatch"}


def test_an_approval_that_begins_later(stopped: World, owner: Owner) -> None:
    """By the state server's clock: neither the owner's command nor a run takes it; a proposal begins at that clock's now."""
    day = timedelta(days=1)
    authority = owner.propose(stopped, "stopped")
    owner.approve(stopped, authority.model_copy(update={"authority_id": "now"}))
    later = authority.model_copy(update={"created_at": authority.created_at + day, "expires_at": authority.expires_at + day})
    with pytest.raises(XminError) as caught:
        owner.approve(stopped, later)
    assert caught.value.code == "repair_authority.not_yet_valid"
    stopped.target.run(insertion(stopped, later, owner.sign(later)))
    refused(stopped, "repair_authority.not_yet_valid", repair=owner.select(stopped, "fix"))
    states = {d["authority_id"]: d["state"] for d in authority_documents(stopped.route(), endpoints=stopped.endpoints, ref=None)}
    assert states == {"now": "valid", "fix": "not_yet_valid"}


@pytest.mark.parametrize("bounds", [{"max_delete_rows": 4}, {"max_delete_ratio": Decimal("0.249999999999999")}])
def test_bounds_exceeded(stopped: World, owner: Owner, bounds: dict[str, Any]) -> None:
    selection = owner.admit(stopped, "stopped", **bounds)
    error = refused(stopped, "repair_authority.bounds_exceeded", repair=selection)
    assert (error.details["missing"], error.details["active"]) == (5, 20)


def test_bounds_hold_where_no_guard_stops(stopped: World, owner: Owner) -> None:
    """An approver's upper bound is one even if the manifest's guards were loosened meanwhile."""
    selection = owner.admit(stopped, "stopped", full_baseline=True, max_delete_rows=4)
    stopped.reconciliation = {"guards": {}}
    refused(stopped, "repair_authority.bounds_exceeded", repair=selection)


def test_more_rows_went_after_the_approval(stopped: World, owner: Owner) -> None:
    selection = owner.admit(stopped, "stopped")
    stopped.source.run("DELETE FROM orders WHERE id = 6")
    error = refused(stopped, "repair_authority.bounds_exceeded", repair=selection)
    assert "repair propose" in error.details["command"]
    larger = owner.propose(stopped, "stopped", "larger")
    assert (larger.allow.max_delete_rows, larger.allow.max_delete_ratio, larger.allow.full_baseline) == (6, Decimal("0.3"), False)
    committed(stopped, "stopped", repair=owner.approve(stopped, larger))
    assert [row[0] for row in consumptions(stopped)] == ["larger"], "the one that was too small stays unconsumed"


# ---- owner's commands -----------------------------------------------------------------------------------------------------
def test_an_id_is_used_once(stopped: World, owner: Owner) -> None:
    proposal = owner.propose(stopped, "stopped")
    owner.approve(stopped, proposal)
    with pytest.raises(XminError) as caught:
        owner.approve(stopped, proposal)
    assert caught.value.code == "repair_authority.exists"


def test_nothing_to_propose(stopped: World, owner: Owner) -> None:
    """Only a stopped run has a binding: not a committed one, not an unknown one."""
    for run_id in ("first", "nosuch"):
        with pytest.raises(XminError) as caught:
            owner.propose(stopped, run_id)
        assert caught.value.code == "evidence.not_found"


@pytest.mark.parametrize("later", ["repair_authority.expired", "repair_authority.not_found", "postgres_source.unreachable"])
def test_an_attempt_that_judged_nothing_leaves_the_stop_proposable(stopped: World, owner: Owner, later: str) -> None:
    """The hint of an expired approval is to propose a new one: the run that was stopped must still be the one to propose from."""
    proposal = owner.propose(stopped, "stopped")
    if later.startswith("repair_authority"):
        past = ended(proposal)
        if later.endswith("expired"):
            stopped.target.run(insertion(stopped, past, owner.sign(past)))
        refused(stopped, later, repair=owner.select(stopped, past.authority_id))
    else:
        gone = replace(stopped.source.endpoint(), port=1)
        with pytest.raises(XminError, match=later):
            stopped.run("stopped", endpoints=lambda entry, **kw: gone if entry == "src" else stopped.endpoints(entry, **kw))
    again = owner.propose(stopped, "stopped", "again")
    assert again.model_copy(update={name: getattr(proposal, name) for name in ("authority_id", "created_at", "expires_at")}) == proposal


def test_an_unused_approval_leaves_nothing_to_propose(stopped: World, owner: Owner) -> None:
    repair = owner.admit(stopped, "stopped")
    stopped.source.run("INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")
    refused(stopped, "repair_authority.unused", repair=repair)
    with pytest.raises(XminError) as caught:
        owner.propose(stopped, "stopped", "again")
    assert caught.value.code == "evidence.not_found"


def test_a_run_that_the_route_has_moved_past_proposes_nothing(stopped: World, owner: Owner) -> None:
    stopped.source.run("INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")
    committed(stopped, "between")
    with pytest.raises(XminError) as caught:
        owner.propose(stopped, "stopped")
    assert caught.value.code == "repair_authority.binding_mismatch"


@pytest.mark.usefixtures("embedded_only")
def test_an_approval_is_inserted_only_where_it_stays_as_it_is(stopped: World, owner: Owner) -> None:
    """Without its trigger the row could be altered later: the catalog is proven first."""
    proposal = owner.propose(stopped, "stopped")
    stopped.target.run(f"ALTER TABLE {stopped.state_name('dpone_repair_authority')} DISABLE TRIGGER ALL")
    with pytest.raises(XminError) as caught:
        owner.approve(stopped, proposal)
    assert caught.value.code == "mssql_transaction.catalog_mismatch"
    assert stopped.target.rows(f"SELECT count(*) FROM {stopped.state_name('dpone_repair_authority')}") == [(0,)]


def test_a_reference_is_the_exact_id(stopped: World, owner: Owner) -> None:
    """SQL Server ignores trailing spaces in a comparison; an id does not."""
    owner.admit(stopped, "stopped")
    for ref in ("fix ", "FIX"):
        refused(stopped, "repair_authority.not_found", repair=owner.select(stopped, ref))


def test_runtime_cannot_approve(stopped: World, owner: Owner) -> None:
    """The runtime login reads approvals and writes none."""
    if stopped.target.endpoint() == stopped.target.endpoint(owner=True):
        pytest.skip("not provable on this flavour: runs use the owner's login there")
    from airflow_dpone_xmin.runtime.repair import approve

    def as_writer(entry: str, *, conn_id: str) -> Endpoint:
        return stopped.target.endpoint()

    with pytest.raises(XminError) as caught:
        approve(stopped.route(), owner.propose(stopped, "stopped"), endpoints=as_writer, owner="owner", envelope=None)
    assert caught.value.code == "mssql_transaction.permission_denied"


# ---- helpers --------------------------------------------------------------------------------------------------------------
@contextmanager
def once_before(label: str, act: Any, *, after: str) -> Iterator[None]:
    """Call *act* before the first step *label* that follows a step *after*."""
    seen, done = [], []

    def observer(event: Event) -> None:
        if done:
            return
        if event.label == after and event.phase == "after":
            seen.append(event)
        elif event.label == label and event.phase == "before" and seen:
            done.append(event)
            act()

    OBSERVERS.append(observer)
    try:
        yield
    finally:
        OBSERVERS.remove(observer)
    assert done, f"no {label} after {after}"


def ended(authority: RepairAuthority) -> RepairAuthority:
    """The same approval, a day earlier: no test has to wait for a clock."""
    day = timedelta(days=1)
    return authority.model_copy(update={"created_at": authority.created_at - day, "expires_at": authority.expires_at - day})


def insertion(world: World, authority: RepairAuthority, envelope: bytes) -> str:
    """An INSERT that an administrator could write by hand."""
    from airflow_dpone_xmin.target.repair import row_of_authority

    def literal(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bytes):
            return f"0x{value.hex()}" if world.target.kind == "mssql" else f"'\\x{value.hex()}'"
        if isinstance(value, datetime):
            return f"'{value.isoformat()}'"
        return str(value) if isinstance(value, (int, Decimal)) else "'" + str(value).replace("'", "''") + "'"

    row = row_of_authority(authority, envelope=envelope)
    assert authority.created_at.tzinfo is UTC
    return f"INSERT INTO {world.state_name('dpone_repair_authority')} ({', '.join(row)}) VALUES ({', '.join(map(literal, row.values()))})"
