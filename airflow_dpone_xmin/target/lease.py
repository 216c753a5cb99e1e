"""The staging lease: a session in the signed staging database that marks a load as alive, from before CREATE until after cleanup.

Its continuity is proven by an application lock and by the database's pins, before and after every staging step (security.md "What is
pinned"): an ordinary DROP and CREATE of the same name cannot substitute another database during a long load. Staging tables of killed
attempts, whose lease nobody holds, are dropped by every run and every lane of a route. Imports contracts, tenacity and the target's own
modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from uuid import UUID

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_before_delay, wait_chain, wait_fixed
from tenacity.stop import stop_any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.target.authority import verify_database, verify_databases, verify_place
from airflow_dpone_xmin.target.catalog import MAX_PARAMETERS, Catalog
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import SessionFacts
from airflow_dpone_xmin.target.ledger import Ledger

TRANSIENT = frozenset({"08001", "08003", "08007", "08S01", "HYT00", "HYT01"})
"""The only SQLSTATEs after which a fresh pair of sessions is tried again."""
WAITS_SECONDS = (5, 10)
DEADLINE_SECONDS = 45
STATEMENT_SECONDS = 5.0
AFTERWARDS_SECONDS, SWEEP_SECONDS = 5.0, 1.0
"""Longest waits for a lock once a run's outcome is decided or in doubt, and of a sweep."""


class StagingLease:
    """Two sessions of one load in the staging database.

    :param work: runs DDL and proofs.
    :param watch: holds the lock and is looked at; its statements are short.
    """

    def __init__(self, engine: Engine, route: Route, load_id: UUID, *, work: Session, watch: Session) -> None:
        self._engine, self._route, self.work, self._watch = engine, route, work, watch
        self.load_id, self.resource = load_id, lease_resource(load_id)
        verify_database(engine, watch, route, role="staging")
        self._identity = engine.session_facts(watch)
        if self._identity.database != route.layout.staging.database:
            raise XminError("mssql_transaction.staging_database_authority_mismatch", "The staging session is in another database.")
        self._worker = engine.session_facts(work)
        verify_place(self._identity, self._worker)
        engine.take_lease(watch, resource=self.resource)

    @property
    def place(self) -> SessionFacts:
        """Server, principal and database of the leased session."""
        return self._identity

    def check(self) -> None:
        """Same session, same lock, same database.

        :raises XminError: ``mssql_transaction.staging_database_lease_lost``, ``mssql_transaction.staging_database_*``.
        """
        try:
            held = self._engine.session_facts(self._watch) == self._identity
            held = held and self._engine.holds_lease(self._watch, resource=self.resource)
            held = held and self._engine.session_facts(self.work) == self._worker
        except XminError as error:
            if error.code == "run.cancelled":
                raise
            held = False
        if not held:
            raise XminError("mssql_transaction.staging_database_lease_lost", "The staging session no longer holds its lease.")
        verify_database(self._engine, self._watch, self._route, role="staging")

    @contextmanager
    def around(self) -> Iterator[None]:
        """Check before and after one staging step."""
        self.check()
        yield
        self.check()

    def drop(self, cancel: Cancellation) -> None:
        """Drop the load's tables; a cancelled run's sessions take no statement any more, so that it does so on a new one.

        :raises XminError: as :meth:`check`, and the engine's codes: what stays is swept by the next run.
        """
        if not cancel.cancelled:
            with self.around():
                self._engine.drop_stages(self.work, [self.load_id])
            return
        limits = {"statement_timeout": AFTERWARDS_SECONDS, "lock_timeout": AFTERWARDS_SECONDS}
        with closing(self._engine.connect("staging", cancel=Cancellation(), **limits)) as session:
            verify_database(self._engine, session, self._route, role="staging")
            self._engine.drop_stages(session, [self.load_id])

    def sweep(self, catalog: Catalog, target_identity: bytes, *, progress: Listener, cancel: Cancellation) -> None:
        """Drop what killed attempts left beside this load, nowhere else; other targets' loads are theirs to sweep.

        Best effort: what stays is told as ``CLEANUP_FAILED`` and left to the next one.

        :param target_identity: 32 bytes; loads that the ledger knows for another target are left alone.
        :raises XminError: ``run.cancelled``.
        """
        engine = self._engine
        try:
            with (
                closing(engine.connect("target", cancel=cancel, lock_timeout=AFTERWARDS_SECONDS)) as session,
                closing(engine.connect("staging", cancel=cancel, lock_timeout=SWEEP_SECONDS)) as staging,
            ):
                authority = verify_databases(engine, session, self._route)
                verify_place(self._identity, engine.session_facts(staging))
                found = set(sorted(set(engine.list_stages(staging)) - {self.load_id})[:MAX_PARAMETERS])
                ledger = Ledger(session, catalog, authority)
                for load_id, error in sweep(engine, staging, sorted(found - ledger.loads_of_others(found, target_identity))):
                    progress(Progress("CLEANUP_FAILED", note=f"load {load_id}: {error.code}"))
        except XminError as error:
            cancel.check()
            progress(Progress("CLEANUP_FAILED", note=error.code))


