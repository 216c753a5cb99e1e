"""Check: predict a run. Whatever can be known without moving data is reported here, one row per fact.

The static half needs the manifest and the registry; the live half (``--connections``) looks at both servers and asks the very functions
that a run asks. Imports everything below runtime.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from uuid import uuid4

from airflow_dpone_xmin.artifacts.writer import require_free
from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.errors import CODES, XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.runtime.admission import (
    RouteIdentity,
    missing_target_grants,
    read_position,
    resolve_identity,
    source_prior,
    surplus_grants,
)
from airflow_dpone_xmin.runtime.campaign import rehearse_campaign
from airflow_dpone_xmin.runtime.reconcile import needed_evolution, source_request
from airflow_dpone_xmin.runtime.workdir import AttemptDirectory, work_base
from airflow_dpone_xmin.source.describe import Described, describe
from airflow_dpone_xmin.target.authority import observe_pins, verify_databases, verify_one_commit, verify_session_pair
from airflow_dpone_xmin.target.catalog import CATALOG_VERSION, Catalog, build_catalog
from airflow_dpone_xmin.target.connect import engine_of
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.proof import require_catalog
from airflow_dpone_xmin.target.work import Position


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of a check.

    :param ok: True, False, or None for advice that stops nothing.
    :param code: the code that a run would raise, empty when ok.
    """

    area: str
    subject: str
    ok: bool | None
    expected: str = ""
    observed: str = ""
    code: str = ""
    hint: str = ""


@dataclass(slots=True)
class Report:
    """All findings of one route."""

    route: Route
    findings: list[Finding] = field(default_factory=list)
    projection: Projection | None = None
    source: Described | None = None
    position: Position | None = None
    identity: RouteIdentity | None = None

    @property
    def ok(self) -> bool:
        """Whether a run would be admitted, as far as anything can be known."""
        return all(finding.ok is not False for finding in self.findings)

    def passed(self, area: str, subject: str, observed: str = "") -> None:
        """Record a fact that holds."""
        self.findings.append(Finding(area, subject, True, observed=observed))

    def failed(self, area: str, error: XminError, subject: str = "") -> None:
        """Record what a run would raise."""
        self.findings.append(
            Finding(area, subject or error.message, False, observed=error.message if subject else "", code=error.code, hint=error.hint)
        )

    def failed_each(self, area: str, code: str, sentences: Iterable[str], *, hint: str | None = None) -> bool:
        """Record one failure per sentence; returns whether there was one."""
        before = len(self.findings)
        self.findings += [Finding(area, sentence, False, code=code, hint=hint or CODES[code].hint) for sentence in sentences]
        return len(self.findings) > before


def check_static(route: Route) -> Report:
    """What the manifest and the registry alone decide; building the route was already most of it."""
    report = Report(route)
    report.passed("manifest", f"process {route.process}", f"{route.source.schema}.{route.source.relation} → {route.layout.target.display}")
    report.passed("manifest", f"deletes: {route.delete_mode.value}", _guards(route))
    for role in ("source", "target", "staging", "state"):
        report.passed("registry", f"{role} authority", f"sha256 {route.authorities.digests[role].hex()[:16]}…")
    report.findings += [Finding("manifest", notice, None) for notice in route.notices]
    return report


def check_connections(route: Route, *, endpoints: EndpointResolver, report: Report | None = None) -> Report:
    """Look at source and target; moves no data, and writes nothing but an empty work directory, which it removes.

    :returns: the report, extended; every failure is a finding, not an exception.
    """
    report = report or check_static(route)
    _check_storage(route, report)
    _check_source(route, endpoints, report)
    with ExitStack() as stack:
        try:
            engine = engine_of(route, endpoints)
            stack.callback(engine.close)
            sessions = {}
            for role in ("target", "staging", "state"):
                sessions[role] = engine.connect(role, cancel=Cancellation())  # type: ignore[arg-type]
                stack.callback(sessions[role].close)
            _check_target(engine, sessions["target"], sessions["state"], report)
        except XminError as error:
            report.failed("target", error)
    if route.campaign is not None and report.ok:
        _check_campaign(route, endpoints, report)
    return report


def _check_campaign(route: Route, endpoints: EndpointResolver, report: Report) -> None:
    try:
        report.passed("campaign", f"handoff {route.handoff_id}", rehearse_campaign(route, endpoints=endpoints))
    except XminError as error:
        report.failed("campaign", error)


def _check_storage(route: Route, report: Report) -> None:
    base = work_base(route)
    try:
        with AttemptDirectory(base, uuid4()) as attempt:
            require_free(attempt.path, floor=route.min_free_bytes)
    except XminError as error:
        report.failed("storage", error)
    else:
        report.passed("storage", f"work directory {base}")


