"""The boundary: a snapshot that is proven to see the whole signed relation, whatever DDL races with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from airflow_dpone_xmin.contracts.envelope import Envelope, Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.source.boundary import MAX_ATTEMPTS
from tests.source.support import SourceDb, after, ids, keys_of, rows_of


@pytest.fixture
def db(source_db: SourceDb) -> SourceDb:
    source_db.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 10) i")
    source_db.grant()
    return source_db


def columns_only(db: SourceDb) -> None:
    db.run(f"REVOKE ALL ON t FROM {db.reader}", f"GRANT SELECT (id, v, xmin) ON t TO {db.reader}")


@pytest.fixture
def parts(source_db: SourceDb) -> SourceDb:
    source_db.run(
        "CREATE TABLE t (id int NOT NULL, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)",
        "CREATE TABLE t2a PARTITION OF t2 FOR VALUES FROM (100) TO (150)",
        "CREATE TABLE spare (id int NOT NULL PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (101, 'b')",
        "INSERT INTO spare VALUES (301, 'c')",
    )
    source_db.grant()
    return source_db


ATTACH = "ALTER TABLE t ATTACH PARTITION spare FOR VALUES FROM (300) TO (400)"


def race(db: SourceDb, ddl: str, run: Callable[[], Envelope]) -> Envelope:
    """Begin the run while *ddl* holds its lock uncommitted; commit once the run waits for it."""
    other = db.second()
    other.execute(ddl)  # type: ignore[call-overload]
    results: list[Envelope | BaseException] = []

    def target() -> None:
        try:
            results.append(run())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    wait_for_blocked(db)
    other.commit()
    thread.join(30)
    other.close()
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


def wait_for_blocked(db: SourceDb) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if db.value(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{db.reader}' AND wait_event_type = 'Lock'"):
            return
        time.sleep(0.02)
    raise AssertionError("the run never waited for the lock")


@pytest.mark.certify("source_mutation")
@pytest.mark.parametrize("only_columns", [False, True])
def test_truncate_that_races_with_the_start(db: SourceDb, only_columns: bool) -> None:
    """A snapshot older than the lock would read the refilled table as empty, and every row would look deleted."""
    if only_columns:
        columns_only(db)
    first = db.extract()
    request = db.request()
    refill = "TRUNCATE t; INSERT INTO t SELECT i, 'again' FROM generate_series(1, 5) i"
    second = race(db, refill, lambda: db.extract(request, after(first)))
    assert ids(keys_of(second)) == ids(rows_of(second)) == [1, 2, 3, 4, 5]
    assert second.attempts == (2 if only_columns else 1)


@pytest.mark.certify("source_mutation")
@pytest.mark.parametrize("only_columns", [False, True])
def test_rewriting_alter_that_races_with_the_start(db: SourceDb, only_columns: bool) -> None:
    if only_columns:
        columns_only(db)
    first = db.extract()
    request = db.request()
    second = race(db, "ALTER TABLE t ALTER COLUMN v TYPE varchar(50)", lambda: db.extract(request, after(first)))
    assert ids(rows_of(second)) == list(range(1, 11))
    assert (second.payload, second.reason) == (Payload.FULL, "projection_changed")
    request = db.request()
    third = race(db, "ALTER TABLE t ALTER COLUMN id TYPE bigint", lambda: db.extract(request, after(second)))
    assert ids(rows_of(third)) == list(range(1, 11))


@pytest.mark.certify("source_mutation")
def test_drop_and_recreate_that_races_with_the_start(db: SourceDb) -> None:
    request = db.request()
    recreate = f"DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); GRANT SELECT ON t TO {db.reader}"
    with pytest.raises(XminError) as caught:
        race(db, recreate, lambda: db.extract(request))
    assert caught.value.code == "postgres_source_authority.relation_mismatch"


@pytest.mark.certify("source_mutation")
def test_ddl_waits_until_the_extraction_is_over(db: SourceDb) -> None:
    refused: list[str] = []

    def meddle(event: Progress) -> None:
        if event.event == "POSTGRES_SNAPSHOT_OPEN":
            for ddl in ("TRUNCATE t", "DROP TABLE t", "ALTER TABLE t ADD COLUMN w int"):
                with db.second() as other, pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute("SET LOCAL lock_timeout = 50")
                    other.execute(ddl)  # type: ignore[call-overload]
                refused.append(ddl)

    assert len(rows_of(db.extract(progress=meddle))) == 10
    assert len(refused) == 3


@pytest.mark.certify("source_mutation")
@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("ALTER TYPE e RENAME VALUE 'a' TO 'wrong'", "ALTER TYPE e RENAME VALUE 'wrong' TO 'a'"),
        ("ALTER TYPE c ADD ATTRIBUTE z int", "ALTER TYPE c DROP ATTRIBUTE z"),
    ],
)
@pytest.mark.parametrize("returns", [False, True])
def test_a_type_that_changes_while_rows_are_read(source_db: SourceDb, there: str, back: str, returns: bool) -> None:
    """No lock on the table stops it, and the text is written by the live catalog: only rows of one definition are ever taken."""
    db = source_db
    db.run("CREATE TYPE e AS ENUM ('a', 'b')", "CREATE TYPE c AS (n int)")
    db.run("CREATE TABLE t (id int PRIMARY KEY, e e, c c)", "INSERT INTO t SELECT g, 'a', '(1)' FROM generate_series(1, 50000) g")
    db.grant()
    seen: list[str] = []

    def change(event: Progress) -> None:
        seen.append(event.event)
        if seen.count("POSTGRES_SNAPSHOT_OPEN") > 1:
            return
        if event.event == "POSTGRES_SNAPSHOT_OPEN":
            db.run(there)
        elif event.event == "POSTGRES_COPY_COMPLETE" and returns:
            db.run(back)

    strings = frozenset({"e", "c"})
    first = db.extract(db.request(string_columns=strings), progress=change)
    assert first.attempts == 2
    right = db.owner.execute("SELECT DISTINCT e::text, c::text FROM t").fetchall()
    assert {(row["e"], row["c"]) for row in rows_of(first)} == {tuple(row) for row in right}
    if not returns:
        db.run(back)
    second = db.extract(db.request(string_columns=strings), after(first))
    assert (second.payload, second.attempts) == (Payload.DELTA if returns else Payload.FULL, 1)


@pytest.mark.parametrize("moment", ["POSTGRES_SNAPSHOT_OPEN", "POSTGRES_COPY_COMPLETE", "POSTGRES_KEYS_COMPLETE"])
def test_attach_partition_during_a_run(parts: SourceDb, moment: str) -> None:
    """ATTACH is not stopped by the lock: delta and keys could come from two partition sets."""
    first = parts.extract()
    events: list[str] = []

    def meddle(event: Progress) -> None:
        events.append(event.event)
        if event.event == moment and events.count(moment) == 1:
            parts.run(ATTACH)

    second = parts.extract(prior=after(first), progress=meddle)
    assert second.attempts == 2
    assert (second.payload, second.reason) == (Payload.FULL, "projection_changed")
    assert ids(rows_of(second)) == [1, 101, 301]
    assert [path.name for path in second.rows_artifact.path.parent.iterdir()] == ["rows.arrow"]


@pytest.mark.certify("source_mutation")
def test_attach_that_is_undone_again_is_still_noticed(parts: SourceDb) -> None:
    first = parts.extract()
    moments: list[str] = []

    def meddle(event: Progress) -> None:
        moments.append(event.event)
        if moments.count("POSTGRES_COPY_COMPLETE") == 1 and event.event == "POSTGRES_COPY_COMPLETE":
            parts.run(ATTACH, "TRUNCATE spare")

    second = parts.extract(prior=after(first), progress=meddle)
    assert (second.attempts, ids(rows_of(second))) == (2, [1, 101])


@pytest.mark.certify("source_mutation")
def test_a_relation_that_never_rests(parts: SourceDb) -> None:
    """Every attempt meets another partition set."""
    parts.run(*[f"CREATE TABLE x{n} (id int NOT NULL PRIMARY KEY, v text)" for n in range(MAX_ATTEMPTS)])
    attempts: list[int] = []

    def meddle(event: Progress) -> None:
        if event.event == "POSTGRES_SNAPSHOT_OPEN":
            n = len(attempts)
            attempts.append(n)
            parts.run(f"ALTER TABLE t ATTACH PARTITION x{n} FOR VALUES FROM ({1000 + n}) TO ({1001 + n})")

    with pytest.raises(XminError) as caught:
        parts.extract(progress=meddle)
    assert (caught.value.code, caught.value.retryable, len(attempts)) == ("postgres_source.boundary_unstable", True, MAX_ATTEMPTS)


def test_partitioned_tables(parts: SourceDb) -> None:
    first = parts.extract()
    assert ids(rows_of(first)) == [1, 101]
    parts.run("UPDATE t SET v = 'x' WHERE id = 101", "INSERT INTO t VALUES (2, 'y')", "DELETE FROM t WHERE id = 1")
    second = parts.extract(prior=after(first))
    assert (second.payload, ids(rows_of(second)), ids(keys_of(second))) == (Payload.DELTA, [2, 101], [2, 101])
    parts.run("UPDATE t SET id = 120 WHERE id = 2", "ALTER TABLE t2 DETACH PARTITION t2a")
    third = parts.extract(prior=after(second))
    assert (third.payload, third.reason, ids(rows_of(third))) == (Payload.FULL, "projection_changed", [])


def test_a_leaf_partition_may_be_a_source(parts: SourceDb) -> None:
    parts.grant("public.t1")
    assert ids(rows_of(parts.extract(parts.request("public.t1")))) == [1]


def test_column_grants_are_enough(db: SourceDb) -> None:
    columns_only(db)
    first = db.extract()
    db.run("UPDATE t SET v = 'x' WHERE id = 7")
    assert ids(rows_of(db.extract(prior=after(first)))) == [7]


@pytest.mark.parametrize(
    ("grant", "missing"), [("SELECT (id, v)", "SELECT (xmin)"), ("SELECT (id, xmin)", "SELECT (v)"), (None, "SELECT (xmin, id, v)")]
)
@pytest.mark.certify("permission_denial")
def test_missing_grants_are_named(db: SourceDb, grant: str | None, missing: str) -> None:
    request = db.request()
    db.run(f"REVOKE ALL ON t FROM {db.reader}")
    if grant:
        db.run(f"GRANT {grant} ON t TO {db.reader}")
    with pytest.raises(XminError) as caught:
        db.extract(request)
    assert caught.value.code == "postgres_source.permission_denied"
    assert caught.value.details["grants"] == [f"{missing} on public.t"]


@pytest.mark.certify("permission_denial")
def test_missing_schema_usage_is_named(db: SourceDb) -> None:
    db.run("CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY)", f"GRANT USAGE ON SCHEMA s TO {db.reader}")
    db.grant("s.t")
    request = db.request("s.t")
    db.run(f"REVOKE USAGE ON SCHEMA s FROM {db.reader}")
    with pytest.raises(XminError) as caught:
        db.extract(request)
    assert (caught.value.code, caught.value.details["grants"]) == ("postgres_source.permission_denied", ["USAGE on schema s"])


def test_row_security_never_hides_rows(db: SourceDb) -> None:
    request = db.request()
    db.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON t USING (id > 5)")
    with pytest.raises(XminError) as caught:
        db.extract(request)
    assert caught.value.code == "postgres_source.row_security"
    db.run(f"ALTER ROLE {db.reader} BYPASSRLS")
    assert len(rows_of(db.extract())) == 10


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE VIEW x AS SELECT id, v, xmin FROM t",
        "CREATE MATERIALIZED VIEW x AS SELECT id, v FROM t",
        "CREATE UNLOGGED TABLE x (id int PRIMARY KEY, v text)",
        "CREATE TABLE x (LIKE t INCLUDING ALL) INHERITS (t)",
        "CREATE TABLE x (LIKE t INCLUDING ALL); CREATE TABLE y () INHERITS (x)",
        "CREATE SEQUENCE x",
        "CREATE EXTENSION postgres_fdw; CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw; "
        "CREATE FOREIGN TABLE x (id int NOT NULL, v text) SERVER s",
        "CREATE TABLE x (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); "
        "CREATE UNLOGGED TABLE x1 PARTITION OF x FOR VALUES FROM (1) TO (9)",
        "CREATE EXTENSION postgres_fdw; CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw; "
        "CREATE TABLE x (id int NOT NULL, v text) PARTITION BY RANGE (id); "
        "CREATE FOREIGN TABLE x1 PARTITION OF x FOR VALUES FROM (1) TO (9) SERVER s",
    ],
)
def test_relations_that_cannot_prove_what_changed(db: SourceDb, ddl: str) -> None:
    db.run(ddl)
    db.grant("public.x")
    with pytest.raises(XminError) as caught:
        db.extract(db.request("public.x"))
    assert caught.value.code == "DPONE_RELATION_UNSUPPORTED"
    assert "public.x" in caught.value.message


@pytest.mark.certify("source_mutation")
def test_a_child_table_that_begins_to_inherit_during_the_run(db: SourceDb) -> None:
    db.run("CREATE TABLE child (LIKE t INCLUDING ALL)", "INSERT INTO child VALUES (500, 'child')")

    def meddle(event: Progress) -> None:
        if event.event == "POSTGRES_SNAPSHOT_OPEN":
            db.run("ALTER TABLE child INHERIT t")

    assert ids(rows_of(db.extract(progress=meddle))) == list(range(1, 11))


def test_lock_timeout(db: SourceDb) -> None:
    request = db.request(lock_timeout_seconds=0.2)
    with db.second() as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(XminError) as caught:
            db.extract(request)
    assert (caught.value.code, caught.value.retryable) == ("postgres_source.lock_timeout", True)


def test_missing_relation_and_alias(db: SourceDb) -> None:
    request = db.request()
    db.run('CREATE TABLE "T" (id int PRIMARY KEY)')
    assert len(rows_of(db.extract(request))) == 10
    with pytest.raises(XminError) as caught:
        db.extract(db.request(authority=request.authority, alias=True))
    assert caught.value.code == "postgres_source_authority.relation_ambiguous"
    db.run('DROP TABLE "T"')
    assert len(rows_of(db.extract(db.request(authority=request.authority, alias=True)))) == 10
    db.run("DROP TABLE t")
    with pytest.raises(XminError) as caught:
        db.extract(db.request(authority=request.authority))
    assert caught.value.code == "postgres_source.relation_missing"


def test_a_killed_session_is_retryable(db: SourceDb) -> None:
    def kill(event: Progress) -> None:
        if event.event == "POSTGRES_SNAPSHOT_OPEN":
            db.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{db.reader}'")

    request = db.request()
    with pytest.raises(XminError) as caught:
        db.extract(request, progress=kill)
    assert (caught.value.code, caught.value.retryable) == ("postgres_source.lost", True)
    assert list(request.work_dir.iterdir()) == []
