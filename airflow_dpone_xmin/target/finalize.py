"""The finalizer: target rows, deletes, checkpoint and receipt commit in one transaction, or none does.

Lock, then look: everything that decides is read while holding the application lock on the target identity. The order of steps is that of
design.md "One incremental run", step 6; :func:`finalize` reads top to bottom in that order. Imports contracts, policy and the target's own
modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Table, select

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import DeleteMode
from airflow_dpone_xmin.contracts.state import ActionCounts, Classification, Receipt
from airflow_dpone_xmin.policy.repair import RepairBinding, admit_transfer, judge_min_rows
from airflow_dpone_xmin.target.authority import VerifiedDatabases
from airflow_dpone_xmin.target.campaign_ledger import require_unfenced
from airflow_dpone_xmin.target.catalog import Catalog, server_time
from airflow_dpone_xmin.target.classify import (
    AFTER,
    BEFORE,
    PASS_HINT,
    classification_pass,
    presence_pass,
    read_classification,
    summary,
    unmatched_rows,
)
from airflow_dpone_xmin.target.dml import Actions
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import TableFacts
from airflow_dpone_xmin.target.gate import DRIFT, Competitor, Gate, counts_of, stopped
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.record import record_of, write_record
from airflow_dpone_xmin.target.repair import admitted_authority
from airflow_dpone_xmin.target.shape import live_key, live_table, require_shape
from airflow_dpone_xmin.target.sql import Count, target_table
from airflow_dpone_xmin.target.transaction import commit_or_doubt, exclusive
from airflow_dpone_xmin.target.work import Position, Work, require_binding


def finalize(engine: Engine, session: Session, catalog: Catalog, work: Work, *, authority: VerifiedDatabases) -> Receipt:
    """Run the one transaction.

    :param session: a session in the target's database, outside any transaction.
    :param authority: proof that the session's databases are the signed ones.
    :returns: the new receipt, or the one that an earlier attempt of this invocation committed.
    :raises XminError: guards, ``repair_authority.*``, ``reconcile.*``, ``checkpoint.conflict``, ``target_ownership.conflict`` and the
        engine's codes, after the rollback.
    :raises CommitInDoubt: the outcome must be probed in a new session; this one is closed.
    """
    with _locked(engine, session, work) as target:
        ledger = Ledger(session, catalog, authority)
        found = ledger.find_receipt(work.invocation_digest)
        if found is not None:
            engine.rollback(session)
            return found
        live = _require_same_table(engine, session, work)
        gate = _admit(session, catalog, ledger, work)
        receipt = _Transaction(engine, session, ledger, target, live, work, gate).run()
        commit_or_doubt(engine, session, resource=work.resource)
        return receipt


@dataclass(frozen=True, slots=True)
class Preview:
    """What a commit would find.

    :param payload: which rows were extracted, and *reason* why.
    :param refusal: what would stop it.
    :param repair: the approval that it would consume.
    """

    classification: Classification
    payload: Payload
    reason: str
    refusal: XminError | None = None
    repair: RepairAuthority | None = None


def preview(engine: Engine, session: Session, catalog: Catalog, work: Work, *, authority: VerifiedDatabases) -> Preview:
    """Classify and judge under the lock, then roll back: nothing is written.

    :raises XminError: as :func:`finalize`, for everything before the classification.
    """
    with _locked(engine, session, work) as target:
        ledger = Ledger(session, catalog, authority)
        live = _require_same_table(engine, session, work)
        gate = _admit(session, catalog, ledger, work)
        seen = _Transaction(engine, session, ledger, target, live, work, gate).preview()
        engine.rollback(session)
        return seen


@contextmanager
def _locked(engine: Engine, session: Session, work: Work) -> Iterator[Table]:
    """The exclusive transaction on the target, and the table it writes."""
    target = target_table(work.route.layout.target.name, work.envelope.projection, work.route.delete_mode)
    with exclusive(engine, session, resource=work.resource, timeout=work.route.target_lock_timeout, tables=[target]):
        yield target


def _require_same_table(engine: Engine, session: Session, work: Work) -> TableFacts:
    """The table under the lock still has the shape that this route writes: a trigger added meanwhile would change rows unseen.

    :raises XminError: ``DPONE_TARGET_UNSUPPORTED``.
    """
    live = live_table(engine, session, work.route.layout.target)
    require_shape(engine, live, work.route, work.envelope.projection)
    return live


def _admit(session: Session, catalog: Catalog, ledger: Ledger, work: Work) -> Gate:
    """Identity, checkpoint and head are still what admission saw; the approval is admitted before the ownership is judged."""
    require_binding(session, catalog, work.binding, environment=work.route.environment)
    require_unfenced(session, catalog, work.binding.identity)
    now = Position(checkpoint=ledger.read_checkpoint(work.state_key), head=ledger.read_head(work.binding.identity))
    if now != work.position:
        raise XminError("checkpoint.conflict", "Another run committed while this one was working.")
    repair = None
    if work.repair is not None:
        bound = RepairBinding(work.route.environment, work.state_key, work.scope_hash, now.checkpoint)
        repair = admitted_authority(ledger, work.repair, bound, now=server_time(session))
    return Gate(work, repair, competing=_own(ledger, work, repair))


def _own(ledger: Ledger, work: Work, repair: RepairAuthority | None) -> Competitor | None:
    """One active owner per target; an approval may end exactly one old ownership. Returns an owner that stays."""
    owner = ledger.active_owner(work.binding.identity)
    if repair is not None and repair.transfer is not None:
        old = None if owner is None or owner == work.state_key else ledger.read_checkpoint(owner)
        admit_transfer(repair, owner=owner, owner_checkpoint=old)
        if owner is not None and old is not None:  # admitted: both are the approved ones
            ledger.supersede(owner, by=work.state_key, previous=old)
    elif owner is not None and owner != work.state_key:
        return owner_position(ledger, owner)
    return None


def owner_position(ledger: Ledger, owner: bytes) -> Competitor:
    """An owner as a transfer must name it, and as people know it."""
    old = ledger.read_checkpoint(owner)
    position = {"state_key": owner.hex(), "xmin": old.xmin if old else None, "revision": old.revision if old else None}
    return Competitor(process=ledger.process_of(owner), position=position)


class _Transaction:
    """The steps between the admission and the commit."""

    def __init__(self, engine: Engine, session: Session, ledger: Ledger, target: Table, live: TableFacts, work: Work, gate: Gate) -> None:
        self._session, self._ledger, self._target, self._work, self._gate = session, ledger, target, work, gate
        self._mode = work.route.delete_mode
        self._projection = work.envelope.projection
        self._difference = engine.difference_table(session, live_key(engine, self._projection, live))

    def run(self) -> Receipt:
        detected_at = server_time(self._session)
        self._require_payload()
        before = self._classify(BEFORE)
        self._gate.judge(before, drift=self._drifted(before))
        counts = self._act(before, detected_at)
        return write_record(self._ledger, record_of(self._work), counts=counts, detected_at=detected_at, repair=self._gate.repair)

    def preview(self) -> Preview:
        before = self._classify(BEFORE)
        seen = Preview(before, self._work.envelope.payload, self._work.envelope.reason)
        try:
            self._gate.judge(before, drift=self._drifted(before))
        except XminError as error:
            return replace(seen, refusal=error)
        return replace(seen, repair=self._gate.repair)

    def _require_payload(self) -> None:
        """The payload is still the proven one: what the counters call unchanged must not be what got lost meanwhile."""
        staged = self._work.staged
        if staged.rows is staged.keys and self._mode.reconciles:
            return  # the classification counts every one of them
        rows = staged.rows.rows
        seen = self._session.scalar("finalize.payload", select(Count()).select_from(rows).with_hint(rows, PASS_HINT, "mssql"))
        if seen != staged.rows_count:
            raise XminError(
                "reconcile.invariant",
                "The staged payload is no longer the proven one.",
                details={"proven_rows": staged.rows_count, "staged_rows": int(seen)},
            )

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

    def _drifted(self, before: Classification) -> bool:
        """Whether keys without an active row outnumber the rows that the payload brings for such keys; it holds no row without a key."""
        lacking = before.absent + before.tombstoned
        if self._work.envelope.payload is Payload.FULL or not self._mode.reconciles or not lacking:
            return False
        statement = unmatched_rows(self._target, self._work.staged.rows, projection=self._projection, mode=self._mode)
        return int(self._session.scalar("finalize.drift", statement)) < lacking

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
        # Nothing to look up where every row is new: an empty target's statistics would make it a loop over what was just inserted.
        all_new = before.absent == staged.rows_count and staged.keys in (None, staged.rows)
        changeable = some and bool(self._projection.value_columns) and before.active - before.missing > 0
        deleted = self._execute("finalize.delete", actions.delete_missing, when=before.missing > 0)
        # Before the reactivation, which may take over a unique value that an active row gives up.
        updated = self._execute("finalize.update", actions.update_changed, when=changeable)
        reactivated = self._execute("finalize.reactivate", actions.reactivate, when=some and before.tombstoned > 0)
        insert = actions.append if all_new else actions.insert_absent
        inserted = self._execute("finalize.insert", insert, when=some and before.absent > 0)
        after = self._classify(AFTER)
        if after.missing or after.absent or after.tombstoned:
            raise stopped(work, "reconcile.full_repair_required", DRIFT, before, repair=self._gate.repair, baseline=True, now=after)
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
                details={**counts.to_dict(), **counts_of(before)},
            )
        judge_min_rows(active_after=counts.active_after, gates=self._work.route.min_rows)
