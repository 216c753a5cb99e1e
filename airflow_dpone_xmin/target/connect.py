"""Chooses the engine of a layout, and of a route with its endpoints: the one place that knows both engines.

Imports contracts and the target's own modules, the drivers lazily.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_dpone_xmin.contracts.route import Endpoint, EndpointResolver, Layout, Namespace, Route, TableName
from airflow_dpone_xmin.target.ddl import DdlDialect
from airflow_dpone_xmin.target.engine import Engine


def engine_for(layout: Layout, *, target: Endpoint, state: Endpoint) -> Engine:
    """The engine that serves a layout.

    :param target: endpoint of the sink entry.
    :param state: endpoint of the state entry; often the same.
    """
    if layout.engine == "embedded":
        from airflow_dpone_xmin.target.postgres import PostgresEngine

        return PostgresEngine(target, layout, state=state)
    from airflow_dpone_xmin.target.mssql import MssqlEngine

    return MssqlEngine(target, layout, state=state)


def engine_at(endpoint: Endpoint, database: str, *, engine: str, schema: str = "dbo") -> Engine:
    """An engine that only looks, without a route: one database is target, staging and state.

    :param engine: a registry entry's type: ``embedded`` or ``mssql``.
    :param schema: of the state catalog.
    """
    here = Namespace(database, schema)
    layout = Layout(
        engine="embedded" if engine == "embedded" else "mssql", target=TableName(Namespace(database, "dbo"), "-"), staging=here, state=here
    )
    return engine_for(layout, target=endpoint, state=endpoint)


def ddl_dialect(layout: Layout) -> DdlDialect:
    """The DDL spelling of a layout's engine."""
    if layout.engine == "embedded":
        from airflow_dpone_xmin.target.postgres_ddl import PostgresDdl

        return PostgresDdl()
    from airflow_dpone_xmin.target.mssql_ddl import MssqlDdl

    return MssqlDdl()


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
