"""What a route's source half would meet: facts and every refusal at once, for ``check``, ``plan`` and ``ddl render``.

Takes no lock and moves no data; what it finds is what :func:`airflow_dpone_xmin.source.extract.extract` would raise. Imports contracts and
its sibling modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from psycopg import sql

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.envelope import Horizons, SourceIdentity, SourceRequest
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.source.authority import PinRow, authority_refusals, compare, observe
from airflow_dpone_xmin.source.boundary import begin_read_only, read_horizons, resolve_refusals, server_version
from airflow_dpone_xmin.source.projection import read_projection, read_types
from airflow_dpone_xmin.source.relation import leaves_of, relation_facts, relation_refusals
from airflow_dpone_xmin.source.session import Session

_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Described:
    """What ``check`` shows of a source.

    :param identity: canonical names.
    :param server_version: ``server_version_num``.
    :param standby: whether the server is in recovery.
    :param pins: every signed field beside what was observed.
    :param missing_grants: grants that the role lacks, as an owner would spell them.
    :param partitioned: whether the relation is a partitioned table.
    :param projection: planned columns; None when a finding prevents them.
    :param horizons: U and H of this moment; None when the relation is not there.
    :param snapshot: the token they were read from.
    :param findings: every error that a run would raise, in the order of the boundary; empty when the source is ready.
    """

    identity: SourceIdentity
    server_version: int
    standby: bool
    pins: tuple[PinRow, ...] = ()
    missing_grants: tuple[str, ...] = ()
    partitioned: bool = False
    projection: Projection | None = None
    horizons: Horizons | None = None
    snapshot: str | None = None
    findings: tuple[XminError, ...] = field(default=())


def describe(endpoint: Endpoint, request: SourceRequest, *, cancel: Cancellation | None = None) -> Described:
    """Look at the source of a route and collect everything that a run would refuse.

    :raises XminError: only when the server cannot be asked: ``postgres_source.unreachable``, ``.authentication_failed``, ``.lost`` …
    """
    with _short_session(endpoint, cancel) as session:
        version = server_version(session)
        findings = list(resolve_refusals(session, request))
        begin_read_only(session, version=version, lock_timeout_seconds=request.lock_timeout_seconds)
        pin = request.authority.relations[request.relation_key]
        observed = observe(session, [(pin.schema_name, pin.relation)], version=request.authority.version)
        findings += authority_refusals(request.authority, request.relation_key, observed)
        grants = [grant for error in findings for grant in error.details.get("grants", [])]
        grants += [f"EXECUTE on function {name}" for name in observed.missing_functions]
        partitioned, projection = False, None
        oid = observed.relations[0].relation_oid
        facts = None if oid is None else relation_facts(session, oid)
        if facts is not None:
            partitioned = facts.partitioned
            leaves = leaves_of(session, facts)
            known = {error.message for error in findings}
            findings += [error for error in relation_refusals(facts, leaves) if error.message not in known]
            try:
                types = read_types(session, facts.oid)
                projection = read_projection(session, facts, leaves, request, types=types)
            except XminError as error:
                findings.append(error)
        snapshot, horizons = read_horizons(session, version=version)
        session.execute(sql.SQL("ROLLBACK"))
        return Described(
            identity=SourceIdentity(request.identity.entry, observed.database, pin.schema_name, pin.relation),
            server_version=version,
            standby=observed.standby,
            pins=compare(request.authority, request.relation_key, observed),
            missing_grants=tuple(grants),
            partitioned=partitioned,
            projection=projection,
            horizons=horizons,
            snapshot=snapshot,
            findings=tuple(findings),
        )


def _short_session(endpoint: Endpoint, cancel: Cancellation | None) -> Session:
    session = Session(endpoint, cancel=cancel)
    session.limit(_DEADLINE_SECONDS)
    return session
