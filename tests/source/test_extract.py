"""Baseline, delta and key snapshot on a real server: nothing lost, nothing invented, nothing left behind."""

from __future__ import annotations

import os
import stat
import threading
import time

import psutil
import pytest

from airflow_dpone_xmin.contracts.envelope import Payload, Prior
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Progress
from airflow_dpone_xmin.policy.window import DeltaWindow, Window
from airflow_dpone_xmin.source.extract import extraction_sql
from tests.source.support import SourceDb, after, ids, keys_of, rows_of


@pytest.fixture
def db(source_db: SourceDb) -> SourceDb:
    source_db.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 10) i")
    source_db.grant()
    return source_db


def test_baseline_has_every_row_and_no_xmin_term(db: SourceDb) -> None:
    events: list[Progress] = []
    request = db.request()
    envelope = db.extract(request, progress=events.append)
    assert (envelope.payload, envelope.reason, envelope.keys_artifact) == (Payload.FULL, "baseline", None)
    assert ids(rows_of(envelope)) == list(range(1, 11))
    assert [event.event for event in events] == ["POSTGRES_SNAPSHOT_OPEN", "POSTGRES_COPY_COMPLETE"]
    assert (events[-1].rows, events[-1].bytes) == (10, envelope.rows_artifact.size)
    assert stat.S_IMODE(envelope.rows_artifact.path.stat().st_mode) == 0o600
    assert envelope.snapshot.startswith(f"{envelope.horizons.safe}:{envelope.horizons.visible}:")
    queries = extraction_sql(request, envelope.projection, Window(Payload.FULL, "baseline"))
    assert list(queries) == ["rows"]
    assert "xmin" not in queries["rows"]


def test_delta_and_keys_of_one_snapshot(db: SourceDb) -> None:
    first = db.extract()
    db.run("UPDATE t SET v = 'new' WHERE id = 3", "DELETE FROM t WHERE id = 4", "INSERT INTO t VALUES (11, NULL), (12, '')")
    second = db.extract(prior=after(first))
    assert (second.payload, second.reason) == (Payload.DELTA, "delta")
    assert rows_of(second) == [{"id": 11, "v": None}, {"id": 12, "v": ""}, {"id": 3, "v": "new"}]
    assert ids(keys_of(second)) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    third = db.extract(prior=after(second))
    assert rows_of(third) == []
    assert third.rows_artifact.columns == ("id", "v")


def test_a_snapshot_between_two_queries_is_one_state(db: SourceDb) -> None:
    first = db.extract()
    db.run("UPDATE t SET v = 'new' WHERE id = 1")

    def meddle(event: Progress) -> None:
        if event.event == "POSTGRES_COPY_COMPLETE":
            db.run("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (99, 'x')")

    second = db.extract(prior=after(first), progress=meddle)
    assert (ids(rows_of(second)), ids(keys_of(second))) == ([1], list(range(1, 11)))
    third = db.extract(prior=after(second))
    assert (ids(rows_of(third)), ids(keys_of(third))) == ([99], [*range(2, 11), 99])


def test_without_keys(db: SourceDb) -> None:
    first = db.extract()
    request = db.request(with_keys=False)
    second = db.extract(request, after(first))
    assert (second.payload, second.keys_artifact) == (Payload.DELTA, None)
    window = Window(Payload.DELTA, "delta", DeltaWindow.between(10, 20))
    assert list(extraction_sql(request, first.projection, window)) == ["rows"]
    with_keys = extraction_sql(db.request(), first.projection, window)
    assert "xmin" not in with_keys["keys"]


def test_a_late_commit_is_found(db: SourceDb) -> None:
    """A inserts, B inserts and commits, run, A commits: only the safe horizon finds A's row."""
    first = db.extract()
    late = db.second()
    late.execute("INSERT INTO t VALUES (100, 'late')")
    db.run("INSERT INTO t VALUES (101, 'early')")
    second = db.extract(prior=after(first))
    assert ids(rows_of(second)) == [101]
    assert second.horizons.safe < second.horizons.visible
    late.commit()
    late.close()
    third = db.extract(prior=after(second))
    assert ids(rows_of(third)) == [100, 101]
    fourth = db.extract(prior=after(third))
    assert ids(rows_of(fourth)) == []


