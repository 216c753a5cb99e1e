"""Whether one snapshot sees at least what an earlier run's snapshot saw.

U alone cannot tell: one long transaction holds it still, and a snapshot of a lagging replica or of a server that lost its tail then looks
like a later one. Rows it does not see yet would be taken for deleted. Pure: imports contracts only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotToken:
    """``pg_current_snapshot()`` as PostgreSQL spells it: ``xmin:xmax:xip,…``, 64-bit.

    :param in_progress: top-level transactions in progress below ``xmax``; always empty on a standby, which does not tell them.
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, token: str) -> SnapshotToken:
        """:raises ValueError: for anything else."""
        low, high, listed = token.split(":")
        return cls(xmin=int(low), xmax=int(high), in_progress=frozenset(int(xid) for xid in listed.split(",") if xid))


def sees_all_of(now: SnapshotToken, before: SnapshotToken, *, standby: bool) -> bool:
    """Whether everything that had ended in *before* has ended in *now*; False in doubt.

    On a primary the transactions in progress decide. On a standby they are not told: its ``xmax`` never falls along one history, so a
    greater one is later; an equal one is as late only if nothing below it is in progress.

    :param standby: whether *now* was taken in recovery.
    """
    if now.xmin < before.xmin or now.xmax < before.xmax:
        return False
    if standby:
        return now.xmax > before.xmax or now.xmin >= before.xmax
    return {xid for xid in now.in_progress if xid < before.xmax} <= before.in_progress


def union(one: SnapshotToken, other: SnapshotToken) -> SnapshotToken:
    """The least snapshot that sees all that either saw: what a run after a campaign must not fall behind of."""
    high = max(one.xmax, other.xmax)
    unseen = frozenset(xid for xid in one.in_progress | other.in_progress if not _sees(one, xid) and not _sees(other, xid))
    # Each sees everything below its own xmin, and no later snapshot has a lower one than either.
    return SnapshotToken(xmin=max(one.xmin, other.xmin), xmax=high, in_progress=unseen)


def spell(token: SnapshotToken) -> str:
    """The token as PostgreSQL spells it."""
    return f"{token.xmin}:{token.xmax}:{','.join(map(str, sorted(token.in_progress)))}"


def _sees(token: SnapshotToken, xid: int) -> bool:
    return xid < token.xmax and xid not in token.in_progress
