"""Which rows a run extracts: the window decision, its arithmetic on transaction ids, and whether a snapshot sees all of an earlier run's.

U alone cannot tell the last: one long transaction holds it still, and a snapshot of a lagging replica or of a server that lost its tail
then looks like a later one. Rows it does not see yet would be taken for deleted.

Everything is decided on 64-bit ids (epoch and counter); only :class:`DeltaWindow` meets the 32-bit ``xmin`` column. The SQL of the
predicate lives in ``source/extract.py``. Pure: imports contracts only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_dpone_xmin.contracts.envelope import Horizons, Payload, Prior
from airflow_dpone_xmin.contracts.errors import XminError

EPOCH = 2**32
#: A wider window cannot be told from its past by 32 bits of distance; the payload is full then.
MAX_WIDTH = 2**31
#: PostgreSQL's ``FirstNormalTransactionId``: 0 is invalid, 1 bootstrap, 2 frozen; no snapshot or row is ever numbered below it.
FIRST_NORMAL = 3
#: Raw ``xmin`` of rows from initdb (1) and of rows frozen by force or by a server up to 9.3 (2): always replayed, never missed.
FROZEN_XIDS = (1, 2)
#: Reasons of a full payload that only an approval gives: without it the payload were a delta, or the strict window stopped.
APPROVED, STRICT_STOP = "repair_authority", "strict_stop"


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


@dataclass(frozen=True, slots=True)
class DeltaWindow:
    """The half-open interval [previous U, H) in the form that a 32-bit column can be compared with.

    :param base: lower end, 64-bit, rebased onto the next normal id when its low half is a special one. ``age()`` of a special id is a
        constant, not a distance, and no row carries one in this interval, so the rebased interval holds the same rows.
    :param width: number of ids in the interval, 0 ≤ width < 2³¹.
    """

    base: int
    width: int

    def __post_init__(self) -> None:
        if self.base % EPOCH < FIRST_NORMAL or not 0 <= self.width < MAX_WIDTH:
            raise ValueError("a delta window starts at a normal transaction id and is narrower than 2**31")

    @classmethod
    def between(cls, previous: int, visible: int) -> DeltaWindow:
        """Window of the ids in [*previous*, *visible*); both 64-bit, ``visible - previous < 2**31``."""
        low = previous % EPOCH
        base = previous + max(0, FIRST_NORMAL - low)
        return cls(base=base, width=max(0, visible - base))

    @property
    def base32(self) -> int:
        """Low 32 bits of the base, as the ``xid`` type spells it."""
        return self.base % EPOCH


@dataclass(frozen=True, slots=True)
class Window:
    """What to extract, and why.

    :param payload: delta or full.
    :param reason: ``delta``, or why the payload is full.
    :param delta: the interval of a delta; None in a full payload, which has no xmin term at all.
    """

    payload: Payload
    reason: str
    delta: DeltaWindow | None = None


def decide_window(
    prior: Prior,
    horizons: Horizons,
    *,
    fingerprint: bytes,
    volatile: bool = False,
    standby: bool,
    snapshot: str,
    mode: Literal["exact", "strict"] = "exact",
    max_replay_amplification: int | None = None,
) -> Window:
    """Decide the payload of one run (design.md "One incremental run", step 3).

    :param prior: what the last commit left.
    :param horizons: U and H of the open snapshot, 64-bit.
    :param fingerprint: projection fingerprint of the open snapshot.
    :param volatile: whether the projection's content may change unseen.
    :param standby: whether the server is in recovery.
    :param snapshot: token of the open snapshot.
    :param mode: ``strict`` stops at an epoch change instead of crossing it.
    :param max_replay_amplification: limit on H − U in transaction ids; None for none.
    :raises XminError: ``xmin_window.amplification_exceeded``, ``.regressed``, ``.standby_lags`` or ``.strict_stop``.
    """
    _check_amplification(horizons, max_replay_amplification)
    if prior.xmin is None:
        return _full(prior.force_full or "baseline")
    if prior.authority_rotated:
        return _full(prior.force_full or "authority_rotated")
    before = SnapshotToken.parse(prior.snapshot) if prior.snapshot else SnapshotToken(prior.xmin, prior.xmin, frozenset())
    if prior.xmin > horizons.safe or not sees_all_of(SnapshotToken.parse(snapshot), before, standby=standby):
        # An older snapshot would take the target back in time, whatever else speaks for a full payload.
        raise _regressed(before, horizons, standby=standby)
    if prior.force_full is not None:
        return _full(prior.force_full)
    width = horizons.visible - prior.xmin
    if mode == "strict" and (prior.xmin // EPOCH != horizons.visible // EPOCH or width >= MAX_WIDTH):
        if prior.approved_full or prior.report:
            return _full(STRICT_STOP)
        raise XminError(
            "xmin_window.strict_stop",
            f"The window crosses from epoch {prior.xmin // EPOCH} to {horizons.visible // EPOCH} over {width} transaction ids.",
            details={"previous": prior.xmin, "safe": horizons.safe, "visible": horizons.visible},
        )
    if prior.projection_fingerprint != fingerprint:
        return _full("projection_changed")
    if volatile:
        return _full("projection_volatile")
    if width >= MAX_WIDTH:
        return _full("window_too_wide")
    if prior.approved_full:
        return _full(APPROVED)
    return Window(payload=Payload.DELTA, reason="delta", delta=DeltaWindow.between(prior.xmin, horizons.visible))


def _full(reason: str) -> Window:
    return Window(payload=Payload.FULL, reason=reason)


def _check_amplification(horizons: Horizons, limit: int | None) -> None:
    if limit is not None and horizons.replay_amplification > limit:
        raise XminError(
            "xmin_window.amplification_exceeded",
            f"H - U is {horizons.replay_amplification} transaction ids; the route allows {limit}.",
            details={"safe": horizons.safe, "visible": horizons.visible, "limit": limit},
        )


def _regressed(before: SnapshotToken, horizons: Horizons, *, standby: bool) -> XminError:
    code = "xmin_window.standby_lags" if standby else "xmin_window.regressed"
    return XminError(
        code,
        f"The last run's snapshot was {before.xmin}:{before.xmax}; this one, {horizons.safe}:{horizons.visible}, does not see all of it.",
        details={"previous": before.xmin, "previous_visible": before.xmax, "safe": horizons.safe, "visible": horizons.visible},
    )
