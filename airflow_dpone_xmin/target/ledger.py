"""The ledger: invocations, receipts, checkpoints and heads, read under the lock that would change them.

Catalog rows are found by 32-byte digests only. Every function runs on the caller's session and inside the caller's transaction.
Imports contracts and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import and_, func, insert, null, select, update

from airflow_dpone_xmin.contracts.canonical import digest
from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.state import ActionCounts, Checkpoint, Head, Receipt
from airflow_dpone_xmin.target.authority import VerifiedDatabases
from airflow_dpone_xmin.target.catalog import COUNT_COLUMNS, DIGEST_COLUMNS, Catalog, locked, no_parameter_for_null, server_time
from airflow_dpone_xmin.target.engine import Session


class Ledger:
    """Reads and writes of one catalog on one session.

    :param authority: proof that the databases behind the session are the signed ones.
    """

    def __init__(self, session: Session, catalog: Catalog, authority: VerifiedDatabases) -> None:
        if not isinstance(authority, VerifiedDatabases):
            raise TypeError("a ledger needs verified databases")
        self._session, self._catalog, self._authority = session, catalog, authority

    @property
    def catalog(self) -> Catalog:
        """The tables behind the ledger."""
        return self._catalog

    # ---- registry ---------------------------------------------------------------------------------------------------------
    def require_serial(self, *, environment: str, serial: int) -> int | None:
        """The highest serial that this state database has accepted, None before the first; writes nothing.

        :raises XminError: ``registry.rollback`` when *serial* is below it.
        """
        table = self._catalog.registry_serial
        found = self._session.first("registry.find", locked(table, table.c.environment_digest == _environment_key(environment)))
        accepted = None if found is None else int(found._mapping["serial"])
        if accepted is not None and serial < accepted:
            raise XminError(
                "registry.rollback",
                "The registry's serial is lower than one already accepted.",
                details={"serial": serial, "accepted": accepted},
            )
        return accepted

    def accept_registry(self, *, environment: str, serial: int) -> None:
        """Remember the highest serial that this state database has used; :raises XminError: as :meth:`require_serial`."""
        table, key = self._catalog.registry_serial, _environment_key(environment)
        accepted = self.require_serial(environment=environment, serial=serial)
        now = {"serial": serial, "updated_at_utc": server_time(self._session)}
        if accepted is None:
            self._session.execute("registry.insert", insert(table).values(environment_digest=key, environment=environment, **now))
        elif serial > accepted:
            self._session.execute("registry.update", update(table).where(table.c.environment_digest == key).values(now))

    # ---- invocations ------------------------------------------------------------------------------------------------------
    def admit_invocation(self, row: Mapping[str, Any]) -> int:
        """Insert or revisit the invocation's row; returns the number of this attempt, 1-based.

        Looked up by ``invocation_digest`` before any target-derived key, so that a recreated database or a rotated pin cannot turn a
        retry into a second invocation.

        :param row: columns of ``dpone_run_state`` without status, attempts and times.
        :raises XminError: ``invocation.route_changed``.
        """
        table, now = self._catalog.run_state, server_time(self._session)
        found = self._session.first("invocation.find", locked(table, table.c.invocation_digest == row["invocation_digest"]))
        if found is None:
            values = {**row, "status": "running", "attempts": 1, "created_at_utc": now, "updated_at_utc": now, "last_error_code": None}
            self._session.execute("invocation.insert", insert(table).values(no_parameter_for_null(values)))
            return 1
        for column in ("route_fingerprint", "target_identity"):
            if bytes(found._mapping[column]) != row[column]:
                raise XminError(
                    "invocation.route_changed",
                    f"This invocation was admitted with another {column}.",
                    details={"process": row["process"], "run_id": row["run_id"], "map_index": row["map_index"]},
                )
        attempts = int(found._mapping["attempts"]) + 1
        status = _COMMITTED if found._mapping["status"] == _COMMITTED else "running"
        self._session.execute(
            "invocation.revisit",
            update(table)
            .where(table.c.invocation_digest == row["invocation_digest"])
            .values(attempts=attempts, last_load_id=row["last_load_id"], status=status, updated_at_utc=now),
        )
        return attempts

    def close_invocation(self, invocation: bytes, *, status: str, error_code: str | None) -> None:
        """Record how the attempt ended; what one attempt committed, no other one can take back."""
        table = self._catalog.run_state
        mine = table.c.invocation_digest == invocation
        self._session.execute(
            "invocation.close",
            update(table)
            .where(mine if status == _COMMITTED else and_(mine, table.c.status != _COMMITTED))
            .values(no_parameter_for_null({"status": status, "last_error_code": error_code, "updated_at_utc": server_time(self._session)})),
        )

    def attempts_of(self, invocation: bytes) -> tuple[int, str]:
        """How many attempts of an invocation began, and how the newest one is recorded."""
        table = self._catalog.run_state
        query = select(table.c.attempts, table.c.status).where(table.c.invocation_digest == invocation)
        found = self._session.first("invocation.attempts", query)
        return (0, "") if found is None else (int(found[0]), str(found[1]))

    def loads_of_others(self, load_ids: Collection[UUID], target_identity: bytes) -> set[UUID]:
        """Those of the loads, at most ``MAX_PARAMETERS``, that are the newest attempt of an invocation on another target."""
        if not load_ids:
            return set()
        table = self._catalog.run_state
        query = select(table.c.last_load_id).where(table.c.last_load_id.in_(load_ids), table.c.target_identity != target_identity)
        return {UUID(str(row[0])) for row in self._session.rows("loads.others", query)}

    # ---- receipts ---------------------------------------------------------------------------------------------------------
    def find_receipt(self, invocation: bytes) -> Receipt | None:
        """The receipt of an invocation, marked as replayed."""
        table = self._catalog.receipt
        row = self._session.first("receipt.find", locked(table, table.c.invocation_digest == invocation))
        return None if row is None else receipt_of(row._mapping)

    def last_receipts(self, state_key: bytes, *, limit: int | None) -> list[Receipt]:
        """The newest receipts of a state key, newest first; all of them without a limit."""
        table = self._catalog.receipt
        rows = self._session.rows(
            "receipt.list", select(table).where(table.c.state_key == state_key).order_by(table.c.new_revision.desc()).limit(limit)
        )
        return [receipt_of(row._mapping) for row in rows]

    def highest_revision(self, state_key: bytes) -> int:
        """The highest revision that a state key ever committed, 0 for none: receipts outlive a superseded or lost checkpoint."""
        table = self._catalog.receipt
        query = select(func.max(table.c.new_revision)).where(table.c.state_key == state_key)
        return int(self._session.scalar("receipt.highest", query) or 0)

    def write_receipt(self, receipt: Receipt, *, registry_serial: int) -> None:
        """Insert the immutable proof."""
        values: dict[str, Any] = {
            "receipt_id": receipt.receipt_id,
            "kind": receipt.kind,
            "contract_version": 1,
            "process": receipt.process,
            "run_id": receipt.run_id,
            "map_index": receipt.map_index,
            "invocation_digest": receipt.invocation_digest,
            "load_id": receipt.load_id,
            "state_key": receipt.state_key,
            "target_identity": receipt.target_identity,
            "route_fingerprint": receipt.route_fingerprint,
            "payload": receipt.payload.value,
            "payload_reason": receipt.payload_reason,
            "previous_xmin": receipt.previous_xmin,
            "previous_revision": receipt.previous_revision,
            "new_xmin": receipt.new_xmin,
            "new_revision": receipt.new_revision,
            "visible_horizon": receipt.visible_horizon,
            "snapshot": receipt.snapshot,
            "repair_authority_id": receipt.repair_authority_id,
            "repair_authority_digest": receipt.repair_authority_digest,
            "registry_serial": registry_serial,
            "detected_at_utc": receipt.detected_at,
            "committed_at_utc": server_time(self._session),
        }
        values |= {f"{name}_count": value for name, value in receipt.counts.to_dict().items()}
        values |= {name: receipt.digests.get(name) for name in DIGEST_COLUMNS}
        self._session.execute("receipt.insert", insert(self._catalog.receipt).values(no_parameter_for_null(values)))

    # ---- checkpoint and head ----------------------------------------------------------------------------------------------
    def read_checkpoint(self, state_key: bytes) -> Checkpoint | None:
        """The active checkpoint of a state key; a superseded one counts as absent."""
        table = self._catalog.source_state
        row = self._session.first(
            "checkpoint.read", locked(table, and_(table.c.state_key == state_key, table.c.superseded_at_utc.is_(None)))
        )
        if row is None:
            return None
        m = row._mapping
        return Checkpoint(
            xmin=int(m["safe_xmin"]),
            visible=int(m["visible_horizon"]),
            snapshot=str(m["snapshot"]),
            revision=int(m["revision"]),
            load_id=m["load_id"],
            source_authority_digest=bytes(m["source_authority_digest"]),
            target_authority_digest=bytes(m["target_authority_digest"]),
            projection_fingerprint=bytes(m["projection_fingerprint"]),
        )

    def active_owner(self, target_identity: bytes) -> bytes | None:
        """State key of the target's active owner."""
        table = self._catalog.source_state
        row = self._session.first(
            "owner.read", locked(table, and_(table.c.target_identity == target_identity, table.c.superseded_at_utc.is_(None)))
        )
        return None if row is None else bytes(row._mapping["state_key"])

    def process_of(self, state_key: bytes) -> str:
        """Name of the process that a state key belongs to."""
        table = self._catalog.source_state
        return str(self._session.scalar("owner.process", select(table.c.process).where(table.c.state_key == state_key)))

    def write_checkpoint(self, values: Mapping[str, Any], *, previous: Checkpoint | None) -> None:
        """Compare and set by (state key, previous xmin, previous revision).

        Without a previous checkpoint the row is new, unless this state key owned the target before and gave it away: then it is revived.

        :param values: columns of ``dpone_source_state`` without times.
        :raises XminError: ``checkpoint.conflict``.
        """
        table, now = self._catalog.source_state, server_time(self._session)
        if previous is None:
            if values["revision"] > 1 and self._revive(values, now=now):
                return
            self._session.execute(
                "checkpoint.insert", insert(table).values(no_parameter_for_null({**values, "created_at_utc": now, "updated_at_utc": now}))
            )
            return
        matched = self._session.execute(
            "checkpoint.compare_and_set",
            update(table)
            .where(
                table.c.state_key == values["state_key"],
                table.c.safe_xmin == previous.xmin,
                table.c.revision == previous.revision,
                table.c.superseded_at_utc.is_(None),
            )
            .values({**{name: values[name] for name in _MOVING}, "updated_at_utc": now}),
        )
        if matched != 1:
            raise XminError("checkpoint.conflict", "The checkpoint is no longer the one this run started from.")

    def _revive(self, values: Mapping[str, Any], *, now: datetime) -> bool:
        table = self._catalog.source_state
        moved = {**{name: values[name] for name in _MOVING}, "superseded_at_utc": null(), "superseded_by_state_key": null()}
        superseded = and_(table.c.state_key == values["state_key"], table.c.superseded_at_utc.is_not(None))
        return self._session.execute("checkpoint.revive", update(table).where(superseded).values({**moved, "updated_at_utc": now})) == 1

    def read_head(self, target_identity: bytes) -> Head | None:
        """The target database's own word on its last commit."""
        table = self._catalog.head
        row = self._session.first("head.read", locked(table, table.c.target_identity == target_identity))
        if row is None:
            return None
        return Head(state_key=bytes(row._mapping["state_key"]), revision=int(row._mapping["revision"]), load_id=row._mapping["load_id"])

    def write_head(self, target_identity: bytes, head: Head, *, exists: bool) -> None:
        """Name the commit in the target database; :raises XminError: ``checkpoint.conflict``."""
        table, now = self._catalog.head, server_time(self._session)
        values = {"state_key": head.state_key, "revision": head.revision, "load_id": head.load_id, "updated_at_utc": now}
        if not exists:
            self._session.execute("head.insert", insert(table).values(target_identity=target_identity, **values))
        elif self._session.execute("head.update", update(table).where(table.c.target_identity == target_identity).values(values)) != 1:
            raise XminError("checkpoint.conflict", "The target's head row is gone.")

    # ---- repair authority -------------------------------------------------------------------------------------------------
    def find_authority(self, authority_id: str) -> Mapping[str, Any] | None:
        """The immutable row of an approval."""
        table = self._catalog.repair_authority
        row = self._session.first("repair.find", locked(table, table.c.authority_id == authority_id))
        return None if row is None else dict(row._mapping)

    def list_authorities(self, *, limit: int, authority_id: str | None = None) -> list[Mapping[str, Any]]:
        """The newest approvals, newest first, with their consumption and where their route's checkpoint is, which no lock holds there.

        :param authority_id: only this one.
        """
        table, used, at = self._catalog.repair_authority, self._catalog.repair_consumption, self._catalog.source_state
        joined = table.outerjoin(used, used.c.authority_id == table.c.authority_id)
        joined = joined.outerjoin(at, and_(at.c.state_key == table.c.state_key, at.c.superseded_at_utc.is_(None)))
        query = (
            select(table, used.c.consumed_at_utc, used.c.receipt_id, at.c.safe_xmin, at.c.revision)
            .select_from(joined)
            .order_by(table.c.created_at_utc.desc())
            .limit(limit)
        )
        if authority_id is not None:
            query = query.where(table.c.authority_id == authority_id)
        return [dict(row._mapping) for row in self._session.rows("repair.list", query)]

    def is_consumed(self, authority_id: str) -> bool:
        """Whether the one shot was taken."""
        table = self._catalog.repair_consumption
        return self._session.first("repair.consumed", locked(table, table.c.authority_id == authority_id)) is not None

    def consume(self, values: Mapping[str, Any]) -> None:
        """Take the one shot, tied to its receipt; the primary key refuses a second one."""
        row = {**values, "consumed_at_utc": server_time(self._session)}
        self._session.execute("repair.consume", insert(self._catalog.repair_consumption).values(row))

    def insert_authority(self, values: Mapping[str, Any]) -> None:
        """Provision an approval: the owner's session only, runtime has no INSERT right on it."""
        self._session.execute("repair.insert", insert(self._catalog.repair_authority).values(no_parameter_for_null(values)))

    def supersede(self, state_key: bytes, *, by: bytes, previous: Checkpoint) -> None:
        """End the ownership of an old state key; its row and receipts stay as history.

        :raises XminError: ``checkpoint.conflict``.
        """
        table, now = self._catalog.source_state, server_time(self._session)
        condition = and_(
            table.c.state_key == state_key,
            table.c.safe_xmin == previous.xmin,
            table.c.revision == previous.revision,
            table.c.superseded_at_utc.is_(None),
        )
        values = {"superseded_at_utc": now, "superseded_by_state_key": by, "updated_at_utc": now}
        if self._session.execute("owner.supersede", update(table).where(condition).values(values)) != 1:
            raise XminError("checkpoint.conflict", "The old owner's checkpoint moved.")

    # ---- audit ------------------------------------------------------------------------------------------------------------
    def last_audit(self, invocation: bytes) -> Mapping[str, Any] | None:
        """The newest audit row of an invocation."""
        table = self._catalog.audit
        query = select(table).where(table.c.invocation_digest == invocation).order_by(table.c.recorded_at_utc.desc()).limit(1)
        row = self._session.first("audit.find", query)
        return None if row is None else dict(row._mapping)

    def audits(self, state_key: bytes, *, invocation: bytes | None) -> list[Mapping[str, Any]]:
        """All audit rows of a state key, or of one invocation of it, oldest first."""
        table = self._catalog.audit
        mine = table.c.state_key == state_key
        query = select(table).where(mine if invocation is None else and_(mine, table.c.invocation_digest == invocation))
        rows = self._session.rows("audit.list", query.order_by(table.c.recorded_at_utc, table.c.audit_id))
        return [dict(row._mapping) for row in rows]

    def write_audit(self, values: Mapping[str, Any]) -> None:
        """Append one audit row."""
        self._session.execute("audit.insert", insert(self._catalog.audit).values({**values, "recorded_at_utc": server_time(self._session)}))


