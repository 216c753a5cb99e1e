"""0 divergent states: wherever a campaign is broken, it is as before the step or as after it, and the step taken again converges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import pytest

from tests.campaigns import INTEGER, TABLE, Phase, initial, lane, opened
from tests.faults.campaign_matrix import CampaignMatrix, thinned
from tests.faults.matrix import Boundary, Kind
from tests.world import MODES, Setup

PHASES = get_args(Phase)


@pytest.fixture
def matrix(worlds: Setup, embedded_only: None) -> Iterator[Callable[[Phase], CampaignMatrix]]:
    """A table of nobody with a few old rows, to be replaced by eight new ones in one chunk."""
    made: list[CampaignMatrix] = []

    def make(phase: Phase) -> CampaignMatrix:
        world = worlds(
            TABLE[0],
            "INSERT INTO orders SELECT g, g, 'note ' || g FROM generate_series(1, 8) g",
            manifest_over=initial({**INTEGER, "step": 1000}),
            reconciliation=MODES["timestamp_only"],
        )
        values = "__dpone__load_id, __dpone__loaded_at, __dpone__updated_at"
        world.target.run(
            f"INSERT INTO {world.target_name} (id, qty, note, {values})"
            " SELECT g, 0, 'old', gen_random_uuid(), now(), now() FROM generate_series(1, 3) g"
        )
        if phase != "open":
            opened(world, "fault")
        if phase == "publish":
            lane(world, "fault")
        matrix = CampaignMatrix(world, phase=phase)
        matrix.prepare_phase()
        made.append(matrix)
        return matrix

    yield make
    for matrix in made:
        matrix.drop()


def attempt_all(matrix: CampaignMatrix, kind: Kind, states: list[Boundary]) -> None:
    for boundary in states:
        matrix.break_at(boundary, kind)
    print(
        f"campaign, {matrix.phase}, {kind}: {matrix.states[kind]} states of {len(matrix.boundaries)} boundaries;"
        f" divergent states: {len(matrix.divergent)}"
    )
    assert states, "no boundary was found"
    assert matrix.divergent == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", PHASES)
def test_a_sample_of_every_phase(matrix: Callable[[Phase], CampaignMatrix], phase: Phase) -> None:
    """Raised errors, killed sessions, killed processes, lost acknowledgements."""
    found = matrix(phase)
    for kind in get_args(Kind):
        attempt_all(found, kind, thinned(found.boundaries, kind))
    if phase != "abandon":
        found.finish()


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_boundary(matrix: Callable[[Phase], CampaignMatrix], phase: Phase, kind: Kind) -> None:
    """Every boundary, both sides of it."""
    found = matrix(phase)
    every = [b for b in found.boundaries if kind != "lost_ack" or (b.label == "transaction.commit" and b.phase == "after")]
    attempt_all(found, kind, every)
