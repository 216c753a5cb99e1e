"""Provisioning: render, verify and upgrade what the owner installs. Imports everything below runtime."""

from __future__ import annotations

import contextlib
from uuid import UUID

from airflow_dpone_xmin.contracts.endpoint import Endpoint, EndpointResolver
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.runtime.engines import engine_of
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.runtime.workdir import work_base
from airflow_dpone_xmin.source.describe import describe
from airflow_dpone_xmin.target.authority import verify_databases
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect, engine_for
from airflow_dpone_xmin.target.ddl import render_catalog, render_route
from airflow_dpone_xmin.target.proof import require_catalog
from airflow_dpone_xmin.target.upgrade import Upgrade, render_upgrade, upgrade


def render_scripts(route: Route, *, endpoints: EndpointResolver, login: str, binding_id: UUID, part: str) -> str:
    """The owner's script.

    :param login: runtime login or role.
    :param binding_id: UUID of the target's identity row.
    :param part: ``catalog``, ``route`` or ``all``. The route part reads the source's columns.
    :raises XminError: what the source refuses.
    """
    # Rendering never connects to the target, so no credentials are asked for.
    nowhere = Endpoint(entry=route.sink_entry, host=None, port=None, database=None, user=None)
    engine = engine_for(route.layout, target=nowhere, state=nowhere)
    dialect, catalog = ddl_dialect(route.layout), build_catalog(route.layout.names)
    scripts = []
    if part in ("catalog", "all"):
        scripts.append(render_catalog(engine, dialect, catalog, login=login))
    if part in ("route", "all"):
        found = describe(endpoints(route.source.entry, conn_id=route.source_conn_id), source_request(route, work_dir=work_base(route)))
        if found.projection is None:
            raise found.findings[0]
        scripts.append(
            render_route(engine, dialect, catalog, projection=found.projection, mode=route.delete_mode, binding_id=binding_id, login=login)
        )
    return "".join(script.text(separator=dialect.separator) for script in scripts)


def catalog_differences(route: Route, *, endpoints: EndpointResolver) -> list[str]:
    """Differences between the live catalog and this version's.

    :raises XminError: ``DPONE_LEGACY_STATE``, ``mssql_transaction.catalog_foreign``, connection codes.
    """
    with (
        contextlib.closing(engine_of(route, endpoints)) as engine,
        contextlib.closing(engine.connect("target", cancel=Cancellation())) as session,
    ):
        try:
            require_catalog(engine, session, build_catalog(route.layout.names))
        except XminError as error:
            if error.code != "mssql_transaction.catalog_mismatch":
                raise
            return list(error.details["differences"])
    return []


def upgrade_catalog(route: Route, *, endpoints: EndpointResolver, owner: str) -> Upgrade:
    """Migrate the route's state catalog to this version with the owner's login.

    :param owner: name under which the endpoint resolver finds the owner's login.
    :raises XminError: database authority, ``DPONE_LEGACY_STATE``, ``mssql_transaction.catalog_*`` and connection codes.
    """
    endpoint = endpoints(owner, conn_id=owner)
    with contextlib.closing(engine_for(route.layout, target=endpoint, state=endpoint)) as engine:
        with contextlib.closing(engine.connect("target", cancel=Cancellation())) as session:
            authority = verify_databases(engine, session, route)
        with contextlib.closing(engine.connect("state", cancel=Cancellation())) as session:
            return upgrade(engine, session, route.layout.names, authority=authority, timeout=route.target_lock_timeout)


def upgrade_script(route: Route) -> str:
    """The statements of :func:`upgrade_catalog`, for review; connects to nothing."""
    nowhere = Endpoint(entry=route.sink_entry, host=None, port=None, database=None, user=None)
    engine, dialect = engine_for(route.layout, target=nowhere, state=nowhere), ddl_dialect(route.layout)
    return render_upgrade(engine, dialect, route.layout.names).text(separator=dialect.separator)
