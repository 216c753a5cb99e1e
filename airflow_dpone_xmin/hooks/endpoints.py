"""The endpoints of one route, looked up through the hooks before the work begins. Imports contracts and the hooks."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_dpone_xmin.contracts.endpoint import Endpoint
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Route


class RouteEndpoints:
    """An endpoint resolver that no longer asks Airflow: its answers are safe to read from any thread.

    :param endpoints: registry entry → endpoint.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = dict(endpoints)

    def __call__(self, entry: str, *, conn_id: str) -> Endpoint:
        """:raises XminError: ``DPONE_CONNECTION_UNRESOLVED`` for an entry that the route does not name."""
        if entry not in self._endpoints:
            raise XminError("DPONE_CONNECTION_UNRESOLVED", f"Entry {entry!r} does not belong to this route.", details={"entry": entry})
        return self._endpoints[entry]


def resolve_endpoints(route: Route) -> RouteEndpoints:
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
    return RouteEndpoints(found)
