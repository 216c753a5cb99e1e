"""The campaign's ledger: campaign, chunks with epoch-fenced leases, load receipts and the target's fence.

A lease is claimed, renewed and given back by compare-and-set on the state server's clock only; a chunk's commit ends with
:meth:`CampaignLedger.fence_chunk`. Imports contracts and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import and_, insert, null, or_, select, update

from airflow_dpone_xmin.contracts.campaign import (
    LEASE_TTL,
    Anchor,
    Campaign,
    CampaignProgress,
    CampaignState,
    ChunkLease,
    ChunkRange,
    ChunkRow,
    ChunkState,
    LoadReceipt,
)
from airflow_dpone_xmin.contracts.envelope import Horizons
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.target.authority import VerifiedDatabases
from airflow_dpone_xmin.target.catalog import Catalog, locked, no_parameter_for_null, server_time
from airflow_dpone_xmin.target.engine import Session

_ROWS_PER_INSERT = 200
"""Seven parameters a row; SQL Server takes 2,100."""
_SKIP_LOCKED = "WITH (READCOMMITTEDLOCK, READPAST)"
"""A chunk in its last statement is locked; who looks for work passes it by. Under READ_COMMITTED_SNAPSHOT, READPAST alone is refused
(SQL Server, "Table hints"); the embedded engine spells it FOR UPDATE SKIP LOCKED."""


class CampaignLedger:
    """Reads and writes of the campaign tables on one session.

    :param authority: proof that the databases behind the session are the signed ones.
    """

    def __init__(self, session: Session, catalog: Catalog, authority: VerifiedDatabases) -> None:
        if not isinstance(authority, VerifiedDatabases):
            raise TypeError("a ledger needs verified databases")
        self._session, self._catalog = session, catalog

    # ---- campaign ---------------------------------------------------------------------------------------------------------
    def find(self, campaign_key: bytes) -> Campaign | None:
        """The campaign's row, its range held inside a serializable transaction."""
        table = self._catalog.campaign
        row = self._session.first("campaign.find", locked(table, table.c.campaign_key == campaign_key))
        return None if row is None else _campaign(row._mapping)

    def insert(self, campaign: Campaign, ranges: Sequence[ChunkRange]) -> None:
        """Write a new campaign with its whole plan."""
        now, anchor = server_time(self._session), campaign.anchor
        row = {
            "campaign_key": campaign.campaign_key,
            "process": campaign.process,
            "handoff_id": campaign.handoff_id,
            "environment": campaign.environment,
            "target_identity": campaign.target_identity,
            "state_key": campaign.state_key,
            "plan_digest": campaign.plan_digest,
            "anchor_xmin": anchor.horizons.safe,
            "anchor_visible_horizon": anchor.horizons.visible,
            "anchor_snapshot": anchor.snapshot,
            "projection_fingerprint": anchor.projection_fingerprint,
            "publication": campaign.publication,
            "shadow_name": campaign.shadow,
            "status": campaign.state.value,
            "chunk_count": campaign.chunk_count,
            "created_at_utc": now,
            "updated_at_utc": now,
        }
        self._session.execute("campaign.insert", insert(self._catalog.campaign).values(no_parameter_for_null(row)))
        for start in range(0, len(ranges), _ROWS_PER_INSERT):
            rows = [self._pending(campaign, chunk, now) for chunk in ranges[start : start + _ROWS_PER_INSERT]]
            self._session.execute("chunk.insert", insert(self._catalog.campaign_chunk).values(rows))

    @staticmethod
    def _pending(campaign: Campaign, chunk: ChunkRange, now: Any) -> dict[str, Any]:
        nothing = dict.fromkeys(("owner", "lease_until_utc", "rows_count", "receipt_id"))
        row = {"campaign_key": campaign.campaign_key, "chunk_no": chunk.number, "lower_bound": chunk.lower, "upper_bound": chunk.upper}
        return no_parameter_for_null({**row, **nothing, "status": ChunkState.PENDING.value, "epoch": 0, "updated_at_utc": now})

    def close(self, campaign: Campaign, state: CampaignState) -> None:
        """End an open campaign; every lease that is still out is fenced off, and what is not committed can no longer be claimed.

        :raises XminError: ``campaign.not_open`` when somebody else has ended it.
        """
        table, chunk, now = self._catalog.campaign, self._catalog.campaign_chunk, server_time(self._session)
        mine = and_(table.c.campaign_key == campaign.campaign_key, table.c.status == CampaignState.OPEN.value)
        if self._session.execute("campaign.close", update(table).where(mine).values(status=state.value, updated_at_utc=now)) != 1:
            raise XminError("campaign.not_open", "The campaign was ended meanwhile.")
        left = and_(chunk.c.campaign_key == campaign.campaign_key, chunk.c.status != ChunkState.COMMITTED.value)
        values = {"status": ChunkState.ABANDONED.value, "epoch": chunk.c.epoch + 1, "lease_until_utc": null(), "updated_at_utc": now}
        self._session.execute("chunk.fence_off", update(chunk).where(left).values(values))

    def progress(self, campaign: Campaign) -> CampaignProgress:
        """All chunks as they are now."""
        table, now = self._catalog.campaign_chunk, server_time(self._session)
        query = select(table).where(table.c.campaign_key == campaign.campaign_key).order_by(table.c.chunk_no)
        rows = [_chunk(row._mapping, now) for row in self._session.rows("chunk.list", query)]
        return CampaignProgress(campaign=campaign, chunks=tuple(rows), now=now)

    # ---- leases -----------------------------------------------------------------------------------------------------------
    def claim(self, campaign: Campaign, *, owner: str) -> ChunkLease | None:
        """Lease a chunk that is pending, expired, or this owner's own from before; None when there is none.

        Those with the fewest leases come first: a chunk that fails, or that a stopped lane holds locked, keeps nobody from the others.

        :param owner: name of the lane, the same for every attempt of one run's lane.
        """
        table = self._catalog.campaign_chunk
        while True:
            now = server_time(self._session)
            leased = table.c.status == ChunkState.LEASED.value
            free = or_(table.c.status == ChunkState.PENDING.value, and_(leased, or_(table.c.lease_until_utc < now, table.c.owner == owner)))
            query = (
                select(table.c.chunk_no, table.c.epoch, table.c.lower_bound, table.c.upper_bound)
                .where(table.c.campaign_key == campaign.campaign_key, free)
                .order_by(table.c.epoch, table.c.chunk_no)
                .limit(1)
                .with_hint(table, _SKIP_LOCKED, "mssql")
                .with_for_update(skip_locked=True)
            )
            found = self._session.first("chunk.candidate", query)
            if found is None:
                return None
            number, epoch = int(found[0]), int(found[1])
            values = {
                "status": ChunkState.LEASED.value,
                "owner": owner,
                "epoch": epoch + 1,
                "lease_until_utc": now + LEASE_TTL,
                "updated_at_utc": now,
            }
            taken = and_(self._is(campaign, number), table.c.epoch == epoch, table.c.status != ChunkState.COMMITTED.value)
            if self._session.execute("chunk.claim", update(table).where(taken).values(values)) == 1:
                return ChunkLease(ChunkRange(number, found[2], found[3]), epoch + 1, owner)

    def renew(self, campaign: Campaign, lease: ChunkLease) -> bool:
        """Prolong a lease; False when it is no longer this lane's."""
        now = server_time(self._session)
        values = {"lease_until_utc": now + LEASE_TTL, "updated_at_utc": now}
        return self._session.execute("chunk.renew", self._held(campaign, lease).values(values)) == 1

    def give_back(self, campaign: Campaign, lease: ChunkLease) -> None:
        """Free a chunk whose work failed, so that any lane may take it up at once."""
        values = {
            "status": ChunkState.PENDING.value,
            "owner": null(),
            "lease_until_utc": null(),
            "updated_at_utc": server_time(self._session),
        }
        self._session.execute("chunk.give_back", self._held(campaign, lease).values(values))

    def fence_chunk(self, campaign: Campaign, lease: ChunkLease, receipt: LoadReceipt) -> None:
        """The last statement before a chunk's commit: the lease must still be this lane's, whatever happened since it was claimed.

        :raises XminError: ``campaign.lease_lost``.
        """
        values = {
            "status": ChunkState.COMMITTED.value,
            "lease_until_utc": null(),
            "rows_count": receipt.rows,
            "receipt_id": receipt.receipt_id,
            "updated_at_utc": server_time(self._session),
        }
        if self._session.execute("chunk.fence", self._held(campaign, lease).values(values)) != 1:
            raise XminError("campaign.lease_lost", f"Chunk {lease.range.number} was taken over.", details={"chunk": lease.range.number})

    def _held(self, campaign: Campaign, lease: ChunkLease) -> Any:
        table = self._catalog.campaign_chunk
        mine = and_(table.c.epoch == lease.epoch, table.c.owner == lease.owner, table.c.status == ChunkState.LEASED.value)
        return update(table).where(self._is(campaign, lease.range.number), mine)

    def _is(self, campaign: Campaign, number: int) -> Any:
        table = self._catalog.campaign_chunk
        return and_(table.c.campaign_key == campaign.campaign_key, table.c.chunk_no == number)

    # ---- load receipts ----------------------------------------------------------------------------------------------------
    def find_load_receipt(self, operation_key: bytes) -> LoadReceipt | None:
        """The receipt of one operation. Its own application lock keeps it absent: a range lock would stop every other lane."""
        table = self._catalog.load_receipt
        row = self._session.first("load_receipt.find", select(table).where(table.c.operation_key == operation_key))
        return None if row is None else _load_receipt(row._mapping)

    def write_load_receipt(
        self, campaign: Campaign, receipt: LoadReceipt, *, operation_key: bytes, kind: str, epoch: int, invocation_digest: bytes
    ) -> None:
        """Insert the immutable proof of one operation."""
        row = {
            "receipt_id": receipt.receipt_id,
            "operation_key": operation_key,
            "invocation_digest": invocation_digest,
            "target_identity": campaign.target_identity,
            "kind": kind,
            "epoch": epoch,
            "rows_count": receipt.rows,
            "artifact_sha256": receipt.artifact_sha256,
            "snapshot": receipt.snapshot,
            "committed_at_utc": server_time(self._session),
        }
        self._session.execute("load_receipt.insert", insert(self._catalog.load_receipt).values(row))

    def chunk_receipts(self, campaign: Campaign) -> list[tuple[int, LoadReceipt]]:
        """(chunk number, receipt) of every committed chunk, in order, each joined with its own proof."""
        chunk, proof = self._catalog.campaign_chunk, self._catalog.load_receipt
        query = (
            select(chunk.c.chunk_no, proof.c.receipt_id, proof.c.rows_count, proof.c.artifact_sha256, proof.c.snapshot)
            .select_from(chunk.join(proof, proof.c.receipt_id == chunk.c.receipt_id))
            .where(chunk.c.campaign_key == campaign.campaign_key, chunk.c.status == ChunkState.COMMITTED.value)
            .order_by(chunk.c.chunk_no)
        )
        rows = self._session.rows("chunk.receipts", query)
        return [(int(row[0]), _load_receipt(row._mapping)) for row in rows]

    # ---- the target's fence -----------------------------------------------------------------------------------------------
    def raise_fence(self, campaign: Campaign) -> None:
        """Keep every other writer off the target until the campaign ends.

        :raises XminError: ``campaign.target_fenced`` when another campaign holds it.
        """
        table, now = self._catalog.target_fence, server_time(self._session)
        mine, owner = table.c.target_identity == campaign.target_identity, campaign.campaign_key.hex()
        found = self._session.first("fence.find", locked(table, mine))
        if found is None:
            row = {"target_identity": campaign.target_identity, "epoch": 1, "owner": owner, "updated_at_utc": now}
            self._session.execute("fence.insert", insert(table).values(row))
            return
        if found._mapping["owner"] not in (None, owner):
            raise fenced(str(found._mapping["owner"]))
        self._session.execute("fence.raise", update(table).where(mine).values(owner=owner, epoch=table.c.epoch + 1, updated_at_utc=now))

    def lower_fence(self, campaign: Campaign) -> None:
        """Let other writers in again."""
        table = self._catalog.target_fence
        mine = and_(table.c.target_identity == campaign.target_identity, table.c.owner == campaign.campaign_key.hex())
        values = {"owner": null(), "epoch": table.c.epoch + 1, "updated_at_utc": server_time(self._session)}
        self._session.execute("fence.lower", update(table).where(mine).values(values))