def _check_source(route: Route, endpoints: EndpointResolver, report: Report) -> None:
    try:
        endpoint = endpoints(route.source.entry, conn_id=route.source_conn_id)
        found = describe(endpoint, source_request(route, work_dir=work_base(route)))
    except XminError as error:
        report.failed("source", error)
        return
    report.source, report.projection = found, found.projection
    for pin in found.pins:
        report.findings.append(
            Finding(
                "source", pin.pin, pin.ok, pin.expected, pin.observed, "" if pin.ok else pin.code, "" if pin.ok else CODES[pin.code].hint
            )
        )
    report.failed_each("source", "postgres_source.permission_denied", [f"missing grant: {grant}" for grant in found.missing_grants])
    told = {finding.code for finding in report.findings if finding.ok is False}
    for refusal in found.findings:
        if refusal.code not in told:
            report.failed("source", refusal)
    if found.projection is not None:
        report.passed("source", "columns", f"{len(found.projection.columns)} carried, key ({', '.join(found.projection.key)})")
        if found.projection.volatile:
            why = "every payload is full: a virtual generated column, or a type whose text follows names, changes without its row"
            report.findings.append(Finding("source", why, None))


def _check_target(engine: Engine, session: Session, state: Session, report: Report) -> None:
    route = report.route
    verdicts = observe_pins(engine, session, route)
    for verdict in verdicts:
        code = "" if verdict.ok else f"mssql_transaction.{verdict.role}_database_{verdict.reason}"
        report.findings.append(
            Finding(verdict.role, verdict.pin, verdict.ok, verdict.expected, verdict.observed, code, CODES[code].hint if code else "")
        )
    try:
        verify_session_pair(engine.session_facts(session), engine.session_facts(state))
        verify_one_commit(engine, session)
        report.passed("state", "same server and principal as the target")
    except XminError as error:
        report.failed("state", error)
    catalog = build_catalog(route.layout.names)
    if _check_catalog(engine, session, catalog, report):
        missing = missing_target_grants(engine, session, catalog, route)
        if not report.failed_each("target", "mssql_transaction.permission_denied", [f"missing grant: {grant}" for grant in missing]):
            report.passed("target", "grants", "complete")
        surplus = surplus_grants(engine, session, catalog)
        report.failed_each("state", "mssql_transaction.permission_surplus", [f"surplus grant: {grant}" for grant in surplus])
        if all(verdict.ok for verdict in verdicts):
            _check_route_state(engine, session, catalog, report)
    report.findings += [Finding("target", advice, None) for advice in engine.advice(session)]


def _check_catalog(engine: Engine, session: Session, catalog: Catalog, report: Report) -> bool:
    try:
        require_catalog(engine, session, catalog)
    except XminError as error:
        if not report.failed_each("state", error.code, error.details.get("differences", ()), hint=error.hint):
            report.failed("state", error)
        return False
    report.passed("state", "catalog", f"exact, version {CATALOG_VERSION}")
    return True


def _check_route_state(engine: Engine, session: Session, catalog: Catalog, report: Report) -> None:
    route = report.route
    ledger = Ledger(session, catalog, verify_databases(engine, session, route))
    try:
        ledger.require_serial(environment=route.environment, serial=route.registry_serial)
        report.passed("registry", "serial", f"{route.registry_serial}, no rollback")
    except XminError as error:
        report.failed("registry", error)
    try:
        identity = report.identity = resolve_identity(engine, session, catalog, route)
        report.passed("target", "identity", identity.binding.identity.hex()[:16] + "…")
        report.position = read_position(ledger, identity)
        if report.projection is not None:
            _check_shape(engine, session, report, identity, projection=report.projection, position=report.position)
        if route.campaign is None:
            source_prior(session, ledger, route, identity=identity, position=report.position)
        checkpoint = report.position.checkpoint
        report.passed("state", "checkpoint", f"revision {checkpoint.revision}, xmin {checkpoint.xmin}" if checkpoint else "none: baseline")
    except XminError as error:
        report.failed("target", error)


def _check_shape(
    engine: Engine, session: Session, report: Report, identity: RouteIdentity, *, projection: Projection, position: Position
) -> None:
    route = report.route
    try:
        evolution = needed_evolution(engine, route, identity, position, projection)
    except XminError as error:
        report.failed_each("target", error.code, error.details["differences"], hint=error.hint)
        return
    if evolution is None:
        report.passed("target", "table", "exactly what this route writes")
    elif route.evolve and engine.may_alter(session, route.layout.target):
        report.findings += [Finding("target", f"a run will {change.sentence()}", None) for change in evolution.changes]
    else:
        why = "the runtime login may not alter it" if route.evolve else "`schema_evolution.enabled` is false"
        report.failed("target", evolution.required(route, why))


def _guards(route: Route) -> str:
    if not route.delete_mode.reconciles:
        return "upserts only"
    rows = "no limit" if route.guards.max_rows is None else str(route.guards.max_rows)
    ratio = "no limit" if route.guards.max_ratio is None else str(route.guards.max_ratio)
    return f"at most {rows} rows and ratio {ratio} per run"
