"""The finalizer: target rows, deletes, checkpoint and receipt commit in one transaction, or none does.

Lock, then look: everything that decides is read while holding the application lock on the target identity. The order of steps is
DESIGN step 6; :func:`finalize` reads top to bottom in that order. Imports contracts, policy and the target's own modules.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Table

from airflow_dpone_xmin.contracts.envelope import Envelope, Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import CONTRACT_VERSION
from airflow_dpone_xmin.contracts.route import DeleteMode, Route
from airflow_dpone_xmin.contracts.state import ActionCounts, Checkpoint, Classification, Head, Invocation, Receipt
from airflow_dpone_xmin.policy.guards import judge_deletes, judge_min_rows, observed_ratio
from airflow_dpone_xmin.target.catalog import Catalog
from airflow_dpone_xmin.target.classify import AFTER, BEFORE, classification_pass, presence_pass, read_classification, summary
from airflow_dpone_xmin.target.dml import Actions
from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.identity import TargetBinding, resolve_binding
from airflow_dpone_xmin.target.ledger import Ledger, server_time
from airflow_dpone_xmin.target.session import Session
from airflow_dpone_xmin.target.staging import Staged
from airflow_dpone_xmin.target.tables import target_table


@dataclass(frozen=True, slots=True)
class Position:
    """What admission saw: compared again under the lock."""

    checkpoint: Checkpoint | None
    head: Head | None

    def agrees(self, state_key: bytes) -> bool:
        """Whether head and checkpoint name the same commit; False means that target or state was restored or failed over."""
        if self.checkpoint is None:
            return self.head is None or self.head.state_key != state_key
        return self.head == Head(state_key=state_key, revision=self.checkpoint.revision, load_id=self.checkpoint.load_id)


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that one commit needs, frozen before the transaction begins."""

    route: Route
    invocation: Invocation
    invocation_digest: bytes
    load_id: UUID
    binding: TargetBinding
    state_key: bytes
    scope_hash: bytes
    schema_hash: bytes
    position: Position
    envelope: Envelope
    staged: Staged
    target_authority_digest: bytes
    registry_serial: int

    @property
    def resource(self) -> str:
        """The application lock of the target."""
        return lock_resource(self.binding.identity)


def lock_resource(target_identity: bytes) -> str:
    """Name of the application lock that serialises all writers of one target."""
    return f"dpone:target:{target_identity.hex()}"


class CommitInDoubt(Exception):
    """COMMIT was sent and its answer is unknown; only the receipt can tell."""


def finalize(engine: Engine, session: Session, catalog: Catalog, work: Work) -> Receipt:
    """Run the one transaction.

    :param session: a session in the target's database, outside any transaction.
    :returns: the new receipt, or the one that an earlier attempt of this invocation committed.
    :raises XminError: guards, ``reconcile.*``, ``checkpoint.conflict``, ``target_ownership.conflict`` and the engine's codes, after
        the rollback.
    :raises CommitInDoubt: the outcome must be probed in a new session; this one is closed.
    """
    target = target_table(work.route.layout.target.name, work.envelope.projection, work.route.delete_mode)
    engine.begin_exclusive(session, resource=work.resource, tables=[target], timeout=work.route.target_lock_timeout)
    try:
        ledger = Ledger(session, catalog)
        found = ledger.find_receipt(work.invocation_digest)
        if found is not None:
            engine.rollback(session)
            return found
        _recheck(session, catalog, ledger, work)
        receipt = _Transaction(engine, session, ledger, target, work).run()
        _commit(engine, session, work)
        return receipt
    except CommitInDoubt:
        # The lock may go only when the outcome is known, and the server knows it once the session has ended.
        session.close()
        raise
    except BaseException:
        engine.rollback(session)
        raise
    finally:
        engine.release(session, resource=work.resource)


def _commit(engine: Engine, session: Session, work: Work) -> None:
    try:
        engine.commit(session, resource=work.resource)
    except XminError as error:
        if error.code == "mssql_transaction.session_invalid":
            raise
        raise CommitInDoubt from error
    except Exception as error:
        raise CommitInDoubt from error


