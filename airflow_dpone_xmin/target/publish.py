"""Opening and publication: the two transactions that begin and end a campaign under the target's lock.

The publication exchanges the tables, writes its receipt, and seeds revision 1 of the XMin state with the seed receipt: readers see the old
table or the new one, and the incremental process sees a seed or none. Imports contracts, policy and the target's own modules.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any
from uuid import UUID

from sqlalchemy import MetaData, Table
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed
from uuid6 import uuid7

from airflow_dpone_xmin.contracts.campaign import SEED_REASON, Campaign, CampaignState, ChunkRange, LoadReceipt
from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import operation_key, rows_digest
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import ActionCounts, Invocation, Receipt
from airflow_dpone_xmin.policy.repair import RepairBinding, admit_baseline, admit_transfer, judge_min_rows
from airflow_dpone_xmin.policy.window import SnapshotToken, spell, union
from airflow_dpone_xmin.target.authority import VerifiedDatabases
from airflow_dpone_xmin.target.campaign_ledger import CampaignLedger
from airflow_dpone_xmin.target.catalog import Catalog, server_time
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.finalize import owner_position
from airflow_dpone_xmin.target.gate import approvable, observed_binding, ownership_conflict, repair_binding
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.record import Record, write_record
from airflow_dpone_xmin.target.repair import RepairSelection, admitted_authority
from airflow_dpone_xmin.target.replacement import Replaced, Replacement
from airflow_dpone_xmin.target.shadow import (
    ShadowDialect,
    backup_name,
    build_first_indexes,
    filled_table,
    require_indexes,
    require_shadow,
)
from airflow_dpone_xmin.target.shape import has_rows, live_table, require_key
from airflow_dpone_xmin.target.sql import TARGET
from airflow_dpone_xmin.target.transaction import commit_or_doubt, exclusive
from airflow_dpone_xmin.target.work import Position, TargetBinding, lock_resource, require_binding

SEAL_SECONDS, SEAL_PAUSE_SECONDS = 5.0, 2.0
"""How long the exchange keeps readers waiting behind a long one, and how long it then lets them through."""


@dataclass(frozen=True, slots=True)
class CampaignWork:
    """What both transactions need; digests as of the run's admission.

    :param run_id: of the run that does it now.
    :param invocation: of the seed: one per campaign, whatever run publishes it.
    :param repair: approval of replacing a table that has an owner, rows of nobody, or tombstones.
    """

    route: Route
    campaign: Campaign
    binding: TargetBinding
    scope_hash: bytes
    schema_hash: bytes
    target_authority_digest: bytes
    run_id: str
    invocation: Invocation
    invocation_digest: bytes
    repair: RepairSelection | None = None

    @property
    def resource(self) -> str:
        """The application lock of the target."""
        return lock_resource(self.binding.identity)

    def approval_binding(self) -> dict[str, Any]:
        """What an approval of replacing the table must be bound to: a state key without a checkpoint."""
        return repair_binding(self.route.environment, self.campaign.state_key, self.scope_hash, None)

    def approvable(self, error: XminError, binding: Mapping[str, Any]) -> XminError:
        """The refusal with what an approver needs, told for the run that met it."""
        invocation = Invocation(process=self.route.process, run_id=self.run_id)
        return approvable(error, binding=binding, route=self.route, invocation=invocation)


def open_on_target(
    engine: Engine,
    dialect: ShadowDialect,
    session: Session,
    catalog: Catalog,
    work: CampaignWork,
    ranges: Sequence[ChunkRange],
    *,
    authority: VerifiedDatabases,
) -> Campaign:
    """Create the shadow, write campaign and plan, raise the fence: all of it or nothing.

    :returns: the campaign; an earlier one of the same key when somebody was faster.
    :raises XminError: ``campaign.target_fenced``, ``campaign.target_not_empty``, ``checkpoint.missing``, ``target_ownership.conflict``,
        ``repair_authority.*``, the engine's codes.
    """
    campaign, live = work.campaign, work.route.layout.target
    with exclusive(engine, session, resource=work.resource, timeout=work.route.target_lock_timeout):
        ledger = CampaignLedger(session, catalog, authority)
        found = ledger.find(campaign.campaign_key)
        if found is not None:
            engine.rollback(session)
            return found
        require_binding(session, catalog, work.binding, environment=work.route.environment)
        facts = live_table(engine, session, live)
        if campaign.shadow is None and has_rows(session, live):
            raise XminError("campaign.target_not_empty", f"{live.display} has rows.")
        require_replaceable(session, Ledger(session, catalog, authority), work)
        if campaign.shadow is not None:
            dialect.create(session, live, campaign.shadow, facts=facts, mode=work.route.delete_mode, mark=campaign.mark)
            build_first_indexes(dialect, session, campaign, live)
        ledger.raise_fence(campaign)
        ledger.insert(campaign, ranges)
        engine.commit(session, resource=work.resource)
    return campaign


def require_replaceable(session: Session, ledger: Ledger, work: CampaignWork, *, rows: int | None = None) -> RepairAuthority | None:
    """A table that somebody owns, or that has rows, is replaced only with an approval, and none is replaced by nothing.

    :param rows: what the chunks delivered, once it is known.
    :returns: the admitted approval, which was needed.
    :raises XminError: ``campaign.not_open``, ``target_ownership.conflict``, ``checkpoint.missing``, ``guard.empty_snapshot``,
        ``repair_authority.*``.
    """
    route, campaign = work.route, work.campaign
    if ledger.read_checkpoint(campaign.state_key) is not None:
        raise XminError("campaign.not_open", "This handoff was seeded before; its incremental process goes on from there.")
    repair = _admitted(session, ledger, work)
    owner = ledger.active_owner(work.binding.identity)
    old = None if owner is None else ledger.read_checkpoint(owner)
    if repair is not None and repair.transfer is not None:
        admit_transfer(repair, owner=owner, owner_checkpoint=old)
        return repair
    binding = work.approval_binding()
    if owner is not None:
        error = ownership_conflict(owner_position(ledger, owner), campaign.state_key, binding=binding)
        raise work.approvable(error, error.details["binding"])
    # In place the rows are the campaign's own: it began with an empty table.
    old_rows = campaign.shadow is not None and has_rows(session, route.layout.target)
    if old_rows and repair is None:
        message = f"{route.layout.target.display} has rows or tombstones, but no state key owns them."
        raise work.approvable(XminError("checkpoint.missing", message), binding)
    if rows == 0 and repair is None:
        raise work.approvable(XminError("guard.empty_snapshot", "No chunk delivered a row."), binding)
    if repair is not None and not old_rows and rows != 0:
        message = "The target has neither an owner nor rows."
        raise XminError("repair_authority.unused", message, details={"authority_id": repair.authority_id})
    return repair


def _require_admitted(work: CampaignWork, replaced: Replaced, repair: RepairAuthority | None, *, rows: int) -> None:
    """Rows that the chunks did not deliver are deletions: guards and bounds hold for them.

    :raises XminError: ``guard.deletes_exceeded``, ``guard.empty_snapshot``, ``repair_authority.bounds_exceeded``, each with the binding
        of an approval that would admit it.
    """
    try:
        replaced.judge(work.route, repair, rows=rows)
    except XminError as error:
        bounded = {**work.approval_binding(), "delete_bounds": True}
        binding = observed_binding(bounded, missing=replaced.missing, active=replaced.active, repair=repair)
        raise work.approvable(error, binding) from None


def _admitted(session: Session, ledger: Ledger, work: CampaignWork) -> RepairAuthority | None:
    if work.repair is None:
        return None
    bound = RepairBinding(work.route.environment, work.campaign.state_key, work.scope_hash, None)
    repair = admitted_authority(ledger, work.repair, bound, now=server_time(session))
    if not admit_baseline(repair):
        raise XminError("repair_authority.bounds_exceeded", "A campaign that replaces a table needs `allow.full_baseline`.")
    return repair


def publish(
    engine: Engine, dialect: ShadowDialect, session: Session, catalog: Catalog, work: CampaignWork, *, authority: VerifiedDatabases
) -> Receipt:
    """Run the publication's one transaction.

    A reader in the middle of a long transaction keeps the exchange waiting, and every new reader behind it. So the exchange waits for
    :data:`SEAL_SECONDS` only, lets them through, and begins again, for as long as the target's lock timeout allows.

    :returns: the seed receipt, replayed when an earlier attempt committed.
    :raises XminError: ``campaign.*``, ``target_ownership.conflict``, ``repair_authority.*``, ``guard.*``, the engine's codes.
    :raises CommitInDoubt: to be probed by the seed's receipt.
    """
    patience = Retrying(
        retry=retry_if_exception(_readers_in_the_way),
        wait=wait_fixed(SEAL_PAUSE_SECONDS),
        stop=stop_after_delay(work.route.target_lock_timeout),
        reraise=True,
    )
    return patience(lambda: _publish_once(engine, dialect, session, catalog, work, authority=authority))


def _readers_in_the_way(error: BaseException) -> bool:
    return isinstance(error, XminError) and error.code == "mssql_transaction.lock_timeout" and error.details.get("step") == "exchange.seal"


def _publish_once(
    engine: Engine, dialect: ShadowDialect, session: Session, catalog: Catalog, work: CampaignWork, *, authority: VerifiedDatabases
) -> Receipt:
    live, campaign = work.route.layout.target, work.campaign
    tables = [Table(name, MetaData(), schema=TARGET) for name in dict.fromkeys((live.name, campaign.shadow or live.name))]
    timeout = work.route.target_lock_timeout
    # Committed reads: what hangs on the live table is looked at after the lock that keeps it so. Counts hold locks of their own.
    with exclusive(engine, session, resource=work.resource, timeout=timeout, tables=tables, isolation="READ COMMITTED"):
        ledger = Ledger(session, catalog, authority)
        found = ledger.find_receipt(work.invocation_digest)
        if found is not None:
            engine.rollback(session)
            return found
        receipt = _Publication(engine, dialect, session, catalog, work, ledger, CampaignLedger(session, catalog, authority)).run()
        commit_or_doubt(engine, session, resource=work.resource)
        return receipt


class _Publication:
    """The steps between the lock and the commit."""

    def __init__(
        self,
        engine: Engine,
        dialect: ShadowDialect,
        session: Session,
        catalog: Catalog,
        work: CampaignWork,
        ledger: Ledger,
        campaigns: CampaignLedger,
    ) -> None:
        self._engine, self._dialect, self._session, self._catalog = engine, dialect, session, catalog
        self._work, self._ledger, self._campaigns = work, ledger, campaigns
        self._campaign, self._live = work.campaign, work.route.layout.target

    def run(self) -> Receipt:
        work, campaign = self._work, self._campaign
        require_binding(self._session, self._catalog, work.binding, environment=work.route.environment)
        facts = live_table(self._engine, self._session, self._live)
        receipts = self._complete()
        rows = sum(receipt.rows for receipt in receipts)
        require_key(facts, work.route.key)
        repair = require_replaceable(self._session, self._ledger, work, rows=rows)
        filled = filled_table(campaign, self._live).name
        replacement = Replacement(self._session, work.route, facts, live=self._live.name, filled=filled)
        self._count(replacement, rows)
        replaced, load_id, now = Replaced(), UUID(int=uuid7().int), server_time(self._session)
        if campaign.shadow is not None:
            replaced = replacement.count_live()
            _require_admitted(work, replaced, repair, rows=rows)
            replacement.carry(replaced, load_id=load_id, now=now)
            self._exchange()
        counts = replaced.counts(rows=rows, mode=work.route.delete_mode)
        judge_min_rows(active_after=counts.active_after, gates=work.route.min_rows)
        if repair is not None and repair.transfer is not None:
            owner = bytes.fromhex(repair.transfer.state_key)
            old = self._ledger.read_checkpoint(owner)
            assert old is not None  # admitted
            self._ledger.supersede(owner, by=campaign.state_key, previous=old)
        self._campaigns.close(campaign, CampaignState.PUBLISHED)
        self._campaigns.lower_fence(campaign)
        return self._seed(receipts, counts=counts, load_id=load_id, now=now, repair=repair)

    def _complete(self) -> list[LoadReceipt]:
        receipts = self._campaigns.chunk_receipts(self._campaign)
        if [number for number, _ in receipts] != list(range(self._campaign.chunk_count)):
            missing = self._campaign.chunk_count - len(receipts)
            raise XminError("campaign.incomplete", f"{missing} of {self._campaign.chunk_count} chunks have no receipt.")
        return [receipt for _, receipt in receipts]

    def _count(self, filling: Replacement, rows: int) -> None:
        seen = filling.count_filled()
        if seen != rows:
            raise XminError(
                "campaign.count_mismatch",
                f"The table holds {seen} rows; the receipts prove {rows}.",
                details={"rows": seen, "proven": rows},
            )

    def _exchange(self) -> None:
        """Seal the live table, prove again what no lock kept until now, and exchange the two."""
        live, shadow = self._live, self._campaign.shadow
        assert shadow is not None
        self._engine.limit_locks(self._session, SEAL_SECONDS)
        self._dialect.seal(self._session, live)
        self._engine.limit_locks(self._session, self._work.route.target_lock_timeout)
        require_shadow(self._engine, self._dialect, self._session, self._campaign, live)
        refuse_obstacles(self._dialect, self._session, self._work.route)
        names = require_indexes(self._dialect, self._session, self._campaign, live)
        self._dialect.replay(self._session, live, shadow)
        self._dialect.exchange(self._session, live, shadow=shadow, backup=backup_name(self._campaign, live.name), indexes=names)

    def _seed(
        self, receipts: Sequence[LoadReceipt], *, counts: ActionCounts, load_id: UUID, now: datetime, repair: RepairAuthority | None
    ) -> Receipt:
        work, campaign = self._work, self._campaign
        digest = rows_digest([receipt.artifact_sha256 for receipt in receipts])
        tokens = [SnapshotToken.parse(token) for token in (campaign.anchor.snapshot, *(receipt.snapshot for receipt in receipts))]
        snapshot = spell(reduce(union, tokens))
        self._campaigns.write_load_receipt(
            campaign,
            LoadReceipt(uuid.uuid4(), counts.total_after, digest, snapshot),
            operation_key=operation_key(campaign=campaign.campaign_key, operation="publication"),
            kind="publication",
            epoch=0,
            invocation_digest=work.invocation_digest,
        )
        record = Record(
            kind="seed",
            route=work.route,
            invocation=work.invocation,
            invocation_digest=work.invocation_digest,
            load_id=load_id,
            target_identity=work.binding.identity,
            state_key=campaign.state_key,
            scope_hash=work.scope_hash,
            schema_hash=work.schema_hash,
            target_authority_digest=work.target_authority_digest,
            position=Position(checkpoint=None, head=self._ledger.read_head(work.binding.identity)),
            source=work.route.source,
            snapshot=snapshot,
            horizons=campaign.anchor.horizons,
            payload=Payload.FULL,
            reason=SEED_REASON,
            projection_fingerprint=campaign.anchor.projection_fingerprint,
            rows_sha256=digest,
            keys_sha256=None,
        )
        return write_record(self._ledger, record, counts=counts, detected_at=now, repair=repair)


def abandon(
    engine: Engine, dialect: ShadowDialect, session: Session, catalog: Catalog, work: CampaignWork, *, authority: VerifiedDatabases
) -> None:
    """End an open campaign: fence its lanes off, drop its shadow, let other writers in again.

    :raises XminError: ``campaign.not_open``, the engine's codes.
    """
    campaign, live = work.campaign, work.route.layout.target
    with exclusive(engine, session, resource=work.resource, timeout=work.route.target_lock_timeout):
        ledger = CampaignLedger(session, catalog, authority)
        ledger.close(campaign, CampaignState.ABANDONED)
        ledger.lower_fence(campaign)
        shadow = filled_table(campaign, live)
        if campaign.shadow is not None and dialect.read_mark(session, shadow) == campaign.mark:
            dialect.drop(session, shadow)
        engine.commit(session, resource=work.resource)


def refuse_obstacles(dialect: ShadowDialect, session: Session, route: Route) -> None:
    """:raises XminError: ``campaign.shadow_refused`` naming everything that would stay behind."""
    found = dialect.obstacles(session, route.layout.target)
    if found:
        raise XminError(
            "campaign.shadow_refused",
            f"{route.layout.target.display} has {found[0]}" + (f" and {len(found) - 1} more." if len(found) > 1 else "."),
            details={"obstacles": found},
        )
