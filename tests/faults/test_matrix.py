"""0 divergent states: wherever a run is broken, target rows, head, checkpoint and receipt are all old or all new, and a retry is exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from tests.certification.record import Record
from tests.faults.matrix import LIMIT, NIGHTLY_LIMIT, Boundary, Kind, Matrix, every, from_the_last_lock, its_turn, sample
from tests.world import MODES, Setup

pytestmark = pytest.mark.certify("fault_matrix")

SHARDS = 2


@pytest.fixture
def matrix(worlds: Setup) -> Iterator[Matrix]:
    """A row is deleted already; :meth:`Matrix.pend` makes the changes of the run."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, code varchar(10) NOT NULL, qty integer, note text)",
        "INSERT INTO orders SELECT g, 'c' || g, g, 'note ' || g FROM generate_series(1, 8) g",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run("DELETE FROM orders WHERE id = 1")
    world.run()
    matrix = Matrix(world)
    matrix.prepare()
    yield matrix
    matrix.drop()


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_raised_error(matrix: Matrix, shard: int, record_property: Record) -> None:
    """An error before any step, or after a durable one, leaves everything old or everything new."""
    matrix.attempt_all("raised", sample(matrix.boundaries, "raised")[shard::SHARDS], record_property)


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("kind", ["session", "process", "lost_ack"])
def test_killed_session_killed_process_lost_acknowledgement(matrix: Matrix, kind: Kind, record_property: Record) -> None:
    """A terminated backend, a SIGKILLed process and a commit whose answer is lost leave everything old or everything new."""
    matrix.attempt_all(kind, sample(matrix.boundaries, kind), record_property)


@pytest.mark.nightly
@pytest.mark.timeout(NIGHTLY_LIMIT)
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_boundary(matrix: Matrix, kind: Kind, record_property: Record) -> None:
    """Every boundary, both phases, every kind."""
    matrix.attempt_all(kind, every(matrix.boundaries, kind), record_property)


@pytest.mark.parametrize("share", [1, 3, 4, 12])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 40])
def test_everything_has_its_turn(monkeypatch: pytest.MonkeyPatch, share: int, length: int) -> None:
    """No day is without a state, and after *share* days none was left out."""
    states = [Boundary("label", "before", nth) for nth in range(length)]
    days = []
    for day in range(share):
        monkeypatch.setattr("tests.faults.matrix.TURN", 739_000 + day)
        days.append(its_turn(states, share))
    assert all(days) or not states
    assert {state for day in days for state in day} == set(states)


def test_the_samples_cover_every_label(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    """No label of the one transaction is left out on any day, and no other one for longer than twelve days."""
    inside = {b.label for b in from_the_last_lock(matrix.boundaries)}
    ever: set[str] = set()
    for turn in range(12):
        monkeypatch.setattr("tests.faults.matrix.TURN", turn)
        today = {b.label for b in sample(matrix.boundaries, "raised")}
        assert inside <= today
        ever |= today
    assert ever == {b.label for b in matrix.boundaries}
    assert len(every(matrix.boundaries, "lost_ack")) == 2
