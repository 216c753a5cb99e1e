"""How to log in to a registry entry: an environment variable, else Airflow's connection of that name.

Address and credentials come from here and decide nothing: what is reached is compared with the signed pins. Imports contracts;
SQLAlchemy and Airflow lazily.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Protocol

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.runtime.settings import airflow_is_configured

ENTRY_EXTRA = "dpone_registry_entry"
"""Key of a connection's extra that names its registry entry: the only thing a connection may say about authority."""


class AirflowConnection(Protocol):
    """The members of Airflow's connection that are read."""

    conn_id: Any
    host: Any
    port: Any
    schema: Any
    login: Any
    password: Any

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """The extra as a mapping."""
        ...


class EnvironmentEndpoints:
    """Resolves registry entries from ``DPONE_CONN_<ENTRY>`` and Airflow's connections.

    :param environ: for tests; ``os.environ`` otherwise.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def __call__(self, entry: str, *, conn_id: str) -> Endpoint:
        """Find the endpoint of *entry*.

        :param conn_id: Airflow's connection id of the entry.
        :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``; retryable when Airflow itself failed to answer.
        """
        variable = variable_name(entry)
        url = self._environ.get(variable)
        if url:
            return endpoint_from_url(url, entry=entry, variable=variable)
        if airflow_is_configured(self._environ) or f"AIRFLOW_CONN_{conn_id.upper()}" in self._environ:
            return from_airflow(_airflow_connection(conn_id, variable=variable), entry)
        raise _unresolved(f"{variable} is not set and no Airflow is configured here.", entry=entry, variable=variable)


def variable_name(entry: str) -> str:
    """``DPONE_CONN_`` and the entry in upper case, with ``_`` for everything but ASCII letters and digits."""
    return "DPONE_CONN_" + re.sub(r"[^A-Z0-9]", "_", entry.upper())


def endpoint_from_url(url: str, *, entry: str, variable: str) -> Endpoint:
    """Read a SQLAlchemy URL; its query becomes the driver options, ``?host=/directory`` a unix socket.

    :param variable: where the URL came from, for the message.
    :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``, without any part of the URL.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is not a number
        raise _unresolved(f"{variable} does not hold a URL: {type(error).__name__}.", entry=entry, variable=variable) from None
    extra = {name: value if isinstance(value, str) else list(value) for name, value in parts.query.items()}
    host = parts.host or extra.pop("host", None)
    port = parts.port if parts.port is not None else _port(extra.pop("port", None), entry=entry, variable=variable)
    if host is not None and not isinstance(host, str):
        raise _unresolved(f"{variable} names more than one host.", entry=entry, variable=variable)
    return Endpoint(
        entry=entry, host=host, port=port, database=parts.database or None, user=parts.username, password=_text(parts.password), extra=extra
    )


def from_airflow(connection: AirflowConnection, entry: str) -> Endpoint:
    """An Airflow connection of type ``postgres``, ``mssql`` or ``odbc`` as an endpoint.

    :param connection: with the database's name in ``schema``, as Airflow's own hooks have it.
    :param entry: registry entry that the endpoint answers for.
    """
    extra = {name: value for name, value in connection.extra_dejson.items() if name != ENTRY_EXTRA}
    return Endpoint(
        entry=entry,
        host=connection.host or extra.pop("host", None),
        port=connection.port,
        database=connection.schema or None,
        user=connection.login or None,
        password=_text(connection.password),
        extra=extra,
    )


def registry_entry(connection: AirflowConnection) -> str:
    """The registry entry that a connection names, by default its own id."""
    return str(connection.extra_dejson.get(ENTRY_EXTRA) or connection.conn_id)


def _airflow_connection(conn_id: str, *, variable: str) -> AirflowConnection:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        connection: AirflowConnection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise _unresolved(f"Airflow has no connection {conn_id!r} and {variable} is not set.", entry=conn_id, variable=variable) from None
    except Exception as error:  # a secrets backend's own client; its text may quote an address
        raise XminError(
            "DPONE_CONNECTION_UNRESOLVED",
            f"Airflow could not look up connection {conn_id!r}: {type(error).__name__}.",
            details={"entry": conn_id, "variable": variable},
            retryable=True,
        ) from None
    return connection


def _port(value: object, *, entry: str, variable: str) -> int | None:
    if value is None:
        return None
    try:
        return int(str(value))
    except ValueError:
        raise _unresolved(f"{variable} has a port that is not a number.", entry=entry, variable=variable) from None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _unresolved(message: str, *, entry: str, variable: str) -> XminError:
    return XminError(
        "DPONE_CONNECTION_UNRESOLVED",
        message,
        hint=f"Set {variable} to its URL, or create the Airflow connection.",
        details={"entry": entry, "variable": variable},
    )
