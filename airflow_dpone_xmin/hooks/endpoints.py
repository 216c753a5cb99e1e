"""The endpoints of one route, looked up through the hooks before the work begins. Imports contracts and the hooks."""

from __future__ import annotations

from airflow_dpone_xmin.contracts.route import FixedEndpoints, Route


def resolve_endpoints(route: Route) -> FixedEndpoints:
    """Look up source, sink and state connection of *route*; nothing is connected to.

    :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``; retryable when Airflow itself failed to answer.
    """
    from airflow_dpone_xmin.hooks.mssql import MssqlDatabaseAuthorityHook
    from airflow_dpone_xmin.hooks.postgres import PostgresSourceAuthorityHook

    source = PostgresSourceAuthorityHook(route.source_conn_id)
    found = {route.source.entry: source.get_endpoint(route.source.entry)}
    for entry, conn_id in ((route.sink_entry, route.sink_conn_id), (route.state_entry, route.state_conn_id)):
        if entry not in found:
            found[entry] = MssqlDatabaseAuthorityHook(conn_id, engine=route.layout.engine).get_endpoint(entry)
    return FixedEndpoints(found)
