"""The catalog: every table this product keeps, as one SQLAlchemy ``MetaData``, on both engines.

Schemas are logical (``state``, ``dbo``); a session translates them to real ones. The owner provisions the tables from ``ddl render``;
runtime has no DDL right on them and verifies them exactly. What every read and write of them shares stands at the end: the server's
clock, existence reads that hold their range, NULL without a parameter. Imports contracts and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Numeric, Select, SmallInteger, Table, null, select

from airflow_dpone_xmin.contracts.route import CatalogNames
from airflow_dpone_xmin.target import catalog_loads as loads
from airflow_dpone_xmin.target.catalog_loads import catalog_table, column
from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.sql import STATE, TARGET_DBO, Guid, Hash, LongText, Now, Text, Utc

CATALOG_VERSION = 2
"""Version 2 made ``invocation_digest`` unique on load attempts; ``target/upgrade.py`` migrates version 1."""
UPGRADABLE_FROM = 1
COMPONENT = "catalog"
"""Key of the version row."""

COUNT_COLUMNS = (
    "payload",
    "keys",
    "inserted",
    "updated",
    "reactivated",
    "unchanged",
    "soft_deleted",
    "hard_deleted",
    "active_before",
    "active_after",
    "total_after",
)
"""Names of :class:`contracts.state.ActionCounts`; each is a bigint column ``<name>_count`` of receipt and audit."""

DIGEST_COLUMNS = (
    "source_authority_digest",
    "target_authority_digest",
    "staging_authority_digest",
    "state_authority_digest",
    "scope_hash",
    "schema_hash",
    "projection_fingerprint",
    "rows_artifact_sha256",
    "keys_artifact_sha256",
)
"""Digests a receipt carries beside its identities."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All catalog tables.

    :param immutable: tables guarded by a trigger against UPDATE and DELETE.
    """

    metadata: MetaData
    version: Table
    registry_serial: Table
    source_state: Table
    run_state: Table
    receipt: Table
    repair_authority: Table
    repair_consumption: Table
    audit: Table
    target_fence: Table
    load_attempt: Table
    load_operation: Table
    load_receipt: Table
    campaign: Table
    campaign_chunk: Table
    identity: Table
    head: Table

    @property
    def immutable(self) -> tuple[Table, ...]:
        """Tables whose rows never change."""
        return (self.receipt, self.repair_authority, self.repair_consumption, self.load_receipt, self.identity)

    @property
    def state_tables(self) -> tuple[Table, ...]:
        """Tables of the state namespace, in creation order."""
        return tuple(table for table in self.metadata.tables.values() if table.schema == STATE)

    @property
    def target_tables(self) -> tuple[Table, ...]:
        """Tables of the target database's ``dbo``."""
        return (self.identity, self.head)


def build_catalog(names: CatalogNames | None = None, *, version: int = CATALOG_VERSION) -> Catalog:
    """The catalog with the configured names of the XMin six.

    :param version: an older one is built for the upgrade's proof only.
    """
    m, names = MetaData(), names or CatalogNames()
    return Catalog(
        metadata=m,
        version=_version(m),
        registry_serial=_registry_serial(m),
        source_state=_source_state(m, names.source_state),
        run_state=_run_state(m, names.run_state),
        receipt=_receipt(m, names.commit_receipt),
        repair_authority=_repair_authority(m, names.repair_authority),
        repair_consumption=_repair_consumption(m, names.repair_consumption),
        audit=_audit(m, names.load_audit),
        target_fence=loads.target_fence(m),
        load_attempt=loads.load_attempt(m, version),
        load_operation=loads.load_operation(m),
        load_receipt=loads.load_receipt(m),
        campaign=loads.campaign(m),
        campaign_chunk=loads.campaign_chunk(m),
        identity=_identity(m),
        head=_head(m),
    )


def _counts(*, null: bool) -> list[Column[Any]]:
    return [column(f"{name}_count", BigInteger, null=null) for name in COUNT_COLUMNS]


def _version(m: MetaData) -> Table:
    return catalog_table(
        m,
        "dpone_catalog_version",
        column("component", Text(64)),
        column("version", Integer),
        column("installed_at_utc", Utc),
        key=("component",),
    )


def _registry_serial(m: MetaData) -> Table:
    return catalog_table(
        m,
        "dpone_registry_serial",
        column("environment_digest", Hash),
        column("environment", Text(128)),
        column("serial", BigInteger),
        column("updated_at_utc", Utc),
        key=("environment_digest",),
    )


def _source_state(m: MetaData, name: str) -> Table:
    table = catalog_table(
        m,
        name,
        column("state_key", Hash),
        column("contract_version", Integer),
        column("environment", Text(128)),
        column("process", Text(256)),
        column("handoff_id", Text(128), null=True),
        column("source_entry", Text(128)),
        column("source_database", Text(128)),
        column("source_schema", Text(128)),
        column("source_relation", Text(128)),
        column("target_identity", Hash),
        column("key_columns", LongText),
        column("scope_hash", Hash),
        column("schema_hash", Hash),
        column("safe_xmin", BigInteger),
        column("visible_horizon", BigInteger),
        column("snapshot", LongText),
        column("revision", BigInteger),
        column("source_authority_digest", Hash),
        column("target_authority_digest", Hash),
        column("projection_fingerprint", Hash),
        column("load_id", Guid),
        column("receipt_id", Guid),
        column("created_at_utc", Utc),
        column("updated_at_utc", Utc),
        column("superseded_at_utc", Utc, null=True),
        column("superseded_by_state_key", Hash, null=True),
        key=("state_key",),
    )
    active = table.c.superseded_at_utc.is_(None)
    Index(f"ux_{name}_active_owner", table.c.target_identity, unique=True, mssql_where=active, postgresql_where=active)
    return table


