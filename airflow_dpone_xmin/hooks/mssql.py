"""The target's hook: Airflow's ``mssql`` (or ``odbc``) connection as an endpoint, ``postgres`` for the embedded engine.

Imports Airflow's SDK; contracts, target and drivers lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from airflow_dpone_xmin.contracts.endpoint import Endpoint
    from airflow_dpone_xmin.contracts.route import Layout
    from airflow_dpone_xmin.target.engine import Engine


class MssqlDatabaseAuthorityHook(BaseHook):
    """Resolves and tests the connection of a target.

    :param mssql_conn_id: Airflow connection; its extra may hold ODBC options such as ``driver`` or ``Encrypt``. It can hold no trust.
    :param engine: ``mssql``, or ``embedded`` for a PostgreSQL that stands in for SQL Server.
    :param logger_name: as in Airflow's ``BaseHook``.
    """

    conn_name_attr = "mssql_conn_id"
    default_conn_name = "mssql_default"
    conn_type = "mssql"
    hook_name = "SQL Server target (dpone XMin)"

    def __init__(
        self, mssql_conn_id: str = default_conn_name, *, engine: Literal["mssql", "embedded"] = "mssql", logger_name: str | None = None
    ) -> None:
        super().__init__(logger_name=logger_name)
        self.mssql_conn_id = mssql_conn_id
        self.engine: Literal["mssql", "embedded"] = engine

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

        endpoint = self.get_endpoint()
        return engine_for(self._layout(endpoint), target=endpoint, state=endpoint)

    def test_connection(self) -> tuple[bool, str]:
        """Connect and say who answers and as whom.

        :returns: whether it worked, and one sentence: server, principal, database, or code and hint.
        """
        from airflow_dpone_xmin.contracts.errors import XminError
        from airflow_dpone_xmin.contracts.progress import Cancellation

        try:
            engine = self.get_conn()
            try:
                session = engine.connect("target", cancel=Cancellation())
                facts = engine.session_facts(session)
                session.close()
            finally:
                engine.close()
        except XminError as error:
            return False, str(error)
        return True, f"Server {facts.topology}, principal {facts.principal}, database {facts.database}."

    def _layout(self, endpoint: Endpoint) -> Layout:
        """A layout that only serves to connect."""
        from airflow_dpone_xmin.contracts.route import Layout, Namespace, TableName

        namespace = Namespace(endpoint.database or ("master" if self.engine == "mssql" else "postgres"), "dbo")
        return Layout(engine=self.engine, target=TableName(namespace, "-"), staging=namespace, state=namespace)
