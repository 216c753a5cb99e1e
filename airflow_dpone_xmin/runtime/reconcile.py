"""One incremental run, top to bottom: admit, extract, stage, finalize, prove, clean up (design.md "One incremental run").

Imports everything below runtime; knows nothing of Airflow or the command line.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.envelope import Envelope, SourceRequest
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress, silent
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.contracts.state import Invocation, Receipt
from airflow_dpone_xmin.runtime.admission import Admitted, RouteIdentity, admit, approval_binding, source_prior
from airflow_dpone_xmin.runtime.evidence import Outcome, Recorder, evidence_document, refusal_document
from airflow_dpone_xmin.runtime.workdir import AttemptDirectory, sweep_directories, work_base
from airflow_dpone_xmin.source.extract import extract
from airflow_dpone_xmin.target.authority import VerifiedDatabases, verify_databases
from airflow_dpone_xmin.target.connect import ddl_dialect, engine_of
from airflow_dpone_xmin.target.engine import LOCK_SECONDS, Engine, Session
from airflow_dpone_xmin.target.evolution import Evolution, apply_evolution, plan_evolution
from airflow_dpone_xmin.target.finalize import Preview, finalize, preview
from airflow_dpone_xmin.target.gate import approvable
from airflow_dpone_xmin.target.lease import AFTERWARDS_SECONDS, StagingLease, staging_lease
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.repair import RepairSelection
from airflow_dpone_xmin.target.staging import stage_envelope
from airflow_dpone_xmin.target.transaction import CommitInDoubt, outcome_unknown, probe, rolled_back
from airflow_dpone_xmin.target.work import Position, Work

APPROVABLE = frozenset({"checkpoint.missing", "target_ownership.conflict", "xmin_window.strict_stop"})
"""Refusals before the target is looked at that a repair authority admits; those of the finalizer carry their binding already."""


def reconcile(
    route: Route,
    invocation: Invocation,
    *,
    endpoints: EndpointResolver,
    repair: RepairSelection | None = None,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> Outcome:
    """Make the target equal to one snapshot of the source, or change nothing.

    :param route: from ``policy.route.resolve_routes`` over a verified registry.
    :param invocation: scheduler identity; a second attempt of it answers from the receipt.
    :param repair: one-shot approval of an exceptional run.
    :returns: the committed or replayed outcome.
    :raises XminError: every refusal and fault, with its code; nothing was committed unless the outcome says so.
    """
    recorder = Recorder(progress)
    with _admitted(route, invocation, endpoints=endpoints, repair=repair, progress=recorder, cancel=cancel) as run:
        receipt = run.admitted.receipt
        if receipt is not None:
            _require_same_approval(receipt, repair)
            recorder(Progress("RECEIPT_REPLAYED", note=f"receipt {receipt.receipt_id}; the source was not opened"))
            return Outcome(receipt=receipt, attempt=run.admitted.attempt)
        return run.finish(run.commit(), recorder)


def _require_same_approval(receipt: Receipt, repair: RepairSelection | None) -> None:
    """A replay is no answer to an approval that the run did not use; :raises XminError: ``repair_authority.unused``."""
    if repair is not None and receipt.repair_authority_id != repair.ref:
        message = f"Run {receipt.run_id!r} had committed without {repair.ref!r} before; its receipt is {receipt.receipt_id}."
        raise XminError("repair_authority.unused", message, hint="An exceptional run needs a run id of its own.")


def dry_run(
    route: Route,
    invocation: Invocation,
    *,
    endpoints: EndpointResolver,
    repair: RepairSelection | None = None,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> Preview:
    """Extract, stage and classify under the lock, then roll back: what a run would do, and what would stop it.

    Parameters and errors as :func:`reconcile`. The invocation is admitted, so that a later real run of the same id is its retry.
    """
    with _admitted(route, invocation, endpoints=endpoints, repair=repair, progress=progress, cancel=cancel) as run:
        if run.admitted.receipt is not None:
            raise XminError("evidence.already_committed", "This invocation has already committed.", details={"run_id": invocation.run_id})
        seen = run.preview()
        if seen.refusal is not None:
            run.record_failure(seen.refusal)
        return seen


@contextmanager
def _admitted(
    route: Route,
    invocation: Invocation,
    *,
    endpoints: EndpointResolver,
    repair: RepairSelection | None,
    progress: Listener,
    cancel: Cancellation | None,
) -> Iterator[_Run]:
    """The attempt, admitted on sessions of their own, with the engine that it works on."""
    cancel = cancel or Cancellation()
    with contextlib.closing(engine_of(route, endpoints)) as engine:
        with ExitStack() as stack:
            session, state = (stack.enter_context(contextlib.closing(engine.connect(role, cancel=cancel))) for role in ("target", "state"))
            admitted = admit(engine, session, state, route, invocation=invocation)
        yield _Run(engine, route, invocation, admitted, endpoints=endpoints, repair=repair, progress=progress, cancel=cancel)


class _Run:
    """One admitted attempt."""

    def __init__(
        self,
        engine: Engine,
        route: Route,
        invocation: Invocation,
        admitted: Admitted,
        *,
        endpoints: EndpointResolver,
        repair: RepairSelection | None,
        progress: Listener,
        cancel: Cancellation,
    ) -> None:
        self._engine, self._route, self._invocation, self.admitted = engine, route, invocation, admitted
        self._endpoints, self._repair, self._progress, self._cancel = endpoints, repair, progress, cancel
        self._keep_stages = False
        self._cleanup_error: XminError | None = None
        self._evolution: Evolution | None = None

    def commit(self) -> Receipt:
        """Extract, stage and finalize; decide a commit in doubt."""
        with self._prepared() as work:
            started = time.monotonic()
            try:
                with self._target_session() as (session, authority):
                    receipt = finalize(self._engine, session, self.admitted.catalog, work, authority=authority)
            except CommitInDoubt as doubt:
                receipt = self._decide(work, doubt)
            self._progress(Progress("FINALIZE_COMPLETE", rows=receipt.counts.payload, seconds=time.monotonic() - started))
            return receipt

    def preview(self) -> Preview:
        """The same, up to the classification."""
        with self._prepared(report=True) as work, self._target_session() as (session, authority):
            seen = preview(self._engine, session, self.admitted.catalog, work, authority=authority)
            if seen.refusal is None:
                ledger = Ledger(session, self.admitted.catalog, authority)
                ledger.close_invocation(self.admitted.invocation_digest, status="previewed", error_code=None)
            return seen

    @contextmanager
    def _prepared(self, *, report: bool = False) -> Iterator[Work]:
        """The extraction, staged and proven; removed afterwards unless the outcome is unknown. What stops the run is kept as its audit.

        :param report: a dry run: nothing is changed, the target's shape included, and no stop comes before the classification.
        """
        try:
            admitted, base = self.admitted, work_base(self._route)
            sweep_directories(base, keep=admitted.load_id)
            with ExitStack() as stack:
                directory = stack.enter_context(AttemptDirectory(base, admitted.load_id))
                try:
                    envelope = self._extract(directory.path, report=report)
                except XminError as error:
                    raise self._told(error) from None
                self._evolve(envelope.projection)
                lease = stack.enter_context(staging_lease(self._engine, self._route, admitted.load_id, cancel=self._cancel))
                stack.callback(self._drop_stages, lease)
                lease.sweep(admitted.catalog, admitted.identity.binding.identity, progress=self._progress, cancel=self._cancel)
                staged = stage_envelope(
                    self._engine, lease.work, envelope, load_id=admitted.load_id, lease=lease, progress=self._progress, cancel=self._cancel
                )
                identity = admitted.identity
                lease.check()
                yield Work(
                    route=self._route,
                    invocation=self._invocation,
                    invocation_digest=admitted.invocation_digest,
                    load_id=admitted.load_id,
                    binding=identity.binding,
                    state_key=identity.state_key,
                    scope_hash=identity.scope_hash,
                    schema_hash=identity.schema_hash,
                    position=admitted.position,
                    envelope=envelope,
                    staged=staged,
                    target_authority_digest=identity.target_authority_digest,
                    repair=self._repair,
                )
        except BaseException as error:
            self.record_failure(error)
            raise

    def _extract(self, work_dir: Path, *, report: bool) -> Envelope:
        route, admitted, repair = self._route, self.admitted, self._repair
        with self._target_session() as (session, authority):
            ledger = Ledger(session, admitted.catalog, authority)
            prior = source_prior(
                session, ledger, route, identity=admitted.identity, position=admitted.position, repair=repair, report=report
            )

        def accept(projection: Projection) -> None:
            self._evolution = needed_evolution(self._engine, route, admitted.identity, admitted.position, projection)
            if self._evolution is not None:
                self._require_right(self._evolution, report=report)

        endpoint = self._endpoints(route.source.entry, conn_id=route.source_conn_id)
        request = source_request(route, work_dir=work_dir)
        return extract(endpoint, request, prior, accept=accept, progress=self._progress, cancel=self._cancel)

    def _require_right(self, evolution: Evolution, *, report: bool) -> None:
        """Refuse before any row moves what the login could not change afterwards."""
        if report:
            raise evolution.required(self._route, "a dry run changes nothing")
        if not self._route.evolve:
            raise evolution.required(self._route, "`schema_evolution.enabled` is false")
        with self._target_session() as (session, _):
            if not self._engine.may_alter(session, self._route.layout.target):
                raise evolution.required(self._route, "the runtime login may not alter it")

    def _evolve(self, projection: Projection) -> None:
        if self._evolution is None:
            return
        route, admitted = self._route, self.admitted
        with self._target_session() as (session, _):
            dialect, binding = ddl_dialect(route.layout), admitted.identity.binding
            apply_evolution(self._engine, session, dialect, admitted.catalog, route=route, projection=projection, binding=binding)
        self._progress(Progress("TARGET_EVOLVED", note="; ".join(change.sentence() for change in self._evolution.changes)))

    def _told(self, error: XminError) -> XminError:
        """A refusal that an approval could admit, with the binding of this run and the command that proposes it."""
        if error.code not in APPROVABLE:
            return error
        binding = error.details.get("binding") or approval_binding(self._route, self.admitted.identity, self.admitted.position)
        return approvable(error, binding=binding, route=self._route, invocation=self._invocation)

    @contextmanager
    def _target_session(self, *, lock_timeout: float = LOCK_SECONDS) -> Iterator[tuple[Session, VerifiedDatabases]]:
        """A fresh session, its databases proven again: the servers may have failed over while rows were extracted."""
        with contextlib.closing(self._engine.connect("target", cancel=self._cancel, lock_timeout=lock_timeout)) as session:
            yield session, verify_databases(self._engine, session, self._route)

    def _afterwards(self) -> None:
        """A cancelled run still wants to know and to say how it ended; a cancellation from now on counts again."""
        fresh = Cancellation()
        if not self._cancel.cancelled:
            self._cancel.on_cancel(fresh.cancel)
        self._cancel = fresh

    def _decide(self, work: Work, doubt: CommitInDoubt) -> Receipt:
        """Lock, then look, in a new session."""
        self._keep_stages = True
        self._afterwards()
        with outcome_unknown(), self._target_session(lock_timeout=AFTERWARDS_SECONDS) as (session, authority):
            ledger = Ledger(session, self.admitted.catalog, authority)
            timeout = self._route.target_lock_timeout
            receipt = probe(
                self._engine, session, lambda: ledger.find_receipt(work.invocation_digest), resource=work.resource, timeout=timeout
            )
        self._keep_stages = False
        if receipt is not None:
            return replace(receipt, replayed=False)
        raise rolled_back(doubt) from None

    def _drop_stages(self, lease: StagingLease) -> None:
        """Best effort, and only where the lease still holds: what stays is swept by the next run."""
        if self._keep_stages:
            return
        try:
            lease.drop(self._cancel)
        except XminError as error:
            self._uncleaned(error)

    def _uncleaned(self, error: XminError) -> None:
        self._cleanup_error = self._cleanup_error or error
        self._progress(Progress("CLEANUP_FAILED", note=error.code))

    def finish(self, receipt: Receipt, recorder: Recorder) -> Outcome:
        """The audit row: a fault here cannot undo the commit and is told as a committed outcome."""
        leftover = work_base(self._route) / self.admitted.load_id.hex
        if leftover.exists():
            self._uncleaned(XminError("storage.write_failed", "The attempt's work directory could not be removed."))
        outcome = Outcome(receipt=receipt, attempt=self.admitted.attempt, phases=tuple(recorder.phases), cleanup_error=self._cleanup_error)
        try:
            self._audit(outcome="committed", error=None, receipt=receipt, evidence=json.dumps(evidence_document(self._route, outcome)))
        except XminError as error:
            return replace(outcome, cleanup_error=outcome.cleanup_error or error)
        return outcome

    def record_failure(self, error: BaseException) -> None:
        """Audit what stopped the run, on a session of its own; never hides the error itself."""
        known = error if isinstance(error, XminError) else XminError("run.unexpected", f"Unexpected {type(error).__name__}.")
        unknown = known.code == "mssql_transaction.commit_outcome_unknown"
        with contextlib.suppress(XminError):  # the caller has the error itself
            status = "unknown" if unknown else "refused"
            evidence = json.dumps(refusal_document(self._route, known, status=status), default=str)
            self._audit(outcome=status, error=known, receipt=None, evidence=evidence)

    def _audit(self, *, outcome: str, error: XminError | None, receipt: Receipt | None, evidence: str) -> None:
        admitted = self.admitted
        self._afterwards()
        with self._target_session(lock_timeout=AFTERWARDS_SECONDS) as (session, authority):
            ledger = Ledger(session, admitted.catalog, authority)
            # A transaction in doubt may still hold the invocation's row.
            if error is not None and outcome != "unknown":
                ledger.close_invocation(admitted.invocation_digest, status=outcome, error_code=error.code)
            ledger.write_audit(
                {
                    "audit_id": uuid.uuid4(),
                    "load_id": admitted.load_id,
                    "invocation_digest": admitted.invocation_digest,
                    "process": self._invocation.process,
                    "run_id": self._invocation.run_id,
                    "map_index": self._invocation.map_index,
                    "target_identity": admitted.identity.binding.identity,
                    "state_key": admitted.identity.state_key,
                    "outcome": outcome,
                    "error_code": error.code if error else None,
                    "receipt_id": receipt.receipt_id if receipt else None,
                    "evidence": evidence,
                }
            )


def needed_evolution(engine: Engine, route: Route, identity: RouteIdentity, position: Position, projection: Projection) -> Evolution | None:
    """What must change in the live target before this projection fits; None when it fits.

    :raises XminError: ``DPONE_TARGET_UNSUPPORTED`` for what no safe change mends.
    """
    checkpoint = position.checkpoint
    changed = checkpoint is not None and checkpoint.projection_fingerprint != projection.fingerprint
    return plan_evolution(engine, ddl_dialect(route.layout), identity.facts, route, projection, source_changed=changed)


def source_request(route: Route, *, work_dir: Path) -> SourceRequest:
    """The source half of a route."""
    return SourceRequest(
        identity=route.source,
        authority=route.authorities.source,
        relation_key=route.authorities.relation_key,
        alias=route.source_alias,
        key=route.key,
        work_dir=work_dir,
        string_columns=route.string_columns,
        type_overrides=route.type_overrides,
        window=route.window,
        max_replay_amplification=route.max_replay_amplification,
        with_keys=route.delete_mode.reconciles,
        lock_timeout_seconds=route.source_lock_timeout,
        deadline_seconds=route.source_deadline,
        min_free_bytes=route.min_free_bytes,
    )