def require_unfenced(session: Session, catalog: Catalog, target_identity: bytes) -> None:
    """No campaign is filling the target.

    :raises XminError: ``campaign.target_fenced``.
    """
    table = catalog.target_fence
    found = session.first("fence.find", locked(table, table.c.target_identity == target_identity))
    if found is not None and found._mapping["owner"] is not None:
        raise fenced(str(found._mapping["owner"]))


def fenced(owner: str) -> XminError:
    """The refusal that names the campaign."""
    return XminError("campaign.target_fenced", f"Campaign {owner[:16]}… is filling the target.", details={"campaign_key": owner})


def _campaign(m: Any) -> Campaign:
    return Campaign(
        campaign_key=bytes(m["campaign_key"]),
        process=m["process"],
        handoff_id=m["handoff_id"],
        environment=m["environment"],
        target_identity=bytes(m["target_identity"]),
        state_key=bytes(m["state_key"]),
        plan_digest=bytes(m["plan_digest"]),
        anchor=Anchor(
            snapshot=m["anchor_snapshot"],
            horizons=Horizons(safe=int(m["anchor_xmin"]), visible=int(m["anchor_visible_horizon"])),
            projection_fingerprint=bytes(m["projection_fingerprint"]),
        ),
        publication=m["publication"],
        shadow=m["shadow_name"],
        state=CampaignState(m["status"]),
        chunk_count=int(m["chunk_count"]),
        created_at=m["created_at_utc"],
    )


def _chunk(m: Any, now: Any) -> ChunkRow:
    return ChunkRow(
        range=ChunkRange(int(m["chunk_no"]), m["lower_bound"], m["upper_bound"]),
        state=ChunkState(m["status"]),
        owner=m["owner"],
        live=m["lease_until_utc"] is not None and m["lease_until_utc"] >= now,
        rows=None if m["rows_count"] is None else int(m["rows_count"]),
        updated_at=m["updated_at_utc"],
    )


def _load_receipt(m: Any) -> LoadReceipt:
    return LoadReceipt(UUID(str(m["receipt_id"])), int(m["rows_count"]), bytes(m["artifact_sha256"]), str(m["snapshot"]))
