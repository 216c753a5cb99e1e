"""One lane of a campaign: claim a chunk, extract, stage, commit, again, on connections that it keeps.

A lane that fails gives its chunk back and starts over with fresh connections; whatever happens to it, the epoch fence keeps it from
writing after a takeover. Imports everything below runtime.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from uuid import UUID

from tenacity import Retrying, retry_if_exception, wait_chain, wait_fixed
from uuid6 import uuid7

from airflow_dpone_xmin.contracts.campaign import RENEW_SECONDS, Campaign, CampaignState, ChunkLease, LoadReceipt
from airflow_dpone_xmin.contracts.envelope import SourceRequest
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import invocation_digest
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress, silent
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.runtime.campaign import CampaignTarget, campaign_target, spec_of
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.runtime.workdir import AttemptDirectory, sweep_directories, work_base
from airflow_dpone_xmin.source.chunks import extract_chunk
from airflow_dpone_xmin.source.session import Session as SourceSession
from airflow_dpone_xmin.target.authority import verify_databases
from airflow_dpone_xmin.target.campaign_ledger import CampaignLedger
from airflow_dpone_xmin.target.chunk import ChunkWork, chunk_operation, chunk_resource, commit_chunk, repair_chunk
from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.lease import AFTERWARDS_SECONDS, StagingLease, staging_lease
from airflow_dpone_xmin.target.staging import stage_envelope
from airflow_dpone_xmin.target.transaction import CommitInDoubt, outcome_unknown, probe, rolled_back

FAILURES = 3
"""Failures without a committed chunk between them, after which a lane gives up."""
WAITS_SECONDS = (2, 10)
POLL_SECONDS = 2.0
"""How often a lane without work looks whether another one's chunk became free."""


@dataclass(slots=True)
class LaneResult:
    """What a lane did.

    :param failures: failures since its last committed chunk.
    """

    chunks: int = 0
    rows: int = 0
    failures: int = 0


def run_lane(
    route: Route,
    run_id: str,
    lane: int,
    *,
    endpoints: EndpointResolver,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> LaneResult:
    """Work until every chunk of the open campaign is committed, by this lane or by others.

    :param run_id: scheduler's run; the same lane of the same run takes its own lease back at once.
    :param lane: number of the lane.
    :raises XminError: what stopped it; committed chunks stay.
    """
    spec_of(route)
    cancel, result = cancel or Cancellation(), LaneResult()

    def attempt() -> None:
        try:
            with _lane(route, run_id, lane, endpoints=endpoints, result=result, progress=progress, cancel=cancel) as worker:
                if worker is not None:
                    worker.work()
        except XminError as error:
            result.failures += 1
            if error.retryable and error.code != "run.cancelled":
                progress(Progress("LANE_FAILED", note=f"lane {lane}: {error.code}"))
            raise

    Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, XminError) and error.retryable and not cancel.cancelled),
        wait=wait_chain(*[wait_fixed(seconds) for seconds in WAITS_SECONDS]),
        stop=lambda _: result.failures >= FAILURES,
        sleep=cancel.pause,
        reraise=True,
    )(attempt)
    return result


@contextmanager
def _lane(
    route: Route, run_id: str, lane: int, *, endpoints: EndpointResolver, result: LaneResult, progress: Listener, cancel: Cancellation
) -> Iterator[_Lane | None]:
    """All connections of one attempt of a lane; None when the campaign is published already."""
    load_id, base = UUID(int=uuid7().int), work_base(route)
    with ExitStack() as stack:
        target = stack.enter_context(campaign_target(route, endpoints=endpoints, cancel=cancel))
        found = target.find()
        if found is not None and found.state is CampaignState.PUBLISHED:
            yield None  # a lane that is tried again after the others finished has nothing to do
            return
        campaign = target.require_open()
        sweep_directories(base, keep=load_id)
        directory = stack.enter_context(AttemptDirectory(base, load_id))
        source = stack.enter_context(SourceSession(endpoints(route.source.entry, conn_id=route.source_conn_id), cancel=cancel))
        staging = stack.enter_context(staging_lease(target.engine, route, load_id, cancel=cancel))
        staging.sweep(target.verified.catalog, campaign.target_identity, progress=progress, cancel=cancel)
        keeper = stack.enter_context(LeaseKeeper(target, route, campaign))
        yield _Lane(
            route=route,
            owner=f"{run_id}:{lane}",
            load_id=load_id,
            invocation_digest=invocation_digest(Invocation(process=route.process, run_id=run_id)),
            request=source_request(route, work_dir=directory.path),
            target=target,
            campaign=campaign,
            source=source,
            staging=staging,
            keeper=keeper,
            result=result,
            progress=progress,
            cancel=cancel,
        )


@contextmanager
def _fresh(target: CampaignTarget, route: Route) -> Iterator[tuple[Session, CampaignLedger]]:
    """A session of its own that no cancellation ends, its databases proven again."""
    engine = target.engine
    with contextlib.closing(engine.connect("target", cancel=Cancellation(), lock_timeout=AFTERWARDS_SECONDS)) as session:
        yield session, CampaignLedger(session, target.verified.catalog, verify_databases(engine, session, route))


