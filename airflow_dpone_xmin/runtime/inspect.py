"""Looking at a route's state and receipts, and the evidence bundle: all that proves its commits, as files with SHA-256 checksums.

Read-only in the databases. A set that is not complete is refused before anything is written; ``SHA256SUMS`` is written last, so that a
directory without it is no bundle. Imports everything below runtime.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_dpone_xmin import __version__
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import campaign_key, invocation_digest, rows_digest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.contracts.state import Invocation, Receipt
from airflow_dpone_xmin.registry.keys import write_new
from airflow_dpone_xmin.runtime.admission import RouteIdentity, read_position, resolve_identity
from airflow_dpone_xmin.runtime.evidence import EVIDENCE_VERSION, receipt_document
from airflow_dpone_xmin.target.authority import VerifiedDatabases, verify_databases
from airflow_dpone_xmin.target.campaign_ledger import CampaignLedger
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import engine_of
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.proof import require_schemas
from airflow_dpone_xmin.target.repair import authority_of_row

SUMS = "SHA256SUMS"


def state_document(route: Route, *, endpoints: EndpointResolver) -> dict[str, Any]:
    """Checkpoint, head and owner of a route.

    :raises XminError: ``target_identity.*``, ``DPONE_TARGET_UNSUPPORTED``, connection codes.
    """
    with opened(route, endpoints) as (ledger, identity):
        position = read_position(ledger, identity)
        owner = ledger.active_owner(identity.binding.identity)
    checkpoint, head = position.checkpoint, position.head
    return {
        "process": route.process,
        "target": route.layout.target.display,
        "state_key": identity.state_key.hex(),
        "scope_hash": identity.scope_hash.hex(),
        "target_identity": identity.binding.identity.hex(),
        "active_owner": None if owner is None else owner.hex(),
        "head_agrees": position.agrees(identity.state_key),
        "checkpoint": None
        if checkpoint is None
        else {"xmin": checkpoint.xmin, "revision": checkpoint.revision, "load_id": str(checkpoint.load_id)},
        "head": None if head is None else {"state_key": head.state_key.hex(), "revision": head.revision, "load_id": str(head.load_id)},
    }


def receipt_documents(
    route: Route, *, endpoints: EndpointResolver, run_id: str | None, limit: int, map_index: int = -1
) -> list[dict[str, Any]]:
    """Receipts of a route, newest first, or the one of a run.

    :param map_index: index of a mapped task.
    :raises XminError: ``evidence.not_found``.
    """
    with opened(route, endpoints) as (ledger, identity):
        return [
            receipt_document(receipt) for receipt in find_receipts(ledger, identity, route, run_id=run_id, map_index=map_index, limit=limit)
        ]


def find_receipts(
    ledger: Ledger, identity: RouteIdentity, route: Route, *, run_id: str | None, map_index: int = -1, limit: int | None
) -> list[Receipt]:
    """Receipts of a route, newest first, or the one of a run.

    :param limit: how many; None for all.
    :raises XminError: ``evidence.not_found``.
    """
    if run_id is None:
        found = ledger.last_receipts(identity.state_key, limit=limit)
        if not found:
            raise _nothing_of(route)
        return found
    digest = invocation_digest(Invocation(process=route.process, run_id=run_id, map_index=map_index))
    one = ledger.find_receipt(digest)
    if one is None:
        raise _without_receipt(ledger, digest, route, run_id)
    return [one]


def _nothing_of(route: Route) -> XminError:
    return XminError("evidence.not_found", "No receipt exists for this route and run.", details={"process": route.process})


def _without_receipt(ledger: Ledger, digest: bytes, route: Route, run_id: str) -> XminError:
    """What is known of a run that left no receipt: how it was stopped, or that it began."""
    stopped = ledger.last_audit(digest)
    if stopped is not None:
        return XminError(
            "evidence.not_found",
            f"This run has no receipt: it ended as {stopped['outcome']} with {stopped['error_code']}.",
            hint="See the details for what stopped it.",
            details={"run_id": run_id, "evidence": json.loads(stopped["evidence"])},
        )
    attempts, status = ledger.attempts_of(digest)
    if attempts:
        return XminError(
            "evidence.not_found",
            "This run has no receipt, and no attempt of it has told how it ended.",
            hint="Unless it is still running, run it again under the same run id: what had committed would have left its receipt.",
            details={"run_id": run_id, "attempts": attempts, "status": status},
        )
    return _nothing_of(route)


@dataclass(frozen=True, slots=True)
class View:
    """One read-only look at a route's state."""

    engine: Engine
    session: Session
    authority: VerifiedDatabases
    ledger: Ledger
    identity: RouteIdentity


