"""An endpoint: where a database is and how to log in. Never printed, never stored.

Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Credentials and address of one registry entry, as a scheduler's connection or an environment variable gave them.

    :param entry: registry entry that this endpoint answers for.
    :param host: host name, address or, for PostgreSQL, the directory of a unix socket.
    :param extra: driver options, for example ``driver``, ``Encrypt`` or ``sslmode``; passed through.
    """

    entry: str
    host: str | None
    port: int | None
    database: str | None
    user: str | None
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


class EndpointResolver(Protocol):
    """Finds the endpoint of a registry entry."""

    def __call__(self, entry: str, *, conn_id: str) -> Endpoint:
        """:raises XminError: ``DPONE_CONNECTION_UNRESOLVED``."""
        ...
