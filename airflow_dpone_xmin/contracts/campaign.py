"""Campaign, chunk, lease and progress: the nouns of a resumable initial load (design.md "Campaign").

Imports the standard library and contracts only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal
from uuid import UUID

from airflow_dpone_xmin.contracts.envelope import Horizons

LEASE_TTL = timedelta(seconds=90)
RENEW_SECONDS = 30.0
"""A lease lives three renewals: a lost one costs nothing, a dead lane's chunk is free before Airflow's five-minute retry."""

SEED_REASON = "campaign"
"""Payload reason of a chunk and of the seed receipt."""


class CampaignState(str, Enum):
    """Life of a campaign."""

    OPEN = "open"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


class ChunkState(str, Enum):
    """Life of a chunk; an abandoned campaign's unfinished ones are nobody's work any more."""

    PENDING = "pending"
    LEASED = "leased"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class CampaignSpec:
    """What the manifest authored.

    :param kind: how the source is cut.
    :param column: key column that the ranges are about.
    :param low: first value, integer chunks only.
    :param high: last value, inclusive, integer chunks only.
    :param step: width of an integer chunk.
    :param buckets: number of uuid or ordered chunks.
    :param publication: a shadow that replaces the live table, or the live table itself.
    :param lanes: authored parallelism.
    """

    kind: Literal["integer", "uuid", "ordered"]
    column: str
    low: int | None
    high: int | None
    step: int | None
    buckets: int | None
    publication: Literal["shadow_swap", "in_place"]
    lanes: int


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """One half-open range ``[lower, upper)`` of the chunk column, as the source spells values; None is unbounded.

    :param number: 0-based, in ascending order of the ranges.
    """

    number: int
    lower: str | None
    upper: str | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The position before the first chunk, from a verified boundary; a resume never changes it.

    :param snapshot: snapshot token; every chunk's own snapshot must see all of it.
    :param projection_fingerprint: columns at the anchor; every chunk must have the same.
    """

    snapshot: str
    horizons: Horizons
    projection_fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Campaign:
    """One initial load, as its ledger row says.

    :param plan_digest: digest of the authored plan; another one is refused.
    :param shadow: name of the shadow table; None when the live table itself is filled.
    """

    campaign_key: bytes
    process: str
    handoff_id: str
    environment: str
    target_identity: bytes
    state_key: bytes
    plan_digest: bytes
    anchor: Anchor
    publication: str
    shadow: str | None
    state: CampaignState
    chunk_count: int
    created_at: datetime

    @property
    def mark(self) -> str:
        """What the shadow table is marked with."""
        return f"dpone campaign {self.campaign_key.hex()}"


@dataclass(frozen=True, slots=True)
class ChunkLease:
    """A chunk that a lane may work on until its epoch moves.

    :param epoch: number of this lease; the last statement of the chunk's transaction requires it.
    """

    range: ChunkRange
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class LoadReceipt:
    """The immutable proof of one operation: a chunk, or the publication.

    :param artifact_sha256: digest of the chunk's artifact; of all of them for the publication.
    :param snapshot: token of the chunk's own snapshot; of all of them together for the publication.
    """

    receipt_id: UUID
    rows: int
    artifact_sha256: bytes
    snapshot: str


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """One chunk as the ledger shows it now.

    :param live: whether its lease has not expired.
    """

    range: ChunkRange
    state: ChunkState
    owner: str | None
    live: bool
    rows: int | None
    updated_at: datetime


PACE, FEWEST = 33, 5
"""Newest commits from which pace and remaining time are estimated, and how many it takes: the first ones of several lanes come together."""


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """A look at a campaign.

    :param now: clock of the state server.
    """

    campaign: Campaign
    chunks: tuple[ChunkRow, ...]
    now: datetime

    @property
    def committed(self) -> int:
        """Chunks that have a receipt."""
        return sum(chunk.state is ChunkState.COMMITTED for chunk in self.chunks)

    @property
    def lanes(self) -> tuple[ChunkRow, ...]:
        """Chunks that a living lane works on."""
        return tuple(chunk for chunk in self.chunks if chunk.state is ChunkState.LEASED and chunk.live)

    @property
    def rows(self) -> int:
        """Committed rows."""
        return sum(chunk.rows or 0 for chunk in self.chunks)

    @property
    def complete(self) -> bool:
        """Whether every chunk is committed."""
        return self.committed == len(self.chunks)

    @property
    def last_change(self) -> datetime:
        """When a chunk was last claimed, renewed or committed."""
        return max((chunk.updated_at for chunk in self.chunks), default=self.campaign.created_at)

    @property
    def rows_per_second(self) -> float:
        """Of the newest commits: a pause before them says nothing about the pace; 0 before there are five."""
        seconds, _, rows = self._pace()
        return rows / seconds if seconds else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate from the newest commits; None before there are five, when nobody is at work, and when nothing remains."""
        seconds, chunks, _ = self._pace()
        return None if self.complete or not chunks or not self.lanes else seconds / chunks * (len(self.chunks) - self.committed)

    def _pace(self) -> tuple[float, int, int]:
        """Seconds, chunks and rows from the oldest of the newest commits to the newest."""
        done = sorted((chunk for chunk in self.chunks if chunk.state is ChunkState.COMMITTED), key=lambda chunk: chunk.updated_at)[-PACE:]
        if len(done) < FEWEST:
            return 0.0, 0, 0
        return (done[-1].updated_at - done[0].updated_at).total_seconds(), len(done) - 1, sum(chunk.rows or 0 for chunk in done[1:])

    def sentence(self) -> str:
        """``37/64 chunks, 12,300,000 rows, 88,000 rows/s, 4 lanes, ETA 120 s``."""
        parts = [f"{self.committed}/{len(self.chunks)} chunks", f"{self.rows:,} rows", f"{self.rows_per_second:,.0f} rows/s"]
        parts.append(f"{len(self.lanes)} lanes")
        if self.remaining_seconds is not None:
            parts.append(f"ETA {self.remaining_seconds:,.0f} s")
        return ", ".join(parts)
