"""0 divergent states: wherever a campaign is broken, it is as before the step or as after it, and the step taken again converges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.approvals import Owner
from tests.campaigns import INTEGER, TABLE, Phase, initial
from tests.certification.record import Record
from tests.faults.campaign_matrix import CampaignMatrix, thinned
from tests.faults.matrix import LIMIT, NIGHTLY_LIMIT, Kind, every
from tests.world import MODES, Setup, World

pytestmark = pytest.mark.certify("fault_matrix")

PHASES = get_args(Phase)


@pytest.fixture
def matrix(worlds: Setup, tmp_path: Path) -> Iterator[Callable[[Phase], CampaignMatrix]]:
    """A table of nobody with a few old rows, to be replaced by eight new ones in one chunk."""
    made: list[CampaignMatrix] = []
    owner = Owner(tmp_path)

    def another() -> World:
        world = worlds(
            TABLE[0],
            "INSERT INTO orders SELECT g, g, 'note ' || g FROM generate_series(1, 8) g",
            manifest_over=initial({**INTEGER, "step": 1000}),
            reconciliation=MODES["timestamp_only"],
        )
        values = "__dpone__load_id, __dpone__loaded_at, __dpone__updated_at"
        fresh = "gen_random_uuid(), now(), now()" if world.target.kind == "embedded" else "NEWID(), SYSUTCDATETIME(), SYSUTCDATETIME()"
        old = [f"INSERT INTO {world.target_name} (id, qty, note, {values}) SELECT {row}, 0, 'old', {fresh}" for row in (1, 2, 3)]
        world.target.run(*old)
        return world

    def make(phase: Phase) -> CampaignMatrix:
        matrix = CampaignMatrix(another(), phase=phase, another=another, owner=owner)
        matrix.prepare()
        made.append(matrix)
        return matrix

    yield make
    for matrix in made:
        matrix.drop()


@pytest.mark.timeout(max(900, LIMIT))
@pytest.mark.parametrize("phase", PHASES)
def test_a_sample_of_every_phase(matrix: Callable[[Phase], CampaignMatrix], phase: Phase, record_property: Record) -> None:
    """Raised errors, killed sessions, killed processes, lost acknowledgements."""
    found = matrix(phase)
    for kind in get_args(Kind):
        found.attempt_all(kind, found.few(thinned(found.boundaries, kind)), record_property)
    if phase != "abandon":
        found.finish()


@pytest.mark.nightly
@pytest.mark.timeout(NIGHTLY_LIMIT)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_boundary(matrix: Callable[[Phase], CampaignMatrix], phase: Phase, kind: Kind, record_property: Record) -> None:
    """Every boundary, both sides of it."""
    found = matrix(phase)
    found.attempt_all(kind, every(found.boundaries, kind), record_property)
