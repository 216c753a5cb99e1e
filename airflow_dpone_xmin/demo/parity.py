"""The demo's own comparison: both tables read whole through plain connections and compared in Arrow, column by column.

It shares nothing with the product's checks: no key snapshot, no fingerprint, no catalog. Imports the demo's cluster, ADBC and pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.demo.source import KEY


@dataclass(frozen=True, slots=True)
class Parity:
    """Counts only; no value of a row is kept.

    :param differing: column → rows in which it differs, over rows whose keys match in order.
    """

    source_rows: int
    target_rows: int
    differing: dict[str, int]

    @property
    def exact(self) -> bool:
        """Whether both sides hold the same rows."""
        return self.source_rows == self.target_rows and not self.differing


def compare(source: EmbeddedCluster, source_database: str, target: EmbeddedCluster, target_database: str) -> Parity:
    """Compare ``public.flights`` with the active rows of ``landing.flights``."""
    left = _read(source, source_database, "public.flights", "TRUE")
    names = left.column_names
    right = _read(target, target_database, "landing.flights", "__dpone__deleted_at IS NULL", names=names)
    if left.num_rows != right.num_rows:
        return Parity(left.num_rows, right.num_rows, {})
    differing = {name: _differences(left[name], right[name]) for name in names}
    return Parity(left.num_rows, right.num_rows, {name: count for name, count in differing.items() if count})


def _read(cluster: EmbeddedCluster, database: str, table: str, where: str, *, names: list[str] | None = None) -> pa.Table:
    """All rows, sorted here: the two databases need not agree on an order of text."""
    from adbc_driver_postgresql import dbapi

    columns = ", ".join(names) if names else "*"
    with dbapi.connect(cluster.uri(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {table} WHERE {where}")
        return cursor.fetch_arrow_table().sort_by([(name, "ascending") for name in KEY])


def _differences(left: pa.ChunkedArray, right: pa.ChunkedArray) -> int:
    """Rows that differ, NULL being a value of its own; a different type differs everywhere."""
    if left.type != right.type:
        return len(left)
    nulls = pc.not_equal(pc.is_null(left), pc.is_null(right))
    values = pc.fill_null(pc.not_equal(left, right), False)
    return int(pc.sum(pc.or_(nulls, values)).as_py() or 0)