@contextmanager
def staging_lease(engine: Engine, route: Route, load_id: UUID, *, cancel: Cancellation) -> Iterator[StagingLease]:
    """Open the lease; a transient failure of either session is tried again with a fresh pair, nothing else is.

    :raises XminError: the last failure, with stage, SQLSTATE, attempts, and whether they or the deadline ended it.
    """
    attempts = 0

    def open_pair() -> StagingLease:
        nonlocal attempts
        attempts += 1
        opened: list[Session] = []
        try:
            opened.append(engine.connect("staging", cancel=cancel))
            opened.append(engine.connect("staging", cancel=cancel, statement_timeout=STATEMENT_SECONDS))
            return StagingLease(engine, route, load_id, work=opened[0], watch=opened[1])
        except BaseException:
            for session in opened:
                session.close()
            raise

    retrying = Retrying(
        retry=retry_if_exception(_transient),
        wait=wait_chain(*[wait_fixed(seconds) for seconds in WAITS_SECONDS]),
        stop=stop_any(stop_after_attempt(len(WAITS_SECONDS) + 1), stop_before_delay(DEADLINE_SECONDS)),
        sleep=cancel.pause,
        reraise=True,
    )
    try:
        lease = retrying(open_pair)
    except XminError as error:
        raise _told(error, attempts=attempts) from None
    try:
        yield lease
    finally:
        lease._watch.close()
        lease.work.close()


def sweep(engine: Engine, session: Session, load_ids: Iterable[UUID]) -> Iterator[tuple[UUID, XminError]]:
    """Drop what killed attempts left: staging tables whose lease nobody holds. Clean-up never stops a run.

    :param session: a session with a short lock time-out: a transaction in doubt may still hold a load's tables.
    :param load_ids: candidates; living ones are left alone.
    :returns: what could not be dropped, and why; the next run tries again.
    """
    for load_id in load_ids:
        resource = lease_resource(load_id)
        try:
            engine.take_lease(session, resource=resource)
        except XminError as error:
            if error.code != "invocation.attempt_conflict":
                yield load_id, error
            continue
        try:
            engine.drop_stages(session, [load_id])
        except XminError as error:
            yield load_id, error
        finally:
            engine.release(session, resource=resource)


def lease_resource(load_id: UUID) -> str:
    """Application lock of a load's staging tables."""
    return f"dpone:load:{load_id.hex}"


def _transient(error: BaseException) -> bool:
    return isinstance(error, XminError) and error.details.get("sqlstate") in TRANSIENT


def _told(error: XminError, *, attempts: int) -> XminError:
    exhausted = _transient(error)
    deadline = exhausted and attempts <= len(WAITS_SECONDS)
    # Stage, SQLSTATE, attempts and flags only; what a pin was and is, is in the message.
    seen = {name: error.details[name] for name in ("sqlstate",) if name in error.details}
    details = {**seen, "stage": "staging_lease", "attempts": attempts, "exhausted": exhausted, "deadline": deadline}
    return XminError(error.code, error.message, hint=error.hint, details=details, retryable=error.retryable)