_COMMITTED = "committed"

_MOVING = (
    "safe_xmin",
    "visible_horizon",
    "snapshot",
    "revision",
    "source_authority_digest",
    "target_authority_digest",
    "projection_fingerprint",
    "load_id",
    "receipt_id",
)


def _environment_key(environment: str) -> bytes:
    return digest({"v": 1, "environment": environment})


def receipt_of(m: Any) -> Receipt:
    """A row of the receipt table, marked as replayed: whoever reads it did not write it."""

    def maybe(name: str) -> bytes | None:
        return None if m[name] is None else bytes(m[name])

    return Receipt(
        receipt_id=UUID(str(m["receipt_id"])),
        kind=m["kind"],
        process=m["process"],
        run_id=m["run_id"],
        map_index=m["map_index"],
        load_id=UUID(str(m["load_id"])),
        invocation_digest=bytes(m["invocation_digest"]),
        state_key=bytes(m["state_key"]),
        target_identity=bytes(m["target_identity"]),
        route_fingerprint=bytes(m["route_fingerprint"]),
        payload=Payload(m["payload"]),
        payload_reason=m["payload_reason"],
        previous_xmin=m["previous_xmin"],
        previous_revision=m["previous_revision"],
        new_xmin=m["new_xmin"],
        new_revision=m["new_revision"],
        visible_horizon=m["visible_horizon"],
        snapshot=m["snapshot"],
        counts=ActionCounts(**{name: int(m[f"{name}_count"]) for name in COUNT_COLUMNS}),
        detected_at=m["detected_at_utc"],
        repair_authority_id=m["repair_authority_id"],
        repair_authority_digest=maybe("repair_authority_digest"),
        digests={name: value for name in DIGEST_COLUMNS if (value := maybe(name)) is not None},
        replayed=True,
    )
