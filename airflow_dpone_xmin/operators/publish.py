"""What a task tells of its run: the evidence in a few plain values as XCom, asset events on its outlets, and metrics.

References, never authority or secrets. Imports Airflow's SDK and runtime.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, Context
from airflow.sdk.observability import stats

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.runtime.evidence import Outcome

log = logging.getLogger(__name__)

EVENT_KEYS = (
    "receipt_id",
    "status",
    "process",
    "run_id",
    "map_index",
    "source",
    "target",
    "payload",
    "payload_reason",
    "counts",
    "revision",
    "checkpoint_xmin",
    "detected_at_utc",
)
"""Of the evidence summary. ``receipt_id`` is what a consumer deduplicates on: a cleared task emits the event of its receipt again."""

ROWS = ("inserted", "updated", "reactivated", "unchanged", "soft_deleted", "hard_deleted")


def evidence_summary(route: Route, outcome: Outcome) -> dict[str, Any]:
    """The XCom value of a task.

    :returns: JSON-ready; ``receipt_id`` is what a consumer deduplicates on, since a cleared task returns the same receipt again.
    """
    receipt = outcome.receipt
    return {
        "status": outcome.status,
        "receipt_id": str(receipt.receipt_id),
        "process": receipt.process,
        "run_id": receipt.run_id,
        "map_index": receipt.map_index,
        "attempt": outcome.attempt,
        "source": f"{route.source.entry}:{route.source.schema}.{route.source.relation}",
        "target": route.layout.target.display,
        "payload": receipt.payload.value,
        "payload_reason": receipt.payload_reason,
        "counts": receipt.counts.to_dict(),
        "revision": receipt.new_revision,
        "checkpoint_xmin": receipt.new_xmin,
        "replay_amplification_xids": receipt.replay_amplification,
        "repair_authority": None
        if receipt.repair_authority_id is None
        else {"id": receipt.repair_authority_id, "digest": (receipt.repair_authority_digest or b"").hex()},
        "detected_at_utc": receipt.detected_at.isoformat(),
        "phases": [dict(phase) for phase in outcome.phases],
        "cleanup_error": outcome.cleanup_error.code if outcome.cleanup_error else None,
        "notices": list(route.notices),
    }


def publish(context: Context, outlets: Sequence[Any], summary: Mapping[str, Any], outcome: Outcome) -> None:
    """Asset events and metrics of a run that ended with a receipt. Committed is committed: whatever fails here is only logged."""
    try:
        _describe_assets(context, outlets, summary)
        _count(outcome)
    except Exception as fault:
        log.warning("The run has its receipt; telling Airflow of it failed with %s.", type(fault).__name__)


def count_failure(process: str | None, error: XminError) -> None:
    """Metric of an attempt that ended without a receipt: ``dpone_xmin.runs`` with outcome ``failed`` and the error's code.

    :param process: None when the attempt ended before its route was known.
    """
    with contextlib.suppress(Exception):  # the error itself is what matters
        stats.incr("dpone_xmin.runs", tags={"process": process or "", "outcome": "failed", "code": error.code})


def _describe_assets(context: Context, outlets: Sequence[Any], summary: Mapping[str, Any]) -> None:
    """Receipt and counts for the event of every asset among *outlets*; an alias names no asset of its own."""
    extra = {name: summary[name] for name in EVENT_KEYS}
    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = extra


def _count(outcome: Outcome) -> None:
    """Metrics; a replay moved no row and counts none.

    ``dpone_xmin.runs`` by outcome, ``dpone_xmin.rows`` by action, ``dpone_xmin.phase`` (milliseconds) by phase, and the gauges
    ``dpone_xmin.active_rows`` and ``dpone_xmin.replay_amplification_xids``; all carry the tag ``process``.
    """
    receipt = outcome.receipt
    tags = {"process": receipt.process}
    stats.incr("dpone_xmin.runs", tags={**tags, "outcome": outcome.status})
    if receipt.replayed:
        return
    counts = receipt.counts.to_dict()
    for action in ROWS:
        stats.incr("dpone_xmin.rows", count=counts[action], tags={**tags, "action": action})
    for phase in outcome.phases:
        stats.timing(
            "dpone_xmin.phase", 1000.0 * phase["seconds"], tags={**tags, "phase": phase["event"].removesuffix("_COMPLETE").lower()}
        )
    stats.gauge("dpone_xmin.active_rows", counts["active_after"], tags=tags)
    stats.gauge("dpone_xmin.replay_amplification_xids", receipt.replay_amplification, tags=tags)
