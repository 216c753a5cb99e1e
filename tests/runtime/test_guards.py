"""Delete guards at their exact edges, empty snapshots, quality gates: what stops, and that nothing changes then."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.runtime.reconcile import dry_run
from tests.world import MODES, Setup, World

COLUMNS = ("id", "qty")
TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 20) g")


def state(world: World) -> tuple[Any, ...]:
    """Everything that a refused run must leave alone."""
    return (
        world.target_rows(("*",), active=False),
        world.target.rows(f"SELECT * FROM {world.state_name('dpone_source_state')}"),
        world.target.rows(f"SELECT * FROM {world.dbo_name('dpone_target_head')}"),
        world.target.rows(f"SELECT receipt_id FROM {world.state_name('dpone_commit_receipt')}"),
    )


def refused(world: World, code: str) -> XminError:
    """Run; it must be refused by *code* and change nothing."""
    before = state(world)
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == code
    assert caught.value.retryable is False
    assert state(world) == before
    assert world.staged() == []
    return caught.value


@pytest.mark.parametrize(
    ("guards", "deleted", "exceeded"),
    [
        ({"max_delete_ratio": 0.05}, 1, ()),  # 1 of 20 is exactly 0.05
        ({"max_delete_ratio": 0.05}, 2, ("max_delete_ratio",)),
        ({"max_delete_ratio": "0.049999999999999"}, 1, ("max_delete_ratio",)),
        ({"max_delete_ratio": 0}, 1, ("max_delete_ratio",)),
        ({"max_delete_ratio": 0}, 0, ()),
        ({"max_delete_rows": 3}, 3, ()),
        ({"max_delete_rows": 3}, 4, ("max_delete_rows",)),
        ({"max_delete_rows": 0}, 1, ("max_delete_rows",)),
        ({"max_delete_rows": 2, "max_delete_ratio": 0.1}, 3, ("max_delete_rows", "max_delete_ratio")),
        ({"max_delete_ratio": 1}, 19, ()),
        ({}, 19, ()),
    ],
)
def test_guard_edges(worlds: Setup, guards: dict[str, Any], deleted: int, exceeded: tuple[str, ...]) -> None:
    """A limit admits exactly its bound and refuses one more; an absent one admits all; a refusal names limit, population and binding."""
    world = worlds(*TABLE, reconciliation={"guards": guards})
    world.run()
    world.source.run(f"DELETE FROM orders WHERE id <= {deleted}")
    if not exceeded:
        assert world.run().receipt.counts.soft_deleted == deleted
        assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)
        return
    error = refused(world, "guard.deletes_exceeded")
    assert all(name in error.message for name in exceeded)
    binding = error.details["binding"]
    assert (binding["observed_missing"], binding["observed_active"], binding["observed_ratio"]) == (deleted, 20, f"{deleted}/20")
    assert binding["checkpoint_revision"] == 1


def test_tombstones_do_not_count(worlds: Setup) -> None:
    """The ratio is of active rows: 10 tombstones beside 10 active rows make 1 delete 1/10, not 1/20."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"])
    world.run()
    world.source.run("DELETE FROM orders WHERE id <= 10")
    world.run()
    world.reconciliation = {"guards": {"max_delete_ratio": 0.05}}
    world.source.run("DELETE FROM orders WHERE id = 11")
    assert refused(world, "guard.deletes_exceeded").details["binding"]["observed_ratio"] == "1/10"
    world.reconciliation = {"guards": {"max_delete_ratio": 0.1}}
    assert world.run().receipt.counts.soft_deleted == 1


def test_default_guards(worlds: Setup) -> None:
    """Without authored guards 5 percent holds."""
    world = worlds(*TABLE, reconciliation={"enabled": True})
    world.run()
    world.source.run("DELETE FROM orders WHERE id <= 2")
    refused(world, "guard.deletes_exceeded")


@pytest.mark.parametrize("mode", MODES)
def test_empty_baseline_is_refused(worlds: Setup, mode: str) -> None:
    """An empty source on an empty target needs an approval too."""
    world = worlds(TABLE[0], reconciliation=MODES[mode])
    refused(world, "guard.empty_snapshot")


@pytest.mark.parametrize("mode", [name for name in MODES if name != "never"])
def test_all_deleted_is_refused(worlds: Setup, mode: str) -> None:
    """An empty source never deletes everything by itself, even without limits."""
    world = worlds(*TABLE, reconciliation=MODES[mode])
    world.run()
    world.source.run("DELETE FROM orders")
    error = refused(world, "guard.empty_snapshot")
    assert (error.details["binding"]["observed_missing"], error.details["binding"]["observed_active"]) == (20, 20)
    world.source.run("INSERT INTO orders VALUES (1, 1)")
    assert world.run().receipt.counts.deleted == 19, "the refusal left a state that goes on"


def test_truncated_source_is_refused(worlds: Setup) -> None:
    """TRUNCATE is an empty snapshot like any other."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"])
    world.run()
    world.source.run("TRUNCATE orders")
    refused(world, "guard.empty_snapshot")


def test_without_reconciliation_nothing_is_deleted_even_by_an_empty_delta(worlds: Setup) -> None:
    """The route that never deletes takes an emptied source as nothing new."""
    world = worlds(*TABLE, reconciliation=None)
    world.run()
    world.source.run("DELETE FROM orders")
    receipt = world.run().receipt
    assert (receipt.counts.payload, receipt.counts.active_after, receipt.counts.deleted) == (0, 20, 0)


def test_min_rows_gate(worlds: Setup) -> None:
    """The gate is judged inside the transaction: it admits its threshold and refuses one row less."""
    gate = {"quality": {"gates": [{"id": "enough", "type": "min_rows", "side": "target", "severity": "error", "threshold": 20}]}}
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"], manifest_over=gate)
    world.run()
    world.source.run("DELETE FROM orders WHERE id = 1")
    error = refused(world, "guard.quality_gate")
    assert error.details == {"gate": "enough", "threshold": 20, "active_after": 19}


def test_a_dry_run_of_a_committed_run_is_refused(worlds: Setup) -> None:
    """It would be a replay: there is nothing left to rehearse, and the receipt stays the answer."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_only"])
    receipt = world.run("r1").receipt
    with pytest.raises(XminError) as caught:
        dry_run(world.route(), Invocation(world.process, "r1"), endpoints=world.endpoints)
    assert caught.value.code == "evidence.already_committed"
    assert world.run("r1").receipt.receipt_id == receipt.receipt_id
