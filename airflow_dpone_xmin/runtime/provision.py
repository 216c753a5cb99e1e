"""Provisioning: render and verify what the owner installs. Imports everything below runtime."""

from __future__ import annotations

from uuid import UUID

from airflow_dpone_xmin.contracts.endpoint import Endpoint, EndpointResolver
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.runtime.engines import engine_of
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.runtime.workdir import work_base
from airflow_dpone_xmin.source.describe import describe
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect, engine_for
from airflow_dpone_xmin.target.ddl import render_catalog, render_route, verify_catalog


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
    """Differences between the live catalog and this version's."""
    engine = engine_of(route, endpoints)
    session = engine.connect("target", cancel=Cancellation())
    try:
        return verify_catalog(engine, session, build_catalog(route.layout.names))
    finally:
        session.close()
        engine.close()
