"""The servers of a process's histories: a source of their own, because histories restart it, and a fresh pair of databases for each."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.policy.window import EPOCH
from airflow_dpone_xmin.source import boundary as source_boundary
from tests.world import READER, EmbeddedTarget, SourceSide

#: The log writer sleeps for the longest time that can be set: :func:`log_writer_wakes` puts on disk what only an ending transaction logged.
SETTINGS = {"autovacuum": "off", "max_prepared_transactions": 8, "shared_buffers": "16MB", "wal_writer_delay": 10_000}
_NUMBERS = itertools.count()
_SOURCES: list[EmbeddedCluster] = []
_SEGMENT = 1024 * 1024  # transaction ids per file of pg_xact


@dataclass
class Servers:
    """Where a history takes place.

    :param aged: data directory of a server next to its wrap; every history starts on a copy of it.
    """

    source: EmbeddedCluster
    target: EmbeddedCluster
    template: str
    work: Path
    aged: Path | None = None
    tally: Counter[str] = field(default_factory=Counter)
    """What happened in all histories, for the report."""

    def fresh(self) -> tuple[SourceSide, EmbeddedTarget, Path]:
        """Databases and a work directory that nobody has used."""
        number = next(_NUMBERS)
        if self.aged is not None:
            self.source.kill()
            _replace(self.source.data, self.aged)
            self.source.start()
        source = SourceSide(self.source, f"model_{number}")
        self.source.create_database(source.database, options="STRATEGY FILE_COPY")
        target = EmbeddedTarget(self.target, f"model_{number}")
        self.target.create_database(target.database, options=f'TEMPLATE "{self.template}" STRATEGY FILE_COPY')
        return source, target, self.work / str(number)

    def forget(self, source: SourceSide, target: EmbeddedTarget) -> None:
        target.drop()
        if not self.source.running:
            self.source.start()
        with source.connect() as owner:
            for (name,) in owner.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall():
                owner.execute(f"ROLLBACK PREPARED '{name}'")  # type: ignore[call-overload]
        self.source.drop_database(source.database)


@contextmanager
def source_server() -> Iterator[EmbeddedCluster]:
    """A source without any table, whose log writer awakes only when a run of this process waits for it.

    So what a run does not wait for is lost in every crash, and what it waits for costs no time.
    """
    with EmbeddedCluster(settings=SETTINGS) as cluster, pytest.MonkeyPatch.context() as patch:
        with cluster.connect() as owner:
            owner.execute(f'CREATE ROLE "{READER}" LOGIN')  # type: ignore[call-overload]
        patch.setattr(source_boundary, "time", SimpleNamespace(monotonic=time.monotonic, sleep=_every_log_writer_wakes))
        _SOURCES.append(cluster)
        yield cluster
        _SOURCES.remove(cluster)


def _every_log_writer_wakes(_: float) -> None:
    for cluster in _SOURCES:
        log_writer_wakes(cluster)


def log_writer_wakes(cluster: EmbeddedCluster) -> None:
    """Everything that is logged so far comes to disk."""
    with cluster.connect() as owner:
        owner.execute("SELECT pg_logical_emit_message(false, '', '', true)")


def age(cluster: EmbeddedCluster, *, before_wrap: int) -> None:
    """Bring the next transaction id to *before_wrap* before 2**32, in steps that the server's own wraparound limits allow."""
    with cluster.connect() as owner:
        owner.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
    for target in (1_500_000_000, 3_000_000_000, EPOCH - before_wrap):
        cluster.tool("vacuumdb", ["-h", str(cluster.socket), "-U", "postgres", "--all", "--freeze", "--quiet"])
        cluster.stop()
        segment = cluster.data / "pg_xact" / f"{target // _SEGMENT:04X}"
        if not segment.exists():
            segment.write_bytes(bytes(256 * 1024))
            _own_like(segment, cluster.data / "PG_VERSION")
        cluster.tool("pg_resetwal", ["-D", str(cluster.data), "-x", str(target)])
        cluster.start()


def keep(cluster: EmbeddedCluster, directory: Path) -> Path:
    """A copy of the server's data that histories start from."""
    cluster.stop()
    _copy(cluster.data, directory)
    cluster.start()
    return directory


def burn(owner: psycopg.Connection[Any], count: int) -> None:
    """Use up transaction ids."""
    owner.execute(f"DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")  # type: ignore[call-overload]


def _replace(data: Path, kept: Path) -> None:
    shutil.rmtree(data)
    _copy(kept, data)


def _copy(source: Path, target: Path) -> None:
    # Not shutil: the files belong to the server's user.
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _own_like(path: Path, example: Path) -> None:
    seen = example.stat()
    os.chown(path, seen.st_uid, seen.st_gid)
