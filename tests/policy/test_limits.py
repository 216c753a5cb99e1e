"""Limits of SQL Server, at their edges."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.columns import ColumnPlan
from airflow_dpone_xmin.contracts.route import DeleteMode
from airflow_dpone_xmin.policy.limits import limit_violations
from tests.policy.test_types import numeric, plan


def broken(columns: list[Any], mode: DeleteMode = DeleteMode.NEVER) -> list[str]:
    plans: list[ColumnPlan] = columns
    return [text.partition(",")[0] for text in limit_violations(plans, mode)]


@pytest.mark.parametrize(("mode", "own"), list(zip(DeleteMode, [3, 4, 5, 4, 3], strict=True)))
def test_columns_of_this_product_count(mode: DeleteMode, own: int) -> None:
    assert broken([plan("text")] * (1024 - own), mode) == []
    assert broken([plan("text")] * (1025 - own), mode) == ["1025 columns"]


#: Type, modifier, bytes in a row.
SIZES = [
    ("int2", -1, 2), ("int4", -1, 4), ("int8", -1, 8), ("float4", -1, 4), ("float8", -1, 8), ("uuid", -1, 16), ("date", -1, 3),
    ("time", -1, 5), ("timestamp", -1, 8), ("timestamptz", -1, 10), ("numeric", numeric(9, 0), 5), ("numeric", numeric(19, 0), 9),
    ("numeric", numeric(28, 0), 13), ("numeric", numeric(38, 0), 17), ("text", -1, 0), ("varchar", 24, 0), ("bytea", -1, 0),
]  # fmt: skip


@pytest.mark.parametrize(("base", "typmod", "size"), SIZES)
def test_fixed_size_columns_fill_the_row(base: str, typmod: int, size: int) -> None:
    """450 decimals leave 310 bytes beside the header, the NULL bitmap of 474 bits and the lineage of 32 bytes."""
    filler = [plan("numeric", typmod=numeric(38, 0))] * 450
    free = 8060 - 450 * 17 - 4 - 2 - 32
    count = 400 if size == 0 else next(n for n in range(400) if (n + 1) * size + -(-(450 + n + 1 + 3) // 8) > free)
    assert broken(filler + [plan(base, typmod=typmod)] * count) == []
    if size:
        assert broken(filler + [plan(base, typmod=typmod)] * (count + 1))[0].startswith("a row takes 80")


def test_booleans_share_bytes() -> None:
    filler = [plan("numeric", typmod=numeric(38, 0))] * 460
    assert broken(filler + [plan("bool")] * 400) == []
