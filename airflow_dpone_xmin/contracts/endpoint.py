"""An endpoint: where a database is and how to log in. Never printed, never stored.

Imports the standard library and contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_dpone_xmin.contracts.errors import XminError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Credentials and address of one registry entry, as a scheduler's connection or an environment variable gave them.

    :param entry: registry entry that this endpoint answers for.
    :param host: host name, address or, for PostgreSQL, the directory of a unix socket.
    :param extra: driver options, for example ``driver``, ``Encrypt`` or ``sslmode``; passed through.
    :param multi_subnet_failover: of the signed registry entry; only SQL Server knows it.
    """

    entry: str
    host: str | None
    port: int | None
    database: str | None
    user: str | None
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    multi_subnet_failover: bool = False


class EndpointResolver(Protocol):
    """Finds the endpoint of a registry entry."""

    def __call__(self, entry: str, *, conn_id: str) -> Endpoint:
        """:raises XminError: ``DPONE_CONNECTION_UNRESOLVED``."""
        ...


@dataclass(frozen=True, slots=True)
class FixedEndpoints:
    """A resolver that asks nobody any more: safe in any thread, and small enough to hand to another interpreter.

    :param by_entry: registry entry → endpoint.
    """

    by_entry: Mapping[str, Endpoint]

    def __call__(self, entry: str, *, conn_id: str) -> Endpoint:
        """:raises XminError: ``DPONE_CONNECTION_UNRESOLVED`` for an entry that the route does not name."""
        if entry not in self.by_entry:
            raise XminError("DPONE_CONNECTION_UNRESOLVED", f"Entry {entry!r} does not belong to this route.", details={"entry": entry})
        return self.by_entry[entry]
