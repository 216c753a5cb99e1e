"""The target's hook: Airflow's ``mssql`` (or ``odbc``) connection as an endpoint, ``postgres`` for the embedded engine.

Imports Airflow's SDK; contracts, target and drivers lazily.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from airflow_dpone_xmin.contracts.registry import RegistryConnection
    from airflow_dpone_xmin.contracts.route import Endpoint, Layout
    from airflow_dpone_xmin.target.engine import Engine, Session


class MssqlDatabaseAuthorityHook(BaseHook):
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

    def get_endpoint(self, entry: str | None = None) -> Endpoint:
        """The endpoint of a registry entry; ``DPONE_CONN_<ENTRY>`` wins over the connection, as on the command line.

        :param entry: registry entry; the connection's own name when None.
        :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``.
        """
        from airflow_dpone_xmin.runtime.endpoints import EnvironmentEndpoints

        return EnvironmentEndpoints()(entry or self.mssql_conn_id, conn_id=self.mssql_conn_id)

    def get_conn(self) -> Engine:
        """The target engine over this connection, its database being target, staging and state; the caller closes it."""
        from airflow_dpone_xmin.target.connect import engine_for

        endpoint = replace(self.get_endpoint(), multi_subnet_failover=self.multi_subnet_failover)
        return engine_for(self._layout(endpoint), target=endpoint, state=endpoint)

    def test_connection(self) -> tuple[bool, str]:
        """Connect, say who answers and as whom, and compare it with the signed pins where a registry is configured.

        :returns: whether everything that could be verified holds, and what was verified; or what does not hold.
        """
        from airflow_dpone_xmin.contracts.errors import XminError
        from airflow_dpone_xmin.contracts.progress import Cancellation
        from airflow_dpone_xmin.hooks.registry import signed_entry

        try:
            signed = signed_entry(self.mssql_conn_id)
            if signed is not None and signed[1].connection.multi_subnet_failover:
                self.multi_subnet_failover = True
            with (
                contextlib.closing(self.get_conn()) as engine,
                contextlib.closing(engine.connect("target", cancel=Cancellation())) as session,
            ):
                facts = engine.session_facts(session)
                holds, pins = _pins(engine, session, signed)
        except XminError as error:
            return False, str(error)
        return holds, f"Server {facts.topology}, principal {facts.principal}, database {facts.database}. {pins}"

    def _layout(self, endpoint: Endpoint) -> Layout:
        """A layout that only serves to connect."""
        from airflow_dpone_xmin.contracts.route import Layout, Namespace, TableName

        namespace = Namespace(endpoint.database or ("master" if self.engine == "mssql" else "postgres"), "dbo")
        return Layout(engine=self.engine, target=TableName(namespace, "-"), staging=namespace, state=namespace)


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