def _recheck(session: Session, catalog: Catalog, ledger: Ledger, work: Work) -> None:
    """Identity, owner, checkpoint and head are still what admission saw."""
    binding = resolve_binding(session, catalog, work.route.layout.target, environment=work.route.environment)
    if binding != work.binding:
        raise XminError("target_identity.mismatch", "The target's identity row changed while the run was working.")
    owner = ledger.active_owner(work.binding.identity)
    if owner not in (None, work.state_key):
        raise XminError(
            "target_ownership.conflict",
            "Another state key owns the target.",
            details={"owner_state_key": owner.hex() if owner else "", "state_key": work.state_key.hex()},
        )
    now = Position(checkpoint=ledger.read_checkpoint(work.state_key), head=ledger.read_head(work.binding.identity))
    if now != work.position:
        raise XminError("checkpoint.conflict", "Another run committed while this one was working.")


class _Transaction:
    """The steps between the recheck and the commit."""

    def __init__(self, engine: Engine, session: Session, ledger: Ledger, target: Table, work: Work) -> None:
        self._engine, self._session, self._ledger, self._target, self._work = engine, session, ledger, target, work
        self._mode = work.route.delete_mode
        self._projection = work.envelope.projection
        self._difference = engine.difference_table(session, self._projection)

    def run(self) -> Receipt:
        detected_at = server_time(self._session)
        before = self._classify(BEFORE)
        self._guard(before)
        counts = self._act(before, detected_at)
        return self._record(counts, detected_at)

    def _classify(self, number: int) -> Classification:
        staged = self._work.staged
        if self._mode.reconciles:
            assert staged.keys is not None
            statement = classification_pass(
                self._difference, self._target, staged.keys, projection=self._projection, mode=self._mode, number=number
            )
        else:
            statement = presence_pass(
                self._difference, self._target, staged.rows, projection=self._projection, mode=self._mode, number=number
            )
        self._session.execute("finalize.classify", statement)
        return read_classification(self._session.rows("finalize.summary", summary(self._difference, number=number)))

    def _guard(self, before: Classification) -> None:
        """Everything that stops a run before its first business DML."""
        work, staged = self._work, self._work.staged
        if self._mode.reconciles and before.keys != staged.keys_count:
            raise XminError("reconcile.invariant", "The classification did not see every key.", details=_counts(before))
        if work.position.checkpoint is None and before.active + before.retained > 0:
            raise self._stopped("checkpoint.missing", "The target has rows but this state key has no checkpoint.", before)
        if staged.keys_count == 0 and (self._mode.reconciles or work.envelope.payload is Payload.FULL):
            raise self._stopped("guard.empty_snapshot", "The source snapshot holds no rows.", before)
        verdict = judge_deletes(missing=before.missing, active_before=before.active, guards=work.route.guards)
        if verdict.exceeded:
            raise self._stopped(
                "guard.deletes_exceeded",
                f"{before.missing} of {before.active} active rows are missing at the source; limits exceeded: "
                f"{', '.join(verdict.exceeded)}.",
                before,
            )

    def _act(self, before: Classification, detected_at: datetime) -> ActionCounts:
        """One statement per action, skipped when it has nobody to act upon; then look again."""
        work, staged = self._work, self._work.staged
        actions = Actions(
            self._target,
            staged.rows,
            self._difference,
            projection=self._projection,
            mode=self._mode,
            load_id=work.load_id,
            detected_at=detected_at,
        )
        some = staged.rows_count > 0
        changeable = some and bool(self._projection.value_columns) and before.active - before.missing > 0
        deleted = self._execute("finalize.delete", actions.delete_missing, when=before.missing > 0)
        reactivated = self._execute("finalize.reactivate", actions.reactivate, when=some and before.tombstoned > 0)
        updated = self._execute("finalize.update", actions.update_changed, when=changeable)
        inserted = self._execute("finalize.insert", actions.insert_absent, when=some and before.absent > 0)
        after = self._classify(AFTER)
        if after.missing or after.absent or after.tombstoned:
            raise self._stopped(
                "reconcile.full_repair_required", "Keys remain whose rows are not in the payload, or rows whose keys are gone.", after
            )
        hard = self._mode is DeleteMode.HARD
        counts = ActionCounts(
            payload=staged.rows_count,
            keys=staged.keys_count if staged.keys_count is not None else after.active,
            inserted=inserted,
            updated=updated,
            reactivated=reactivated,
            unchanged=staged.rows_count - inserted - updated - reactivated,
            soft_deleted=0 if hard else deleted,
            hard_deleted=deleted if hard else 0,
            active_before=before.active,
            active_after=after.active,
            total_after=after.active + after.retained,
        )
        self._prove(before, counts, deleted=deleted)
        return counts

    def _execute(self, label: str, build: Callable[[], Any], *, when: bool) -> int:
        return self._session.execute(label, build()) if when else 0

    def _prove(self, before: Classification, counts: ActionCounts, *, deleted: int) -> None:
        """The server's counts must equal the classification's populations, and the formulas must hold."""
        broken = counts.violations(reconciled=self._mode.reconciles)
        expected = {"inserted": before.absent, "deleted": before.missing}
        if self._mode.reconciles:
            expected["reactivated"] = before.tombstoned
        seen = {"inserted": counts.inserted, "deleted": deleted, "reactivated": counts.reactivated}
        broken += [name for name, value in expected.items() if seen[name] != value]
        if broken:
            raise XminError(
                "reconcile.invariant",
                f"Counters contradict each other: {', '.join(sorted(set(broken)))}.",
                details={**counts.to_dict(), **_counts(before)},
            )
        judge_min_rows(active_after=counts.active_after, gates=self._work.route.min_rows)

    def _record(self, counts: ActionCounts, detected_at: datetime) -> Receipt:
        """Checkpoint by compare-and-set, head, receipt, audit: the last writes before the commit."""
        work, route, envelope = self._work, self._work.route, self._work.envelope
        checkpoint, head = work.position.checkpoint, work.position.head
        base = max(checkpoint.revision if checkpoint else 0, head.revision if head and head.state_key == work.state_key else 0)
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
            route_fingerprint=route.route_fingerprint,
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
            digests=_digests(work),
        )
        self._ledger.write_checkpoint(_checkpoint_row(work, receipt), previous=checkpoint)
        self._ledger.write_head(
            work.binding.identity,
            Head(state_key=work.state_key, revision=receipt.new_revision, load_id=work.load_id),
            exists=head is not None,
        )
        self._ledger.write_receipt(receipt, registry_serial=work.registry_serial)
        self._ledger.close_invocation(work.invocation_digest, status="committed", error_code=None)
        return receipt

    def _stopped(self, code: str, message: str, seen: Classification) -> XminError:
        """A refusal with the exact binding that an approver needs (reference "One-shot repair and mass-delete approval")."""
        work, checkpoint = self._work, self._work.position.checkpoint
        binding = {
            "environment": work.route.environment,
            "state_key": work.state_key.hex(),
            "scope_hash": work.scope_hash.hex(),
            "checkpoint_xmin": checkpoint.xmin if checkpoint else None,
            "checkpoint_revision": checkpoint.revision if checkpoint else None,
            "observed_missing": seen.missing,
            "observed_active": seen.active,
            "observed_ratio": observed_ratio(seen.missing, seen.active),
        }
        return XminError(code, message, details={"binding": binding, **_counts(seen)})


