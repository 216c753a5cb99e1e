"""How a catalog table is put together, and those of loads that are not an XMin delta: the generic four, and the campaign's two.

Imports SQLAlchemy and ``target/sql.py`` only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, PrimaryKeyConstraint, Table, UniqueConstraint

from airflow_dpone_xmin.target.sql import STATE, Guid, Hash, LongText, Text, Utc


def catalog_table(
    m: MetaData, name: str, *parts: Any, key: tuple[str, ...], schema: str = STATE, unique: tuple[tuple[str, ...], ...] = ()
) -> Table:
    """One catalog table with a named primary key and named unique constraints."""
    constraints: list[Any] = [PrimaryKeyConstraint(*key, name=f"pk_{name}")]
    constraints += [UniqueConstraint(*columns, name=f"uq_{name}_{columns[0]}") for columns in unique]
    return Table(name, m, *parts, *constraints, schema=schema)


def column(name: str, kind: Any, *, null: bool = False) -> Column[Any]:
    """One catalog column, NOT NULL unless it says so."""
    # Integer keys must not become identity or serial columns.
    return Column(name, kind, nullable=null, autoincrement=False)


def target_fence(m: MetaData) -> Table:
    """Epoch and owner of one target."""
    return catalog_table(
        m,
        "dpone_target_fence",
        column("target_identity", Hash),
        column("epoch", BigInteger),
        column("owner", Text(128), null=True),
        column("updated_at_utc", Utc),
        key=("target_identity",),
    )


def load_attempt(m: MetaData, version: int) -> Table:
    """One attempt of an invocation on one target.

    :param version: version 1 of the catalog had no unique ``invocation_digest``.
    """
    return catalog_table(
        m,
        "dpone_load_attempt",
        column("attempt_key", Hash),
        column("invocation_digest", Hash),
        column("target_identity", Hash),
        column("route_fingerprint", Hash),
        column("load_id", Guid),
        column("status", Text(32)),
        column("created_at_utc", Utc),
        column("updated_at_utc", Utc),
        key=("attempt_key",),
        unique=(("invocation_digest",),) if version > 1 else (),
    )


def load_operation(m: MetaData) -> Table:
    """One leased operation of an attempt."""
    return catalog_table(
        m,
        "dpone_load_operation",
        column("operation_key", Hash),
        column("attempt_key", Hash),
        column("kind", Text(32)),
        column("epoch", BigInteger),
        column("owner", Text(128), null=True),
        column("lease_until_utc", Utc, null=True),
        column("status", Text(32)),
        column("updated_at_utc", Utc),
        key=("operation_key",),
    )


def load_receipt(m: MetaData) -> Table:
    """The immutable proof of one operation."""
    return catalog_table(
        m,
        "dpone_load_receipt",
        column("receipt_id", Guid),
        column("operation_key", Hash),
        column("invocation_digest", Hash),
        column("target_identity", Hash),
        column("kind", Text(32)),
        column("epoch", BigInteger),
        column("rows_count", BigInteger),
        column("artifact_sha256", Hash),
        column("snapshot", LongText),
        column("committed_at_utc", Utc),
        key=("receipt_id",),
        unique=(("operation_key",),),
    )


def campaign(m: MetaData) -> Table:
    """One initial load with its plan and anchor."""
    return catalog_table(
        m,
        "dpone_campaign",
        column("campaign_key", Hash),
        column("process", Text(256)),
        column("handoff_id", Text(128)),
        column("environment", Text(128)),
        column("target_identity", Hash),
        column("state_key", Hash),
        column("plan_digest", Hash),
        column("anchor_xmin", BigInteger),
        column("anchor_visible_horizon", BigInteger),
        column("anchor_snapshot", LongText),
        column("projection_fingerprint", Hash),
        column("publication", Text(32)),
        column("shadow_name", Text(128), null=True),
        column("status", Text(32)),
        column("chunk_count", Integer),
        column("created_at_utc", Utc),
        column("updated_at_utc", Utc),
        key=("campaign_key",),
    )


def campaign_chunk(m: MetaData) -> Table:
    """One bounded range of a campaign, with its lease."""
    return catalog_table(
        m,
        "dpone_campaign_chunk",
        column("campaign_key", Hash),
        column("chunk_no", Integer),
        column("lower_bound", LongText, null=True),
        column("upper_bound", LongText, null=True),
        column("status", Text(32)),
        column("epoch", BigInteger),
        column("owner", Text(300), null=True),
        column("lease_until_utc", Utc, null=True),
        column("rows_count", BigInteger, null=True),
        column("receipt_id", Guid, null=True),
        column("updated_at_utc", Utc),
        key=("campaign_key", "chunk_no"),
    )
