"""Repair authorities from the owner's side: propose from a failed run, approve with the owner's login, look at them.

Runtime itself only ever reads an approval (``target/repair.py``). Imports everything below runtime.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import invocation_digest
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, silent
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.contracts.repair import PAYLOAD_TYPE, Allow, CheckpointBinding, RepairAuthority, TransferBinding
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.policy.repair import RepairBinding, admit_authority, require_valid
from airflow_dpone_xmin.registry.parse import parse_json, parse_yaml
from airflow_dpone_xmin.registry.verify import verify_document
from airflow_dpone_xmin.runtime.inspect import looking, opened
from airflow_dpone_xmin.target.catalog import server_time
from airflow_dpone_xmin.target.proof import require_catalog
from airflow_dpone_xmin.target.repair import RepairSelection, authority_of_row, row_of_authority


def select_repair(ref: str | None, *, registry: RegistryDocument, trusted_keys: Sequence[Path | str]) -> RepairSelection | None:
    """The approval that a run names; '' is none, as a scheduler's template renders an absent parameter.

    :param registry: decides whether approvals must be signed.
    :param trusted_keys: keys that may sign them.
    """
    if not ref:
        return None
    if not registry.repair_approvals.signed:
        return RepairSelection(ref=ref, open_envelope=None)

    def open_envelope(envelope: bytes) -> RepairAuthority:
        return parse_authority(verify_document(envelope, payload_type=PAYLOAD_TYPE, trusted_keys=trusted_keys).payload)

    return RepairSelection(ref=ref, open_envelope=open_envelope)


def parse_authority(raw: bytes, *, yaml: bool = False) -> RepairAuthority:
    """A repair document.

    :param yaml: a document that a human edited.
    :raises XminError: ``repair_authority.document_invalid``.
    """
    code = "repair_authority.document_invalid"
    try:
        return RepairAuthority.model_validate(parse_yaml(raw, malformed=code, duplicate=code) if yaml else parse_json(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "document"
        raise XminError(code, f"{path}: {first['msg']}.", details={"path": path}) from None


def propose(
    route: Route,
    invocation: Invocation,
    *,
    endpoints: EndpointResolver,
    authority_id: str,
    reason: str,
    valid_for: timedelta,
    full_baseline: bool,
    max_delete_rows: int | None,
    max_delete_ratio: Decimal | None,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> RepairAuthority:
    """An unsigned approval bound to what a stopped run saw.

    A bound that is not asked for is what the run observed, exactly, where a guard would stop it; a missing checkpoint, reverse drift, a
    strict window or a conflict of ownership proposes a full baseline, with the transfer that it needs. What the stopped run's own approval
    granted is granted again. A run that was stopped before its extraction observed nothing: then it is rehearsed as a dry run, so that one
    approval covers all that the next attempt will meet.

    :param invocation: the stopped run.
    :param progress: hears the dry run; *cancel* stops it.
    :raises XminError: ``evidence.not_found`` when no such run was stopped, ``repair_authority.binding_mismatch`` when the route has moved
        on since, ``repair_authority.document_invalid``, and what stops a dry run for another reason.
    """
    binding = _stopped_binding(route, invocation, endpoints=endpoints)
    if "observed_missing" not in binding and route.execution != "initial":  # a campaign counts no deletes: it replaces the table
        from airflow_dpone_xmin.runtime.reconcile import dry_run  # a sensor imports this module and extracts nothing

        seen = dry_run(route, invocation, endpoints=endpoints, progress=progress, cancel=cancel)
        binding = _binding(seen.refusal)
    allow = _observed_allow(binding)
    allow["full_baseline"] = allow["full_baseline"] or full_baseline
    asked = {"max_delete_rows": max_delete_rows, "max_delete_ratio": max_delete_ratio}
    allow |= {name: value for name, value in asked.items() if value is not None}
    transfer = binding.get("transfer")
    now = _clock(route, endpoints, binding)
    try:
        return RepairAuthority(
            authority_id=authority_id,
            environment=binding["environment"],
            state_key=binding["state_key"],
            scope_hash=binding["scope_hash"],
            checkpoint=None
            if binding["checkpoint_revision"] is None
            else CheckpointBinding(xmin=binding["checkpoint_xmin"], revision=binding["checkpoint_revision"]),
            allow=Allow.model_validate(allow),
            transfer=None if transfer is None else TransferBinding.model_validate(transfer),
            reason=reason,
            created_at=now,
            expires_at=now + valid_for,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise XminError("repair_authority.document_invalid", f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def approve(route: Route, authority: RepairAuthority, *, endpoints: EndpointResolver, owner: str, envelope: bytes | None) -> None:
    """Insert the immutable row with the owner's login.

    :param owner: name under which the endpoint resolver finds the owner's login.
    :param envelope: the signed document.
    :raises XminError: ``repair_authority.environment_mismatch``, ``.not_yet_valid``, ``.expired``, ``.binding_mismatch``, ``.exists``,
        what proves the catalog, and the engine's codes.
    """
    if authority.environment != route.environment:
        raise XminError("repair_authority.environment_mismatch", f"The document is for environment {authority.environment}.")
    with looking(route, endpoints, owner=owner) as view:
        ledger, identity = view.ledger, view.identity
        require_catalog(view.engine, view.session, ledger.catalog)  # a row is immutable only where its trigger is
        require_valid(authority, now=server_time(view.session).replace(tzinfo=UTC))
        here = (identity.state_key.hex(), identity.scope_hash.hex())
        if (authority.state_key, authority.scope_hash) != here:
            raise XminError("repair_authority.binding_mismatch", "The document is bound to another route than this manifest's.")
        current, bound = ledger.read_checkpoint(identity.state_key), authority.checkpoint
        if current is not None and (bound is None or bound.revision < current.revision):
            raise XminError("repair_authority.binding_mismatch", "The route has moved past the checkpoint that the document is bound to.")
        if ledger.find_authority(authority.authority_id) is not None:
            raise XminError("repair_authority.exists", f"{authority.authority_id} exists already.")
        try:
            ledger.insert_authority(row_of_authority(authority, envelope=envelope))
        except XminError as error:
            if error.code == "mssql_transaction.permission_denied":
                hint = "Use the login of the state database's owner (--owner). A runtime login may not approve, and must not be granted it."
                raise XminError(error.code, error.message, hint=hint, details=error.details) from None
            raise


def authority_documents(route: Route, *, endpoints: EndpointResolver, ref: str | None, limit: int = 20) -> list[dict[str, Any]]:
    """Approvals with their state, newest first, or the one of a reference.

    :returns: a state is ``valid``, or what a run would be refused for now: ``consumed``, ``expired``, ``not_yet_valid``,
        ``binding_mismatch`` when the route's checkpoint has moved on, ``digest_mismatch``.
    :raises XminError: ``repair_authority.not_found``.
    """
    with looking(route, endpoints) as view:
        rows = view.ledger.list_authorities(limit=limit, authority_id=ref)
        now = server_time(view.session).replace(tzinfo=UTC)
    if ref is not None and not rows:
        raise XminError("repair_authority.not_found", f"No repair authority {ref!r} exists in this state database.")
    return [_document(row, now) for row in rows]


def _document(row: Any, now: datetime) -> dict[str, Any]:
    authority = authority_of_row(row)
    if authority is None or authority.digest != bytes(row["authority_digest"]):
        return {"authority_id": row["authority_id"], "state": "digest_mismatch"}
    consumed = row["consumed_at_utc"]
    here = None if row["revision"] is None else CheckpointBinding(xmin=row["safe_xmin"], revision=row["revision"])
    binding = RepairBinding(authority.environment, bytes(row["state_key"]), bytes(row["scope_hash"]), here)
    try:
        admit_authority(authority, binding, consumed=consumed is not None, now=now)
        state = "valid"
    except XminError as error:
        state = error.code.removeprefix("repair_authority.")
    return {
        **authority.model_dump(mode="json"),
        "state": state,
        "digest": authority.digest.hex(),
        "signed": bool(row["envelope"]),
        "consumed_at": consumed.isoformat() if consumed else None,
        "receipt_id": str(row["receipt_id"]) if row["receipt_id"] else None,
    }


def _clock(route: Route, endpoints: EndpointResolver, binding: dict[str, Any]) -> datetime:
    """The state server's clock, unless the route has moved past the binding: nobody should review what no run could use."""
    with looking(route, endpoints) as view:
        current = view.ledger.read_checkpoint(view.identity.state_key)
        here = (view.identity.state_key.hex(), *((None, None) if current is None else (current.xmin, current.revision)))
        if here != (binding["state_key"], binding["checkpoint_xmin"], binding["checkpoint_revision"]):
            raise XminError(
                "repair_authority.binding_mismatch",
                "The route has moved on since this run was stopped.",
                hint="Run it again; if it is stopped again, propose from that.",
            )
        return server_time(view.session).replace(tzinfo=UTC)


