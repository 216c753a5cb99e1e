"""The engine of a route, with its endpoints resolved. Imports everything below runtime."""

from __future__ import annotations

from dataclasses import replace

from airflow_dpone_xmin.contracts.endpoint import Endpoint, EndpointResolver
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.target.connect import engine_for
from airflow_dpone_xmin.target.engine import Engine


def engine_of(route: Route, endpoints: EndpointResolver, *, owner: str | None = None) -> Engine:
    """The target engine of a route, each entry with its own signed options; the caller closes it.

    :param owner: name under which the resolver finds the owner's login, which then stands for both entries.
    :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``.
    """

    def endpoint(entry: str, conn_id: str, multi_subnet: bool) -> Endpoint:
        return replace(endpoints(owner or entry, conn_id=owner or conn_id), multi_subnet_failover=multi_subnet)

    return engine_for(
        route.layout,
        target=endpoint(route.sink_entry, route.sink_conn_id, route.sink_multi_subnet),
        state=endpoint(route.state_entry, route.state_conn_id, route.state_multi_subnet),
    )
