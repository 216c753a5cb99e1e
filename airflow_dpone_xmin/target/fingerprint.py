"""Column fingerprints on the Arrow side: the same sums that the server computes over the staged rows.

A closed table per family (design.md "Column fingerprints"): NULL counts for all, exact integer sums for the rest; no min or max of text,
no sum of floats, because those differ between engines. Vectorised: no per-row Python. Imports contracts and ``target/sql.py``.
"""

from __future__ import annotations

import sys
from array import array
from binascii import unhexlify
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family
from airflow_dpone_xmin.target.sql import fingerprint_weights

TextUnits = Literal["utf16", "utf8"]
_TICKS = (Family.DATE, Family.TIME, Family.TIMESTAMP, Family.TIMESTAMPTZ)
EXACT = Context(prec=80)
"""Python's default context rounds to 28 digits; a sum of 38-digit values over any number of rows fits 80."""


@dataclass(slots=True)
class Fingerprints:
    """Row count, and per column the NULL count and the family's sum, of everything seen so far."""

    plans: Sequence[ColumnPlan]
    text_units: TextUnits
    rows: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    sums: dict[str, Decimal] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count one batch, in the form that the bulk loader is given."""
        self.rows += batch.num_rows
        for plan in self.plans:
            values = batch.column(plan.name)
            self.nulls[plan.name] = self.nulls.get(plan.name, 0) + values.null_count
            self.sums[plan.name] = EXACT.add(Decimal(self.sums.get(plan.name, 0)), Decimal(_sum(plan, values, self.text_units)))

    def following(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted as they pass."""
        for batch in batches:
            self.add(batch)
            yield batch


def _sum(plan: ColumnPlan, values: pa.Array, units: TextUnits) -> int | Decimal:
    if plan.family is Family.TEXT:
        return _text_bytes(values, units)
    if plan.family is Family.UUID:
        return _uuid_sum(values)
    if plan.family is Family.BINARY:
        return _int(pc.sum(pc.binary_length(values)))
    if plan.family is Family.BOOLEAN:
        return _int(pc.sum(values))
    if plan.family is Family.DECIMAL:
        return _decimal_sum(plan, values)
    if plan.family in _TICKS:
        return _exact_sum(_ticks(plan.family, values))
    if plan.family in (Family.REAL, Family.DOUBLE):
        return _exact_sum(values.view(pa.int32() if plan.family is Family.REAL else pa.int64()))
    return _exact_sum(values)


def _ticks(family: Family, values: pa.Array) -> pa.Array:
    # A day fits 32 bits, everything finer is microseconds in 64.
    return values.view(pa.int32()) if family is Family.DATE else values.view(pa.int64())


def _exact_sum(values: pa.Array) -> int:
    """Sum of integers without overflow: high and low halves of 64 bits are summed apart."""
    wide = values if values.type == pa.uint64() else values.cast(pa.int64())
    high = pc.shift_right(wide, pa.scalar(32, wide.type))
    low = pc.bit_wise_and(wide, pa.scalar(0xFFFFFFFF, wide.type))
    return (_int(pc.sum(high)) << 32) + _int(pc.sum(low))


def _decimal_sum(plan: ColumnPlan, values: pa.Array) -> int | Decimal:
    if len(fingerprint_weights(plan)) == 1:
        total = pc.sum(values).as_py()
        return total if total is not None else 0
    # 128 bits per value, least significant half first; a half of the sum may need more than the 38 digits of a decimal128.
    dense = values.drop_null()
    halves = array("q", dense.buffers()[1][16 * dense.offset : 16 * (dense.offset + len(dense))].to_pybytes() if len(dense) else b"")
    unscaled = (_halves(halves[1::2], pa.int64()) << 64) + _halves(halves[0::2], pa.uint64())
    return EXACT.scaleb(Decimal(unscaled), -(plan.scale or 0))


def _uuid_sum(values: pa.Array) -> int:
    """Both halves as signed numbers, most significant byte first: as a server reads them from the hexadecimal text."""
    halves = array("q", unhexlify(_text(values).translate(None, b"-")))
    if sys.byteorder == "little":
        halves.byteswap()
    return (_halves(halves[0::2], pa.int64()) << 64) + _halves(halves[1::2], pa.int64())


def _halves(half: array[int], kind: pa.DataType) -> int:
    return _exact_sum(pa.Array.from_buffers(kind, len(half), [None, pa.py_buffer(half)]))


def _int(total: pa.Scalar) -> int:
    value = total.as_py()
    return int(value) if value is not None else 0


def _text_bytes(values: pa.Array, units: TextUnits) -> int:
    """Length of all values together: UTF-8 bytes, or the bytes of the same text in UTF-16."""
    length = _int(pc.sum(pc.binary_length(values)))
    if units == "utf8" or length == 0:
        return length
    raw = _text(values)
    return 2 * length if raw.isascii() else len(raw.decode("utf-8").encode("utf-16-le"))


def _text(values: pa.Array) -> bytes:
    """All texts one after the other: without NULL slots the data buffer between the outer offsets is exactly that."""
    if len(values) == values.null_count:
        return b""
    dense = values.drop_null().cast(pa.large_string())
    _, offsets, data = dense.buffers()
    index = memoryview(offsets).cast("q")
    first, last = index[dense.offset], index[dense.offset + len(dense)]
    return bytes(data.slice(first, last - first).to_pybytes())