def test_savepoints_and_rollbacks(db: SourceDb) -> None:
    first = db.extract()
    session = db.second()
    session.execute("INSERT INTO t VALUES (100, 'outer')")
    session.execute("SAVEPOINT a")
    session.execute("INSERT INTO t VALUES (101, 'inner')")
    session.execute("SAVEPOINT b")
    session.execute("INSERT INTO t VALUES (102, 'undone')")
    session.execute("ROLLBACK TO b")
    second = db.extract(prior=after(first))
    assert ids(rows_of(second)) == []
    session.commit()
    session.execute("DELETE FROM t")
    session.rollback()
    session.close()
    third = db.extract(prior=after(second))
    assert ids(rows_of(third)) == [100, 101]
    assert ids(keys_of(third)) == [*range(1, 11), 100, 101]


def test_a_prepared_transaction_pins_the_safe_horizon(db: SourceDb) -> None:
    first = db.extract()
    session = db.second()
    session.execute("INSERT INTO t VALUES (100, 'prepared')")
    session.execute("PREPARE TRANSACTION 'p1'")
    session.close()
    db.run(*[f"INSERT INTO t VALUES ({i}, 'x')" for i in range(200, 205)])
    second = db.extract(prior=after(first))
    third = db.extract(prior=after(second))
    assert ids(rows_of(second)) == ids(rows_of(third)) == list(range(200, 205))
    assert third.horizons.replay_amplification > 0
    with pytest.raises(XminError) as caught:
        db.extract(db.request(max_replay_amplification=2), after(second))
    assert caught.value.code == "xmin_window.amplification_exceeded"
    db.run("COMMIT PREPARED 'p1'")
    assert 100 in ids(rows_of(db.extract(prior=after(third))))


@pytest.mark.parametrize("command", ["VACUUM (FREEZE) t", "VACUUM FULL t", "CLUSTER t USING t_pkey"])
def test_maintenance_replays_nothing(db: SourceDb, command: str) -> None:
    first = db.extract()
    db.run("UPDATE t SET v = 'x' WHERE id = 1", command)
    second = db.extract(prior=after(first))
    assert (second.payload, ids(rows_of(second))) == (Payload.DELTA, [1])
    db.run(command)
    assert ids(rows_of(db.extract(prior=after(second)))) == []


def test_forced_freezing_is_replayed_and_counted(db: SourceDb) -> None:
    first = db.extract()
    db.run("CREATE EXTENSION pg_surgery", "UPDATE t SET v = 'x' WHERE id = 1")
    ctids = db.value("SELECT array_agg(ctid)::text FROM t WHERE id IN (2, 3)")
    db.run(f"SELECT heap_force_freeze('t'::regclass, '{ctids}'::tid[])")
    second = db.extract(prior=after(first))
    assert ids(rows_of(second)) == [1, 2, 3]
    assert second.rows_artifact.replayed_frozen == 2
    assert second.rows_artifact.columns == ("id", "v")


def test_a_composite_key_keeps_its_authored_order(source_db: SourceDb) -> None:
    source_db.run(
        "CREATE TABLE t (a int NOT NULL, v text, b varchar(5) NOT NULL, UNIQUE (a, b))", "INSERT INTO t VALUES (1, 'x', 'p'), (1, 'y', 'q')"
    )
    source_db.grant()
    first = source_db.extract(source_db.request(key=("b", "a")))
    second = source_db.extract(source_db.request(key=("b", "a")), after(first))
    assert second.keys_artifact is not None
    assert second.keys_artifact.columns == ("b", "a")
    assert keys_of(second) == [{"b": "p", "a": 1}, {"b": "q", "a": 1}]


def test_names_that_need_quoting(source_db: SourceDb) -> None:
    source_db.run(
        'CREATE SCHEMA "we ird"',
        'CREATE TABLE "we ird"."T""x;y" ("select" int PRIMARY KEY, "a%s {b}" text)',
        """INSERT INTO "we ird"."T""x;y" VALUES (1, E'a\\\\b''c\\n{}%s')""",
        f'GRANT USAGE ON SCHEMA "we ird" TO {source_db.reader}',
    )
    source_db.grant('we ird.T"x;y')
    request = source_db.request('we ird.T"x;y', key=("select",))
    first = source_db.extract(request)
    assert rows_of(first) == [{"select": 1, "a%s {b}": "a\\b'c\n{}%s"}]
    assert rows_of(source_db.extract(source_db.request('we ird.T"x;y', key=("select",)), after(first))) == []


