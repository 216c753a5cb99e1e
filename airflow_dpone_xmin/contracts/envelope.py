"""The envelope: the frozen facts of one extraction, handed from the source side to the target side.

Imports the standard library and contracts only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from airflow_dpone_xmin.contracts.columns import Projection


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