def _stopped_binding(route: Route, invocation: Invocation, *, endpoints: EndpointResolver) -> dict[str, Any]:
    """The newest binding of a run. An attempt that judged nothing since, such as one under an expired approval, does not take it away."""
    with opened(route, endpoints) as (ledger, identity):
        rows = ledger.audits(identity.state_key, invocation=invocation_digest(invocation))
    errors = [json.loads(row["evidence"]).get("error") for row in reversed(rows)]
    for error in errors:
        if error is None or error["code"] == "repair_authority.unused":
            break  # committed, or nothing needed an approval any more
        if "binding" in error["details"]:
            return dict(error["details"]["binding"])
    raise XminError(
        "evidence.not_found",
        "This run was not stopped by something that an approval could admit.",
        details={"run_id": invocation.run_id, "code": errors[0]["code"] if errors and errors[0] else None},
    )


def _binding(refusal: XminError | None) -> dict[str, Any]:
    """The binding of a rehearsed refusal."""
    if refusal is None:
        raise XminError("evidence.not_found", "Nothing would stop this run any more.", hint="Run it again; it needs no approval.")
    if "binding" not in refusal.details:
        raise refusal
    return dict(refusal.details["binding"])


def _observed_allow(binding: dict[str, Any]) -> dict[str, Any]:
    allow: dict[str, Any] = {"full_baseline": binding["full_baseline"]}
    if binding.get("delete_bounds"):
        missing, active = binding["observed_missing"], binding["observed_active"]
        # The smallest ratio of 15 decimals that still covers the observed fraction.
        ratio = min(Decimal(1), (Decimal(missing) / Decimal(active)).quantize(Decimal("1e-15"), rounding="ROUND_CEILING"))
        allow |= {"max_delete_rows": missing, "max_delete_ratio": ratio}
    return allow
