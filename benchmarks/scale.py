"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes in rows.

    :param wide: of the 20-column table whose extraction and staging are measured.
    :param keys: of the table of bigint keys.
    :param whole: of the 20-column table that is kept equal, run by run.
    :param growth: of TPC-H ``lineitem``; ``orders`` has a quarter of it.
    :param lane_rows: of the campaign, in *chunks* chunks.
    :param repetitions: of the ratios that have a budget; of the rest three at most.
    """

    name: str
    wide: int
    keys: int
    whole: int
    growth: tuple[int, ...]
    lane_rows: int
    lanes: tuple[int, ...]
    chunks: int
    repetitions: int
    shares: tuple[float, ...] = (0.0, 0.001, 0.01, 0.1)

    @property
    def few(self) -> int:
        """Repetitions of what takes long or has no budget."""
        return min(3, self.repetitions)


BUDGET_WIDE, BUDGET_KEYS = 2_000_000, 10_000_000
"""The sizes for which the budgets are stated; a smaller run gives no verdict on them."""

SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", 2_000, 5_000, 2_000, (1_000,), 2_000, (1,), 4, 1, shares=(0.0, 0.01)),
        Scale("small", 200_000, 1_000_000, 50_000, (20_000, 100_000), 200_000, (1, 2, 4), 20, 3),
        Scale("full", BUDGET_WIDE, BUDGET_KEYS, 500_000, (100_000, 500_000, 1_500_000, 5_000_000), 1_000_000, (1, 2, 3, 4), 40, 9),
    )
}
