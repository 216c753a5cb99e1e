"""Fixtures on real servers. A cluster is started once per test process; every test gets a database of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from tests.source.support import SourceDb

_NUMBERS = itertools.count()


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
