"""A plan is adjacent and complete, whatever was authored; a union of snapshots sees what either saw, and no more."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone_xmin.contracts.campaign import CampaignSpec
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.policy.chunks import plan_ranges
from airflow_dpone_xmin.policy.window import SnapshotToken, sees_all_of, spell, union


def spec(kind: str, **over: object) -> CampaignSpec:
    base = {"column": "id", "low": None, "high": None, "step": None, "buckets": None, "publication": "shadow_swap", "lanes": 4}
    return CampaignSpec(kind=kind, **{**base, **over})  # type: ignore[arg-type]


@given(low=st.integers(-(2**63), 2**63 - 1), width=st.integers(0, 10_000), step=st.integers(1, 20_000))
def test_integer_plan_is_adjacent_and_ends_where_authored(low: int, width: int, step: int) -> None:
    ranges = plan_ranges(spec("integer", low=low, high=low + width, step=step))
    assert (int(ranges[0].lower or 0), int(ranges[-1].upper or 0)) == (low, low + width + 1)
    assert all(one.upper == other.lower for one, other in pairwise(ranges))
    assert all(0 < int(chunk.upper or 0) - int(chunk.lower or 0) <= step for chunk in ranges)
    assert [chunk.number for chunk in ranges] == list(range(len(ranges)))


@given(buckets=st.integers(1, 300), value=st.uuids())
def test_every_uuid_is_in_exactly_one_bucket(buckets: int, value: UUID) -> None:
    ranges = plan_ranges(spec("uuid", buckets=buckets))
    assert len(ranges) == buckets
    inside = [r for r in ranges if (r.lower is None or UUID(r.lower) <= value) and (r.upper is None or value < UUID(r.upper))]
    assert len(inside) == 1


def test_ordered_plan_is_open_at_both_ends_and_skips_repeated_boundaries() -> None:
    ranges = plan_ranges(spec("ordered", buckets=4), boundaries=["b", "b", "d"])
    assert [(r.lower, r.upper) for r in ranges] == [(None, "b"), ("b", "d"), ("d", None)]
    assert [(r.lower, r.upper) for r in plan_ranges(spec("ordered", buckets=1))] == [(None, None)]


def test_a_plan_of_too_many_chunks_is_refused() -> None:
    with pytest.raises(XminError) as refused:
        plan_ranges(spec("integer", low=1, high=10**9, step=1))
    assert refused.value.code == "campaign.plan_invalid"


XIDS = range(3, 40)


@st.composite
def tokens(draw: st.DrawFn) -> SnapshotToken:
    low = draw(st.integers(3, 30))
    high = draw(st.integers(low, 39))
    # PostgreSQL's xmax is one more than the last id that ended: the id below it is never in progress
    between = draw(st.frozensets(st.integers(low, high - 2), max_size=5)) if high > low + 1 else frozenset()
    return SnapshotToken(xmin=min(between, default=high), xmax=high, in_progress=between)


def seen(token: SnapshotToken) -> set[int]:
    return {xid for xid in XIDS if xid < token.xmax and xid not in token.in_progress}


@given(tokens(), tokens(), tokens())
def test_union_sees_exactly_what_either_saw(one: SnapshotToken, other: SnapshotToken, later: SnapshotToken) -> None:
    both = SnapshotToken.parse(spell(union(one, other)))
    assert seen(both) == seen(one) | seen(other)
    if sees_all_of(later, both, standby=False):
        assert sees_all_of(later, one, standby=False) and sees_all_of(later, other, standby=False)
    if seen(later) >= seen(both):
        assert sees_all_of(later, both, standby=False)