class LeaseKeeper:
    """Renews the lease of the chunk in work, on a connection of its own; a lost lease cancels nothing, the fence decides."""

    def __init__(self, target: CampaignTarget, route: Route, campaign: Campaign) -> None:
        self._target, self._route, self._campaign = target, route, campaign
        self._lease: ChunkLease | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dpone-xmin-lease", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(AFTERWARDS_SECONDS)

    @contextmanager
    def holding(self, lease: ChunkLease) -> Iterator[None]:
        """Keep *lease* alive."""
        self._lease = lease
        try:
            yield
        finally:
            self._lease = None

    def _run(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            # A renewal that fails is tried again at the next tick; the lease outlives two of them.
            with contextlib.suppress(XminError):
                self._renew_until_stopped()

    def _renew_until_stopped(self) -> None:
        with _fresh(self._target, self._route) as (_, ledger):
            while True:
                lease = self._lease
                if lease is not None:
                    ledger.renew(self._campaign, lease)
                if self._stop.wait(RENEW_SECONDS):
                    return


@dataclass(slots=True, kw_only=True)
class _Lane:
    """The loop over chunks.

    :param owner: name under which it leases chunks.
    :param load_id: of its staging table, one for all of its chunks.
    :param invocation_digest: of its run, for the receipts.
    :param keeper: renews the lease of the chunk in work.
    :param result: counts across the attempts of this lane.
    """

    route: Route
    owner: str
    load_id: UUID
    invocation_digest: bytes
    request: SourceRequest
    target: CampaignTarget
    campaign: Campaign
    source: SourceSession
    staging: StagingLease
    keeper: LeaseKeeper
    result: LaneResult
    progress: Listener
    cancel: Cancellation

    def work(self) -> None:
        """:raises XminError: what stopped the lane; its chunk was given back then."""
        while True:
            self.cancel.check()
            lease = self.target.ledger.claim(self.campaign, owner=self.owner)
            if lease is not None:
                self._work_on(lease)
            elif self._over():
                return
            else:
                self.cancel.pause(POLL_SECONDS)

    def _over(self) -> bool:
        """Nothing is left, or another lane still works on the rest."""
        found = self.target.find()
        if found is not None and found.state is CampaignState.PUBLISHED:
            return True
        return self.target.ledger.progress(self.target.require_open()).complete

    def _work_on(self, lease: ChunkLease) -> None:
        started = time.monotonic()
        with self.keeper.holding(lease):
            try:
                receipt = repair_chunk(self.target.ledger, self.campaign, lease) or self._load(lease)
            except XminError as error:
                if error.code not in ("mssql_transaction.commit_outcome_unknown", "campaign.lease_lost"):
                    self._give_back(lease)
                raise
        self._count(receipt)
        note = f"chunk {lease.range.number + 1} of {self.campaign.chunk_count}"
        total = self.campaign.chunk_count
        self.progress(Progress("CHUNK_COMPLETE", rows=receipt.rows, seconds=time.monotonic() - started, total=total, note=note))

    def _count(self, receipt: LoadReceipt) -> None:
        self.result.chunks += 1
        self.result.rows += receipt.rows
        self.result.failures = 0

    def _load(self, lease: ChunkLease) -> LoadReceipt:
        campaign, spec = self.campaign, spec_of(self.route)
        envelope = extract_chunk(self.source, self.request, spec, lease.range, anchor=campaign.anchor, progress=silent)
        work_session = self.staging.work
        try:
            staged = stage_envelope(
                self.target.engine,
                work_session,
                envelope,
                load_id=self.load_id,
                lease=self.staging,
                progress=silent,
                cancel=self.cancel,
                indexed=campaign.shadow is None,
            )
            work = ChunkWork(
                route=self.route,
                campaign=campaign,
                lease=lease,
                binding=self.target.identity.binding,
                load_id=self.load_id,
                invocation_digest=self.invocation_digest,
                envelope=envelope,
                staged=staged,
            )
            receipt = self._commit(work)
        except XminError as error:
            if error.code != "mssql_transaction.commit_outcome_unknown":
                with contextlib.suppress(XminError):  # what stays is swept by a later run
                    self.staging.drop(self.cancel)
            raise
        finally:
            envelope.rows_artifact.path.unlink(missing_ok=True)
        self.target.engine.drop_stages(work_session, [self.load_id])  # the next chunk's stage has the same name
        return receipt

    def _commit(self, work: ChunkWork) -> LoadReceipt:
        target = self.target
        authority = verify_databases(target.engine, target.session, self.route)
        try:
            return commit_chunk(target.engine, target.dialect, target.session, target.verified.catalog, work, authority=authority)
        except CommitInDoubt as doubt:
            found = self._probe(work.lease.range.number)
            if found is None:
                raise rolled_back(doubt) from None
            self._count(found)
            message = f"The answer to the commit of chunk {work.lease.range.number} was lost; its receipt is there. The lane reconnects."
            raise XminError("mssql_transaction.connection_lost", message) from None

    def _probe(self, number: int) -> LoadReceipt | None:
        operation, resource = chunk_operation(self.campaign, number), chunk_resource(self.campaign, number)
        with outcome_unknown(), _fresh(self.target, self.route) as (session, ledger):
            timeout = self.route.target_lock_timeout
            return probe(self.target.engine, session, lambda: ledger.find_load_receipt(operation), resource=resource, timeout=timeout)

    def _give_back(self, lease: ChunkLease) -> None:
        """Best effort: a lease that stays expires."""
        with contextlib.suppress(XminError), _fresh(self.target, self.route) as (_, ledger):
            ledger.give_back(self.campaign, lease)
