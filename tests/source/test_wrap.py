"""Transaction ids at the 32-bit wrap: the predicate on a server against a plain oracle, and a server whose counter really wraps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.policy.window import EPOCH, MAX_WIDTH, DeltaWindow
from airflow_dpone_xmin.source.extract import delta_predicate
from tests.source.support import SourceDb, after, ids, keys_of, rows_of
from tests.windows import contains

edge = st.one_of(st.integers(0, 5), st.integers(EPOCH - 5, EPOCH - 1), st.integers(0, EPOCH - 1))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3), edge, st.one_of(st.integers(0, 9), st.integers(0, MAX_WIDTH - 1), st.just(MAX_WIDTH - 1)), st.data())
def test_the_servers_predicate_is_the_oracles(source_db: SourceDb, epoch: int, low: int, width: int, data: st.DataObject) -> None:
    window = DeltaWindow.between(epoch * EPOCH + low, epoch * EPOCH + low + width)
    near = st.one_of(st.integers(-9, 9), st.integers(width - 9, width + 9)).map(lambda offset: (low + offset) % EPOCH)
    raws = data.draw(st.lists(st.one_of(near, edge), min_size=20, max_size=20))
    values = sql.SQL("unnest({}::xid[]) AS x").format(sql.Literal([str(raw) for raw in raws]))
    query = sql.SQL("SELECT coalesce(array_agg(x::text::bigint), ARRAY[]::bigint[]) FROM {} WHERE {}").format(
        values, delta_predicate(window, xmin=sql.SQL("x"))
    )
    row = source_db.owner.execute(query).fetchone()
    assert row is not None
    # No row on a server carries xid 0; the predicate may say what it likes about it.
    expected = [raw for raw in raws if contains(window, raw) and raw != 0]
    assert [raw for raw in row[0] if raw != 0] == expected


@pytest.fixture
def old_cluster() -> Iterator[EmbeddedCluster]:
    """A server whose next transaction id lies 300 before 2**32, brought there in steps that its own wraparound limits allow."""
    with EmbeddedCluster(settings={"autovacuum": "off", "max_prepared_transactions": 4}) as cluster:
        with cluster.connect() as owner:
            owner.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        for target in (1_500_000_000, 3_000_000_000, EPOCH - 300):
            cluster.tool("vacuumdb", ["-h", str(cluster.socket), "-U", "postgres", "--all", "--freeze", "--quiet"])
            cluster.stop()
            segment = cluster.data / "pg_xact" / f"{target // (1024 * 1024):04X}"
            if not segment.exists():
                segment.write_bytes(bytes(256 * 1024))
                owner_of = (cluster.data / "PG_VERSION").stat()
                os.chown(segment, owner_of.st_uid, owner_of.st_gid)
            cluster.tool("pg_resetwal", ["-D", str(cluster.data), "-x", str(target)])
            cluster.start()
        yield cluster


def test_a_counter_that_wraps(old_cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with old_cluster.connect() as owner:
        owner.execute("CREATE ROLE reader LOGIN")
        db = SourceDb(old_cluster, "postgres", "reader", tmp_path, owner)
        db.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'before'), (2, 'before')")
        db.grant()
        first = db.extract()
        assert EPOCH - 300 < first.horizons.safe < EPOCH
        assert ids(rows_of(first)) == [1, 2]
        db.run("INSERT INTO t VALUES (3, 'before')")
        late = db.second()
        late.execute("INSERT INTO t VALUES (4, 'late')")
        burn(db, 400)
        db.run("INSERT INTO t VALUES (5, 'after')", "UPDATE t SET v = 'after' WHERE id = 1")
        second = db.extract(prior=after(first))
        assert second.payload is Payload.DELTA
        assert second.horizons.safe < EPOCH < second.horizons.visible
        assert (ids(rows_of(second)), ids(keys_of(second))) == ([1, 3, 5], [1, 2, 3, 5])
        late.commit()
        late.close()
        third = db.extract(prior=after(second))
        assert third.horizons.safe > EPOCH
        assert ids(rows_of(third)) == [1, 4, 5]
        db.run("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (6, 'later')")
        fourth = db.extract(prior=after(third))
        assert (ids(rows_of(fourth)), ids(keys_of(fourth))) == ([6], [1, 3, 4, 5, 6])
        # A baseline has no xmin term: rows of both epochs are there.
        assert ids(rows_of(db.extract())) == [1, 3, 4, 5, 6]


def burn(db: SourceDb, count: int) -> None:
    for _ in range(count):
        db.run("SELECT pg_current_xact_id()")
