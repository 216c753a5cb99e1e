"""The window: decisions on 64-bit ids, and a 32-bit predicate that agrees with a plain oracle across the wrap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone_xmin.contracts.envelope import Horizons, Payload, Prior
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.policy.window import EPOCH, FIRST_NORMAL, MAX_WIDTH, DeltaWindow, decide_window
from tests.windows import contains

FINGERPRINT = b"f" * 32


def normal(xid: int) -> int:
    """The next id that PostgreSQL would really assign."""
    return xid if xid % EPOCH >= FIRST_NORMAL else xid - xid % EPOCH + FIRST_NORMAL


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, int]:
    """(previous, H) with special lower ends and widths around the edges well represented."""
    epoch = draw(st.integers(0, 5))
    low = draw(st.one_of(st.integers(0, 5), st.integers(EPOCH - 5, EPOCH - 1), st.integers(0, EPOCH - 1)))
    width = draw(st.one_of(st.integers(0, 10), st.integers(MAX_WIDTH - 10, MAX_WIDTH - 1), st.integers(0, MAX_WIDTH - 1)))
    return epoch * EPOCH + low, epoch * EPOCH + low + width


@given(windows(), st.data())
def test_every_row_of_the_interval_is_replayed_and_no_recent_other_one(window: tuple[int, int], data: st.DataObject) -> None:
    previous, visible = window
    delta = DeltaWindow.between(previous, visible)
    near = st.integers(max(0, previous - 10), visible + 10)
    anywhere = st.integers(max(0, visible - MAX_WIDTH), visible + MAX_WIDTH)
    full = normal(data.draw(st.one_of(near, anywhere)))
    expected = previous <= full < visible
    # Ids within 2**31 of the horizon are unique in their low half, so the oracle is plain comparison.
    assert contains(delta, full % EPOCH) is expected


@given(windows(), st.sampled_from([1, 2]))
def test_frozen_ids_are_always_replayed(window: tuple[int, int], raw: int) -> None:
    assert contains(DeltaWindow.between(*window), raw)


@given(windows())
def test_the_base_is_never_a_special_id(window: tuple[int, int]) -> None:
    delta = DeltaWindow.between(*window)
    assert delta.base32 >= FIRST_NORMAL
    assert delta.width <= window[1] - window[0]


def decide(prior: Prior, safe: int, visible: int, **options: object) -> tuple[Payload, str]:
    window = decide_window(
        prior,
        Horizons(safe, visible),
        fingerprint=FINGERPRINT,
        standby=bool(options.pop("standby", False)),
        snapshot=str(options.pop("snapshot", f"{safe}:{visible}:")),
        **options,  # type: ignore[arg-type]
    )
    assert (window.delta is None) is (window.payload is Payload.FULL)
    return window.payload, window.reason


@pytest.mark.parametrize(
    ("prior", "payload", "reason"),
    [
        (Prior(), Payload.FULL, "baseline"),
        (Prior(approved_full=True), Payload.FULL, "baseline"),
        (Prior(xmin=100, projection_fingerprint=FINGERPRINT), Payload.DELTA, "delta"),
        (Prior(xmin=200, projection_fingerprint=FINGERPRINT), Payload.DELTA, "delta"),
        (Prior(xmin=100, projection_fingerprint=b"g" * 32), Payload.FULL, "projection_changed"),
        (Prior(xmin=100, projection_fingerprint=None), Payload.FULL, "projection_changed"),
        (Prior(xmin=100, projection_fingerprint=FINGERPRINT, authority_rotated=True), Payload.FULL, "authority_rotated"),
        (Prior(xmin=900, projection_fingerprint=FINGERPRINT, authority_rotated=True), Payload.FULL, "authority_rotated"),
        (Prior(xmin=100, projection_fingerprint=FINGERPRINT, force_full="target_state_diverged"), Payload.FULL, "target_state_diverged"),
        (Prior(xmin=100, projection_fingerprint=FINGERPRINT, approved_full=True), Payload.FULL, "repair_authority"),
        (Prior(xmin=100, projection_fingerprint=FINGERPRINT, report=True), Payload.DELTA, "delta"),
    ],
)
def test_payload_and_reason(prior: Prior, payload: Payload, reason: str) -> None:
    assert decide(prior, 200, 210) == (payload, reason)


def test_a_window_of_2_31_ids_makes_the_payload_full() -> None:
    prior = Prior(xmin=100, projection_fingerprint=FINGERPRINT)
    assert decide(prior, 200, 100 + MAX_WIDTH - 1) == (Payload.DELTA, "delta")
    assert decide(prior, 200, 100 + MAX_WIDTH) == (Payload.FULL, "window_too_wide")


@pytest.mark.parametrize("force", [None, "target_state_diverged"])
@pytest.mark.parametrize(
    ("standby", "code", "retryable"), [(False, "xmin_window.regressed", False), (True, "xmin_window.standby_lags", True)]
)
def test_an_older_snapshot_is_refused_even_for_a_full_payload(force: str | None, standby: bool, code: str, retryable: bool) -> None:
    with pytest.raises(XminError) as caught:
        decide(Prior(xmin=201, projection_fingerprint=FINGERPRINT, force_full=force), 200, 210, standby=standby)
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


def test_exact_crosses_an_epoch_and_strict_stops() -> None:
    prior = Prior(xmin=EPOCH - 5, projection_fingerprint=FINGERPRINT)
    assert decide(prior, EPOCH + 10, EPOCH + 20) == (Payload.DELTA, "delta")
    with pytest.raises(XminError) as caught:
        decide(prior, EPOCH + 10, EPOCH + 20, mode="strict")
    assert caught.value.code == "xmin_window.strict_stop"
    for past in ({"approved_full": True}, {"report": True}):
        assert decide(replace(prior, **past), EPOCH + 10, EPOCH + 20, mode="strict") == (Payload.FULL, "strict_stop")


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"force_full": "target_state_diverged"}, "target_state_diverged"),
        ({"force_full": "target_authority_rotated"}, "target_authority_rotated"),
        ({"authority_rotated": True}, "authority_rotated"),
        ({"projection_fingerprint": b"g" * 32}, "projection_changed"),
        ({"xmin": 3}, "window_too_wide"),
        ({"xmin": None}, "baseline"),
        ({}, "repair_authority"),
    ],
)
def test_an_approval_never_hides_what_made_the_payload_full_anyway(over: dict[str, Any], reason: str) -> None:
    """Only where the payload were a delta without it is the approval the reason, and is it used."""
    safe = MAX_WIDTH + 100
    prior = replace(Prior(xmin=safe - 10, projection_fingerprint=FINGERPRINT, approved_full=True), **over)
    assert decide(prior, safe, safe) == (Payload.FULL, reason)


def test_amplification_limit() -> None:
    assert decide(Prior(), 200, 210, max_replay_amplification=10)[0] is Payload.FULL
    with pytest.raises(XminError) as caught:
        decide(Prior(), 200, 211, max_replay_amplification=10)
    assert caught.value.code == "xmin_window.amplification_exceeded"


@pytest.mark.parametrize("standby", [False, True])
def test_a_snapshot_that_misses_ended_transactions_is_refused(standby: bool) -> None:
    """One long transaction holds U still: only H and the transactions in progress tell an older snapshot."""
    prior = Prior(xmin=757, snapshot="757:760:757", projection_fingerprint=FINGERPRINT)
    code = "xmin_window.standby_lags" if standby else "xmin_window.regressed"
    with pytest.raises(XminError) as caught:
        decide(prior, 757, 757, standby=standby, snapshot="757:757:")
    assert (caught.value.code, caught.value.retryable) == (code, standby)


def test_the_same_horizons_with_another_transaction_in_progress_are_older() -> None:
    prior = Prior(xmin=757, snapshot="757:760:757", projection_fingerprint=FINGERPRINT)
    with pytest.raises(XminError) as caught:
        decide(prior, 757, 760, snapshot="757:760:757,759")
    assert caught.value.code == "xmin_window.regressed"
    assert decide(prior, 757, 760, snapshot="757:760:757") == (Payload.DELTA, "delta")
    assert decide(prior, 757, 763, snapshot="757:763:757,761") == (Payload.DELTA, "delta")


def test_a_rotated_authority_may_go_back() -> None:
    prior = Prior(xmin=757, snapshot="757:760:757", projection_fingerprint=FINGERPRINT, authority_rotated=True)
    assert decide(prior, 700, 701, snapshot="700:701:") == (Payload.FULL, "authority_rotated")
