"""What stops a run over its own numbers, and what approves it once: delete guards, quality gates and the rules of repair authorities.

Pure functions in exact integer and decimal arithmetic, no floats. Imports contracts only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import CheckpointBinding, RepairAuthority
from airflow_dpone_xmin.contracts.route import DeleteGuards
from airflow_dpone_xmin.contracts.state import Checkpoint


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """Whether deletes stay inside the limits.

    :param exceeded: names of the exceeded limits, empty when none is.
    """

    missing: int
    active_before: int
    exceeded: tuple[str, ...]


def judge_deletes(*, missing: int, active_before: int, guards: DeleteGuards) -> GuardVerdict:
    """Compare missing keys with the limits.

    The ratio is compared by cross-multiplication, so that 5 of 100 is exactly 0.05. Tombstones are in neither number.
    """
    exceeded = []
    if guards.max_rows is not None and missing > guards.max_rows:
        exceeded.append("max_delete_rows")
    if guards.max_ratio is not None and missing > 0 and _above(missing, active_before, guards.max_ratio):
        exceeded.append("max_delete_ratio")
    return GuardVerdict(missing=missing, active_before=active_before, exceeded=tuple(exceeded))


def _above(missing: int, active_before: int, limit: Decimal) -> bool:
    bound = Fraction(limit)
    return missing * bound.denominator > bound.numerator * active_before


def observed_ratio(missing: int, active_before: int) -> str:
    """The ratio for messages, as an exact fraction: ``missing/active_before``."""
    return f"{missing}/{active_before}"


def judge_min_rows(*, active_after: int, gates: Mapping[str, int]) -> None:
    """Quality gates of type ``min_rows``.

    :raises XminError: ``guard.quality_gate``.
    """
    for gate, threshold in gates.items():
        if active_after < threshold:
            raise XminError(
                "guard.quality_gate",
                f"Gate `{gate}` needs at least {threshold} active rows; {active_after} would remain.",
                details={"gate": gate, "threshold": threshold, "active_after": active_after},
            )


BOUNDS = ("max_delete_rows", "max_delete_ratio")


@dataclass(frozen=True, slots=True)
class RepairBinding:
    """What a run is, as far as an approval is bound to it."""

    environment: str
    state_key: bytes
    scope_hash: bytes
    checkpoint: Checkpoint | CheckpointBinding | None


def admit_authority(authority: RepairAuthority, binding: RepairBinding, *, consumed: bool, now: datetime) -> None:
    """An authority must be unconsumed, valid now and bound to exactly this run.

    :param consumed: whether a consumption row exists.
    :param now: the state server's UTC clock, aware.
    :raises XminError: ``repair_authority.consumed``, ``.not_yet_valid``, ``.expired``, ``.environment_mismatch`` or
        ``.binding_mismatch``.
    """
    name = {"authority_id": authority.authority_id}
    if consumed:
        raise XminError("repair_authority.consumed", "This repair authority was already used once.", details=name)
    require_valid(authority, now=now)
    if authority.environment != binding.environment:
        raise XminError("repair_authority.environment_mismatch", f"It is for environment {authority.environment}.", details=name)
    checkpoint = binding.checkpoint
    expected = {
        "state_key": binding.state_key.hex(),
        "scope_hash": binding.scope_hash.hex(),
        "checkpoint": None if checkpoint is None else [checkpoint.xmin, checkpoint.revision],
    }
    bound = {
        "state_key": authority.state_key,
        "scope_hash": authority.scope_hash,
        "checkpoint": None if authority.checkpoint is None else [authority.checkpoint.xmin, authority.checkpoint.revision],
    }
    differing = [field for field in expected if expected[field] != bound[field]]
    if differing:
        raise XminError(
            "repair_authority.binding_mismatch",
            f"It is bound to another {', '.join(differing)}.",
            details={**name, "bound": bound, "current": expected},
        )


def require_valid(authority: RepairAuthority, *, now: datetime) -> None:
    """Valid from ``created_at`` to before ``expires_at``.

    :param now: the state server's UTC clock, aware.
    :raises XminError: ``repair_authority.not_yet_valid``, ``.expired``.
    """
    name = {"authority_id": authority.authority_id}
    if now < authority.created_at:
        raise XminError("repair_authority.not_yet_valid", f"It is valid from {authority.created_at.isoformat()}.", details=name)
    if now >= authority.expires_at:
        raise XminError("repair_authority.expired", f"It was valid until {authority.expires_at.isoformat()}.", details=name)


def admit_baseline(authority: RepairAuthority | None) -> bool:
    """Whether a full baseline over an unknown or empty target is approved."""
    return authority is not None and authority.allow.full_baseline


def require_bounds(authority: RepairAuthority, verdict: GuardVerdict, *, needed: Collection[str] = ()) -> None:
    """A bound that the approver wrote holds in every run that selects the approval, whether or not a guard would have stopped it.

    :param needed: bounds that must be present.
    :raises XminError: ``repair_authority.bounds_exceeded``.
    """
    allow = authority.allow
    ratio = Fraction(verdict.missing, verdict.active_before) if verdict.active_before else Fraction(0)
    too_small = {name for name in needed if getattr(allow, name) is None}
    if allow.max_delete_rows is not None and verdict.missing > allow.max_delete_rows:
        too_small.add("max_delete_rows")
    if allow.max_delete_ratio is not None and ratio > Fraction(allow.max_delete_ratio):
        too_small.add("max_delete_ratio")
    if too_small:
        raise XminError(
            "repair_authority.bounds_exceeded",
            f"{verdict.missing} of {verdict.active_before} rows are missing; the approval does not cover {', '.join(sorted(too_small))}.",
            details={"authority_id": authority.authority_id, "missing": verdict.missing, "active": verdict.active_before},
        )


def admit_deletes(authority: RepairAuthority | None, verdict: GuardVerdict, *, everything: bool) -> bool:
    """Whether the observed deletes are approved.

    Every exceeded limit needs its bound. Deleting everything needs both bounds, and a ratio of 1.

    :param everything: whether the key snapshot is empty.
    :returns: False when nothing about deletes was approved.
    :raises XminError: ``repair_authority.bounds_exceeded`` when the approval is too small, or covers one of two exceeded limits only.
    """
    if authority is None:
        return False
    needed = BOUNDS if everything else verdict.exceeded
    if all(getattr(authority.allow, name) is None for name in needed):
        return not needed
    require_bounds(authority, verdict, needed=needed)
    return True


def admit_transfer(authority: RepairAuthority, *, owner: bytes | None, owner_checkpoint: Checkpoint | None) -> None:
    """The old owner must be exactly the one that the approver saw.

    :param owner: state key of the target's active owner.
    :param owner_checkpoint: its checkpoint.
    :raises XminError: ``repair_authority.transfer_mismatch``.
    """
    transfer = authority.transfer
    if transfer is None:
        return
    seen = None if owner is None or owner_checkpoint is None else (owner.hex(), owner_checkpoint.xmin, owner_checkpoint.revision)
    if seen != (transfer.state_key, transfer.xmin, transfer.revision):
        raise XminError(
            "repair_authority.transfer_mismatch",
            "The target's active owner is not the one whose ownership the approval ends.",
            details={
                "authority_id": authority.authority_id,
                "bound": [transfer.state_key, transfer.xmin, transfer.revision],
                "current": None if seen is None else list(seen),
            },
        )
