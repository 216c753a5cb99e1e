"""The catalog: every table this product keeps, as one SQLAlchemy ``MetaData``, on both engines.

Schemas are logical (``state``, ``dbo``); a session translates them to real ones. The owner provisions the tables from ``ddl render``;
runtime has no DDL right on them and verifies them exactly. Imports contracts and ``target/sql.py`` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Numeric, PrimaryKeyConstraint, SmallInteger, Table, UniqueConstraint

from airflow_dpone_xmin.contracts.route import CatalogNames
from airflow_dpone_xmin.target.sql import STATE, TARGET_DBO, Guid, Hash, LongText, Text, Utc

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
        target_fence=_target_fence(m),
        load_attempt=_load_attempt(m, version),
        load_operation=_load_operation(m),
        load_receipt=_load_receipt(m),
        campaign=_campaign(m),
        campaign_chunk=_campaign_chunk(m),
        identity=_identity(m),
        head=_head(m),
    )


def _table(
    m: MetaData, name: str, *parts: Any, key: tuple[str, ...], schema: str = STATE, unique: tuple[tuple[str, ...], ...] = ()
) -> Table:
    constraints: list[Any] = [PrimaryKeyConstraint(*key, name=f"pk_{name}")]
    constraints += [UniqueConstraint(*columns, name=f"uq_{name}_{columns[0]}") for columns in unique]
    return Table(name, m, *parts, *constraints, schema=schema)


def _c(name: str, kind: Any, *, null: bool = False) -> Column[Any]:
    # Integer keys must not become identity or serial columns.
    return Column(name, kind, nullable=null, autoincrement=False)


def _counts(*, null: bool) -> list[Column[Any]]:
    return [_c(f"{name}_count", BigInteger, null=null) for name in COUNT_COLUMNS]


def _version(m: MetaData) -> Table:
    return _table(
        m, "dpone_catalog_version", _c("component", Text(64)), _c("version", Integer), _c("installed_at_utc", Utc), key=("component",)
    )


def _registry_serial(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_registry_serial",
        _c("environment_digest", Hash),
        _c("environment", Text(128)),
        _c("serial", BigInteger),
        _c("updated_at_utc", Utc),
        key=("environment_digest",),
    )


def _source_state(m: MetaData, name: str) -> Table:
    table = _table(
        m,
        name,
        _c("state_key", Hash),
        _c("contract_version", Integer),
        _c("environment", Text(128)),
        _c("process", Text(256)),
        _c("handoff_id", Text(128), null=True),
        _c("source_entry", Text(128)),
        _c("source_database", Text(128)),
        _c("source_schema", Text(128)),
        _c("source_relation", Text(128)),
        _c("target_identity", Hash),
        _c("key_columns", LongText),
        _c("scope_hash", Hash),
        _c("schema_hash", Hash),
        _c("safe_xmin", BigInteger),
        _c("visible_horizon", BigInteger),
        _c("snapshot", LongText),
        _c("revision", BigInteger),
        _c("source_authority_digest", Hash),
        _c("target_authority_digest", Hash),
        _c("projection_fingerprint", Hash),
        _c("load_id", Guid),
        _c("receipt_id", Guid),
        _c("created_at_utc", Utc),
        _c("updated_at_utc", Utc),
        _c("superseded_at_utc", Utc, null=True),
        _c("superseded_by_state_key", Hash, null=True),
        key=("state_key",),
    )
    active = table.c.superseded_at_utc.is_(None)
    Index(f"ux_{name}_active_owner", table.c.target_identity, unique=True, mssql_where=active, postgresql_where=active)
    return table


def _run_state(m: MetaData, name: str) -> Table:
    return _table(
        m,
        name,
        _c("invocation_digest", Hash),
        _c("process", Text(256)),
        _c("run_id", Text(256)),
        _c("map_index", Integer),
        _c("target_identity", Hash),
        _c("state_key", Hash),
        _c("route_fingerprint", Hash),
        _c("status", Text(32)),
        _c("attempts", Integer),
        _c("last_load_id", Guid),
        _c("last_error_code", Text(128), null=True),
        _c("created_at_utc", Utc),
        _c("updated_at_utc", Utc),
        key=("invocation_digest",),
    )


def _receipt(m: MetaData, name: str) -> Table:
    return _table(
        m,
        name,
        _c("receipt_id", Guid),
        _c("kind", Text(32)),
        _c("contract_version", Integer),
        _c("process", Text(256)),
        _c("run_id", Text(256)),
        _c("map_index", Integer),
        _c("invocation_digest", Hash),
        _c("load_id", Guid),
        _c("state_key", Hash),
        _c("target_identity", Hash),
        _c("route_fingerprint", Hash),
        _c("payload", Text(16)),
        _c("payload_reason", Text(64)),
        _c("previous_xmin", BigInteger, null=True),
        _c("previous_revision", BigInteger, null=True),
        _c("new_xmin", BigInteger),
        _c("new_revision", BigInteger),
        _c("visible_horizon", BigInteger),
        _c("snapshot", LongText),
        *_counts(null=False),
        *[_c(column, Hash, null=column == "keys_artifact_sha256") for column in DIGEST_COLUMNS],
        _c("repair_authority_id", Text(128), null=True),
        _c("repair_authority_digest", Hash, null=True),
        _c("registry_serial", BigInteger),
        _c("detected_at_utc", Utc),
        _c("committed_at_utc", Utc),
        key=("receipt_id",),
        unique=(("invocation_digest",), ("load_id",), ("state_key", "new_revision")),
    )


def _repair_authority(m: MetaData, name: str) -> Table:
    return _table(
        m,
        name,
        _c("authority_id", Text(128)),
        _c("authority_digest", Hash),
        _c("contract_version", Integer),
        _c("environment", Text(128)),
        _c("state_key", Hash),
        _c("scope_hash", Hash),
        _c("checkpoint_xmin", BigInteger, null=True),
        _c("checkpoint_revision", BigInteger, null=True),
        _c("allow_full_baseline", SmallInteger),
        _c("allow_max_delete_rows", BigInteger, null=True),
        _c("allow_max_delete_ratio", Numeric(18, 15), null=True),
        _c("transfer_from_state_key", Hash, null=True),
        _c("transfer_from_xmin", BigInteger, null=True),
        _c("transfer_from_revision", BigInteger, null=True),
        _c("reason", LongText),
        _c("envelope", LongText, null=True),
        _c("created_at_utc", Utc),
        _c("expires_at_utc", Utc),
        key=("authority_id",),
    )


def _repair_consumption(m: MetaData, name: str) -> Table:
    return _table(
        m,
        name,
        _c("authority_id", Text(128)),
        _c("authority_digest", Hash),
        _c("state_key", Hash),
        _c("load_id", Guid),
        _c("receipt_id", Guid),
        _c("consumed_at_utc", Utc),
        key=("authority_id",),
        unique=(("receipt_id",),),
    )


def _audit(m: MetaData, name: str) -> Table:
    return _table(
        m,
        name,
        _c("audit_id", Guid),
        _c("load_id", Guid),
        _c("invocation_digest", Hash),
        _c("process", Text(256)),
        _c("run_id", Text(256)),
        _c("map_index", Integer),
        _c("target_identity", Hash),
        _c("state_key", Hash),
        _c("outcome", Text(32)),
        _c("error_code", Text(128), null=True),
        _c("receipt_id", Guid, null=True),
        _c("evidence", LongText),
        _c("recorded_at_utc", Utc),
        key=("audit_id",),
    )


def _target_fence(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_target_fence",
        _c("target_identity", Hash),
        _c("epoch", BigInteger),
        _c("owner", Text(128), null=True),
        _c("updated_at_utc", Utc),
        key=("target_identity",),
    )


def _load_attempt(m: MetaData, version: int) -> Table:
    return _table(
        m,
        "dpone_load_attempt",
        _c("attempt_key", Hash),
        _c("invocation_digest", Hash),
        _c("target_identity", Hash),
        _c("route_fingerprint", Hash),
        _c("load_id", Guid),
        _c("status", Text(32)),
        _c("created_at_utc", Utc),
        _c("updated_at_utc", Utc),
        key=("attempt_key",),
        unique=(("invocation_digest",),) if version > UPGRADABLE_FROM else (),
    )


def _load_operation(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_load_operation",
        _c("operation_key", Hash),
        _c("attempt_key", Hash),
        _c("kind", Text(32)),
        _c("epoch", BigInteger),
        _c("owner", Text(128), null=True),
        _c("lease_until_utc", Utc, null=True),
        _c("status", Text(32)),
        _c("updated_at_utc", Utc),
        key=("operation_key",),
    )


def _load_receipt(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_load_receipt",
        _c("receipt_id", Guid),
        _c("operation_key", Hash),
        _c("invocation_digest", Hash),
        _c("target_identity", Hash),
        _c("kind", Text(32)),
        _c("epoch", BigInteger),
        _c("rows_count", BigInteger),
        _c("artifact_sha256", Hash, null=True),
        _c("committed_at_utc", Utc),
        key=("receipt_id",),
        unique=(("operation_key",),),
    )


def _campaign(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_campaign",
        _c("campaign_key", Hash),
        _c("process", Text(256)),
        _c("handoff_id", Text(128)),
        _c("environment", Text(128)),
        _c("target_identity", Hash),
        _c("state_key", Hash),
        _c("plan_digest", Hash),
        _c("plan", LongText),
        _c("anchor_xmin", BigInteger),
        _c("anchor_visible_horizon", BigInteger),
        _c("anchor_snapshot", LongText),
        _c("publication", Text(32)),
        _c("shadow_name", Text(128), null=True),
        _c("status", Text(32)),
        _c("chunk_count", Integer),
        _c("created_at_utc", Utc),
        _c("updated_at_utc", Utc),
        key=("campaign_key",),
    )


def _campaign_chunk(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_campaign_chunk",
        _c("campaign_key", Hash),
        _c("chunk_no", Integer),
        _c("lower_bound", LongText, null=True),
        _c("upper_bound", LongText, null=True),
        _c("status", Text(32)),
        _c("epoch", BigInteger),
        _c("owner", Text(256), null=True),
        _c("lease_until_utc", Utc, null=True),
        _c("rows_count", BigInteger, null=True),
        _c("receipt_id", Guid, null=True),
        _c("updated_at_utc", Utc),
        key=("campaign_key", "chunk_no"),
    )


def _identity(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_target_identity",
        _c("binding_id", Guid),
        _c("schema_name", Text(128, database_collation=True)),
        _c("table_name", Text(128, database_collation=True)),
        _c("created_at_utc", Utc),
        key=("binding_id",),
        schema=TARGET_DBO,
        unique=(("schema_name", "table_name"),),
    )


def _head(m: MetaData) -> Table:
    return _table(
        m,
        "dpone_target_head",
        _c("target_identity", Hash),
        _c("state_key", Hash),
        _c("revision", BigInteger),
        _c("load_id", Guid),
        _c("updated_at_utc", Utc),
        key=("target_identity",),
        schema=TARGET_DBO,
    )
