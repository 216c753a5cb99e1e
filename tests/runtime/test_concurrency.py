"""Real processes that race on one target: the lock decides, the loser learns it, and the final state is exact."""

from __future__ import annotations

from typing import Any

import pytest

from tests.children import CONTEXT, Job, run_at_gate, start
from tests.world import MODES, Setup, World

pytestmark = pytest.mark.certify("concurrency")

COLUMNS = ("id", "qty")


@pytest.fixture
def world(worlds: Setup) -> World:
    """A route past its baseline, with changes pending."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)",
        "INSERT INTO orders SELECT g, g FROM generate_series(1, 50) g",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run("DELETE FROM orders WHERE id <= 5", "UPDATE orders SET qty = 0 WHERE id = 10", "INSERT INTO orders VALUES (51, 51)")
    return world


def race(world: World, runs: list[str], label: str | None) -> list[tuple[Any, ...]]:
    """Start one process per run id; all wait for each other before step *label*. Their answers, in no order."""
    gate, answers = CONTEXT.Barrier(len(runs)), CONTEXT.Queue()
    children = [start(run_at_gate, Job.of(world, run_id), gate, label, answers) for run_id in runs]
    found = [answers.get(timeout=90) for _ in children]
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    return found


def receipts(world: World) -> list[tuple[Any, ...]]:
    return world.target.rows(
        f"SELECT run_id, new_revision, receipt_id FROM {world.state_name('dpone_commit_receipt')} ORDER BY new_revision"
    )


@pytest.mark.parametrize("label", ["stage.create", "stage.subset"])
def test_two_runs_race_on_one_target(world: World, label: str) -> None:
    """Two admitted runs reach the target together: one commits, the other is told of the conflict and may retry; its retry is exact."""
    found = race(world, ["left", "right"], label)
    assert sorted(answer[0] for answer in found) == ["committed", "refused"]
    (refused,) = [answer for answer in found if answer[0] == "refused"]
    assert refused[1] in ("checkpoint.conflict", "mssql_transaction.conflict")
    assert refused[2] is True, "a lost race may be retried"
    assert [row[1] for row in receipts(world)] == [1, 2]
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
    loser = ({"left", "right"} - {row[0] for row in receipts(world)}).pop()
    assert world.run(loser).status == "committed"
    assert [row[1] for row in receipts(world)] == [1, 2, 3]
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_two_attempts_of_one_invocation(world: World) -> None:
    """Two attempts of one invocation overlap: exactly one receipt, and both answer with it."""
    found = race(world, ["same", "same"], "stage.create")
    assert sorted(answer[0] for answer in found) == ["committed", "replayed"], found
    assert found[0][1] == found[1][1]
    rows = receipts(world)
    assert [(row[0], row[1]) for row in rows[1:]] == [("same", 2)]
    assert str(rows[1][2]).lower() == found[0][1]
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
    (state,) = world.target.rows(f"SELECT attempts, status FROM {world.state_name('dpone_run_state')} WHERE run_id = 'same'")
    assert tuple(state) == (2, "committed")


def test_simultaneous_starts(world: World) -> None:
    """Four processes start at one instant: none crashes, every refusal may be retried, and revisions have no gap."""
    found = race(world, ["a", "b", "c", "d"], None)
    assert {answer[0] for answer in found} <= {"committed", "refused"}, found
    assert any(answer[0] == "committed" for answer in found), found
    assert all(answer[2] for answer in found if answer[0] == "refused"), found
    revisions = [row[1] for row in receipts(world)]
    assert revisions == list(range(1, len(revisions) + 1))
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
    world.run()
    assert world.staged() == []
    assert list(world.work_dir.iterdir()) == []
