"""The record of a commit: checkpoint by compare-and-set, head, receipt, consumption. The last writes before the commit.

Imports contracts and the target's own modules.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from airflow_dpone_xmin.contracts.envelope import Horizons, Payload, SourceIdentity
from airflow_dpone_xmin.contracts.identity import CONTRACT_VERSION
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import ActionCounts, Head, Invocation, Receipt
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.work import Position, Work


@dataclass(frozen=True, slots=True)
class Record:
    """What a commit records, whether a run made it or a campaign's publication.

    :param kind: ``reconcile`` or ``seed``.
    :param snapshot: token that the next run's snapshot must see all of.
    :param rows_sha256: digest of the rows artifact, or over those of all chunks.
    """

    kind: str
    route: Route
    invocation: Invocation
    invocation_digest: bytes
    load_id: UUID
    target_identity: bytes
    state_key: bytes
    scope_hash: bytes
    schema_hash: bytes
    target_authority_digest: bytes
    position: Position
    source: SourceIdentity
    snapshot: str
    horizons: Horizons
    payload: Payload
    reason: str
    projection_fingerprint: bytes
    rows_sha256: bytes
    keys_sha256: bytes | None


def record_of(work: Work) -> Record:
    """The record of one run."""
    envelope = work.envelope
    return Record(
        kind="reconcile",
        route=work.route,
        invocation=work.invocation,
        invocation_digest=work.invocation_digest,
        load_id=work.load_id,
        target_identity=work.binding.identity,
        state_key=work.state_key,
        scope_hash=work.scope_hash,
        schema_hash=work.schema_hash,
        target_authority_digest=work.target_authority_digest,
        position=work.position,
        source=envelope.source,
        snapshot=envelope.snapshot,
        horizons=envelope.horizons,
        payload=envelope.payload,
        reason=envelope.reason,
        projection_fingerprint=envelope.projection.fingerprint,
        rows_sha256=envelope.rows_artifact.sha256,
        keys_sha256=None if envelope.keys_artifact is None else envelope.keys_artifact.sha256,
    )


def write_record(ledger: Ledger, record: Record, *, counts: ActionCounts, detected_at: datetime, repair: RepairAuthority | None) -> Receipt:
    """Write what proves the commit.

    :raises XminError: ``checkpoint.conflict``.
    """
    checkpoint, head = record.position.checkpoint, record.position.head
    # A restored state database may lag behind the head, and a superseded or lost checkpoint behind its receipts: no revision comes twice.
    base = checkpoint.revision if checkpoint else ledger.highest_revision(record.state_key)
    base = max(base, head.revision if head and head.state_key == record.state_key else 0)
    receipt = Receipt(
        receipt_id=uuid.uuid4(),
        kind=record.kind,
        process=record.invocation.process,
        run_id=record.invocation.run_id,
        map_index=record.invocation.map_index,
        load_id=record.load_id,
        invocation_digest=record.invocation_digest,
        state_key=record.state_key,
        target_identity=record.target_identity,
        route_fingerprint=record.route.route_fingerprint,
        payload=record.payload,
        payload_reason=record.reason,
        previous_xmin=checkpoint.xmin if checkpoint else None,
        previous_revision=checkpoint.revision if checkpoint else None,
        new_xmin=record.horizons.safe,
        new_revision=base + 1,
        visible_horizon=record.horizons.visible,
        snapshot=record.snapshot,
        counts=counts,
        detected_at=detected_at,
        repair_authority_id=repair.authority_id if repair else None,
        repair_authority_digest=repair.digest if repair else None,
        digests=_digests(record),
    )
    ledger.write_checkpoint(_checkpoint_row(record, receipt), previous=checkpoint)
    new_head = Head(state_key=record.state_key, revision=receipt.new_revision, load_id=record.load_id)
    ledger.write_head(record.target_identity, new_head, exists=head is not None)
    ledger.write_receipt(receipt, registry_serial=record.route.registry_serial)
    if repair is not None:
        ledger.consume(
            {
                "authority_id": repair.authority_id,
                "authority_digest": repair.digest,
                "state_key": record.state_key,
                "load_id": record.load_id,
                "receipt_id": receipt.receipt_id,
            }
        )
    ledger.close_invocation(record.invocation_digest, status="committed", error_code=None)
    return receipt


def _digests(record: Record) -> dict[str, bytes]:
    digests = {f"{role}_authority_digest": value for role, value in record.route.authorities.digests.items()}
    digests |= {
        "scope_hash": record.scope_hash,
        "schema_hash": record.schema_hash,
        "projection_fingerprint": record.projection_fingerprint,
        "rows_artifact_sha256": record.rows_sha256,
    }
    if record.keys_sha256 is not None:
        digests["keys_artifact_sha256"] = record.keys_sha256
    return digests


def _checkpoint_row(record: Record, receipt: Receipt) -> dict[str, Any]:
    route, source = record.route, record.source
    return {
        "state_key": record.state_key,
        "contract_version": CONTRACT_VERSION,
        "environment": route.environment,
        "process": route.process,
        "handoff_id": route.handoff_id,
        "source_entry": source.entry,
        "source_database": source.database,
        "source_schema": source.schema,
        "source_relation": source.relation,
        "target_identity": record.target_identity,
        "key_columns": ",".join(route.key),
        "scope_hash": record.scope_hash,
        "schema_hash": record.schema_hash,
        "safe_xmin": receipt.new_xmin,
        "visible_horizon": receipt.visible_horizon,
        "snapshot": receipt.snapshot,
        "revision": receipt.new_revision,
        "source_authority_digest": route.authorities.digests["source"],
        "target_authority_digest": record.target_authority_digest,
        "projection_fingerprint": record.projection_fingerprint,
        "load_id": record.load_id,
        "receipt_id": receipt.receipt_id,
        "superseded_at_utc": None,
        "superseded_by_state_key": None,
    }