def _counts(seen: Classification) -> dict[str, int]:
    return {name: getattr(seen, name) for name in ("matched", "missing", "absent", "tombstoned", "retained")}


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
        "revision": receipt.new_revision,
        "source_authority_digest": route.authorities.digests["source"],
        "target_authority_digest": work.target_authority_digest,
        "projection_fingerprint": work.envelope.projection.fingerprint,
        "load_id": work.load_id,
        "receipt_id": receipt.receipt_id,
        "superseded_at_utc": None,
        "superseded_by_state_key": None,
    }


def probe(engine: Engine, session: Session, catalog: Catalog, *, invocation_digest: bytes, resource: str, timeout: float) -> Receipt | None:
    """Decide a commit in doubt: a receipt found at any time means committed; absent under the lock means rolled back.

    :param session: a new session in the target's database.
    :returns: the receipt, or None when the transaction rolled back.
    :raises XminError: ``mssql_transaction.commit_outcome_unknown`` when the lock is not to be had.
    """
    ledger = Ledger(session, catalog)
    found = ledger.find_receipt(invocation_digest)
    if found is not None:
        return replace(found, replayed=False)
    try:
        engine.begin_exclusive(session, resource=resource, tables=[], timeout=timeout)
    except XminError as error:
        raise XminError(
            "mssql_transaction.commit_outcome_unknown",
            "The commit was sent, its answer was lost, and the target's lock is still held.",
            details={"cause": error.code},
        ) from None
    try:
        found = ledger.find_receipt(invocation_digest)
        engine.rollback(session)
    finally:
        engine.release(session, resource=resource)
    return None if found is None else replace(found, replayed=False)
