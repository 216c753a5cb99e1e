"""One line about a progress event, for task logs, terminals and the demo. Imports contracts only."""

from __future__ import annotations

from airflow_dpone_xmin.contracts.progress import Progress

LABELS = {
    "POSTGRES_SNAPSHOT_OPEN": "snapshot open",
    "POSTGRES_COPY_PROGRESS": "extracting rows",
    "POSTGRES_COPY_COMPLETE": "rows extracted",
    "POSTGRES_KEYS_COMPLETE": "keys extracted",
    "STAGE_ROWS_COMPLETE": "rows staged",
    "STAGE_KEYS_COMPLETE": "keys staged",
    "FINALIZE_COMPLETE": "committed",
    "CAMPAIGN_OPEN": "campaign open",
    "CHUNK_COMPLETE": "chunk committed",
    "LANE_FAILED": "lane starts over",
    "CAMPAIGN_INDEXES_COMPLETE": "indexes built",
    "CAMPAIGN_PUBLISHED_COMPLETE": "published and seeded",
    "RECEIPT_REPLAYED": "answered from the receipt",
}


COUNTED = frozenset({"POSTGRES_COPY_COMPLETE", "POSTGRES_KEYS_COMPLETE", "STAGE_ROWS_COMPLETE", "STAGE_KEYS_COMPLETE"})
"""Phases of which zero rows is news too."""


def describe_progress(progress: Progress) -> str:
    """What happened, rows, bytes, seconds and rows/s, as far as they are known."""
    parts = [LABELS.get(progress.event, progress.event.lower().replace("_", " "))]
    if progress.rows or progress.event in COUNTED:
        parts.append(f"{progress.rows:,} rows")
    if progress.bytes:
        parts.append(f"{progress.bytes / 2**20:,.1f} MiB" if progress.bytes >= 2**20 else f"{progress.bytes / 2**10:.1f} KiB")
    if progress.seconds:
        parts.append(f"{progress.seconds:.1f} s")
    if progress.rows and progress.seconds:
        parts.append(f"{progress.rows_per_second:,.0f} rows/s")
    if progress.note:
        parts.append(progress.note)
    return " · ".join(parts)
