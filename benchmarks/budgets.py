"""The budgets, each with its verdict."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.measure import Findings
from benchmarks.model import Budget
from benchmarks.scale import BUDGET_KEYS, BUDGET_WIDE, Scale

EXTRACT = "extract, guards and artifact, 2M × 20 columns, against COPY BINARY to nowhere"
KEYS = "key snapshot and artifact, 10M bigint keys, against the server-side COPY alone"
DELTA = "incremental run, 1 % changed, extract half, against a full extract"
CPU_WIDE = "client CPU per million rows staged, wide"
CPU_KEYS = "client CPU per million rows staged, keys"
PASSES = "passes over the target's narrow key index inside the transaction, beyond the rows touched"
MEMORY = "memory above the process's idle size, greatest of all runs"
FLAT = "memory's growth from 500k rows to the largest table"

FLAT_FROM = 400_000
"""A baseline of fewer rows does not fill the buffers."""
_RATIO_LIMITS = {EXTRACT: 1.35, KEYS: 1.8, DELTA: 0.35}
_CPU_LIMITS = {CPU_WIDE: ("wide", 6.0, BUDGET_WIDE), CPU_KEYS: ("keys", 0.2, BUDGET_KEYS)}
_AT = {EXTRACT: BUDGET_WIDE, KEYS: BUDGET_KEYS, DELTA: BUDGET_WIDE}


def judge(found: Findings, scale: Scale) -> list[Budget]:
    """One verdict per budget; a size below the budget's own gives none."""
    verdicts = []
    for work, limit in _RATIO_LIMITS.items():
        ratios = [ratio for ratio in found.ratios if ratio.budget == work]
        whole = next((ratio for ratio in ratios if not ratio.part), None)
        measured = None if whole is None else (whole.rows, whole.ratio.median)
        parts = "; ".join(f"{ratio.work}: {ratio.ratio.median:.2f} ×" for ratio in ratios if ratio.part)
        verdicts.append(_verdict(work, limit, "×", measured, at=_AT[work], parts=parts))
    for work, (table, limit, at) in _CPU_LIMITS.items():
        cost = next((cost for cost in found.costs if cost.table == table), None)
        measured = None if cost is None else (cost.rows, cost.cpu_seconds_per_million.median)
        verdicts.append(_verdict(work, limit, "s", measured, at=at))
    beyond = None if found.passes is None else (scale.whole, beyond_touched(*found.passes))
    verdicts.append(_verdict(PASSES, 2, "passes", beyond, at=50_000, parts=PASSES_WHY))
    verdicts += _memory(found)
    return verdicts


PASSES_WHY = "the server's plan may join the changed rows by one more scan of the index instead of by look-ups"


def beyond_touched(read: float, touched: float) -> float:
    """A row that is touched is looked up once, and the second pass meets its old index entry beside the new one.

    :param read: index entries and rows that were read, per row of the table.
    :param touched: rows that were touched, per row of the table.
    """
    return round(read - 2 * touched, 2)


def _memory(found: Findings) -> Iterable[Budget]:
    """Of whole runs, and of every lane above a lane's idle size, which a lane does not tell: lanes are listed, not judged."""
    peaks = [(run.rows, run.peak_mib.high) for run in found.runs]
    top = max(peaks, key=lambda peak: peak[1], default=None)
    largest = max((rows for rows, _ in peaks), default=0)
    yield _verdict(MEMORY, 300, "MiB", None if top is None else (largest, top[1]), at=2_000_000)
    baselines = sorted(
        (run.rows, run.peak_mib.high) for run in found.runs if (run.leg, run.table, run.kind) == ("growth", "lineitem", "baseline")
    )
    grown = [peak for rows, peak in baselines if rows >= FLAT_FROM]
    yield _verdict(FLAT, 50, "MiB", (largest, grown[-1] - grown[0]) if len(grown) > 1 else None, at=2_000_000)


def _verdict(work: str, limit: float, unit: str, measured: tuple[int, float] | None, *, at: int, parts: str = "") -> Budget:
    """:param parts: where the time went, told when the budget is missed."""
    if measured is None:
        return Budget(work=work, limit=limit, unit=unit, measured=None, verdict="not_run", reason="not measured in this run")
    rows, value = measured
    value = round(value, 3)
    if rows < at:
        reason = f"measured {value} at {rows:,} rows; the budget is for {at:,}"
        return Budget(work=work, limit=limit, unit=unit, measured=None, verdict="not_run", reason=reason)
    met = value <= limit
    return Budget(work=work, limit=limit, unit=unit, measured=value, verdict="met" if met else "missed", reason="" if met else parts)
