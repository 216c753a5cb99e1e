"""Fixtures on real servers. A cluster is started once per test process; every test gets a database of its own."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from tests.flavour import forgive_grants
from tests.kept import cheap_runs
from tests.source.support import SourceDb
from tests.world import MSSQL_URL, READER, WRITER, EmbeddedTarget, MssqlTarget, Setup, SourceSide, World

_NUMBERS = itertools.count()

if not os.environ.get(MSSQL_URL):
    sys.modules["pyodbc"] = None  # type: ignore[assignment]  # as without unixODBC: a test that needs it fails on every machine


@pytest.fixture(scope="session", autouse=True)
def _cheap_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs share what never changes; in a certification they are as they are."""
    with nullcontext() if request.config.pluginmanager.has_plugin("tests.certification.plugin") else cheap_runs():
        yield


# ---- source ---------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def source_cluster() -> Iterator[EmbeddedCluster]:
    """The shared source server. Tests that change the server itself start one of their own."""
    with EmbeddedCluster(settings={"max_prepared_transactions": 10}) as cluster:
        yield cluster


@pytest.fixture
def source_db(source_cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[SourceDb]:
    """A fresh database with a login that may connect and use schema public, and nothing else."""
    number = next(_NUMBERS)
    name, reader = f"source_{number}", f"reader_{number}"
    source_cluster.create_database(name)
    with source_cluster.connect(name) as owner:
        owner.execute(f'CREATE ROLE "{reader}" LOGIN')  # type: ignore[call-overload]
        yield SourceDb(source_cluster, name, reader, tmp_path, owner)
        owner.execute(f'DROP OWNED BY "{reader}"; DROP ROLE "{reader}"')  # type: ignore[call-overload]
    source_cluster.drop_database(name)


# ---- target ---------------------------------------------------------------------------------------------------------------
ENGINES = ("embedded", "mssql") if os.environ.get(MSSQL_URL) else ("embedded",)
_TEMPLATE = "dwh_template"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes the recorded T-SQL instead of comparing it."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.sql from the recorded statements")


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    """The target engine of a test; its name is in the test's id, so that a report says which engine proved what."""
    return str(request.param)


@pytest.fixture
def embedded_only(request: pytest.FixtureRequest, engine_name: str) -> None:
    """For cases whose means exist on the embedded engine only. A case of the certification is none: SQL Server could never pass it."""
    assert request.node.get_closest_marker("certify") is None, "a case of the certification runs on every engine"
    if engine_name != "embedded":
        pytest.skip("not provable on this engine: the test resets or breaks the server by PostgreSQL's own means")


@pytest.fixture(scope="session")
def target_cluster() -> Iterator[EmbeddedCluster]:
    """The shared embedded target server."""
    with EmbeddedCluster(settings={"autovacuum": "off"}) as cluster:
        with cluster.connect() as owner:
            owner.execute(f'CREATE ROLE "{WRITER}" LOGIN')  # type: ignore[call-overload]
        yield cluster


@pytest.fixture(scope="session")
def catalog_template(target_cluster: EmbeddedCluster) -> str:
    """A database that holds the rendered catalog; the database of a test is a copy of it."""
    target_cluster.create_database(_TEMPLATE)
    # The catalog's script needs no source.
    World(source=None, target=EmbeddedTarget(target_cluster, _TEMPLATE), work_dir=Path("/")).provision_catalog()  # type: ignore[arg-type]
    return _TEMPLATE


@pytest.fixture
def worlds(engine_name: str, source_cluster: EmbeddedCluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """Builds worlds: ``worlds(*source statements, key=…, mode=…, **fields of World)``; everything is dropped afterwards."""
    with source_cluster.connect() as owner:
        if owner.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [READER]).fetchone() is None:
            owner.execute(f'CREATE ROLE "{READER}" LOGIN')  # type: ignore[call-overload]
    made: list[World] = []

    def make(*statements: str, provision: bool = True, **fields: Any) -> World:
        number = next(_NUMBERS)
        source = SourceSide(source_cluster, f"shop_{number}")
        source_cluster.create_database(source.database)
        target: EmbeddedTarget | MssqlTarget
        if engine_name == "mssql":
            target = MssqlTarget(os.environ[MSSQL_URL])
            if target.babelfish:
                forgive_grants(request.getfixturevalue("monkeypatch"))
        else:
            cluster: EmbeddedCluster = request.getfixturevalue("target_cluster")
            template: str = request.getfixturevalue("catalog_template")
            target = EmbeddedTarget(cluster, f"dwh_{number}")
            cluster.create_database(target.database, options=f'TEMPLATE "{template}"')
        world = World(source, target, tmp_path / f"work_{number}", **fields)
        made.append(world)
        source.run(*statements, f'GRANT SELECT ON public."{world.table}" TO {READER}')
        if engine_name == "mssql":
            world.provision_catalog()
        if provision:
            world.provision_target()
        return world

    yield make
    for world in made:
        world.target.drop()
        source_cluster.drop_database(world.source.database)
