"""Memory stays flat in the size of the table: a baseline needs less than 300 MiB above the idle process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.campaigns import Step, initial, opened
from tests.children import CONTEXT, Job, start
from tests.measured import idle, resident, wide_table
from tests.world import MODES, Setup, World

LIMIT = 300 * 1024 * 1024


def _measured(small: Job, big: Job, answers: Any) -> None:
    """Warm up on a small table, then run; answer with rows and bytes above idle."""
    small.run()
    before = idle()
    outcome = big.run()
    answers.put((outcome.receipt.counts.inserted, resident()[1] - before))


def _world(worlds: Setup, count: int, **fields: Any) -> World:
    return worlds(*wide_table(count), reconciliation=MODES["timestamp_only"], **fields)


def _above_idle(worlds: Setup, rows: int) -> int:
    answers = CONTEXT.Queue()
    child = start(_measured, Job.of(_world(worlds, 1000), "small"), Job.of(_world(worlds, rows), "big"), answers)
    inserted, above = answers.get(timeout=1500)
    child.join(30)
    assert inserted == rows
    print(f"memory: {rows} rows x 20 columns, {above / 2**20:.0f} MiB above idle")
    return int(above)


def _lane_measured(small: Step, big: Step, answers: Any) -> None:
    """As :func:`_measured`, for a lane."""
    small.run()
    before = idle()
    result = big.run()
    answers.put((result.rows, resident()[1] - before))


def _lane_above_idle(worlds: Setup, rows: int) -> int:
    """A lane over chunks of 50,000 rows."""

    def step(count: int) -> Step:
        chunk = {"column": "id", "from": 1, "to": count, "step": 50_000}
        world = _world(worlds, count, manifest_over=initial(chunk))
        opened(world)
        return Step.of(world, "lane")

    answers = CONTEXT.Queue()
    child = start(_lane_measured, step(1000), step(rows), answers)
    loaded, above = answers.get(timeout=3000)
    child.join(30)
    assert loaded == rows
    print(f"memory of a lane: {rows} rows x 20 columns in chunks of 50,000, {above / 2**20:.0f} MiB above idle")
    return int(above)


def test_a_baseline_of_150_thousand_rows(worlds: Setup, embedded_only: None) -> None:
    """A bounded sample of the claim."""
    assert _above_idle(worlds, 150_000) < LIMIT


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_baseline_of_2_million_rows(worlds: Setup, embedded_only: None) -> None:
    """2M rows × 20 columns."""
    assert _above_idle(worlds, 2_000_000) < LIMIT


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_lane_is_flat_in_the_table(worlds: Setup, embedded_only: None) -> None:
    """Eight times the rows, the same memory."""
    small, large = _lane_above_idle(worlds, 250_000), _lane_above_idle(worlds, 2_000_000)
    assert large < LIMIT
    assert large - small < 50 * 1024 * 1024
