"""What the runtime asks of the source side, and the envelope that it answers with: the frozen facts of one extraction.

Imports the standard library and contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.registry import SourceAuthority


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """The route's source half.

    :param identity: canonical names, already resolved against the signed pins (never learned).
    :param authority: the signed authority that the boundary must observe.
    :param relation_key: key of the pinned relation in ``authority.relations``.
    :param key: unique key columns in authored order.
    :param string_columns: columns that ``schema_contract`` authorises as canonical text.
    :param type_overrides: column → ``physical_design.columns.*.target_type.mssql``.
    :param window: ``exact`` or ``strict`` (design.md "Window").
    :param max_replay_amplification: optional limit on H − U, transaction ids.
    :param with_keys: extract the complete key snapshot beside a delta.
    :param lock_timeout_seconds: longest wait for ACCESS SHARE.
    :param deadline_seconds: longest life of the whole boundary.
    :param work_dir: directory that exists, mode 0700, owned by this attempt.
    :param min_free_bytes: floor below which nothing is written.
    :param alias: the authored spelling differs from the pinned one by ASCII case, so the live catalog must hold one such name only.
    """

    identity: SourceIdentity
    authority: SourceAuthority
    relation_key: str
    key: tuple[str, ...]
    work_dir: Path
    string_columns: frozenset[str] = frozenset()
    type_overrides: Mapping[str, str] = field(default_factory=dict)
    window: Literal["exact", "strict"] = "exact"
    max_replay_amplification: int | None = None
    with_keys: bool = True
    lock_timeout_seconds: float = 30.0
    deadline_seconds: float = 6 * 3600.0
    min_free_bytes: int = 256 * 1024 * 1024
    alias: bool = False


@dataclass(frozen=True, slots=True)
class Prior:
    """What the last commit left, as far as the source side needs it.

    :param xmin: previous U; None for a baseline.
    :param snapshot: previous snapshot token, ``xmin:xmax:xip,…``.
    :param projection_fingerprint: of the last commit; a difference makes the payload full.
    :param authority_rotated: whether the signed source authority differs from the last commit's.
    :param force_full: reason that makes the payload full whatever the window says, for example ``target_state_diverged``.
    :param approved_full: whether an approval makes the payload full; any other reason stays the reason.
    :param report: whether the run only reports: what an approval could admit does not stop it before the classification.
    """

    xmin: int | None = None
    snapshot: str | None = None
    projection_fingerprint: bytes | None = None
    authority_rotated: bool = False
    force_full: str | None = None
    approved_full: bool = False
    report: bool = False


class Payload(str, Enum):
    """Which rows a run extracted."""

    DELTA = "delta"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Horizons:
    """The two horizons of one snapshot, 64-bit.

    :param safe: U, ``xmin`` of the snapshot; the only one that is persisted.
    :param visible: H, ``xmax`` of the snapshot; upper end of the delta.
    """

    safe: int
    visible: int

    def __post_init__(self) -> None:
        if not 0 < self.safe <= self.visible:
            raise ValueError("a snapshot has 0 < xmin <= xmax")

    @property
    def replay_amplification(self) -> int:
        """H − U in transaction ids: cluster-wide churn that the next run replays."""
        return self.visible - self.safe


@dataclass(frozen=True, slots=True)
class Artifact:
    """One immutable Arrow IPC stream file of an extraction.

    :param path: file in the attempt's work directory.
    :param rows: rows written.
    :param size: bytes of the file.
    :param sha256: digest of the file's bytes, 32 bytes.
    :param columns: column names in file order.
    :param replayed_frozen: rows that came only through the frozen-xid term of the window (raw xmin 1 or 2); 0 in a full payload.
    """

    path: Path
    rows: int
    size: int
    sha256: bytes
    columns: tuple[str, ...]
    replayed_frozen: int = 0


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Canonical names of the relation that was really read.

    :param entry: name of the signed registry entry.
    :param database: canonical database name.
    :param schema: canonical schema name.
    :param relation: canonical relation name.
    """

    entry: str
    database: str
    schema: str
    relation: str


@dataclass(frozen=True, slots=True)
class Envelope:
    """What one closed source boundary proved.

    :param source: canonical source names.
    :param snapshot: the snapshot token, ``pg_current_snapshot()::text``.
    :param horizons: U and H.
    :param payload: which rows ``rows_artifact`` holds.
    :param reason: why the payload is full, or ``delta``.
    :param projection: carried columns and their fingerprint.
    :param rows_artifact: delta or full rows.
    :param keys_artifact: complete key snapshot; None when the payload is full (keys are a column subset of it) or when the route
        never deletes.
    :param attempts: how often the boundary was opened until it was stable.
    """

    source: SourceIdentity
    snapshot: str
    horizons: Horizons
    payload: Payload
    reason: str
    projection: Projection
    rows_artifact: Artifact
    keys_artifact: Artifact | None
    attempts: int = 1
