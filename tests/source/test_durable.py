"""A crash of the source: no transaction that begins after it may carry an id that a run has already put behind its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from tests.source.support import SourceDb, after, ids, rows_of

#: What returns to its client before its log record is on disk.
UNFLUSHED = {
    "rollback": "BEGIN; UPDATE t SET v = 'undone' WHERE id = 1; ROLLBACK",
    "commit of a temporary table": "CREATE TEMP TABLE s (i int); BEGIN; INSERT INTO s VALUES (1); COMMIT",
    "asynchronous commit": "SET synchronous_commit = off; UPDATE t SET v = 'late' WHERE id = 1",
}


@pytest.fixture(scope="module")
def lazy_cluster() -> Iterator[EmbeddedCluster]:
    """A server whose log writer sleeps long enough for a run to come in between."""
    with EmbeddedCluster(settings={"autovacuum": "off", "wal_writer_delay": 1500}) as cluster:
        with cluster.connect() as owner:
            owner.execute("CREATE ROLE reader LOGIN")
        yield cluster


@pytest.fixture
def db(lazy_cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[SourceDb]:
    with lazy_cluster.connect() as owner:
        db = SourceDb(lazy_cluster, "postgres", "reader", tmp_path, owner)
        db.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 5) g")
        db.grant()
        yield db
    with lazy_cluster.connect() as owner:
        owner.execute("DROP TABLE t")


@pytest.fixture(params=[True, False], ids=["may ask", "may not ask"])
def asking(request: pytest.FixtureRequest, db: SourceDb) -> Iterator[None]:
    """A role needs no right but SELECT: one that may not ask where the log ends waits as long as the log writer may take."""
    functions = "pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()"
    if not request.param:
        db.run(f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC")
    yield
    if not request.param:
        with db.second(autocommit=True) as owner:
            owner.execute(f"GRANT EXECUTE ON FUNCTION {functions} TO PUBLIC")  # type: ignore[call-overload]


@pytest.mark.parametrize("case", UNFLUSHED)
def test_ids_behind_the_checkpoint_are_never_given_again(db: SourceDb, asking: None, case: str) -> None:
    """The next delta after the crash holds every row that was written after it, and nothing that a run accepted is undone."""
    with db.second(autocommit=True) as other:
        for statement in UNFLUSHED[case].split("; "):
            other.execute(statement)  # type: ignore[call-overload]
        first = db.extract()
        # While the session lives: its end would drop its temporary table, and flush that.
        db.cluster.kill()
    db.cluster.start()
    seen = rows_of(first)
    with db.second(autocommit=True) as owner:
        found = owner.execute("SELECT id, v FROM t ORDER BY id").fetchall()
        assert [(row["id"], row["v"]) for row in sorted(seen, key=lambda row: row["id"])] == found
        (next_id,) = owner.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        assert next_id >= first.horizons.visible, "an id that the snapshot saw as ended was given again"
        owner.execute("UPDATE t SET v = 'after the crash' WHERE id = 2")
    second = db.extract(prior=after(first))
    assert second.payload is Payload.DELTA
    assert ids(rows_of(second)) == [2]
