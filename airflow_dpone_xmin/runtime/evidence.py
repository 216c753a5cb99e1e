"""Evidence: what a run proved, as one JSON-ready document without business values.

Imports contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_dpone_xmin.contracts.campaign import CampaignProgress, CampaignState
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import Receipt
from airflow_dpone_xmin.target.finalize import Preview
from airflow_dpone_xmin.target.shadow import backup_name

EVIDENCE_VERSION = 1


@dataclass(slots=True)
class Recorder:
    """A progress listener that keeps the closed phases for the evidence and passes every event on."""

    listener: Any
    phases: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        """Keep what closes a phase; pass everything on."""
        if progress.event.endswith("_COMPLETE"):
            self.phases.append(
                {
                    "event": progress.event,
                    "rows": progress.rows,
                    "bytes": progress.bytes,
                    "seconds": round(progress.seconds, 3),
                    "rows_per_second": round(progress.rows_per_second),
                }
            )
        self.listener(progress)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    :param cleanup_error: a fault after the commit; the outcome is committed all the same.
    """

    receipt: Receipt
    attempt: int
    phases: tuple[Mapping[str, Any], ...] = ()
    cleanup_error: XminError | None = None

    @property
    def status(self) -> str:
        """``committed``, ``replayed`` or ``committed_cleanup_failed``."""
        if self.receipt.replayed:
            return "replayed"
        return "committed_cleanup_failed" if self.cleanup_error is not None else "committed"


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    """A receipt as JSON-ready mapping."""
    return {
        "receipt_id": str(receipt.receipt_id),
        "kind": receipt.kind,
        "process": receipt.process,
        "run_id": receipt.run_id,
        "map_index": receipt.map_index,
        "load_id": str(receipt.load_id),
        "invocation_digest": receipt.invocation_digest.hex(),
        "state_key": receipt.state_key.hex(),
        "target_identity": receipt.target_identity.hex(),
        "route_fingerprint": receipt.route_fingerprint.hex(),
        "payload": receipt.payload.value,
        "payload_reason": receipt.payload_reason,
        "checkpoint": {
            "previous_xmin": receipt.previous_xmin,
            "previous_revision": receipt.previous_revision,
            "xmin": receipt.new_xmin,
            "revision": receipt.new_revision,
            "visible_horizon": receipt.visible_horizon,
            "replay_amplification_xids": receipt.replay_amplification,
            "snapshot": receipt.snapshot,
        },
        "counts": receipt.counts.to_dict(),
        "detected_at_utc": receipt.detected_at.isoformat(),
        "repair_authority": None
        if receipt.repair_authority_id is None
        else {"id": receipt.repair_authority_id, "digest": (receipt.repair_authority_digest or b"").hex()},
        "digests": {name: value.hex() for name, value in sorted(receipt.digests.items())},
    }


def evidence_document(route: Route, outcome: Outcome) -> dict[str, Any]:
    """The evidence of one run."""
    return {
        "v": EVIDENCE_VERSION,
        "status": outcome.status,
        "engine": route.layout.engine,
        "environment": route.environment,
        "source": {
            "entry": route.source.entry,
            "database": route.source.database,
            "relation": f"{route.source.schema}.{route.source.relation}",
        },
        "target": route.layout.target.display,
        "delete_mode": route.delete_mode.value,
        "attempt": outcome.attempt,
        "receipt": receipt_document(outcome.receipt),
        "phases": [dict(phase) for phase in outcome.phases],
        "cleanup_error": outcome.cleanup_error.to_dict() if outcome.cleanup_error else None,
        "notices": list(route.notices),
    }


def refusal_document(route: Route, error: XminError, *, status: str) -> dict[str, Any]:
    """The evidence of a run that did not prove its commit: ``refused``, or ``unknown``."""
    return {
        "v": EVIDENCE_VERSION,
        "status": status,
        "engine": route.layout.engine,
        "environment": route.environment,
        "target": route.layout.target.display,
        "error": error.to_dict(),
    }


def preview_document(route: Route, preview: Preview) -> dict[str, Any]:
    """What a dry run saw: actions that a run would take, and what would stop it."""
    seen = preview.classification
    return {
        "v": EVIDENCE_VERSION,
        "status": "dry_run",
        "target": route.layout.target.display,
        "payload": preview.payload.value,
        "payload_reason": preview.reason,
        "repair_authority": None if preview.repair is None else {"id": preview.repair.authority_id, "digest": preview.repair.digest.hex()},
        "classification": {
            "keys": seen.keys,
            "active_before": seen.active,
            "would_insert": seen.absent,
            "would_reactivate": seen.tombstoned,
            "would_delete": seen.missing,
            "tombstones_kept": seen.retained,
        },
        "refusal": None if preview.refusal is None else preview.refusal.to_dict(),
    }


def campaign_document(route: Route, found: CampaignProgress) -> dict[str, Any]:
    """Where a campaign stands."""
    campaign = found.campaign
    remaining = found.remaining_seconds
    exchanged = campaign.shadow is not None and campaign.state is CampaignState.PUBLISHED
    backup = backup_name(campaign, route.layout.target.name) if exchanged else None
    return {
        "v": EVIDENCE_VERSION,
        "campaign": campaign.campaign_key.hex(),
        "handoff_id": campaign.handoff_id,
        "status": campaign.state.value,
        "target": route.layout.target.display,
        "publication": campaign.publication,
        "shadow": campaign.shadow if campaign.state is CampaignState.OPEN else None,
        "backup": backup,
        "opened_at_utc": campaign.created_at.isoformat(),
        "anchor": {"anchor_xmin": campaign.anchor.horizons.safe, "anchor_visible_horizon": campaign.anchor.horizons.visible},
        "progress": {
            "chunks": len(found.chunks),
            "committed": found.committed,
            "rows": found.rows,
            "rows_per_second": round(found.rows_per_second),
            "remaining_seconds": None if remaining is None else round(remaining),
        },
        "lanes": [{"owner": lane.owner, "chunk": lane.range.number, "since": lane.updated_at.isoformat()} for lane in found.lanes],
    }
