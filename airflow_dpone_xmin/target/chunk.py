"""One chunk's transaction: rows, generic receipt, and the epoch fence as the last statement before the commit.

READ COMMITTED under an application lock of this chunk alone, so that lanes write beside each other; a worker that was paused longer than
its lease finds its epoch gone and changes nothing. Imports contracts and the target's own modules.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Table, select

from airflow_dpone_xmin.contracts.campaign import Campaign, ChunkLease, LoadReceipt
from airflow_dpone_xmin.contracts.envelope import Envelope
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import operation_key
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.target.authority import VerifiedDatabases
from airflow_dpone_xmin.target.campaign_ledger import CampaignLedger
from airflow_dpone_xmin.target.catalog import Catalog, server_time
from airflow_dpone_xmin.target.dml import Actions
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.shadow import ShadowDialect, equal_keys, filled_table, require_shadow
from airflow_dpone_xmin.target.shape import live_table, require_shape
from airflow_dpone_xmin.target.sql import Count, target_table
from airflow_dpone_xmin.target.staging import Staged
from airflow_dpone_xmin.target.transaction import commit_or_doubt, exclusive
from airflow_dpone_xmin.target.work import TargetBinding, require_binding


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """Everything that one chunk's commit needs.

    :param invocation_digest: of the run whose lane does it, for the receipt only: a chunk belongs to its campaign.
    """

    route: Route
    campaign: Campaign
    lease: ChunkLease
    binding: TargetBinding
    load_id: UUID
    invocation_digest: bytes
    envelope: Envelope
    staged: Staged


def chunk_operation(campaign: Campaign, number: int) -> bytes:
    """The operation that a chunk's receipt is unique for."""
    return operation_key(campaign=campaign.campaign_key, operation=f"chunk:{number}")


def chunk_resource(campaign: Campaign, number: int) -> str:
    """Application lock of one chunk."""
    return f"dpone:chunk:{campaign.campaign_key.hex()}:{number}"


def commit_chunk(
    engine: Engine, dialect: ShadowDialect, session: Session, catalog: Catalog, work: ChunkWork, *, authority: VerifiedDatabases
) -> LoadReceipt:
    """Run the chunk's transaction.

    :param session: in the target's database, outside any transaction.
    :raises XminError: ``campaign.lease_lost``, ``campaign.shadow_changed``, ``DPONE_TARGET_UNSUPPORTED``, ``target_identity.*``,
        ``reconcile.invariant``, the engine's codes; everything is rolled back then.
    :raises CommitInDoubt: the outcome must be probed by :func:`chunk_operation` under :func:`chunk_resource`.
    """
    campaign, number = work.campaign, work.lease.range.number
    resource = chunk_resource(campaign, number)
    ledger = CampaignLedger(session, catalog, authority)
    with exclusive(engine, session, resource=resource, timeout=work.route.target_lock_timeout, isolation="READ COMMITTED"):
        found = ledger.find_load_receipt(chunk_operation(campaign, number))
        if found is None:
            _require_tables(engine, dialect, session, catalog, work)
            _write_rows(session, work)
            artifact = work.envelope.rows_artifact
            found = LoadReceipt(uuid.uuid4(), artifact.rows, artifact.sha256, work.envelope.snapshot)
            ledger.write_load_receipt(
                campaign,
                found,
                operation_key=chunk_operation(campaign, number),
                kind="chunk",
                epoch=work.lease.epoch,
                invocation_digest=work.invocation_digest,
            )
        ledger.fence_chunk(campaign, work.lease, found)
        commit_or_doubt(engine, session, resource=resource)
    return found


def repair_chunk(ledger: CampaignLedger, campaign: Campaign, lease: ChunkLease) -> LoadReceipt | None:
    """A receipt without its ledger row, as a restored state database may show: the row is mended before the source is read."""
    found = ledger.find_load_receipt(chunk_operation(campaign, lease.range.number))
    if found is not None:
        ledger.fence_chunk(campaign, lease, found)
    return found


def _require_tables(engine: Engine, dialect: ShadowDialect, session: Session, catalog: Catalog, work: ChunkWork) -> None:
    """Fresh facts for every chunk: the identity row, the live table's shape, and whose shadow this is."""
    live, campaign = work.route.layout.target, work.campaign
    require_binding(session, catalog, work.binding, environment=work.route.environment)
    in_place = campaign.shadow is None
    facts = live_table(engine, session, live) if in_place else require_shadow(engine, dialect, session, campaign, live)
    require_shape(engine, facts, work.route, work.envelope.projection)


def _write_rows(session: Session, work: ChunkWork) -> None:
    """Append to the shadow; in place, what is there already is updated."""
    projection, mode, rows = work.envelope.projection, work.route.delete_mode, work.staged.rows
    table: Table = target_table(filled_table(work.campaign, work.route.layout.target).name, projection, mode)
    now = server_time(session)
    actions = Actions(table, rows, None, projection=projection, mode=mode, load_id=work.load_id, detected_at=now, hint=None)
    if work.campaign.shadow is not None:
        written = session.execute("chunk.append", actions.append()) if work.staged.rows_count else 0
    else:
        try:
            if projection.value_columns:
                session.execute("chunk.update", actions.update_changed())
            session.execute("chunk.merge", actions.insert_absent())
        except XminError as error:
            if error.code != "mssql_transaction.constraint_violation":
                raise
            raise equal_keys("A unique index of the live table") from None
        written = int(session.scalar("chunk.payload", select(Count()).select_from(rows.rows)))
    if written != work.staged.rows_count:
        raise XminError(
            "reconcile.invariant",
            "The chunk's staged rows are no longer the proven ones.",
            details={"proven_rows": work.staged.rows_count, "written_rows": written},
        )