def _run_state(m: MetaData, name: str) -> Table:
    return catalog_table(
        m,
        name,
        column("invocation_digest", Hash),
        column("process", Text(256)),
        column("run_id", Text(256)),
        column("map_index", Integer),
        column("target_identity", Hash),
        column("state_key", Hash),
        column("route_fingerprint", Hash),
        column("status", Text(32)),
        column("attempts", Integer),
        column("last_load_id", Guid),
        column("last_error_code", Text(128), null=True),
        column("created_at_utc", Utc),
        column("updated_at_utc", Utc),
        key=("invocation_digest",),
    )


def _receipt(m: MetaData, name: str) -> Table:
    return catalog_table(
        m,
        name,
        column("receipt_id", Guid),
        column("kind", Text(32)),
        column("contract_version", Integer),
        column("process", Text(256)),
        column("run_id", Text(256)),
        column("map_index", Integer),
        column("invocation_digest", Hash),
        column("load_id", Guid),
        column("state_key", Hash),
        column("target_identity", Hash),
        column("route_fingerprint", Hash),
        column("payload", Text(16)),
        column("payload_reason", Text(64)),
        column("previous_xmin", BigInteger, null=True),
        column("previous_revision", BigInteger, null=True),
        column("new_xmin", BigInteger),
        column("new_revision", BigInteger),
        column("visible_horizon", BigInteger),
        column("snapshot", LongText),
        *_counts(null=False),
        *[column(digest, Hash, null=digest == "keys_artifact_sha256") for digest in DIGEST_COLUMNS],
        column("repair_authority_id", Text(128), null=True),
        column("repair_authority_digest", Hash, null=True),
        column("registry_serial", BigInteger),
        column("detected_at_utc", Utc),
        column("committed_at_utc", Utc),
        key=("receipt_id",),
        unique=(("invocation_digest",), ("load_id",), ("state_key", "new_revision")),
    )


def _repair_authority(m: MetaData, name: str) -> Table:
    return catalog_table(
        m,
        name,
        column("authority_id", Text(128)),
        column("authority_digest", Hash),
        column("contract_version", Integer),
        column("environment", Text(128)),
        column("state_key", Hash),
        column("scope_hash", Hash),
        column("checkpoint_xmin", BigInteger, null=True),
        column("checkpoint_revision", BigInteger, null=True),
        column("allow_full_baseline", SmallInteger),
        column("allow_max_delete_rows", BigInteger, null=True),
        column("allow_max_delete_ratio", Numeric(18, 15), null=True),
        column("transfer_from_state_key", Hash, null=True),
        column("transfer_from_xmin", BigInteger, null=True),
        column("transfer_from_revision", BigInteger, null=True),
        column("reason", LongText),
        column("envelope", LongText, null=True),
        column("created_at_utc", Utc),
        column("expires_at_utc", Utc),
        key=("authority_id",),
    )


def _repair_consumption(m: MetaData, name: str) -> Table:
    return catalog_table(
        m,
        name,
        column("authority_id", Text(128)),
        column("authority_digest", Hash),
        column("state_key", Hash),
        column("load_id", Guid),
        column("receipt_id", Guid),
        column("consumed_at_utc", Utc),
        key=("authority_id",),
        unique=(("receipt_id",),),
    )


def _audit(m: MetaData, name: str) -> Table:
    return catalog_table(
        m,
        name,
        column("audit_id", Guid),
        column("load_id", Guid),
        column("invocation_digest", Hash),
        column("process", Text(256)),
        column("run_id", Text(256)),
        column("map_index", Integer),
        column("target_identity", Hash),
        column("state_key", Hash),
        column("outcome", Text(32)),
        column("error_code", Text(128), null=True),
        column("receipt_id", Guid, null=True),
        column("evidence", LongText),
        column("recorded_at_utc", Utc),
        key=("audit_id",),
    )


def _identity(m: MetaData) -> Table:
    return catalog_table(
        m,
        "dpone_target_identity",
        column("binding_id", Guid),
        column("schema_name", Text(128, database_collation=True)),
        column("table_name", Text(128, database_collation=True)),
        column("created_at_utc", Utc),
        key=("binding_id",),
        schema=TARGET_DBO,
        unique=(("schema_name", "table_name"),),
    )


def _head(m: MetaData) -> Table:
    return catalog_table(
        m,
        "dpone_target_head",
        column("target_identity", Hash),
        column("state_key", Hash),
        column("revision", BigInteger),
        column("load_id", Guid),
        column("updated_at_utc", Utc),
        key=("target_identity",),
        schema=TARGET_DBO,
    )


MAX_PARAMETERS = 1000
"""SQL Server takes 2,100 parameters in one statement."""

LOCKED_READ = "WITH (UPDLOCK, HOLDLOCK)"
"""Existence reads keep the range that they found empty (SQL Server, "Table hints")."""


def server_time(session: Session) -> datetime:
    """The server's UTC clock, naive."""
    value = session.scalar("clock", select(Now()))
    assert isinstance(value, datetime)
    return value


def no_parameter_for_null(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with NULL as a keyword."""
    # A driver must ask the server for the type of an untyped NULL parameter: a round trip, and a way to fail, inside the transaction.
    return {name: null() if value is None else value for name, value in values.items()}


def locked(table: Table, condition: Any) -> Select[Any]:
    """An existence read on a small catalog table: inside a serializable transaction what it did not find stays absent."""
    return select(table).where(condition).with_hint(table, LOCKED_READ, "mssql")
