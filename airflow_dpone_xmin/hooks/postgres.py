"""The source's hook: Airflow's ``postgres`` connection as an endpoint. What is reached is compared with signed pins, never trusted.

Imports Airflow's SDK; contracts, source and drivers lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from airflow_dpone_xmin.hooks.registry import AuthorityHook

if TYPE_CHECKING:
    from airflow_dpone_xmin.contracts.registry import RegistryConnection
    from airflow_dpone_xmin.source.session import Session


class PostgresSourceAuthorityHook(AuthorityHook, BaseHook):
    """Resolves and tests the connection of a PostgreSQL source.

    :param postgres_conn_id: Airflow connection of type ``dpone_xmin_postgres`` or ``postgres``, the database's name in ``schema``. Its
        extra may name the registry entry it answers for (``dpone_registry_entry``) and libpq options such as ``sslmode``; it can hold
        no trust.
    :param logger_name: as in Airflow's ``BaseHook``.
    """

    conn_name_attr = "postgres_conn_id"
    default_conn_name = "postgres_default"
    conn_type = "dpone_xmin_postgres"
    hook_name = "PostgreSQL source (dpone XMin)"

    def __init__(self, postgres_conn_id: str = default_conn_name, *, logger_name: str | None = None) -> None:
        super().__init__(logger_name=logger_name)
        self.postgres_conn_id = postgres_conn_id

    def get_conn(self) -> Session:
        """An open source session; the caller closes it.

        :raises XminError: ``postgres_source.unreachable``, ``postgres_source.authentication_failed`` …
        """
        from airflow_dpone_xmin.source.session import Session

        return Session(self.get_endpoint())

    def _look(self, signed: tuple[str, RegistryConnection] | None) -> tuple[bool, str]:
        with self.get_conn() as session:
            return True, f"{_who(session)} {_pins(session, signed)}"


def _who(session: Session) -> str:
    from psycopg import sql

    query = sql.SQL(
        "SELECT current_setting('server_version'), current_user::text, current_database()::text,"
        " CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END"
    )
    version, role, database, topology = session.one(query)
    return f"PostgreSQL {version} ({topology}), role {role}, database {database}."


def _pins(session: Session, signed: tuple[str, RegistryConnection] | None) -> str:
    """What the signed source authority adds.

    :raises XminError: ``postgres_source_authority.*`` for the first pin that does not hold.
    """
    from airflow_dpone_xmin.source.authority import observe, verify

    if signed is None:
        return "No signed registry entry is configured for it: no pin was verified."
    name, entry = signed
    authority = entry.connection.postgres_source_authority
    if authority is None:
        return f"Registry entry {name} signs no source authority: no pin was verified."
    observed = observe(session, [(pin.schema_name, pin.relation) for pin in authority.relations.values()], version=authority.version)
    for key in authority.relations:
        verify(authority, key, observed)
    count = len(authority.relations)
    return f"Registry entry {name}: every {authority.verification_profile} pin holds, for {count} relation{'s' if count != 1 else ''}."
