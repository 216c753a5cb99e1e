"""Delete guards and quality gates: exact integer and decimal arithmetic, no floats. Imports contracts only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import DeleteGuards


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
