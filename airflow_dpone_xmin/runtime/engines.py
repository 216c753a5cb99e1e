"""The engine of a route, with its endpoints resolved. Imports everything below runtime."""

from __future__ import annotations

from airflow_dpone_xmin.contracts.endpoint import EndpointResolver
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.target.connect import engine_for
from airflow_dpone_xmin.target.engine import Engine


def engine_of(route: Route, endpoints: EndpointResolver) -> Engine:
    """The target engine of a route; the caller closes it.

    :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``.
    """
    return engine_for(
        route.layout,
        target=endpoints(route.sink_entry, conn_id=route.sink_conn_id),
        state=endpoints(route.state_entry, conn_id=route.state_conn_id),
        multi_subnet_failover=route.multi_subnet_failover,
    )
