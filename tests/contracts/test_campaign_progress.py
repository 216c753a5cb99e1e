"""Pace and remaining time of a campaign are those of its newest commits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from airflow_dpone_xmin.contracts.campaign import Campaign, CampaignProgress, ChunkRow, ChunkState

OPENED = datetime(2026, 1, 1, tzinfo=UTC)


def progress(*commits: float, pending: int, now: float) -> CampaignProgress:
    """Chunks of a thousand rows, committed so many seconds after the opening."""
    done = [ChunkRow(cast(Any, None), ChunkState.COMMITTED, None, False, 1000, OPENED + timedelta(seconds=at)) for at in commits]
    left = [ChunkRow(cast(Any, None), ChunkState.PENDING, None, False, None, OPENED) for _ in range(pending)]
    return CampaignProgress(cast(Campaign, None), (*done, *left), OPENED + timedelta(seconds=now))


def test_a_pause_says_nothing_about_the_pace() -> None:
    evening, morning = [float(second) for second in range(1, 4)], [40_000.0 + second for second in range(1, 41)]
    seen = progress(*evening, *morning, pending=21, now=40_041)
    assert (seen.rows_per_second, seen.remaining_seconds) == (1000.0, 21.0)


def test_one_commit_is_no_pace() -> None:
    seen = progress(5.0, pending=3, now=6)
    assert (seen.rows_per_second, seen.remaining_seconds) == (0.0, None)
    assert progress(1.0, 2.0, pending=0, now=3).remaining_seconds is None


def test_commits_at_one_moment() -> None:
    seen = progress(1.0, 1.0, pending=1, now=3)
    assert (seen.rows_per_second, seen.remaining_seconds) == (0.0, 0.0)
