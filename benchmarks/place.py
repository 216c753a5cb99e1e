"""Where it is measured: embedded servers or a SQL Server, routes on them with signed pins and least-privilege logins."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from airflow_dpone_xmin.contracts.envelope import Envelope, Prior
from airflow_dpone_xmin.contracts.progress import Cancellation, silent
from airflow_dpone_xmin.contracts.route import Layout, Namespace, TableName
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.source.extract import extract
from tests.children import Job
from tests.measured import wide_table
from tests.world import MSSQL_URL, READER, WRITER, EmbeddedTarget, MssqlTarget, SourceSide, World

ROOT = Path(__file__).parents[1]
SETTINGS = {
    # nothing but the measured statements works while they run
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "16GB",
    "shared_buffers": "512MB",
    "work_mem": "64MB",
    "maintenance_work_mem": "256MB",
}


class _Landing(MssqlTarget):
    """One of many targets beside one catalog: its tables in ``dbo`` belong to the database."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(url)
        self.suffix, self._number = f"{os.getpid()}_bench", number

    def layout(self, table: str) -> Layout:
        whole = super().layout(table)
        namespace = Namespace(whole.target.namespace.database, f"{whole.target.namespace.schema}_{self._number}")
        return replace(whole, target=TableName(namespace, table))


class Place:
    """Servers of one benchmark run, and what was set up on them.

    :param addresses: of source and embedded target, for clients that do not speak over a socket.
    """

    def __init__(self, stack: ExitStack, addresses: Sequence[str]) -> None:
        self.engine: Literal["embedded", "mssql"] = "mssql" if os.environ.get(MSSQL_URL) else "embedded"
        self.directory = Path(tempfile.mkdtemp(prefix="dpone-bench"))
        stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.directory.chmod(0o777)  # the servers write raw copies here, as a user of their own
        self.source_cluster = self._cluster(stack, READER, addresses[0])
        self.target_cluster = self._cluster(stack, WRITER, addresses[1]) if self.engine == "embedded" else None
        self._numbers = itertools.count()
        self._warm: World | None = None
        self._catalog = False

    @staticmethod
    def _cluster(stack: ExitStack, login: str, address: str) -> EmbeddedCluster:
        cluster = stack.enter_context(EmbeddedCluster(settings={**SETTINGS, "listen_addresses": address}))
        with cluster.connect() as owner:
            owner.execute(f'CREATE ROLE "{login}" LOGIN')  # type: ignore[call-overload]
        return cluster

    def source(self, *statements: str) -> SourceSide:
        """A new source database, vacuumed, so that its visibility map is what a rested table's would be."""
        source = SourceSide(self.source_cluster, f"source_{next(self._numbers)}")
        self.source_cluster.create_database(source.database)
        source.run(*statements)
        rest(source)
        return source

    def world(self, source: SourceSide, table: str = "orders", key: tuple[str, ...] = ("id",), **fields: Any) -> World:
        """A route of *table* with a new, empty target."""
        number = next(self._numbers)
        target: EmbeddedTarget | MssqlTarget
        if self.target_cluster is None:
            target = _Landing(os.environ[MSSQL_URL], number)
        else:
            target = EmbeddedTarget(self.target_cluster, f"target_{number}")
            self.target_cluster.create_database(target.database)
        process = f"{table}_{number}"
        world = World(source, target, self.directory / f"work_{number}", table=table, key=key, process=process, **fields)
        source.run(f'GRANT SELECT ON public."{table}" TO {READER}')
        if self.target_cluster is not None or not self._catalog:
            world.provision_catalog()
            self._catalog = True
        world.provision_target()
        return world

    def job(self, world: World) -> Job:
        """The next run of *world*, as a value."""
        return Job.of(world, uuid.uuid4().hex)

    def warm_job(self) -> Job:
        """A small run, after which a process has loaded whatever it needs."""
        if self._warm is None:
            self._warm = self.world(self.source(*wide_table(1000)))
        return self.job(self._warm)

    def discard(self, world: World) -> None:
        """Drop a target."""
        world.target.drop()

    def drop(self, source: SourceSide) -> None:
        """Give the disk back."""
        self.source_cluster.drop_database(source.database)

    def postgres_version(self) -> str:
        with self.source_cluster.connect() as connection:
            row = connection.execute("SHOW server_version").fetchone()
        return str(row[0]) if row else "unknown"


@contextmanager
def opened(addresses: Sequence[str] = ("", "")) -> Iterator[Place]:
    """Start the servers; everything is gone afterwards."""
    with ExitStack() as stack:
        yield Place(stack, addresses)


def rest(source: SourceSide, *worlds: World) -> None:
    """Vacuum source and embedded targets, as autovacuum would have in the meantime, and write out what is dirty."""
    for side in (source, *[world.target for world in worlds if isinstance(world.target, EmbeddedTarget)]):
        side.run("VACUUM ANALYZE", "CHECKPOINT")


class Extraction:
    """The source half of a route, as often as wanted."""

    def __init__(self, world: World, directory: Path) -> None:
        self._endpoint = world.source.endpoint()
        self.directory = directory / f"extract_{uuid.uuid4().hex}"
        self.directory.mkdir(mode=0o700)
        self.request = source_request(world.route(), work_dir=self.directory)

    def __call__(self, prior: Prior | None = None, *, progress: Any = silent) -> Envelope:
        """Extract; the artifacts of the call before are removed."""
        self.clear()
        return extract(self._endpoint, self.request, prior or Prior(), progress=progress, cancel=Cancellation())

    def seconds(self, prior: Prior | None = None, *, progress: Any = silent) -> float:
        """How long one extraction takes; removing the artifacts of the one before is not counted."""
        self.clear()
        started = time.perf_counter()
        self(prior, progress=progress)
        return time.perf_counter() - started

    def clear(self) -> None:
        for file in self.directory.iterdir():
            file.unlink()


def since(envelope: Envelope) -> Prior:
    """What a commit of *envelope* would have left."""
    return Prior(xmin=envelope.horizons.safe, snapshot=envelope.snapshot, projection_fingerprint=envelope.projection.fingerprint)
