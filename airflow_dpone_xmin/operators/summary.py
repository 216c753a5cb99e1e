"""What a task returns: the evidence of its run in a few plain values: references, never authority or secrets. Imports runtime."""

from __future__ import annotations

from typing import Any

from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.runtime.evidence import Outcome


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
