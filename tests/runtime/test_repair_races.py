"""Real processes that race for an approval: one shot is one shot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.target.repair import RepairSelection
from tests.approvals import Owner, consumptions, refused
from tests.children import CONTEXT, Job, run_at_gate, start
from tests.world import Setup, World

pytestmark = pytest.mark.certify("concurrency")

COLUMNS = ("id", "qty")


@pytest.fixture
def world(worlds: Setup) -> World:
    """Run ``stopped`` was stopped by its guard."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)",
        "INSERT INTO orders SELECT g, g FROM generate_series(1, 20) g",
        reconciliation={"guards": {"max_delete_ratio": 0.05}},
    )
    world.run()
    world.source.run("DELETE FROM orders WHERE id <= 5")
    refused(world, "guard.deletes_exceeded")
    return world


def race(world: World, jobs: list[tuple[str, str]], label: str | None) -> list[tuple[Any, ...]]:
    """One process per (run id, approval); all wait for each other before *label*. Answers in no order."""
    gate, answers = CONTEXT.Barrier(len(jobs)), CONTEXT.Queue()
    children = [start(run_at_gate, Job.of(world, run, repair=RepairSelection(ref, None)), gate, label, answers) for run, ref in jobs]
    found = [answers.get(timeout=90) for _ in children]
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    return found


@pytest.mark.parametrize("label", ["repair.find", "stage.subset"])
def test_two_runs_race_for_one_approval(world: World, tmp_path: Path, label: str) -> None:
    """Exactly one consumes it; the other is told, and its retry is told that it was consumed."""
    Owner(tmp_path).admit(world, "stopped")
    found = race(world, [("left", "fix"), ("right", "fix")], label)
    (winner,) = [answer for answer in found if answer[0] == "committed"]
    (loser,) = [answer for answer in found if answer[0] == "refused"]
    late = ("checkpoint.conflict", "mssql_transaction.conflict", "repair_authority.consumed", "repair_authority.binding_mismatch")
    assert loser[1] in late
    assert consumptions(world) == [("fix", winner[1])]
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)
    (run,) = world.target.rows(f"SELECT run_id FROM {world.state_name('dpone_commit_receipt')} WHERE new_revision = 2")
    refused(world, "repair_authority.consumed", ({"left", "right"} - {run[0]}).pop(), repair=RepairSelection("fix", None))


def test_two_approvals_race_for_one_run(world: World, tmp_path: Path) -> None:
    """Two attempts of one invocation, each with an approval of its own: one receipt, one consumption; the other stays unconsumed."""
    owner = Owner(tmp_path)
    owner.admit(world, "stopped", "one")
    owner.admit(world, "stopped", "two")
    found = race(world, [("stopped", "one"), ("stopped", "two")], "stage.subset")
    assert sorted(answer[0] for answer in found) == ["committed", "replayed"], found
    assert found[0][1] == found[1][1]
    ((used, receipt),) = consumptions(world)
    assert receipt == found[0][1]
    (row,) = world.target.rows(f"SELECT repair_authority_id FROM {world.state_name('dpone_commit_receipt')} WHERE new_revision = 2")
    assert row[0] == used
    world.source.run("DELETE FROM orders WHERE id <= 10")
    other = ({"one", "two"} - {used}).pop()
    refused(world, "repair_authority.binding_mismatch", "next", repair=RepairSelection(other, None))
