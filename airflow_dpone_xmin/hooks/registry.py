"""The registry of this Airflow deployment, and the entry that a connection answers for. Imports contracts; the rest lazily.

Only Airflow's configuration counts: whoever may edit a DAG, a connection or an environment variable of ours may not choose whom to trust.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_dpone_xmin.contracts.errors import XminError

if TYPE_CHECKING:
    from airflow_dpone_xmin.contracts.registry import RegistryConnection, RegistryDocument
    from airflow_dpone_xmin.contracts.route import Endpoint
    from airflow_dpone_xmin.registry.load import VerifiedRegistry
    from airflow_dpone_xmin.runtime.settings import Settings


class AuthorityHook:
    """Mixed into the hooks of both sides: the connection's id is in the attribute that ``conn_name_attr`` names."""

    conn_name_attr: str

    def get_endpoint(self, entry: str | None = None) -> Endpoint:
        """The endpoint of a registry entry; ``DPONE_CONN_<ENTRY>`` wins over the connection, as on the command line.

        :param entry: registry entry; the connection's own name when None.
        :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``.
        """
        from airflow_dpone_xmin.runtime.endpoints import EnvironmentEndpoints

        return EnvironmentEndpoints()(entry or self._conn_id, conn_id=self._conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Connect, say who answers and as whom, and compare it with the signed pins where a registry is configured.

        :returns: whether everything that could be verified holds, and what was verified; or what does not hold.
        """
        try:
            return self._look(signed_entry(self._conn_id))
        except XminError as error:
            return False, str(error)

    @property
    def _conn_id(self) -> str:
        return str(getattr(self, self.conn_name_attr))

    def _look(self, signed: tuple[str, RegistryConnection] | None) -> tuple[bool, str]:
        """:raises XminError: what does not hold."""
        raise NotImplementedError


def deployment_settings() -> Settings:
    """Section ``[dpone_xmin]`` of Airflow's configuration."""
    from airflow_dpone_xmin.runtime.settings import resolve_settings

    return resolve_settings(environ={name: value for name, value in os.environ.items() if name.startswith("AIRFLOW")})


def deployment_registry(settings: Settings) -> VerifiedRegistry:
    """The verified registry that is valid now.

    :raises XminError: ``registry.*``.
    """
    from airflow_dpone_xmin.registry.load import load_registry

    return load_registry(settings.require_registry(), trusted_keys=settings.trusted_keys, environment=settings.environment)


def signed_entry(conn_id: str) -> tuple[str, RegistryConnection] | None:
    """The registry entry that a connection answers for.

    :returns: its name and facts; None when no registry is configured or it knows nothing of the connection.
    :raises XminError: ``registry.*`` when a registry is configured and refused.
    """
    settings = deployment_settings()
    if settings.registry is None:
        return None
    document = deployment_registry(settings).document
    name = _entry_name(conn_id, document)
    return None if name is None else (name, document.connections[name])


def _entry_name(conn_id: str, document: RegistryDocument) -> str | None:
    """The entry that the connection's extra names, else one that names the connection, else one of the same name."""
    naming = [name for name, entry in document.connections.items() if entry.airflow_conn_id == conn_id]
    candidates = [*_named_by_connection(conn_id), *naming, conn_id]
    return next((name for name in candidates if name in document.connections), None)


def _named_by_connection(conn_id: str) -> list[str]:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    from airflow_dpone_xmin.runtime.endpoints import registry_entry

    try:
        return [registry_entry(BaseHook.get_connection(conn_id))]
    except AirflowNotFoundException:  # reached through an environment variable
        return []
