"""The record of a commit: checkpoint by compare-and-set, head, receipt, consumption. The last writes before the commit.

Imports contracts and the target's own modules.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from airflow_dpone_xmin.contracts.identity import CONTRACT_VERSION
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.state import ActionCounts, Head, Receipt
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.work import Work


def record_commit(ledger: Ledger, work: Work, *, counts: ActionCounts, detected_at: datetime, repair: RepairAuthority | None) -> Receipt:
    """Write what proves the commit.

    :raises XminError: ``checkpoint.conflict``.
    """
    checkpoint, head = work.position.checkpoint, work.position.head
    # A restored state database may lag behind the head, and a superseded or lost checkpoint behind its receipts: no revision comes twice.
    base = checkpoint.revision if checkpoint else ledger.highest_revision(work.state_key)
    base = max(base, head.revision if head and head.state_key == work.state_key else 0)
    envelope = work.envelope
    receipt = Receipt(
        receipt_id=uuid.uuid4(),
        kind="reconcile",
        process=work.invocation.process,
        run_id=work.invocation.run_id,
        map_index=work.invocation.map_index,
        load_id=work.load_id,
        invocation_digest=work.invocation_digest,
        state_key=work.state_key,
        target_identity=work.binding.identity,
        route_fingerprint=work.route.route_fingerprint,
        payload=envelope.payload,
        payload_reason=envelope.reason,
        previous_xmin=checkpoint.xmin if checkpoint else None,
        previous_revision=checkpoint.revision if checkpoint else None,
        new_xmin=envelope.horizons.safe,
        new_revision=base + 1,
        visible_horizon=envelope.horizons.visible,
        snapshot=envelope.snapshot,
        counts=counts,
        detected_at=detected_at,
        repair_authority_id=repair.authority_id if repair else None,
        repair_authority_digest=repair.digest if repair else None,
        digests=_digests(work),
    )
    ledger.write_checkpoint(_checkpoint_row(work, receipt), previous=checkpoint)
    new_head = Head(state_key=work.state_key, revision=receipt.new_revision, load_id=work.load_id)
    ledger.write_head(work.binding.identity, new_head, exists=head is not None)
    ledger.write_receipt(receipt, registry_serial=work.registry_serial)
    if repair is not None:
        ledger.consume(
            {
                "authority_id": repair.authority_id,
                "authority_digest": repair.digest,
                "state_key": work.state_key,
                "load_id": work.load_id,
                "receipt_id": receipt.receipt_id,
            }
        )
    ledger.close_invocation(work.invocation_digest, status="committed", error_code=None)
    return receipt


def _digests(work: Work) -> dict[str, bytes]:
    envelope = work.envelope
    digests = {f"{role}_authority_digest": value for role, value in work.route.authorities.digests.items()}
    digests |= {
        "scope_hash": work.scope_hash,
        "schema_hash": work.schema_hash,
        "projection_fingerprint": envelope.projection.fingerprint,
        "rows_artifact_sha256": envelope.rows_artifact.sha256,
    }
    if envelope.keys_artifact is not None:
        digests["keys_artifact_sha256"] = envelope.keys_artifact.sha256
    return digests


def _checkpoint_row(work: Work, receipt: Receipt) -> dict[str, Any]:
    route, source = work.route, work.envelope.source
    return {
        "state_key": work.state_key,
        "contract_version": CONTRACT_VERSION,
        "environment": route.environment,
        "process": route.process,
        "handoff_id": route.handoff_id,
        "source_entry": source.entry,
        "source_database": source.database,
        "source_schema": source.schema,
        "source_relation": source.relation,
        "target_identity": work.binding.identity,
        "key_columns": ",".join(route.key),
        "scope_hash": work.scope_hash,
        "schema_hash": work.schema_hash,
        "safe_xmin": receipt.new_xmin,
        "visible_horizon": receipt.visible_horizon,
        "snapshot": receipt.snapshot,
        "revision": receipt.new_revision,
        "source_authority_digest": route.authorities.digests["source"],
        "target_authority_digest": work.target_authority_digest,
        "projection_fingerprint": work.envelope.projection.fingerprint,
        "load_id": work.load_id,
        "receipt_id": receipt.receipt_id,
        "superseded_at_utc": None,
        "superseded_by_state_key": None,
    }
