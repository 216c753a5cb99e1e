"""The campaign's use cases: plan, open, look, publish, abandon. Lanes are in ``runtime/lane.py``.

Imports everything below runtime; knows nothing of Airflow or the command line.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from airflow_dpone_xmin.contracts.campaign import Anchor, Campaign, CampaignProgress, CampaignSpec, CampaignState
from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.envelope import Horizons
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import campaign_key, invocation_digest, plan_digest
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress, silent
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.contracts.state import Invocation, Receipt
from airflow_dpone_xmin.runtime.admission import RouteIdentity, VerifiedTarget, resolve_identity, verify_target
from airflow_dpone_xmin.runtime.evidence import Outcome, Recorder, refusal_document
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.runtime.workdir import work_base
from airflow_dpone_xmin.source.chunks import Opened, take_anchor
from airflow_dpone_xmin.target.authority import verify_databases
from airflow_dpone_xmin.target.campaign_ledger import CampaignLedger, require_unfenced
from airflow_dpone_xmin.target.catalog import server_time
from airflow_dpone_xmin.target.connect import engine_of
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.lease import staging_lease
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.publish import (
    CampaignWork,
    abandon,
    open_on_target,
    publish,
    refuse_obstacles,
    require_replaceable,
)
from airflow_dpone_xmin.target.repair import RepairSelection
from airflow_dpone_xmin.target.shadow import ShadowDialect, build_deferred_indexes, require_shadow, shadow_dialect, shadow_name
from airflow_dpone_xmin.target.shape import has_rows, require_shape
from airflow_dpone_xmin.target.transaction import CommitInDoubt, exclusive, outcome_unknown, probe, rolled_back

_NO_ANCHOR = Anchor(snapshot="1:1:", horizons=Horizons(1, 1), projection_fingerprint=bytes(32))


@dataclass(frozen=True, slots=True)
class CampaignTarget:
    """The proven target side of one campaign, on one session.

    :param wanted: the campaign as the manifest describes it; its anchor is known only after :func:`open_campaign`.
    """

    engine: Engine
    dialect: ShadowDialect
    session: Session
    verified: VerifiedTarget
    identity: RouteIdentity
    wanted: Campaign

    @property
    def ledger(self) -> CampaignLedger:
        """The campaign tables."""
        return CampaignLedger(self.session, self.verified.catalog, self.verified.authority)

    def find(self) -> Campaign | None:
        """The campaign's row, proven to be of this manifest.

        :raises XminError: ``campaign.plan_changed``.
        """
        found = self.ledger.find(self.wanted.campaign_key)
        if found is not None and (found.plan_digest, found.state_key) != (self.wanted.plan_digest, self.wanted.state_key):
            other = "source, key or delete mode" if found.state_key != self.wanted.state_key else "chunk plan, publication or authority"
            raise XminError("campaign.plan_changed", f"Campaign {found.handoff_id} was opened with another {other}.")
        return found

    def require_open(self) -> Campaign:
        """:raises XminError: ``campaign.not_open``, ``campaign.plan_changed``."""
        found = self.find()
        if found is None or found.state is not CampaignState.OPEN:
            state = "has not been opened" if found is None else f"is {found.state.value}"
            raise XminError("campaign.not_open", f"The campaign of handoff {self.wanted.handoff_id} {state}.")
        return found


def spec_of(route: Route) -> CampaignSpec:
    """The authored campaign; :raises XminError: ``DPONE_STRATEGY_UNSUPPORTED`` for an incremental manifest."""
    if route.campaign is None or route.handoff_id is None:
        hint = "Write `sink.strategy: {mode: backfill, …}` and `source.options.xmin_execution: {mode: initial, …}`, or use `run`."
        raise XminError("DPONE_STRATEGY_UNSUPPORTED", "This manifest describes an incremental run, not an initial campaign.", hint=hint)
    return route.campaign


@contextmanager
def campaign_target(route: Route, *, endpoints: EndpointResolver, cancel: Cancellation) -> Iterator[CampaignTarget]:
    """Open and prove the target side: authorities, catalog, grants, identity.

    :raises XminError: as the admission of a run.
    """
    spec = spec_of(route)
    with (
        contextlib.closing(engine_of(route, endpoints)) as engine,
        contextlib.closing(engine.connect("target", cancel=cancel)) as session,
        contextlib.closing(engine.connect("state", cancel=cancel)) as state,
    ):
        verified = verify_target(engine, session, state, route)
        identity = resolve_identity(engine, session, verified.catalog, route)
        wanted = _wanted(route, spec, identity, created_at=server_time(session))
        yield CampaignTarget(engine, shadow_dialect(route.layout), session, verified, identity, wanted)


def plan_campaign(route: Route, *, endpoints: EndpointResolver, progress: Listener = silent, cancel: Cancellation | None = None) -> Opened:
    """What opening would decide, from the source alone.

    :raises XminError: as :func:`source.chunks.take_anchor`.
    """
    return _take_anchor(route, endpoints=endpoints, progress=progress, cancel=cancel or Cancellation())


def rehearse_campaign(route: Route, *, endpoints: EndpointResolver) -> str:
    """What opening would do or find, in a sentence; writes nothing.

    :raises XminError: whatever would refuse the opening.
    """
    cancel = Cancellation()
    with campaign_target(route, endpoints=endpoints, cancel=cancel) as target:
        found = target.find()
        if found is not None:
            return f"{found.state.value}: {target.ledger.progress(found).sentence()}"
        work = _work(target, route, target.wanted, "check", repair=None)
        opened = _prepared(target, work, endpoints=endpoints, progress=silent, cancel=cancel)
        return f"would open {len(opened.ranges)} chunks into {target.wanted.shadow or 'the live table'}"


def open_campaign(
    route: Route,
    run_id: str,
    *,
    endpoints: EndpointResolver,
    repair: RepairSelection | None = None,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> CampaignProgress:
    """Open the campaign, or find it open: anchor, plan, shadow and fence are decided once.

    :param run_id: scheduler's run, for a refusal's audit row.
    :param repair: approval of replacing a table that has an owner or tombstones.
    :raises XminError: ``campaign.*``, ``target_ownership.conflict``, ``checkpoint.missing``, ``repair_authority.*``, ``postgres_source.*``.
    """
    cancel = cancel or Cancellation()
    with campaign_target(route, endpoints=endpoints, cancel=cancel) as target, _audited(target, route, run_id):
        _accept_registry(target, route)
        found = target.find()
        if found is None:
            work = _work(target, route, target.wanted, run_id, repair=repair)
            found = _open(target, work, endpoints=endpoints, progress=progress, cancel=cancel)
        if found.state is CampaignState.ABANDONED:
            target.require_open()
        return target.ledger.progress(found)


def look_at_campaign(route: Route, *, endpoints: EndpointResolver, cancel: Cancellation | None = None) -> CampaignProgress:
    """Where the campaign stands; reads only.

    :raises XminError: ``campaign.not_open`` when it was never opened, ``campaign.plan_changed``.
    """
    with campaign_target(route, endpoints=endpoints, cancel=cancel or Cancellation()) as target:
        found = target.find()
        return target.ledger.progress(target.require_open() if found is None else found)


def publish_campaign(
    route: Route,
    run_id: str,
    *,
    endpoints: EndpointResolver,
    repair: RepairSelection | None = None,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> Outcome:
    """Prove, publish and seed; the source is not opened. A second publication answers from the seed receipt.

    :raises XminError: ``campaign.*``, ``invocation.attempt_conflict``, and as :func:`open_campaign`.
    """
    with (
        campaign_target(route, endpoints=endpoints, cancel=cancel or Cancellation()) as target,
        _audited(target, route, run_id),
        _alone(target),
    ):
        _accept_registry(target, route)
        work = _work(target, route, target.find() or target.require_open(), run_id, repair=repair)
        ledger = Ledger(target.session, target.verified.catalog, target.verified.authority)
        receipt = ledger.find_receipt(work.invocation_digest)
        if receipt is not None:
            return Outcome(receipt=receipt, attempt=1)
        target.require_open()
        recorder = Recorder(progress)
        receipt = _publish(target, work, progress=recorder)
        return Outcome(receipt=receipt, attempt=1, phases=tuple(recorder.phases))


def abandon_campaign(route: Route, run_id: str, *, endpoints: EndpointResolver, cancel: Cancellation | None = None) -> Campaign:
    """Give an open campaign up: its lanes are fenced off, its shadow is dropped; another one needs another handoff_id.

    :raises XminError: ``campaign.not_open``, ``invocation.attempt_conflict`` while it is being published.
    """
    with _missing_table_told(), campaign_target(route, endpoints=endpoints, cancel=cancel or Cancellation()) as target, _alone(target):
        # A plan that no longer fits is a reason to abandon, not to refuse it.
        found = target.ledger.find(target.wanted.campaign_key)
        work = _work(target, route, found or target.require_open(), run_id, repair=None)
        if work.campaign.state is not CampaignState.OPEN:
            message = f"The campaign of handoff {work.campaign.handoff_id} is {work.campaign.state.value} already."
            raise XminError("campaign.not_open", message, hint="There is nothing to abandon.")
        abandon(target.engine, target.dialect, target.session, target.verified.catalog, work, authority=target.verified.authority)
        _sweep(target, route)
        return replace(work.campaign, state=CampaignState.ABANDONED)


@contextmanager
def _missing_table_told() -> Iterator[None]:
    """The campaign is found by the identity of its live table; without the table it stays fenced."""
    try:
        yield
    except XminError as error:
        if error.code != "DPONE_TARGET_UNSUPPORTED":
            raise
        hint = "Create the target table again (`dpone-xmin ddl render --part route`), then abandon the campaign."
        raise XminError(error.code, error.message, hint=hint, details=error.details) from None


# ---- details --------------------------------------------------------------------------------------------------------------
def _wanted(route: Route, spec: CampaignSpec, identity: RouteIdentity, *, created_at: object) -> Campaign:
    assert route.handoff_id is not None
    key = campaign_key(environment=route.environment, handoff_id=route.handoff_id, target=identity.binding.identity)
    authored = {name: str(getattr(spec, name)) for name in ("kind", "column", "low", "high", "step", "buckets", "publication")}
    return Campaign(
        campaign_key=key,
        process=route.process,
        handoff_id=route.handoff_id,
        environment=route.environment,
        target_identity=identity.binding.identity,
        state_key=identity.state_key,
        plan_digest=plan_digest(route=route.route_fingerprint, state=identity.state_key, plan=authored),
        anchor=_NO_ANCHOR,
        publication=spec.publication,
        shadow=shadow_name(route.layout.target.name, key) if spec.publication == "shadow_swap" else None,
        state=CampaignState.OPEN,
        chunk_count=0,
        created_at=created_at,  # type: ignore[arg-type]
    )


def _work(target: CampaignTarget, route: Route, campaign: Campaign, run_id: str, *, repair: RepairSelection | None) -> CampaignWork:
    # The seed belongs to the campaign, whatever run publishes it.
    invocation = Invocation(process=campaign.process, run_id=f"campaign:{campaign.campaign_key.hex()}")
    return CampaignWork(
        route=route,
        campaign=campaign,
        binding=target.identity.binding,
        scope_hash=target.identity.scope_hash,
        schema_hash=target.identity.schema_hash,
        target_authority_digest=target.identity.target_authority_digest,
        run_id=run_id,
        invocation=invocation,
        invocation_digest=invocation_digest(invocation),
        repair=repair,
    )


def _accept_registry(target: CampaignTarget, route: Route) -> None:
    resource = f"dpone:registry:{route.environment}"
    with exclusive(target.engine, target.session, resource=resource, timeout=route.target_lock_timeout):
        ledger = Ledger(target.session, target.verified.catalog, target.verified.authority)
        ledger.accept_registry(environment=route.environment, serial=route.registry_serial)
        target.engine.commit(target.session, resource=resource)


def _take_anchor(
    route: Route, *, endpoints: EndpointResolver, progress: Listener, cancel: Cancellation, target: CampaignTarget | None = None
) -> Opened:
    def accept(projection: Projection) -> None:
        if target is not None:
            require_shape(target.engine, target.identity.facts, route, projection)

    endpoint = endpoints(route.source.entry, conn_id=route.source_conn_id)
    request = source_request(route, work_dir=work_base(route))
    return take_anchor(endpoint, request, spec_of(route), accept=accept, progress=progress, cancel=cancel)


def _open(target: CampaignTarget, work: CampaignWork, *, endpoints: EndpointResolver, progress: Listener, cancel: Cancellation) -> Campaign:
    engine, session, route = target.engine, target.session, work.route
    opened = _prepared(target, work, endpoints=endpoints, progress=progress, cancel=cancel)
    campaign = replace(target.wanted, anchor=opened.anchor, chunk_count=len(opened.ranges))
    verify_databases(engine, session, route)
    authority, opening = target.verified.authority, replace(work, campaign=campaign)
    found = open_on_target(engine, target.dialect, session, target.verified.catalog, opening, opened.ranges, authority=authority)
    progress(Progress("CAMPAIGN_OPEN", note=f"{found.chunk_count} chunks into {found.shadow or route.layout.target.name}"))
    return target.find() or found


def _prepared(
    target: CampaignTarget, work: CampaignWork, *, endpoints: EndpointResolver, progress: Listener, cancel: Cancellation
) -> Opened:
    """Refuse what the target refuses before the source is opened; then the anchor. Nothing is written."""
    session, live = target.session, work.route.layout.target
    catalog, authority = target.verified.catalog, target.verified.authority
    require_unfenced(session, catalog, target.identity.binding.identity)
    require_replaceable(session, Ledger(session, catalog, authority), work)
    if target.wanted.shadow is not None:
        refuse_obstacles(target.dialect, session, work.route)
        missing = target.dialect.missing_rights(session, live)
        if missing:
            message = f"A shadow publication needs {missing[0]}."
            raise XminError("mssql_transaction.permission_denied", message, details={"missing": missing})
    elif has_rows(session, live):
        raise XminError("campaign.target_not_empty", f"{live.display} has rows.")
    return _take_anchor(work.route, endpoints=endpoints, progress=progress, cancel=cancel, target=target)


def _sweep(target: CampaignTarget, route: Route) -> None:
    """No lane comes any more that would drop what killed ones left; best effort."""
    cancel = Cancellation()
    with contextlib.suppress(XminError), staging_lease(target.engine, route, uuid.uuid4(), cancel=cancel) as lease:
        lease.sweep(target.verified.catalog, target.wanted.target_identity, progress=silent, cancel=cancel)


@contextmanager
def _alone(target: CampaignTarget) -> Iterator[None]:
    """Publication and abandonment exclude each other and themselves; what decides is read under this lease.

    :raises XminError: ``invocation.attempt_conflict``.
    """
    resource = f"dpone:campaign:{target.wanted.campaign_key.hex()}"
    target.engine.take_lease(target.session, resource=resource)
    try:
        yield
    finally:
        target.engine.release(target.session, resource=resource)


def _publish(target: CampaignTarget, work: CampaignWork, *, progress: Listener) -> Receipt:
    engine, session, campaign, live = target.engine, target.session, work.campaign, work.route.layout.target
    started = time.monotonic()
    left = target.ledger.progress(campaign)
    if not left.complete:
        raise XminError("campaign.incomplete", f"{left.sentence()}.", details={"committed": left.committed, "chunks": len(left.chunks)})
    if campaign.shadow is not None:
        require_shadow(engine, target.dialect, session, campaign, live)
        built = build_deferred_indexes(target.dialect, session, campaign, live)
        progress(Progress("CAMPAIGN_INDEXES_COMPLETE", rows=left.rows, seconds=time.monotonic() - started, note=f"{built} built"))
    try:
        receipt = publish(engine, target.dialect, session, target.verified.catalog, work, authority=target.verified.authority)
    except CommitInDoubt as doubt:
        with outcome_unknown(), contextlib.closing(engine.connect("target", cancel=Cancellation())) as fresh:
            ledger = Ledger(fresh, target.verified.catalog, verify_databases(engine, fresh, work.route))
            found = probe(
                engine,
                fresh,
                lambda: ledger.find_receipt(work.invocation_digest),
                resource=work.resource,
                timeout=work.route.target_lock_timeout,
            )
        if found is None:
            raise rolled_back(doubt) from None
        receipt = replace(found, replayed=False)
    progress(Progress("CAMPAIGN_PUBLISHED_COMPLETE", rows=receipt.counts.payload, seconds=time.monotonic() - started))
    return receipt


@contextmanager
def _audited(target: CampaignTarget, route: Route, run_id: str) -> Iterator[None]:
    """A refusal is kept with its binding, so that an approval can be proposed from it."""
    try:
        yield
    except XminError as error:
        with contextlib.suppress(XminError), contextlib.closing(target.engine.connect("target", cancel=Cancellation())) as session:
            ledger = Ledger(session, target.verified.catalog, verify_databases(target.engine, session, route))
            ledger.write_audit(
                {
                    "audit_id": uuid.uuid4(),
                    "load_id": uuid.uuid4(),
                    "invocation_digest": invocation_digest(Invocation(process=route.process, run_id=run_id)),
                    "process": route.process,
                    "run_id": run_id,
                    "map_index": -1,
                    "target_identity": target.identity.binding.identity,
                    "state_key": target.identity.state_key,
                    "outcome": "refused",
                    "error_code": error.code,
                    "receipt_id": None,
                    "evidence": json.dumps(refusal_document(route, error, status="refused"), default=str),
                }
            )
        raise