@contextmanager
def looking(
    route: Route, endpoints: EndpointResolver, *, owner: str | None = None, statement_timeout: float | None = None
) -> Iterator[View]:
    """Session, ledger and identity of a route, read-only by use: databases, schemas and serial are verified, the catalog is not.

    :param owner: look with the owner's login, by the name under which the endpoint resolver finds it.
    :param statement_timeout: seconds that one statement may take.
    :raises XminError: ``mssql_transaction.<role>_database_*``, ``.schema_ambiguous``, ``registry.rollback``, ``target_identity.*``.
    """
    with (
        contextlib.closing(engine_of(route, endpoints, owner=owner)) as engine,
        contextlib.closing(engine.connect("target", cancel=Cancellation(), statement_timeout=statement_timeout)) as session,
    ):
        catalog, authority = build_catalog(route.layout.names), verify_databases(engine, session, route)
        ledger = Ledger(session, catalog, authority)
        require_schemas(engine, session)
        ledger.require_serial(environment=route.environment, serial=route.registry_serial)
        yield View(engine, session, authority, ledger, resolve_identity(engine, session, catalog, route))


@contextmanager
def opened(route: Route, endpoints: EndpointResolver) -> Iterator[tuple[Ledger, RouteIdentity]]:
    """Ledger and identity alone."""
    with looking(route, endpoints) as view:
        yield view.ledger, view.identity


def export_bundle(
    route: Route, *, endpoints: EndpointResolver, output: Path, run_id: str | None = None, map_index: int = -1
) -> dict[str, Any]:
    """Write the evidence of a route, or of one of its runs.

    :param output: directory, new or empty.
    :param run_id: only this run; None for every commit of the route's state key.
    :returns: the index, as written.
    :raises XminError: ``evidence.not_found``, ``evidence.incomplete``, ``registry.output_exists``, ``registry.unwritable``, and what
        looking at the state raises.
    """
    if output.is_dir() and any(output.iterdir()):
        raise XminError("registry.output_exists", f"{output} is not empty.")
    # The state first: what commits while this reads lies beyond its checkpoint and is left out.
    state = state_document(route, endpoints=endpoints)
    with looking(route, endpoints) as view:
        found = find_receipts(view.ledger, view.identity, route, run_id=run_id, map_index=map_index, limit=None)
        bundle = _Bundle(view, route, state, whole=run_id is None)
        bundle.collect(list(reversed(found)))
    if bundle.gaps:
        raise XminError("evidence.incomplete", f"{bundle.gaps[0]}.", details={"gaps": bundle.gaps})
    return bundle.write(output)


