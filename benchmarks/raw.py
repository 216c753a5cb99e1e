"""The raw sides that the product is compared with: COPY by psql, COPY inside the server, the driver alone."""

from __future__ import annotations

from psycopg import sql

from airflow_dpone_xmin.source.session import Session
from benchmarks.measure import seconds_of
from tests.world import SourceSide


def copy_binary(source: SourceSide, query: str) -> float:
    """Seconds of ``psql`` for a binary COPY to nowhere, connection included."""
    arguments = ["-X", "-q", "-d", source.cluster.uri(source.database), "-o", "/dev/null"]
    return seconds_of(lambda: source.cluster.tool("psql", [*arguments, "-c", f"COPY ({query}) TO STDOUT (FORMAT binary)"]))


def copy_on_server(source: SourceSide, query: str) -> float:
    """Seconds of the same COPY to a file that keeps nothing, inside the server."""
    return seconds_of(lambda: source.run(f"COPY ({query}) TO '/dev/null' (FORMAT binary)"))


def stream(source: SourceSide, query: str) -> float:
    """Seconds of the driver alone: the query as Arrow batches that are thrown away."""
    with Session(source.endpoint()) as session:

        def drain() -> None:
            with session.stream(sql.SQL(query)) as (_, batches):  # type: ignore[arg-type]
                for _ in batches:
                    pass

        return seconds_of(drain)
