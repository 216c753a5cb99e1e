"""Provisioning: render, verify and upgrade what the owner installs. Imports everything below runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint, EndpointResolver, Route
from airflow_dpone_xmin.registry.discover import database_fragment
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.runtime.workdir import work_base
from airflow_dpone_xmin.source.describe import describe
from airflow_dpone_xmin.target import mssql_queries, postgres_queries
from airflow_dpone_xmin.target.authority import verify_databases
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect, engine_at, engine_for, engine_of
from airflow_dpone_xmin.target.ddl import render_catalog, render_route
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.proof import live_catalog, require_catalog, require_schemas
from airflow_dpone_xmin.target.sql import STATE
from airflow_dpone_xmin.target.upgrade import Upgrade, render_upgrade, upgrade


def database_queries(engine: str) -> tuple[str, ...]:
    """The read-only queries that :func:`discover_databases` asks, and a run too: there is one way to look at a database.

    :param engine: ``mssql`` or ``embedded``; on the latter ``database_guid`` is uuid5(OID namespace, "system identifier:OID").
    """
    if engine == "mssql":
        return (mssql_queries.METADATA_RIGHT.text, mssql_queries.OBSERVE_DATABASE.text)
    return (postgres_queries.OBSERVE_DATABASE.format(token="(SELECT token FROM dbo.dpone_database_token)"),)


def discover_databases(endpoint: Endpoint, *, engine: str, databases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Candidate pins of databases for a human to review; nothing in a run calls this.

    :param engine: ``mssql`` or ``embedded``.
    :raises XminError: ``mssql_transaction.target_database_metadata_permission_denied``, ``evidence.not_found`` for a database that is not
        there, and the engine's connection codes.
    """
    pins = {}
    with (
        contextlib.closing(engine_at(endpoint, databases[0], engine=engine)) as opened,
        contextlib.closing(opened.connect("target", cancel=Cancellation())) as session,
    ):
        for name in databases:
            seen = opened.observe_database(session, name)
            if seen is not None and not seen.metadata_visible:
                raise XminError("mssql_transaction.target_database_metadata_permission_denied", "The login may not see database metadata.")
            if seen is None or seen.database_guid is None:
                raise XminError("evidence.not_found", f"There is no database {name!r} whose pins this login can see.")
            token = seen.create_token or "none yet: apply ddl render --part catalog"  # the embedded engine's token is a row of the catalog
            pins[seen.name] = database_fragment(database_id=seen.database_id, create_token=token, database_guid=seen.database_guid)
    return pins


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
            render_route(
                engine,
                dialect,
                catalog,
                projection=found.projection,
                mode=route.delete_mode,
                binding_id=binding_id,
                login=login,
                exchange=route.campaign is not None and route.campaign.publication == "shadow_swap",
            )
        )
    return "".join(script.text(separator=dialect.separator) for script in scripts)


def catalog_differences(route: Route, *, endpoints: EndpointResolver) -> list[str]:
    """Differences between the live catalog and this version's.

    :raises XminError: database authority, ``registry.rollback``, ``DPONE_LEGACY_STATE``, ``mssql_transaction.catalog_foreign``,
        connection codes.
    """
    with (
        contextlib.closing(engine_of(route, endpoints)) as engine,
        contextlib.closing(engine.connect("target", cancel=Cancellation())) as session,
    ):
        catalog, authority = build_catalog(route.layout.names), verify_databases(engine, session, route)
        try:
            require_catalog(engine, session, catalog)
        except XminError as error:
            if error.code != "mssql_transaction.catalog_mismatch":
                raise
            return list(error.details["differences"])
        Ledger(session, catalog, authority).require_serial(environment=route.environment, serial=route.registry_serial)
    return []


def upgrade_catalog(route: Route, *, endpoints: EndpointResolver, owner: str) -> Upgrade:
    """Migrate the route's state catalog to this version with the owner's login.

    :param owner: name under which the endpoint resolver finds the owner's login.
    :raises XminError: database authority, ``DPONE_LEGACY_STATE``, ``mssql_transaction.catalog_*`` and connection codes.
    """
    with (
        contextlib.closing(engine_of(route, endpoints, owner=owner)) as engine,
        contextlib.closing(engine.connect("state", cancel=Cancellation())) as session,
    ):
        catalog, authority = build_catalog(route.layout.names), verify_databases(engine, session, route)
        require_schemas(engine, session)
        if live_catalog(engine, session, catalog)[STATE].get(catalog.registry_serial.name) is not None:
            Ledger(session, catalog, authority).require_serial(environment=route.environment, serial=route.registry_serial)
        return upgrade(engine, session, route.layout.names, authority=authority, timeout=route.target_lock_timeout)


def upgrade_script(route: Route) -> str:
    """The statements of :func:`upgrade_catalog`, for review; connects to nothing."""
    nowhere = Endpoint(entry=route.sink_entry, host=None, port=None, database=None, user=None)
    engine, dialect = engine_for(route.layout, target=nowhere, state=nowhere), ddl_dialect(route.layout)
    return render_upgrade(engine, dialect, route.layout.names).text(separator=dialect.separator)
