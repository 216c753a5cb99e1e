"""What an approval admits: bindings, bounds and transfers, as arithmetic and as refusals with their codes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import Allow, CheckpointBinding, RepairAuthority, TransferBinding
from airflow_dpone_xmin.contracts.route import DeleteGuards
from airflow_dpone_xmin.contracts.state import Checkpoint
from airflow_dpone_xmin.policy.repair import (
    RepairBinding,
    admit_authority,
    admit_baseline,
    admit_deletes,
    admit_transfer,
    judge_deletes,
    require_bounds,
)

NOW = datetime(2026, 8, 15, 12, tzinfo=UTC)
KEY, SCOPE, OLD = b"k" * 32, b"s" * 32, b"o" * 32
CHECKPOINT = Checkpoint(
    xmin=1000,
    visible=1000,
    snapshot="1000:1000:",
    revision=7,
    load_id=UUID(int=1),
    source_authority_digest=b"",
    target_authority_digest=b"",
    projection_fingerprint=b"",
)
BINDING = RepairBinding("prod", KEY, SCOPE, CHECKPOINT)
COUNTS = st.integers(min_value=0, max_value=10**12)
RATIOS = st.decimals(min_value=0, max_value=1, places=15, allow_nan=False)


def authority(**over: Any) -> RepairAuthority:
    fields: dict[str, Any] = {
        "authority_id": "a1",
        "environment": "prod",
        "state_key": KEY.hex(),
        "scope_hash": SCOPE.hex(),
        "checkpoint": CheckpointBinding(xmin=1000, revision=7),
        "allow": Allow(max_delete_rows=5),
        "reason": "archived",
        "created_at": NOW,
        "expires_at": NOW + timedelta(hours=1),
    }
    return RepairAuthority.model_validate(fields | over)


def code_of(caught: pytest.ExceptionInfo[XminError]) -> str:
    return caught.value.code


# ---- the document ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "over",
    [
        {"allow": Allow()},
        {"expires_at": NOW},
        {"created_at": datetime(2026, 8, 15)},
        {"expires_at": "9999-12-31T23:59:59-14:00"},
        {"transfer": TransferBinding(state_key=OLD.hex(), xmin=1, revision=1)},
        {"transfer": TransferBinding(state_key=OLD.hex(), xmin=1, revision=1), "checkpoint": None},
        {"state_key": "AB" * 32},
        {"authority_id": "two words"},
        {"authority_id": "x'; --"},
        *[{"authority_id": name} for name in ("", "None", " ", " fix", "fix ", "fix\n", "-x", "--help", "\u00e9")],
        {"reason": ""},
        {"allow": {"max_delete_rows": -1}},
        {"allow": {"max_delete_rows": 2**63}},
        {"allow": {"max_delete_rows": "5"}},
        {"allow": {"max_delete_ratio": 1.1}},
        {"allow": {"max_delete_ratio": "NaN"}},
        {"allow": {"max_delete_ratio": "0.0000000000000001"}},
        {"allow": {"max_delete_rows": 1, "truncate": True}},
        {"extra": 1},
    ],
)
def test_documents_that_are_refused(over: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        authority(**over)


def test_every_field_moves_the_digest() -> None:
    """What is not covered by the digest could be changed after the approval."""
    base = authority(checkpoint=None, allow=Allow(full_baseline=True, max_delete_rows=5, max_delete_ratio=Decimal("0.5")))
    transfer = TransferBinding(state_key=OLD.hex(), xmin=1, revision=1)
    changes: list[dict[str, Any]] = [
        {"authority_id": "a2"},
        {"environment": "test"},
        {"state_key": OLD.hex()},
        {"scope_hash": OLD.hex()},
        {"checkpoint": CheckpointBinding(xmin=0, revision=0)},
        {"transfer": transfer},
        {"reason": "other"},
        {"created_at": NOW - timedelta(microseconds=1)},
        {"expires_at": NOW + timedelta(hours=1, microseconds=1)},
        {"allow": base.allow.model_copy(update={"full_baseline": False})},
        {"allow": base.allow.model_copy(update={"max_delete_rows": 6})},
        {"allow": base.allow.model_copy(update={"max_delete_rows": None})},
        {"allow": base.allow.model_copy(update={"max_delete_ratio": Decimal("0.51")})},
    ]
    digests = {base.digest} | {base.model_copy(update=change).digest for change in changes}
    assert len(digests) == 1 + len(changes)
    assert set(base.canonical()) == (set(RepairAuthority.model_fields) - {"allow"}) | set(Allow.model_fields)


def test_one_instant_and_one_ratio_have_one_digest() -> None:
    berlin = datetime.fromisoformat("2026-08-15T14:00:00+02:00")
    assert authority(created_at=berlin).digest == authority().digest
    half = {authority(allow=Allow(max_delete_ratio=value)).digest for value in (Decimal("0.5"), Decimal("0.500"), "0.5", 0.5)}  # type: ignore[arg-type]
    assert len(half) == 1


# ---- admission ------------------------------------------------------------------------------------------------------------
def test_an_exact_authority_is_admitted() -> None:
    admit_authority(authority(), BINDING, consumed=False, now=NOW)
    absent = RepairBinding("prod", KEY, SCOPE, None)
    admit_authority(authority(checkpoint=None), absent, consumed=False, now=NOW)


@pytest.mark.parametrize(
    ("over", "consumed", "now", "code"),
    [
        ({}, True, NOW, "consumed"),
        ({}, False, NOW + timedelta(hours=1), "expired"),
        ({}, False, NOW - timedelta(microseconds=1), "not_yet_valid"),
        ({"environment": "test"}, False, NOW, "environment_mismatch"),
        ({"state_key": OLD.hex()}, False, NOW, "binding_mismatch"),
        ({"scope_hash": OLD.hex()}, False, NOW, "binding_mismatch"),
        ({"checkpoint": None}, False, NOW, "binding_mismatch"),
        ({"checkpoint": CheckpointBinding(xmin=1000, revision=8)}, False, NOW, "binding_mismatch"),
        ({"checkpoint": CheckpointBinding(xmin=1001, revision=7)}, False, NOW, "binding_mismatch"),
    ],
)
def test_what_is_not_exact_is_refused(over: dict[str, Any], consumed: bool, now: datetime, code: str) -> None:
    with pytest.raises(XminError) as caught:
        admit_authority(authority(**over), BINDING, consumed=consumed, now=now)
    assert code_of(caught) == f"repair_authority.{code}"
    assert caught.value.retryable is False
    assert caught.value.details["authority_id"] == "a1"


def test_the_last_valid_instant() -> None:
    admit_authority(authority(), BINDING, consumed=False, now=NOW + timedelta(hours=1, microseconds=-1))


def test_only_full_baseline_admits_a_baseline() -> None:
    assert admit_baseline(authority(allow=Allow(full_baseline=True))) is True
    assert admit_baseline(authority(allow=Allow(max_delete_rows=2**63 - 1, max_delete_ratio=Decimal(1)))) is False
    assert admit_baseline(None) is False


# ---- bounds ---------------------------------------------------------------------------------------------------------------
@given(missing=COUNTS, rest=COUNTS, rows=st.none() | COUNTS, ratio=st.none() | RATIOS)
def test_bounds_are_exact(missing: int, rest: int, rows: int | None, ratio: Decimal | None) -> None:
    """A present bound holds exactly, by fractions, whatever the guards say."""
    allow = Allow(full_baseline=True, max_delete_rows=rows, max_delete_ratio=ratio)
    verdict = judge_deletes(missing=missing, active_before=missing + rest, guards=DeleteGuards(None, None))
    fits = (rows is None or missing <= rows) and (ratio is None or missing == 0 or Fraction(missing, missing + rest) <= Fraction(ratio))
    if fits:
        require_bounds(authority(allow=allow), verdict)
        return
    with pytest.raises(XminError) as caught:
        require_bounds(authority(allow=allow), verdict)
    assert code_of(caught) == "repair_authority.bounds_exceeded"


@given(
    missing=st.integers(1, 10**12),
    rest=COUNTS,
    limits=st.tuples(st.none() | COUNTS, st.none() | RATIOS),
    grant=st.tuples(st.none() | COUNTS, st.none() | RATIOS),
)
def test_an_exceeded_guard_passes_only_by_its_own_bound(
    missing: int, rest: int, limits: tuple[int | None, Decimal | None], grant: tuple[int | None, Decimal | None]
) -> None:
    """Admitted exactly when every exceeded limit has a bound and every bound holds; never without an approval."""
    verdict = judge_deletes(missing=missing, active_before=missing + rest, guards=DeleteGuards(*limits))
    assert admit_deletes(None, verdict, everything=False) is False
    given_bounds = {name for name, value in zip(("max_delete_rows", "max_delete_ratio"), grant, strict=True) if value is not None}
    holds = (grant[0] is None or missing <= grant[0]) and (grant[1] is None or Fraction(missing, missing + rest) <= Fraction(grant[1]))
    approved = authority(allow=Allow(full_baseline=True, max_delete_rows=grant[0], max_delete_ratio=grant[1]))
    try:
        admitted = admit_deletes(approved, verdict, everything=False)
    except XminError as error:
        assert error.code == "repair_authority.bounds_exceeded"
        admitted = False
    expected = not verdict.exceeded or (set(verdict.exceeded) <= given_bounds and holds)
    if verdict.exceeded or not given_bounds:
        assert admitted is expected


@pytest.mark.parametrize(
    ("rows", "ratio", "admitted"),
    [
        (10, "1", True),
        (11, "1", True),
        (9, "1", None),
        (10, "0.999999999999999", None),
        (10, None, None),
        (None, "1", None),
        (None, None, False),
    ],
)
def test_deleting_everything_needs_both_bounds(rows: int | None, ratio: str | None, admitted: bool | None) -> None:
    """Reference "Edge cases": both bounds, covering the row count and the exact ratio 1."""
    verdict = judge_deletes(missing=10, active_before=10, guards=DeleteGuards(None, None))
    approved = authority(allow=Allow(full_baseline=True, max_delete_rows=rows, max_delete_ratio=ratio))  # type: ignore[arg-type]
    if admitted is None:
        with pytest.raises(XminError) as caught:
            admit_deletes(approved, verdict, everything=True)
        assert code_of(caught) == "repair_authority.bounds_exceeded"
    else:
        assert admit_deletes(approved, verdict, everything=True) is admitted


# ---- transfer -------------------------------------------------------------------------------------------------------------
TRANSFER = TransferBinding(state_key=OLD.hex(), xmin=1000, revision=7)


@pytest.mark.parametrize(
    ("transfer", "owner", "checkpoint", "admitted"),
    [
        (TRANSFER, OLD, CHECKPOINT, True),
        (None, OLD, CHECKPOINT, True),
        (TRANSFER, None, None, False),
        (TRANSFER, KEY, CHECKPOINT, False),
        (TRANSFER, OLD, None, False),
        (TRANSFER.model_copy(update={"xmin": 999}), OLD, CHECKPOINT, False),
        (TRANSFER.model_copy(update={"revision": 8}), OLD, CHECKPOINT, False),
    ],
)
def test_a_transfer_names_exactly_the_owner(
    transfer: TransferBinding | None, owner: bytes | None, checkpoint: Checkpoint | None, admitted: bool
) -> None:
    approved = authority(checkpoint=None, allow=Allow(full_baseline=True), transfer=transfer)
    if admitted:
        admit_transfer(approved, owner=owner, owner_checkpoint=checkpoint)
        return
    with pytest.raises(XminError) as caught:
        admit_transfer(approved, owner=owner, owner_checkpoint=checkpoint)
    assert code_of(caught) == "repair_authority.transfer_mismatch"
