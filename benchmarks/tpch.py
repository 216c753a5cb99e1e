"""TPC-H ``orders`` and ``lineitem``, and the refresh functions as the workload of changes.

``tpchgen-cli`` generates the tables; it has no refresh sets, so these follow the specification (clause 2.5) in SQL: RF1 inserts
SF × 1,500 orders with their lines into unused key space, RF2 deletes as many old ones. The values of a new order are those of another.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

from benchmarks.place import Place, rest
from tests.world import SourceSide

LINES = 6_001_215
"""Rows of ``lineitem`` at scale factor 1."""
KEYS = {"orders": ("o_orderkey",), "lineitem": ("l_orderkey", "l_linenumber")}
_ORDER_COLUMNS = "o_custkey, o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk, o_shippriority, o_comment"
_LINE_COLUMNS = (
    "l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount, l_tax, l_returnflag, l_linestatus, l_shipdate,"
    " l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode, l_comment"
)
#: Clause 1.4.1.
_DDL = (
    """
CREATE TABLE orders (
    o_orderkey bigint NOT NULL, o_custkey bigint NOT NULL, o_orderstatus char(1) NOT NULL, o_totalprice decimal(15,2) NOT NULL,
    o_orderdate date NOT NULL, o_orderpriority char(15) NOT NULL, o_clerk char(15) NOT NULL, o_shippriority integer NOT NULL,
    o_comment varchar(79) NOT NULL
)""",
    """
CREATE TABLE lineitem (
    l_orderkey bigint NOT NULL, l_partkey bigint NOT NULL, l_suppkey bigint NOT NULL, l_linenumber integer NOT NULL,
    l_quantity decimal(15,2) NOT NULL, l_extendedprice decimal(15,2) NOT NULL, l_discount decimal(15,2) NOT NULL,
    l_tax decimal(15,2) NOT NULL, l_returnflag char(1) NOT NULL, l_linestatus char(1) NOT NULL, l_shipdate date NOT NULL,
    l_commitdate date NOT NULL, l_receiptdate date NOT NULL, l_shipinstruct char(25) NOT NULL, l_shipmode char(10) NOT NULL,
    l_comment varchar(44) NOT NULL
)""",
)


class Tpch:
    """Both tables in one source database.

    :param lines: about so many rows of ``lineitem``.
    """

    def __init__(self, place: Place, lines: int) -> None:
        self.source: SourceSide = place.source(*_DDL)
        self._sets = 0
        factor = lines / LINES
        self._set_size = max(1, round(factor * 1500))
        directory = place.directory / f"tpch_{lines}"
        try:
            self._generate(directory, factor)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        for table, key in KEYS.items():
            self.source.run(f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(key)})")
        # the deletes' old orders and the inserts' models, numbered once
        self.source.run("CREATE TABLE numbered AS SELECT o_orderkey AS key, row_number() OVER (ORDER BY o_orderkey) - 1 AS n FROM orders")
        self.rows = {table: int(self.source.rows(f"SELECT count(*) FROM {table}")[0][0]) for table in KEYS}
        rest(self.source)

    def _generate(self, directory: Path, factor: float) -> None:
        tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        names = ["--tables", ",".join(KEYS), "--output-dir", str(directory), "--quiet"]
        directory.mkdir()
        subprocess.run([str(tool), "parquet", "--scale-factor", f"{factor:.9f}", *names], check=True)
        with dbapi.connect(self.source.cluster.uri(self.source.database)) as connection, connection.cursor() as cursor:
            for table in KEYS:
                file = pq.ParquetFile(directory / f"{table}.parquet")
                schema = pa.schema([pa.field(field.name, _plain(field.type)) for field in file.schema_arrow])
                batches = (pa.RecordBatch.from_arrays(_cast(batch, schema), schema=schema) for batch in file.iter_batches())
                cursor.adbc_ingest(table, pa.RecordBatchReader.from_batches(schema, batches), mode="append", db_schema_name="public")
            connection.commit()

    @property
    def share(self) -> float:
        """Changed rows of one refresh, inserted and deleted, per row of the table."""
        return 2 * self._set_size / self.rows["orders"]

    def refresh(self) -> None:
        """One RF1, one RF2. Only 8 of every 32 keys are used: a new order has the key of its model plus 8."""
        first = self._sets * self._set_size
        last_model = self.rows["orders"] - 1 - first
        models = f"numbered WHERE n BETWEEN {last_model - self._set_size + 1} AND {last_model}"
        old = f"SELECT key FROM numbered WHERE n BETWEEN {first} AND {first + self._set_size - 1}"
        for table, key, columns in (("orders", "o_orderkey", _ORDER_COLUMNS), ("lineitem", "l_orderkey", _LINE_COLUMNS)):
            self.source.run(
                f"INSERT INTO {table} ({key}, {columns}) SELECT {key} + 8, {columns} FROM {table}"
                f" WHERE {key} IN (SELECT key FROM {models})",
                f"DELETE FROM {table} WHERE {key} IN ({old})",
            )
        self._sets += 1


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind == pa.string_view() else kind


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    return [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
