"""What the SQL predicate of a delta must answer, in plain arithmetic."""

from __future__ import annotations

from airflow_dpone_xmin.policy.window import EPOCH, FROZEN_XIDS, DeltaWindow


def contains(window: DeltaWindow, raw_xmin: int) -> bool:
    """Whether a row whose ``xmin`` column shows *raw_xmin* belongs to the window."""
    return raw_xmin in FROZEN_XIDS or (raw_xmin - window.base) % EPOCH < window.width
