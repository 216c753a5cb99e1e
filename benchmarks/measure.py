"""Two sides in turns, so that whatever else the machine does falls on both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.model import Cost, Lanes, Ratio, Spread
from benchmarks.model import Run as RunPart


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(work: Callable[[], float], against: Callable[[], float], repetitions: int) -> tuple[list[float], list[float]]:
    """Seconds that each side reports of itself, A B A B …, after one turn that does not count."""
    work(), against()
    pairs = [(work(), against()) for _ in range(repetitions)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def ratio(
    leg: str,
    work: str,
    against: str,
    *,
    rows: int,
    seconds: Sequence[float],
    other: Sequence[float],
    budget: str | None = None,
    part: bool = False,
) -> Ratio:
    """Of two sides that were measured in pairs."""
    return Ratio(
        leg=leg,
        work=work,
        against=against,
        rows=rows,
        repetitions=len(seconds),
        work_seconds=Spread.of(seconds),
        against_seconds=Spread.of(other),
        ratio=Spread.of([mine / theirs for mine, theirs in zip(seconds, other, strict=True)]),
        budget=budget,
        part=part,
    )


@dataclass
class Findings:
    """What the legs found so far.

    :param passes: entries that one run read from the target's key index, per row of the target, and rows that it touched, likewise.
    """

    ratios: list[Ratio] = field(default_factory=list)
    runs: list[RunPart] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    lanes: list[Lanes] = field(default_factory=list)
    passes: tuple[float, float] | None = None
