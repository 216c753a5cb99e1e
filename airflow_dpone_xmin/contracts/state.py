"""Checkpoint, head, invocation, receipt and counts: what the target side stores and proves.

Imports the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The stored position of one state key.

    :param xmin: U of the last committed run.
    :param visible: H of the last committed run.
    :param snapshot: its snapshot token; a later run must see at least as much.
    :param revision: monotonic counter; it, not ``xmin``, decides staleness.
    :param load_id: load that wrote it.
    :param source_authority_digest: signed source authority of that load; a rotation makes the next payload full.
    :param target_authority_digest: signed target, staging and state authorities of that load, combined.
    :param projection_fingerprint: a difference makes the next payload full.
    """

    xmin: int
    visible: int
    snapshot: str
    revision: int
    load_id: UUID
    source_authority_digest: bytes
    target_authority_digest: bytes
    projection_fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The row in the target database that names its last commit."""

    state_key: bytes
    revision: int
    load_id: UUID


@dataclass(frozen=True, slots=True)
class Invocation:
    """One scheduler run of one partition of a process: never a try number.

    :param process: stable pipeline name.
    :param run_id: scheduler's run id, or the CLI's ``--run-id``.
    :param map_index: dynamic-mapping index, -1 when not mapped.
    """

    process: str
    run_id: str
    map_index: int = -1

    def __post_init__(self) -> None:
        for name, value in (("process", self.process), ("run_id", self.run_id)):
            # The ledger's columns hold UTF-16 code units.
            if not 0 < len(value.encode("utf-16-le")) // 2 <= 256:
                raise XminError("invocation.invalid", f"`{name}` has 1 to 256 characters.", details={"name": name})


@dataclass(frozen=True, slots=True)
class Classification:
    """One pass over target key index and key snapshot, before or after the DML. 64-bit counts.

    :param matched: keys with an active target row.
    :param missing: active target rows without a key.
    :param absent: keys without any target row.
    :param tombstoned: keys whose target row is a tombstone.
    :param retained: tombstones without a key.
    """

    matched: int
    missing: int
    absent: int
    tombstoned: int
    retained: int

    @property
    def active(self) -> int:
        """Active rows of the target."""
        return self.matched + self.missing

    @property
    def keys(self) -> int:
        """Keys of the snapshot."""
        return self.matched + self.absent + self.tombstoned


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """Disjoint, server-counted effects of one commit. 64-bit.

    Formulas (design.md "Counters"): payload = inserted + updated + reactivated + unchanged; a row that changed and reactivated counts
    as reactivated; active_after = active_before + inserted + reactivated − soft_deleted − hard_deleted, = keys when reconciled.
    """

    payload: int
    keys: int
    inserted: int
    updated: int
    reactivated: int
    unchanged: int
    soft_deleted: int
    hard_deleted: int
    active_before: int
    active_after: int
    total_after: int

    @property
    def deleted(self) -> int:
        """Rows that left the active set."""
        return self.soft_deleted + self.hard_deleted

    def violations(self, *, reconciled: bool) -> list[str]:
        """Names of the formulas that do not hold; empty when all do.

        :param reconciled: whether a complete key snapshot was applied, so that active rows must equal keys.
        """
        broken = [name for name, value in self._each() if value < 0 or value >= 2**63]
        if self.payload != self.inserted + self.updated + self.reactivated + self.unchanged:
            broken.append("payload")
        if self.active_after != self.active_before + self.inserted + self.reactivated - self.deleted:
            broken.append("active_after")
        if reconciled and self.active_after != self.keys:
            broken.append("keys")
        if self.total_after < self.active_after:
            broken.append("total_after")
        return broken

    def _each(self) -> list[tuple[str, int]]:
        return [(name, getattr(self, name)) for name in self.__slots__]

    def to_dict(self) -> dict[str, int]:
        """The counts by name."""
        return dict(self._each())


@dataclass(frozen=True, slots=True)
class Receipt:
    """The immutable proof of one commit.

    :param replayed: True when this attempt found the receipt instead of writing it; not stored.
    """

    receipt_id: UUID
    kind: str
    process: str
    run_id: str
    map_index: int
    load_id: UUID
    invocation_digest: bytes
    state_key: bytes
    target_identity: bytes
    route_fingerprint: bytes
    payload: Payload
    payload_reason: str
    previous_xmin: int | None
    previous_revision: int | None
    new_xmin: int
    new_revision: int
    visible_horizon: int
    snapshot: str
    counts: ActionCounts
    detected_at: datetime
    repair_authority_id: str | None = None
    repair_authority_digest: bytes | None = None
    digests: dict[str, bytes] = field(default_factory=dict)
    replayed: bool = False

    @property
    def replay_amplification(self) -> int:
        """H − U of the committed snapshot."""
        return self.visible_horizon - self.new_xmin
