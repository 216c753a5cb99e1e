"""Repair authorities in the state database: rows into documents, and back. Imports contracts, policy and the target's own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import Allow, CheckpointBinding, RepairAuthority, TransferBinding
from airflow_dpone_xmin.policy.repair import RepairBinding, admit_authority
from airflow_dpone_xmin.target.ledger import Ledger


@dataclass(frozen=True, slots=True)
class RepairSelection:
    """The approval that a run selected.

    :param ref: authority id.
    :param open_envelope: verifies a signed envelope and returns the document inside; None where the registry allows unsigned approvals.
    """

    ref: str
    open_envelope: Callable[[bytes], RepairAuthority] | None


def load_authority(ledger: Ledger, selection: RepairSelection) -> RepairAuthority:
    """The selected approval, proven to be what was approved.

    The row's digest is recomputed from its columns; a signed approval must also carry an envelope whose document is the row's, so that a
    database administrator alone cannot approve a mass delete.

    :raises XminError: ``repair_authority.not_found``, ``.digest_mismatch``, ``.unsigned`` and what the envelope's verification raises.
    """
    row = ledger.find_authority(selection.ref)
    if row is None or row["authority_id"] != selection.ref:  # SQL Server ignores trailing spaces in a comparison
        raise XminError("repair_authority.not_found", f"No repair authority {selection.ref!r} exists in this state database.")
    authority = authority_of_row(row)
    if authority is None or authority.digest != bytes(row["authority_digest"]):
        raise XminError(
            "repair_authority.digest_mismatch", "The row's columns do not give its digest.", details={"authority_id": selection.ref}
        )
    if selection.open_envelope is not None:
        if not row["envelope"]:
            raise XminError("repair_authority.unsigned", "The registry demands signed approvals.", details={"authority_id": selection.ref})
        if selection.open_envelope(str(row["envelope"]).encode("utf-8")) != authority:
            raise XminError(
                "repair_authority.digest_mismatch", "The signed document is not the row's.", details={"authority_id": selection.ref}
            )
    return authority


def admitted_authority(ledger: Ledger, selection: RepairSelection, binding: RepairBinding, *, now: datetime) -> RepairAuthority:
    """Load, prove and bind the selected approval: the preview before extraction and the admission under the lock are this one function.

    :param now: the server's UTC clock, naive.
    """
    authority = load_authority(ledger, selection)
    admit_authority(authority, binding, consumed=ledger.is_consumed(selection.ref), now=now.replace(tzinfo=UTC))
    return authority


def authority_of_row(row: Mapping[str, Any]) -> RepairAuthority | None:
    """The document that a row's columns spell; None when they spell none."""
    try:
        return RepairAuthority(
            authority_id=row["authority_id"],
            environment=row["environment"],
            state_key=bytes(row["state_key"]).hex(),
            scope_hash=bytes(row["scope_hash"]).hex(),
            checkpoint=_pair(row["checkpoint_xmin"], row["checkpoint_revision"]),
            allow=Allow(
                full_baseline=bool(row["allow_full_baseline"]),
                max_delete_rows=row["allow_max_delete_rows"],
                max_delete_ratio=row["allow_max_delete_ratio"],
            ),
            transfer=None
            if row["transfer_from_state_key"] is None
            else TransferBinding(
                state_key=bytes(row["transfer_from_state_key"]).hex(),
                xmin=row["transfer_from_xmin"],
                revision=row["transfer_from_revision"],
            ),
            reason=row["reason"],
            created_at=row["created_at_utc"].replace(tzinfo=UTC),
            expires_at=row["expires_at_utc"].replace(tzinfo=UTC),
        )
    except ValidationError:
        return None


def row_of_authority(authority: RepairAuthority, *, envelope: bytes | None) -> dict[str, Any]:
    """The columns of an approval.

    :param envelope: its signed envelope.
    """
    checkpoint, transfer, allow = authority.checkpoint, authority.transfer, authority.allow
    return {
        "authority_id": authority.authority_id,
        "authority_digest": authority.digest,
        "contract_version": 1,
        "environment": authority.environment,
        "state_key": bytes.fromhex(authority.state_key),
        "scope_hash": bytes.fromhex(authority.scope_hash),
        "checkpoint_xmin": checkpoint.xmin if checkpoint else None,
        "checkpoint_revision": checkpoint.revision if checkpoint else None,
        "allow_full_baseline": int(allow.full_baseline),
        "allow_max_delete_rows": allow.max_delete_rows,
        "allow_max_delete_ratio": allow.max_delete_ratio,
        "transfer_from_state_key": bytes.fromhex(transfer.state_key) if transfer else None,
        "transfer_from_xmin": transfer.xmin if transfer else None,
        "transfer_from_revision": transfer.revision if transfer else None,
        "reason": authority.reason,
        "envelope": None if envelope is None else envelope.decode("utf-8"),
        "created_at_utc": authority.created_at.replace(tzinfo=None),
        "expires_at_utc": authority.expires_at.replace(tzinfo=None),
    }


def _pair(xmin: int | None, revision: int | None) -> CheckpointBinding | None:
    return None if xmin is None or revision is None else CheckpointBinding(xmin=xmin, revision=revision)
