"""One incremental run, top to bottom: admit, extract, stage, finalize, prove, clean up (DESIGN "One incremental run").

Imports everything below runtime; knows nothing of Airflow or the command line.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.endpoint import EndpointResolver
from airflow_dpone_xmin.contracts.envelope import Envelope
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress, silent
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.source import SourceRequest
from airflow_dpone_xmin.contracts.state import Invocation, Receipt
from airflow_dpone_xmin.runtime.admission import Admitted, admit
from airflow_dpone_xmin.runtime.engines import engine_of
from airflow_dpone_xmin.runtime.evidence import Outcome, Recorder, evidence_document, refusal_document
from airflow_dpone_xmin.runtime.workdir import AttemptDirectory, sweep_directories, work_base
from airflow_dpone_xmin.source.extract import extract
from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.finalize import CommitInDoubt, Work, finalize, lock_resource, probe
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.session import Session
from airflow_dpone_xmin.target.shape import require_shape
from airflow_dpone_xmin.target.staging import StagingLease, stage_envelope, sweep


def reconcile(
    route: Route,
    invocation: Invocation,
    *,
    endpoints: EndpointResolver,
    registry_serial: int,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> Outcome:
    """Make the target equal to one snapshot of the source, or change nothing.

    :param route: from ``policy.route.resolve_routes`` over a verified registry.
    :param invocation: scheduler identity; a second attempt of it answers from the receipt.
    :param registry_serial: serial of the verified registry, checked for rollback.
    :returns: the committed or replayed outcome.
    :raises XminError: every refusal and fault, with its code; nothing was committed unless the outcome says so.
    """
    recorder, cancel = Recorder(progress), cancel or Cancellation()
    engine = engine_of(route, endpoints)
    with ExitStack() as stack:
        stack.callback(engine.close)
        session = _open(stack, engine, "target", cancel)
        state_session = _open(stack, engine, "state", cancel)
        admitted = admit(engine, session, state_session, route, invocation=invocation, registry_serial=registry_serial)
        state_session.close()
        if admitted.receipt is not None:
            recorder(Progress("RECEIPT_REPLAYED", note=f"receipt {admitted.receipt.receipt_id}; the source was not opened"))
            return Outcome(receipt=admitted.receipt, attempt=admitted.attempt)
        run = _Run(
            engine, session, route, invocation, admitted, endpoints=endpoints, serial=registry_serial, progress=recorder, cancel=cancel
        )
        try:
            receipt = run.commit(stack)
        except BaseException as error:
            run.record_failure(error)
            raise
        return run.finish(receipt, recorder)


class _Run:
    """One admitted attempt."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        route: Route,
        invocation: Invocation,
        admitted: Admitted,
        *,
        endpoints: EndpointResolver,
        serial: int,
        progress: Listener,
        cancel: Cancellation,
    ) -> None:
        self._engine, self._session, self._route, self._invocation = engine, session, route, invocation
        self._admitted, self._endpoints, self._serial = admitted, endpoints, serial
        self._progress, self._cancel = progress, cancel
        self._base = work_base(route)
        self._keep_stages = False

    def commit(self, stack: ExitStack) -> Receipt:
        """Extract, stage and finalize; decide a commit in doubt."""
        sweep_directories(self._base, keep=self._admitted.load_id)
        directory = stack.enter_context(AttemptDirectory(self._base, self._admitted.load_id))
        envelope = self._extract(directory.path)
        staging = _open(stack, self._engine, "staging", self._cancel)
        lease_session = _open(stack, self._engine, "staging", self._cancel)
        lease = StagingLease(self._engine, lease_session, self._admitted.load_id)
        stack.callback(self._drop_stages, staging)
        sweep(self._engine, staging, keep=self._admitted.load_id)
        staged = stage_envelope(
            self._engine, staging, envelope, load_id=self._admitted.load_id, lease=lease, progress=self._progress, cancel=self._cancel
        )
        identity = self._admitted.identity
        work = Work(
            route=self._route,
            invocation=self._invocation,
            invocation_digest=self._admitted.invocation_digest,
            load_id=self._admitted.load_id,
            binding=identity.binding,
            state_key=identity.state_key,
            scope_hash=identity.scope_hash,
            schema_hash=identity.schema_hash,
            position=self._admitted.position,
            envelope=envelope,
            staged=staged,
            target_authority_digest=identity.target_authority_digest,
            registry_serial=self._serial,
        )
        lease.check()
        return self._finalize(work)

    def _extract(self, work_dir: Path) -> Envelope:
        route, admitted = self._route, self._admitted
        request = source_request(route, work_dir=work_dir)

        def accept(projection: Projection) -> None:
            require_shape(self._engine, admitted.identity.facts, route, projection)

        endpoint = self._endpoints(route.source.entry, conn_id=route.source_conn_id)
        return extract(endpoint, request, admitted.prior, accept=accept, progress=self._progress, cancel=self._cancel)

    def _finalize(self, work: Work) -> Receipt:
        started = time.monotonic()
        try:
            receipt = finalize(self._engine, self._session, self._admitted.catalog, work)
        except CommitInDoubt as doubt:
            receipt = self._probe(work, doubt)
        counts = receipt.counts
        self._progress(Progress("FINALIZE_COMPLETE", rows=counts.payload, seconds=time.monotonic() - started))
        return receipt

    def _probe(self, work: Work, doubt: CommitInDoubt) -> Receipt:
        """Lock, then look, in a new session; a cancelled run still wants to know."""
        self._keep_stages = True
        try:
            fresh = self._engine.connect("target", cancel=Cancellation())
        except XminError as error:
            raise XminError(
                "mssql_transaction.commit_outcome_unknown",
                "The commit was sent, its answer was lost, and the server cannot be asked.",
                details={"cause": error.code},
            ) from None
        try:
            receipt = probe(
                self._engine,
                fresh,
                self._admitted.catalog,
                invocation_digest=work.invocation_digest,
                resource=lock_resource(work.binding.identity),
                timeout=self._route.target_lock_timeout,
            )
        finally:
            fresh.close()
        self._keep_stages = False
        if receipt is not None:
            return receipt
        cause = doubt.__cause__
        if isinstance(cause, XminError):
            raise cause from None
        raise XminError("mssql_transaction.connection_lost", "The transaction rolled back: no receipt exists under the lock.") from None

    def _drop_stages(self, staging: Session) -> None:
        """Best effort: what stays is swept by the next run."""
        if self._keep_stages:
            return
        try:
            self._engine.drop_stages(staging, [self._admitted.load_id])
        except XminError as error:
            self._progress(Progress("CLEANUP_FAILED", note=error.code))

    def finish(self, receipt: Receipt, recorder: Recorder) -> Outcome:
        """The audit row: a fault here cannot undo the commit and is told as a committed outcome."""
        outcome = Outcome(receipt=receipt, attempt=self._admitted.attempt, phases=tuple(recorder.phases))
        try:
            self._audit(outcome="committed", error_code=None, receipt=receipt, evidence=json.dumps(evidence_document(self._route, outcome)))
        except XminError as error:
            return Outcome(receipt=receipt, attempt=outcome.attempt, phases=outcome.phases, cleanup_error=error)
        return outcome

    def record_failure(self, error: BaseException) -> None:
        """Audit what stopped the run, on a session of its own; never hides the error itself."""
        known = error if isinstance(error, XminError) else XminError("run.unexpected", f"Unexpected {type(error).__name__}.")
        with contextlib.suppress(XminError):  # the task log has it
            self._audit(
                outcome="unknown" if known.code.endswith("outcome_unknown") else "refused",
                error_code=known.code,
                receipt=None,
                evidence=json.dumps(refusal_document(self._route, known), default=str),
            )

    def _audit(self, *, outcome: str, error_code: str | None, receipt: Receipt | None, evidence: str) -> None:
        admitted = self._admitted
        session = self._engine.connect("target", cancel=Cancellation())
        try:
            ledger = Ledger(session, admitted.catalog)
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
                    "error_code": error_code,
                    "receipt_id": receipt.receipt_id if receipt else None,
                    "evidence": evidence,
                }
            )
        finally:
            session.close()


def source_request(route: Route, *, work_dir: Path) -> SourceRequest:
    """The source half of a route."""
    return SourceRequest(
        identity=route.source,
        authority=route.authorities.source,
        relation_key=route.authorities.relation_key,
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


def _open(stack: ExitStack, engine: Engine, role: str, cancel: Cancellation) -> Session:
    session = engine.connect(role, cancel=cancel)  # type: ignore[arg-type]
    stack.callback(session.close)
    return session
