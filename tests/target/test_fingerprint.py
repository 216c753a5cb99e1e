"""Column fingerprints of the Arrow side are exact, whatever the number of digits or rows."""

from __future__ import annotations

import struct
from decimal import Context, Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family
from airflow_dpone_xmin.target.fingerprint import Fingerprints

EXACT = Context(prec=80)


def plan(family: Family, **facts: int) -> ColumnPlan:
    return ColumnPlan("v", family, "any", True, False, False, "any", "any", **facts)


def total(column: ColumnPlan, *batches: pa.Array, units: str = "utf16") -> Decimal:
    seen = Fingerprints(plans=[column], text_units=units)  # type: ignore[arg-type]
    for values in batches:
        seen.add(pa.RecordBatch.from_arrays([values], names=["v"]))
    return seen.sums["v"]


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_a_decimal_sum_of_more_than_28_digits_is_exact(rows: int) -> None:
    """Python's default context would round it, and the server would not."""
    value = Decimal("999999999999999999.9999999999")
    batch = pa.array([value], pa.decimal128(28, 10))
    assert total(plan(Family.DECIMAL, precision=28, scale=10), *[batch] * rows) == EXACT.multiply(value, Decimal(rows))


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=5), max_size=5))
def test_integer_sums_do_not_overflow(batches: list[list[int | None]]) -> None:
    arrays = [pa.array(batch, pa.int64()) for batch in batches]
    assert total(plan(Family.BIGINT), pa.array([], pa.int64()), *arrays) == sum(v for batch in batches for v in batch if v is not None)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.none(), max_size=20))
def test_text_is_counted_in_the_servers_own_units(values: list[str | None]) -> None:
    array = pa.array(values, pa.string())
    for units, encoding in (("utf16", "utf-16-le"), ("utf8", "utf-8")):
        expected = sum(len(value.encode(encoding)) for value in values if value is not None)
        assert total(plan(Family.TEXT), array, array.slice(len(array) // 2), units=units) == expected + sum(
            len(value.encode(encoding)) for value in values[len(values) // 2 :] if value is not None
        )


@given(st.lists(st.uuids() | st.none(), max_size=20))
def test_a_uuid_counts_with_all_of_its_bytes(values: list[UUID | None]) -> None:
    """Both halves are signed, as the servers read them."""
    array = pa.array([None if value is None else str(value) for value in values], pa.string())
    halves = [struct.unpack(">qq", value.bytes) for value in values if value is not None]
    assert total(plan(Family.UUID), array, array.slice(0, 0)) == sum((high << 64) + low for high, low in halves)


@given(st.integers(29, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))), st.data())
def test_a_wide_decimal_counts_with_all_of_its_digits(size: tuple[int, int], data: st.DataObject) -> None:
    precision, scale = size
    drawn = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1) | st.none(), max_size=20))
    values = [None if value is None else EXACT.scaleb(Decimal(value), -scale) for value in drawn]
    array = pa.array(values, pa.decimal128(precision, scale))
    expected = EXACT.scaleb(Decimal(sum(value for value in drawn[len(drawn) // 2 :] if value is not None)), -scale)
    assert total(plan(Family.DECIMAL, precision=precision, scale=scale), array.slice(len(drawn) // 2)) == expected
