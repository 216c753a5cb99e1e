"""Chooses the engine of a layout: the one place that knows both. Imports the target's own modules, the drivers lazily."""

from __future__ import annotations

from airflow_dpone_xmin.contracts.endpoint import Endpoint
from airflow_dpone_xmin.contracts.route import Layout
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


def ddl_dialect(layout: Layout) -> DdlDialect:
    """The DDL spelling of a layout's engine."""
    if layout.engine == "embedded":
        from airflow_dpone_xmin.target.postgres_ddl import PostgresDdl

        return PostgresDdl()
    from airflow_dpone_xmin.target.mssql_ddl import MssqlDdl

    return MssqlDdl()
