"""Which of two snapshots sees more, against a history that is simply replayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone_xmin.policy.window import SnapshotToken, sees_all_of


def token(started: int, ended: set[int], *, standby: bool) -> SnapshotToken:
    """The snapshot of a server on which ids 3 … started-1 were given and *ended* have ended (``xmax`` follows the latest ended one)."""
    xmax = max(ended, default=2) + 1
    running = {xid for xid in range(3, min(started, xmax)) if xid not in ended}
    return SnapshotToken(min(running, default=xmax), xmax, frozenset() if standby else frozenset(running))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, set[int]]]:
    """States of one server over time: transactions start and end in any order."""
    started, ended, states = 3, set[int](), []
    for step in draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)):
        running = [xid for xid in range(3, started) if xid not in ended]
        if step == 0 or not running:
            started += 1
        else:
            ended = ended | {running[step % len(running)]}
        states.append((started, set(ended)))
    return states


@pytest.mark.parametrize(
    ("now", "before", "standby", "passes"),
    [
        ("5:9:", "5:9:", True, False),  # 5 to 8 may have been in progress for one and ended for the other
        ("6:9:", "5:9:", True, False),
        ("8:9:", "5:9:", True, False),
        ("9:9:", "5:9:", True, True),  # nothing below is in progress any more
        ("9:9:", "9:9:", True, True),
        ("5:10:", "5:9:", True, True),
        ("4:10:", "5:9:", True, False),
        ("9:9:", "5:10:", True, False),
        ("5:9:5,7", "5:9:5,7", False, True),
        ("5:9:5,7", "5:9:5,6,7", False, True),
        ("5:9:5,6,7", "5:9:5,7", False, False),
        ("5:12:5,10", "5:9:5", False, True),
        ("5:12:5,8", "5:9:5", False, False),
        ("9:9:", "5:10:5", False, False),
    ],
)
def test_the_edges(now: str, before: str, standby: bool, passes: bool) -> None:
    """A replica that lags must never say which rows are gone."""
    assert sees_all_of(SnapshotToken.parse(now), SnapshotToken.parse(before), standby=standby) is passes


@given(histories(), st.booleans(), st.data())
def test_no_older_snapshot_passes_and_a_later_one_of_a_primary_always_does(
    states: list[tuple[int, set[int]]], standby: bool, data: st.DataObject
) -> None:
    earlier = data.draw(st.integers(0, len(states) - 1))
    later = data.draw(st.integers(earlier, len(states) - 1))
    first, second = token(*states[earlier], standby=standby), token(*states[later], standby=standby)
    if not standby:
        assert sees_all_of(second, first, standby=False)
    if states[earlier][1] != states[later][1]:
        assert not sees_all_of(first, second, standby=standby)