def test_widened_columns_arrive_widened(source_db: SourceDb) -> None:
    source_db.run("CREATE TABLE t (id smallint PRIMARY KEY, a int, r real, n int)", "INSERT INTO t VALUES (1, 2147483647, 0.1, 5)")
    source_db.grant()
    overrides = {"id": "bigint", "a": "bigint", "r": "float", "n": "decimal(12,2)"}
    envelope = source_db.extract(source_db.request(type_overrides=overrides))
    assert rows_of(envelope) == [{"id": 1, "a": 2147483647, "r": 0.10000000149011612, "n": "5"}]


def test_canonical_text(source_db: SourceDb) -> None:
    source_db.run(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id int PRIMARY KEY, i interval, a int[], m mood, r int4range, c char(4), n numeric, ip inet)",
        "ALTER TABLE t ADD COLUMN ts timestamp[]",
        "INSERT INTO t VALUES (1, '1 day 2 hours', '{1,NULL,3}', 'ok', '[1,5)', 'ab', 'NaN', '10.0.0.1', '{2020-01-02 03:04:05}')",
        f"ALTER DATABASE {source_db.name} SET IntervalStyle = 'iso_8601'",
        f"ALTER DATABASE {source_db.name} SET DateStyle = 'German'",
    )
    source_db.grant()
    columns = frozenset(["i", "a", "m", "r", "c", "n", "ip", "ts"])
    (row,) = rows_of(source_db.extract(source_db.request(string_columns=columns)))
    assert row == {
        "id": 1,
        "i": "1 day 02:00:00",
        "a": "{1,NULL,3}",
        "m": "ok",
        "r": "[1,5)",
        "c": "ab  ",  # the cast would take the padding away
        "n": "NaN",
        "ip": "10.0.0.1/32",  # the cast shows the mask that the output function hides
        "ts": '{"2020-01-02 03:04:05"}',
    }


def test_free_space_floor(db: SourceDb) -> None:
    request = db.request(min_free_bytes=2**60)
    with pytest.raises(XminError) as caught:
        db.extract(request)
    assert caught.value.code == "storage.floor"
    assert os.listdir(request.work_dir) == []


def test_cancellation_while_streaming(db: SourceDb) -> None:
    db.run("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(100, 400000) i")
    cancel = Cancellation()
    request = db.request()
    started: list[float] = []

    def later(event: Progress) -> None:
        if event.event == "POSTGRES_SNAPSHOT_OPEN":
            started.append(time.monotonic())
            threading.Timer(0.02, cancel.cancel).start()

    with pytest.raises(XminError) as caught:
        db.extract(request, progress=later, cancel=cancel)
    assert caught.value.code == "run.cancelled"
    assert time.monotonic() - started[0] < 5
    assert os.listdir(request.work_dir) == []
    with pytest.raises(XminError) as caught:
        db.extract(db.request(), cancel=cancel)
    assert caught.value.code == "run.cancelled"


def test_cancellation_while_waiting_for_a_lock(db: SourceDb) -> None:
    blocker = db.second()
    blocker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
    cancel = Cancellation()
    threading.Timer(0.3, cancel.cancel).start()
    started = time.monotonic()
    with pytest.raises(XminError) as caught:
        db.extract(db.request(authority=None), cancel=cancel)
    blocker.close()
    assert caught.value.code == "run.cancelled"
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_deadline(db: SourceDb, seconds: float) -> None:
    """Before the first statement, and in the middle of the stream."""
    db.run("INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(100, 600000) i")
    request = db.request(deadline_seconds=seconds)
    started = time.monotonic()
    with pytest.raises(XminError) as caught:
        db.extract(request)
    assert (caught.value.code, caught.value.retryable) == ("postgres_source.deadline", True)
    assert time.monotonic() - started < 5
    assert os.listdir(request.work_dir) == []


def test_memory_stays_flat(db: SourceDb) -> None:
    """Several times more than a batch holds, in a process that already has its libraries loaded."""
    db.run("INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(100, 400000) i")
    process = psutil.Process()
    idle = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    envelope = db.extract()
    done.set()
    thread.join()
    assert envelope.rows_artifact.size > 350_000_000
    assert peak - idle < 150_000_000


def test_prior_of_the_future_is_refused(db: SourceDb) -> None:
    with pytest.raises(XminError) as caught:
        db.extract(prior=Prior(xmin=2**40, projection_fingerprint=b"x" * 32))
    assert caught.value.code == "xmin_window.regressed"
