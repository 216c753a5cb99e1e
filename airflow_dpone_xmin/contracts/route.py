"""The route: one source relation → one target table, with every coordinate resolved and every authority selected.

Built by ``policy/route.py``; plain and frozen from there on. Its endpoints, where a database is and how to log in, are found when it runs:
never printed, never stored. Imports the standard library and contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Protocol

from airflow_dpone_xmin.contracts.campaign import CampaignSpec
from airflow_dpone_xmin.contracts.envelope import SourceIdentity
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import DatabaseAuthority, SourceAuthority

DELETED_AT = "__dpone__deleted_at"
IS_DELETED = "__dpone__is_deleted"
LOAD_ID = "__dpone__load_id"
LOADED_AT = "__dpone__loaded_at"
UPDATED_AT = "__dpone__updated_at"


class DeleteMode(str, Enum):
    """What happens to an active target row whose key is gone."""

    NEVER = "never"
    TIMESTAMP_ONLY = "timestamp_only"
    TIMESTAMP_AND_FLAG = "timestamp_and_flag"
    FLAG_ONLY = "flag_only"
    HARD = "hard_delete"

    @property
    def has_timestamp(self) -> bool:
        """Whether ``__dpone__deleted_at`` exists and decides."""
        return self in (DeleteMode.TIMESTAMP_ONLY, DeleteMode.TIMESTAMP_AND_FLAG)

    @property
    def has_flag(self) -> bool:
        """Whether ``__dpone__is_deleted`` exists."""
        return self in (DeleteMode.FLAG_ONLY, DeleteMode.TIMESTAMP_AND_FLAG)

    @property
    def soft(self) -> bool:
        """Whether deleted rows stay as tombstones."""
        return self.has_timestamp or self.has_flag

    @property
    def reconciles(self) -> bool:
        """Whether a complete key snapshot is taken and applied."""
        return self is not DeleteMode.NEVER


@dataclass(frozen=True, slots=True)
class Namespace:
    """A schema in a database."""

    database: str
    schema: str


@dataclass(frozen=True, slots=True)
class TableName:
    """A table in a namespace."""

    namespace: Namespace
    name: str

    @property
    def display(self) -> str:
        """``database.schema.name`` for messages."""
        return f"{self.namespace.database}.{self.namespace.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class CatalogNames:
    """Names of the six XMin tables, configurable in the manifest."""

    source_state: str = "dpone_source_state"
    run_state: str = "dpone_run_state"
    commit_receipt: str = "dpone_commit_receipt"
    repair_authority: str = "dpone_repair_authority"
    repair_consumption: str = "dpone_repair_authority_consumption"
    load_audit: str = "dpone_load_audit"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of one target lives, and on which engine.

    :param dbo: schema of ``dpone_target_identity`` and ``dpone_target_head`` in the target database.
    """

    engine: Literal["mssql", "embedded"]
    target: TableName
    staging: Namespace
    state: Namespace
    names: CatalogNames = CatalogNames()
    dbo: str = "dbo"


@dataclass(frozen=True, slots=True)
class DeleteGuards:
    """Limits on deletes; None is no limit."""

    max_rows: int | None
    max_ratio: Decimal | None


@dataclass(frozen=True, slots=True)
class Authorities:
    """The signed authorities this route selected, with their digests (32 bytes each)."""

    source: SourceAuthority
    relation_key: str
    target: DatabaseAuthority
    staging: DatabaseAuthority
    state: DatabaseAuthority
    digests: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    :param process: stable name; checkpoints belong to it or to ``handoff_id``.
    :param execution: ``initial`` or ``incremental`` half of a handoff, or None.
    :param route_fingerprint: digest of the manifest's contract part and the authority digests.
    :param registry_serial: serial of the verified registry; one below the last that the state database accepted is a rollback.
    :param source_alias: the authored source name differs from the signed one by ASCII case.
    :param evolve: whether a run may make safe changes to the target table.
    :param keep_dropped_columns: whether nullable target columns that the source does not have are left alone.
    :param sink_multi_subnet: ``multi_subnet_failover`` of the sink's registry entry; ``state_multi_subnet`` of the state's.
    :param min_rows: quality gates of that type: gate id → threshold.
    :param campaign: the authored plan of an initial load; None for an incremental route.
    :param command_words: what names the route on a command line: manifest, ``--table``, and the options that were given with it.
    :param inline_manifest: the manifest as JSON where it is no file; a command saves it first.
    """

    environment: str
    process: str
    execution: Literal["initial", "incremental"] | None
    handoff_id: str | None
    source: SourceIdentity
    source_conn_id: str
    sink_entry: str
    sink_conn_id: str
    state_entry: str
    state_conn_id: str
    layout: Layout
    authorities: Authorities
    key: tuple[str, ...]
    delete_mode: DeleteMode
    guards: DeleteGuards
    route_fingerprint: bytes
    registry_serial: int
    window: Literal["exact", "strict"] = "exact"
    max_replay_amplification: int | None = None
    string_columns: frozenset[str] = frozenset()
    type_overrides: Mapping[str, str] = field(default_factory=dict)
    evolve: bool = True
    keep_dropped_columns: bool = False
    min_rows: Mapping[str, int] = field(default_factory=dict)
    work_dir: str | None = None
    min_free_bytes: int = 256 * 1024 * 1024
    source_lock_timeout: float = 30.0
    source_deadline: float = 6 * 3600.0
    target_lock_timeout: float = 300.0
    sink_multi_subnet: bool = False
    state_multi_subnet: bool = False
    source_alias: bool = False
    campaign: CampaignSpec | None = None
    notices: tuple[str, ...] = ()
    command_words: tuple[str, ...] = ("MANIFEST",)
    inline_manifest: str | None = None


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
