"""The target's hook: Airflow's ``mssql`` (or ``odbc``) connection as an endpoint, ``postgres`` for the embedded engine.

Imports Airflow's SDK; contracts, target and drivers lazily.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from airflow.sdk import BaseHook

from airflow_dpone_xmin.hooks.registry import AuthorityHook

if TYPE_CHECKING:
    from airflow_dpone_xmin.contracts.registry import RegistryConnection
    from airflow_dpone_xmin.target.engine import Engine, Session


class MssqlDatabaseAuthorityHook(AuthorityHook, BaseHook):
    """Resolves and tests the connection of a target.

    :param mssql_conn_id: Airflow connection of type ``dpone_xmin_mssql``, ``mssql`` or ``odbc``. Its extra is passed to the driver:
        ``driver``, ``Encrypt``, ``TrustServerCertificate``, ``HostNameInCertificate``, ``ServerCertificate``, ``Authentication``,
        ``ApplicationIntent`` … and may name the registry entry it answers for (``dpone_registry_entry``). It can hold no trust.
    :param engine: ``mssql``, or ``embedded`` for a PostgreSQL that stands in for SQL Server.
    :param multi_subnet_failover: try all addresses of an availability group's listener at once; a signed registry entry or the
        connection's extra may ask for it too.
    :param logger_name: as in Airflow's ``BaseHook``.
    """

    conn_name_attr = "mssql_conn_id"
    default_conn_name = "mssql_default"
    conn_type = "dpone_xmin_mssql"
    hook_name = "SQL Server target (dpone XMin)"

    def __init__(
        self,
        mssql_conn_id: str = default_conn_name,
        *,
        engine: Literal["mssql", "embedded"] = "mssql",
        multi_subnet_failover: bool = False,
        logger_name: str | None = None,
    ) -> None:
        super().__init__(logger_name=logger_name)
        self.mssql_conn_id = mssql_conn_id
        self.engine: Literal["mssql", "embedded"] = engine
        self.multi_subnet_failover = multi_subnet_failover

    def get_conn(self) -> Engine:
        """The target engine over this connection, its database being target, staging and state; the caller closes it."""
        from airflow_dpone_xmin.target.connect import engine_at

        endpoint = replace(self.get_endpoint(), multi_subnet_failover=self.multi_subnet_failover)
        database = endpoint.database or ("master" if self.engine == "mssql" else "postgres")
        return engine_at(endpoint, database, engine=self.engine)

    def _look(self, signed: tuple[str, RegistryConnection] | None) -> tuple[bool, str]:
        from airflow_dpone_xmin.contracts.progress import Cancellation

        if signed is not None and signed[1].connection.multi_subnet_failover:
            self.multi_subnet_failover = True
        with contextlib.closing(self.get_conn()) as engine, contextlib.closing(engine.connect("target", cancel=Cancellation())) as session:
            facts = engine.session_facts(session)
            holds, pins = _pins(engine, session, signed)
        return holds, f"Server {facts.topology}, principal {facts.principal}, database {facts.database}. {pins}"


def _pins(engine: Engine, session: Session, signed: tuple[str, RegistryConnection] | None) -> tuple[bool, str]:
    """Every database that the registry entry signs, seen through this session."""
    from airflow_dpone_xmin.target.authority import compare_pins

    if signed is None:
        return True, "No signed registry entry is configured for it: no pin was verified."
    name, entry = signed
    authorities = entry.connection.database_authorities
    if not authorities:
        return True, f"Registry entry {name} signs no database: no pin was verified."
    for database, authority in authorities.items():
        # The role only names an error code, and none is raised here: a database may serve as target, staging and state.
        for verdict in compare_pins("target", database, authority, engine.observe_database(session, database)):
            if not verdict.ok:
                return False, f"Registry entry {name}: {database}'s {verdict.pin} is {verdict.observed}; signed is {verdict.expected}."
    return True, f"Registry entry {name}: every pin of {', '.join(authorities)} holds."
