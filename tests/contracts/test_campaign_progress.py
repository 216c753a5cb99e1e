"""Pace and remaining time of a campaign are those of its newest commits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from airflow_dpone_xmin.contracts.campaign import Campaign, CampaignProgress, ChunkRow, ChunkState

OPENED = datetime(2026, 1, 1, tzinfo=UTC)


def progress(*commits: float, pending: int, now: float, at_work: bool = True) -> CampaignProgress:
    """Chunks of a thousand rows, committed so many seconds after the opening."""
    done = [ChunkRow(cast(Any, None), ChunkState.COMMITTED, None, False, 1000, OPENED + timedelta(seconds=at)) for at in commits]
    left = [ChunkRow(cast(Any, None), ChunkState.PENDING, None, False, None, OPENED) for _ in range(pending)]
    left[:1] = [replace(each, state=ChunkState.LEASED, live=True) for each in left[:1] if at_work]
    return CampaignProgress(cast(Campaign, None), (*done, *left), OPENED + timedelta(seconds=now))


def test_a_pause_says_nothing_about_the_pace() -> None:
    evening, morning = [float(second) for second in range(1, 4)], [40_000.0 + second for second in range(1, 41)]
    seen = progress(*evening, *morning, pending=21, now=40_041)
    assert (seen.rows_per_second, seen.remaining_seconds) == (1000.0, 21.0)


def test_a_few_commits_are_no_pace() -> None:
    """Four lanes commit their first chunks together."""
    seen = progress(5.0, 5.01, 5.02, 5.03, pending=3, now=6)
    assert (seen.rows_per_second, seen.remaining_seconds) == (0.0, None)
    assert progress(1.0, 2.0, 3.0, 4.0, 5.0, pending=0, now=6).remaining_seconds is None


def test_nobody_at_work_never_ends() -> None:
    seen = progress(1.0, 2.0, 3.0, 4.0, 5.0, pending=2, now=60, at_work=False)
    assert (seen.rows_per_second, seen.remaining_seconds) == (1000.0, None)
    assert "ETA" not in seen.sentence()


def test_commits_at_one_moment() -> None:
    seen = progress(*[1.0] * 5, pending=1, now=3)
    assert (seen.rows_per_second, seen.remaining_seconds) == (0.0, 0.0)