class _Bundle:
    """The documents of one export, and what is missing from them."""

    def __init__(self, view: View, route: Route, state: Mapping[str, Any], *, whole: bool) -> None:
        self._view, self._route, self._state, self._whole = view, route, state, whole
        self._documents: dict[str, tuple[str, Any]] = {}
        self._receipts: list[Receipt] = []
        self._unrecorded: list[int] = []
        self.gaps: list[str] = []

    def collect(self, receipts: Sequence[Receipt]) -> None:
        """Read everything that belongs to the receipts.

        :param receipts: oldest first.
        """
        checkpoint = self._state["checkpoint"]
        if self._whole:
            self._documents["state.json"] = ("state", self._state)
            receipts = [one for one in receipts if checkpoint is None or one.new_revision <= checkpoint["revision"]]
            last = checkpoint["revision"] if checkpoint is not None else receipts[-1].new_revision
            missing = sorted(set(range(1, last + 1)) - {one.new_revision for one in receipts})
            self.gaps += [f"revision {revision} has no receipt" for revision in missing]
        self._receipts = list(receipts)
        invocation = None if self._whole else receipts[0].invocation_digest
        attempts = [_attempt(row) for row in self._view.ledger.audits(self._view.identity.state_key, invocation=invocation)]
        self._documents["attempts.json"] = ("attempts", attempts)
        recorded = {attempt["receipt_id"]: attempt["evidence"]["receipt"] for attempt in attempts if attempt["receipt_id"]}
        for receipt in receipts:
            self._one(receipt, recorded.get(str(receipt.receipt_id)))

    def _one(self, receipt: Receipt, recorded: Mapping[str, Any] | None) -> None:
        document, revision = receipt_document(receipt), receipt.new_revision
        self._documents[f"receipts/{revision:08}.json"] = ("receipt", document)
        if recorded is None:
            self._unrecorded.append(revision)
        elif recorded != document:
            self.gaps.append(f"revision {revision}: the attempt's own record contradicts the receipt")
        broken = receipt.counts.violations(reconciled="keys_artifact_sha256" in receipt.digests)
        self.gaps += [f"revision {revision}: the counters contradict each other ({name})" for name in broken]
        if receipt.repair_authority_id is not None:
            self._approval(receipt, receipt.repair_authority_id)
        if receipt.kind == "seed":
            self._campaign(receipt)

    def _approval(self, receipt: Receipt, ref: str) -> None:
        rows = self._view.ledger.list_authorities(limit=1, authority_id=ref)
        authority = authority_of_row(rows[0]) if rows else None
        if authority is None or authority.digest != receipt.repair_authority_digest or rows[0]["receipt_id"] != receipt.receipt_id:
            self.gaps.append(f"revision {receipt.new_revision}: the approval that it consumed is missing or another one")
            return
        self._documents[f"approvals/{ref}.json"] = (
            "consumed_approval",
            {
                "v": EVIDENCE_VERSION,
                "approval": authority.model_dump(mode="json"),
                "digest": authority.digest.hex(),
                "envelope": rows[0]["envelope"],
                "consumed_at_utc": rows[0]["consumed_at_utc"].isoformat(),
                "receipt_id": str(receipt.receipt_id),
            },
        )

    def _campaign(self, seed: Receipt) -> None:
        view, route = self._view, self._route
        ledger = CampaignLedger(view.session, view.ledger.catalog, view.authority)
        key = campaign_key(environment=route.environment, handoff_id=route.handoff_id or "", target=seed.target_identity)
        campaign = ledger.find(key)
        proofs = [] if campaign is None else ledger.chunk_receipts(campaign)
        rows, digest = sum(proof.rows for _, proof in proofs), rows_digest([proof.artifact_sha256 for _, proof in proofs])
        if campaign is None or (len(proofs), rows) != (campaign.chunk_count, seed.counts.payload):
            self.gaps.append(f"revision {seed.new_revision}: the campaign or receipts of its chunks are missing")
        elif digest != seed.digests["rows_artifact_sha256"]:
            self.gaps.append(f"revision {seed.new_revision}: the chunks' receipts contradict the seed")
        else:
            # A chunk's bounds are key values, and no business value leaves in a bundle.
            chunks = [
                {"chunk": n, "receipt_id": str(p.receipt_id), "rows": p.rows, "artifact_sha256": p.artifact_sha256.hex()} for n, p in proofs
            ]
            document = {
                "v": EVIDENCE_VERSION,
                "campaign": key.hex(),
                "handoff_id": campaign.handoff_id,
                "status": campaign.state.value,
                "publication": campaign.publication,
                "opened_at_utc": campaign.created_at.isoformat(),
                "anchor": {
                    "anchor_xmin": campaign.anchor.horizons.safe,
                    "anchor_visible_horizon": campaign.anchor.horizons.visible,
                    "snapshot": campaign.anchor.snapshot,
                },
                "chunks": chunks,
            }
            self._documents["campaign.json"] = ("campaign_receipts", document)

    def write(self, output: Path) -> dict[str, Any]:
        """Write every file, then the index, then the checksums."""
        contents = {path: _json(document) for path, (_, document) in sorted(self._documents.items())}
        first, route = self._receipts[0], self._route
        index = {
            "v": EVIDENCE_VERSION,
            "kind": "dpone.evidence_bundle.v1",
            "product": f"airflow-dpone-xmin {__version__}",
            "exported_at_utc": datetime.now(UTC).replace(tzinfo=None).isoformat(),
            "environment": route.environment,
            "process": route.process,
            "source": f"{route.source.database}.{route.source.schema}.{route.source.relation}",
            "target": route.layout.target.display,
            "state_key": first.state_key.hex(),
            "run": None if self._whole else {"run_id": first.run_id, "map_index": first.map_index},
            "receipts": len(self._receipts),
            "first_revision": first.new_revision,
            "last_revision": self._receipts[-1].new_revision,
            "unrecorded_revisions": self._unrecorded,
            "files": [
                {"path": path, "schema": f"{self._documents[path][0]}.schema.json", "bytes": len(content), "sha256": _sha256(content)}
                for path, content in contents.items()
            ],
        }
        contents["index.json"] = _json(index)
        for path, content in contents.items():
            write_new(output / path, content)
        write_new(output / SUMS, "".join(f"{_sha256(content)}  {path}\n" for path, content in contents.items()).encode())
        return index


def _attempt(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run_id": row["run_id"],
        "map_index": row["map_index"],
        "load_id": str(row["load_id"]),
        "outcome": row["outcome"],
        "error_code": row["error_code"],
        "receipt_id": None if row["receipt_id"] is None else str(row["receipt_id"]),
        "recorded_at_utc": row["recorded_at_utc"].isoformat(),
        "evidence": json.loads(row["evidence"]),
    }


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
