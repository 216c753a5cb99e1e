"""The staging lease: continuity, eviction, and a retry for exactly six SQLSTATEs, over real sockets."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Route
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.target import lease as module
from airflow_dpone_xmin.target.connect import engine_for
from airflow_dpone_xmin.target.engine import OBSERVERS, Engine, Event
from airflow_dpone_xmin.target.lease import DEADLINE_SECONDS, STATEMENT_SECONDS, TRANSIENT, WAITS_SECONDS, StagingLease, staging_lease
from airflow_dpone_xmin.target.mssql import MssqlEngine
from airflow_dpone_xmin.target.mssql_driver import LOGIN_TIMEOUT_SECONDS, limit_statements, login_timeout
from airflow_dpone_xmin.target.postgres import PostgresEngine
from tests.world import Setup, World

TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")
LOAD = uuid.UUID(int=5)


@dataclass
class Waiting(Cancellation):
    """Remembers how long it was asked to wait, and lets the world change meanwhile instead."""

    asked: list[float] = field(default_factory=list)
    meanwhile: Any = None

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        if self.meanwhile is not None:
            self.meanwhile(len(self.asked))
        return False


# ---- the rule -------------------------------------------------------------------------------------------------------------
def test_the_numbers_of_the_reference() -> None:
    assert {"08001", "08003", "08007", "08S01", "HYT00", "HYT01"} == TRANSIENT
    assert (WAITS_SECONDS, DEADLINE_SECONDS, STATEMENT_SECONDS, LOGIN_TIMEOUT_SECONDS) == ((5, 10), 45, 5.0, 10)


@pytest.mark.parametrize(
    ("state", "retried"),
    [(state, True) for state in sorted(TRANSIENT)]
    + [(state, False) for state in ("28000", "42000", "42S02", "HY008", "HY000", "01002", "08004", "40001", "", "none")],
)
def test_which_states_are_tried_again(state: str, retried: bool) -> None:
    """Judged as the SQL Server engine translates them: by SQLSTATE alone."""
    error = MssqlEngine.translate(None, Exception(state, "[Microsoft] secret text (0)"), "connect")  # type: ignore[arg-type]
    assert module._transient(error) is retried
    assert "secret" not in str(error.to_dict())


def test_a_lower_limit_is_not_widened() -> None:
    """Login 10 seconds, statements 5, or what the connection asks for when it asks for less."""

    def endpoint(**extra: int) -> Endpoint:
        return Endpoint("dwh", "h", None, "d", "u", extra=extra)

    assert [login_timeout(endpoint(**extra)) for extra in ({}, {"login_timeout": 3}, {"login_timeout": 60})] == [10, 3, 10]

    class Driver:
        timeout = 0

    seen = []
    for extra in ({}, {"query_timeout": 2}, {"query_timeout": 60}):
        limit_statements(Driver, endpoint(**extra), seconds=STATEMENT_SECONDS)
        seen.append(Driver.timeout)
    assert seen == [5, 2, 5]


def test_the_embedded_login_is_bounded_too(worlds: Setup) -> None:
    from airflow_dpone_xmin.target.postgres import _url

    def seconds(**extra: str) -> Any:
        return _url(Endpoint("dwh", "h", None, "d", "u", extra=extra), "d").query["connect_timeout"]

    assert [seconds(), seconds(connect_timeout="3"), seconds(connect_timeout="60"), seconds(connect_timeout="0")] == ["10", "3", "10", "10"]


# ---- opening it -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def world(worlds: Setup, embedded_only: None) -> World:
    return worlds(*TABLE)


@pytest.fixture
def tcp() -> Iterator[EmbeddedCluster]:
    """A server on a loopback address of its own, which tests stop and start."""
    address = f"127.{77 + os.getpid() % 100}.{os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"
    with EmbeddedCluster(settings={"listen_addresses": address}) as cluster:
        hba = cluster.data / "pg_hba.conf"
        hba.write_text("local all all trust\nhost all all 127.0.0.0/8 trust\n")
        cluster.stop()
        cluster.start()
        cluster.address = address  # type: ignore[attr-defined]
        yield cluster


def on_tcp(world: World, cluster: EmbeddedCluster, *, refuse_login: bool = False) -> tuple[Engine, Route]:
    """The world's target on the other server: catalog and pins of its own, reached over TCP."""
    from dataclasses import replace as changed

    from tests.world import WRITER, EmbeddedTarget

    cluster.create_database("dwh")
    with cluster.connect() as owner:
        owner.execute(f'CREATE ROLE "{WRITER}" LOGIN')  # type: ignore[call-overload]
    world = changed(world, target=EmbeddedTarget(cluster, "dwh"), _registry=None)
    world.provision_catalog()
    world.provision_target()
    endpoint = changed(world.target.endpoint(), host=cluster.address, port=5432)  # type: ignore[attr-defined]
    return engine_for(world.target.layout(world.table), target=endpoint, state=endpoint), world.route()


def test_a_server_that_comes_back(world: World, tcp: EmbeddedCluster) -> None:
    """Down at first, up while the second wait lasts: three attempts with fresh pairs, then a working lease; nothing else is repeated."""
    engine, route = on_tcp(world, tcp)
    tcp.stop()
    cancel = Waiting(meanwhile=lambda count: tcp.start() if count == 2 else None)
    with staging_lease(engine, route, LOAD, cancel=cancel) as lease:
        lease.check()
    assert cancel.asked == [5, 10]
    engine.close()


def test_exhaustion_tells_what_is_safe(world: World, tcp: EmbeddedCluster) -> None:
    """The established code, with stage, SQLSTATE, attempts and flags; no address, user, database or driver text."""
    engine, route = on_tcp(world, tcp)
    tcp.stop()
    cancel = Waiting()
    with pytest.raises(XminError) as caught, staging_lease(engine, route, LOAD, cancel=cancel):
        pass
    error = caught.value
    assert (error.code, error.retryable) == ("mssql_transaction.unreachable", True)
    assert error.details == {
        "stage": "staging_lease",
        "sqlstate": "08001",
        "attempts": 3,
        "exhausted": True,
        "deadline": False,
    }
    assert cancel.asked == [5, 10]
    assert not any(word in str(error.to_dict()) for word in (tcp.address, "5432", "dpone_writer", "dwh", "refused"))  # type: ignore[attr-defined]
    assert error.__cause__ is None
    engine.close()


def test_the_deadline_ends_it_earlier(world: World, tcp: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that would end past the deadline is not begun."""
    engine, route = on_tcp(world, tcp)
    tcp.stop()
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 9)
    cancel = Waiting(meanwhile=lambda count: time.sleep(0.1))
    with pytest.raises(XminError) as caught, staging_lease(engine, route, LOAD, cancel=cancel):
        pass
    assert cancel.asked == [5]
    assert (caught.value.details["attempts"], caught.value.details["exhausted"], caught.value.details["deadline"]) == (2, True, True)
    engine.close()


def test_a_refused_login_is_tried_once(world: World, tcp: EmbeddedCluster) -> None:
    """Authentication never retries."""
    engine, route = on_tcp(world, tcp)
    (tcp.data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.0/8 scram-sha-256\n")
    tcp.stop()
    tcp.start()
    cancel = Waiting()
    with pytest.raises(XminError) as caught, staging_lease(engine, route, LOAD, cancel=cancel):
        pass
    assert (caught.value.code, caught.value.details["attempts"], cancel.asked) == ("mssql_transaction.authentication_failed", 1, [])
    assert caught.value.details["exhausted"] is False
    engine.close()


def test_a_changed_pin_is_tried_once(world: World) -> None:
    engine, route = world.engine(), world.route()
    world.target.run("UPDATE dbo.dpone_database_token SET token = 'another'")
    cancel = Waiting()
    with pytest.raises(XminError) as caught, staging_lease(engine, route, LOAD, cancel=cancel):
        pass
    assert (caught.value.code, cancel.asked) == ("mssql_transaction.staging_database_authority_mismatch", [])
    assert sessions(world) == 0, "both sessions of the failed attempt are closed"
    engine.close()


def test_a_cancelled_run_stops_waiting(world: World, tcp: EmbeddedCluster) -> None:
    engine, route = on_tcp(world, tcp)
    tcp.stop()
    cancel = Waiting(meanwhile=lambda count: cancel.cancel())
    with pytest.raises(XminError) as caught, staging_lease(engine, route, LOAD, cancel=cancel):
        pass
    assert (caught.value.code, len(cancel.asked)) == ("run.cancelled", 1)
    engine.close()


def test_extraction_is_not_repeated(world: World) -> None:
    """A whole run whose lease fails twice reads the source once."""
    phases: list[str] = []

    def progress(event: Any) -> None:
        phases.append(event.event)

    seen = Counting()
    OBSERVERS.append(seen)
    cancel = Waiting()
    try:
        world.run(progress=progress, cancel=cancel)
    finally:
        OBSERVERS.remove(seen)
    assert cancel.asked == [5, 10]
    assert any(name.startswith("POSTGRES_COPY") for name in phases)
    assert len(phases) == len(set(phases)), "no phase ran twice"
    assert world.source_rows(("id", "qty")) == world.target_rows(("id", "qty"))


class Counting:
    """Fails the first two attempts to take the load's lease, with a lost connection."""

    def __init__(self) -> None:
        self.failures = 0

    def __call__(self, event: Event) -> None:
        if event.label == "lease.take" and event.phase == "before" and self.failures < 2:
            self.failures += 1
            raise XminError("mssql_transaction.connection_lost", "A fault was injected here.", details={"sqlstate": "08S01"})


# ---- holding it -----------------------------------------------------------------------------------------------------------
def opened(world: World) -> tuple[Engine, Route]:
    return world.engine(), world.route()


def evict(world: World, session: Any) -> None:
    pid = session.connection.connection.driver_connection.info.backend_pid
    world.target.run(f"SELECT pg_terminate_backend({pid}, 5000)")


def sessions(world: World) -> int:
    return int(
        world.target.rows("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'dpone_writer'")[0][0]
    )


def test_an_evicted_lease_is_a_typed_failure(world: World) -> None:
    """The watching session was ended: the next boundary says so, retryably, and a new session is never taken for the old one."""
    engine, route = opened(world)
    with staging_lease(engine, route, LOAD, cancel=Cancellation()) as lease:
        lease.check()
        evict(world, lease._watch)
        for _ in range(2):
            with pytest.raises(XminError) as caught, lease.around():
                pass
            assert (caught.value.code, caught.value.retryable) == ("mssql_transaction.staging_database_lease_lost", True)
    assert sessions(world) == 0
    engine.close()


def test_a_released_lock_is_a_lost_lease(world: World) -> None:
    """The session lives, its lock does not."""
    engine, route = opened(world)
    with staging_lease(engine, route, LOAD, cancel=Cancellation()) as lease:
        engine.release(lease._watch, resource=lease.resource)
        with pytest.raises(XminError) as caught:
            lease.check()
        assert caught.value.code == "mssql_transaction.staging_database_lease_lost"
    engine.close()


def test_a_pin_that_changes_meanwhile(world: World) -> None:
    """The database is no longer the signed one: told after the step at the latest."""
    engine, route = opened(world)
    with staging_lease(engine, route, LOAD, cancel=Cancellation()) as lease:
        with pytest.raises(XminError) as caught, lease.around():
            world.target.run("UPDATE dbo.dpone_database_token SET token = 'another'")
        assert caught.value.code == "mssql_transaction.staging_database_authority_mismatch"
    engine.close()


def test_one_lease_per_load(world: World) -> None:
    engine, route = opened(world)
    with staging_lease(engine, route, LOAD, cancel=Cancellation()):
        with pytest.raises(XminError) as caught, staging_lease(engine, route, LOAD, cancel=Waiting()):
            pass
        assert caught.value.code == "invocation.attempt_conflict"
        with staging_lease(engine, route, uuid.UUID(int=6), cancel=Cancellation()) as other:
            other.check()
    engine.close()


@pytest.mark.parametrize("label", ["stage.create", "stage.prove", "stage.index", "stage.subset"])
def test_eviction_at_every_boundary_of_a_run(world: World, label: str) -> None:
    """Forced eviction between CREATE and cleanup fails the run before the target is touched; the next run sweeps and commits."""
    world.run()
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 1")
    watches: list[StagingLease] = []
    real = StagingLease.__init__

    def remember(self: StagingLease, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        watches.append(self)

    def observer(event: Event) -> None:
        if event.label == label and event.phase == "after" and watches:
            evict(world, watches.pop()._watch)

    OBSERVERS.append(observer)
    StagingLease.__init__ = remember  # type: ignore[method-assign]
    try:
        with pytest.raises(XminError) as caught:
            world.run("one")
    finally:
        OBSERVERS.remove(observer)
        StagingLease.__init__ = real  # type: ignore[method-assign]
    assert caught.value.code == "mssql_transaction.staging_database_lease_lost"
    assert world.run("one").receipt.counts.updated == 1
    assert world.staged() == []


@pytest.mark.parametrize("label", ["stage.list", "stage.drop"])
def test_eviction_during_cleanup_is_a_committed_outcome(world: World, label: str) -> None:
    """Cleanup is a staging step like any other: a lease that was lost meanwhile is told, and undoes nothing."""
    watches: list[StagingLease] = []
    real = StagingLease.__init__

    def remember(self: StagingLease, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        watches.append(self)

    committed: list[str] = []

    def observer(event: Event) -> None:
        if event.label == "transaction.commit" and event.phase == "after":
            committed.append(event.label)
        if event.label == label and event.phase == "before" and len(committed) == 2 and watches:
            evict(world, watches.pop()._watch)

    OBSERVERS.append(observer)
    StagingLease.__init__ = remember  # type: ignore[method-assign]
    try:
        outcome = world.run("one")
    finally:
        OBSERVERS.remove(observer)
        StagingLease.__init__ = real  # type: ignore[method-assign]
    assert not watches, "nothing was evicted"
    assert (outcome.status, outcome.cleanup_error and outcome.cleanup_error.code) == (
        "committed_cleanup_failed",
        "mssql_transaction.staging_database_lease_lost",
    )
    assert world.source_rows(("id", "qty")) == world.target_rows(("id", "qty"))
    world.run("two")
    assert world.staged() == []


def test_a_sweep_elsewhere_drops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeping session must be where the lease is: a table of the right name in another database is somebody's."""
    leftover = f"dpone_stg_{uuid.UUID(int=9).hex}_rows"
    world.target.cluster.create_database("elsewhere")
    with world.target.cluster.connect("elsewhere") as owner:
        owner.execute("CREATE SCHEMA staging")
        owner.execute(f"CREATE TABLE staging.{leftover} (id int)")  # type: ignore[call-overload]
        owner.execute("ALTER SCHEMA staging OWNER TO dpone_writer")
        owner.execute(f"ALTER TABLE staging.{leftover} OWNER TO dpone_writer")  # type: ignore[call-overload]
    real, opened = PostgresEngine.connect, []

    def connect(self: PostgresEngine, role: Any, **named: Any) -> Any:
        opened.append(role)
        if role == "staging" and opened.count("staging") == 3:  # after the lease's two
            return real(PostgresEngine(replace(world.target.endpoint()), elsewhere(self.layout)), role, **named)
        return real(self, role, **named)

    monkeypatch.setattr(PostgresEngine, "connect", connect)
    notes: list[str] = []
    assert world.run("one", progress=lambda event: notes.append(f"{event.event} {event.note}")).status == "committed"
    assert "CLEANUP_FAILED mssql_transaction.staging_database_authority_mismatch" in notes
    with world.target.cluster.connect("elsewhere") as owner:
        assert owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'staging'").fetchall() == [(leftover,)]
    world.target.cluster.drop_database("elsewhere")


def elsewhere(layout: Layout) -> Layout:
    return replace(layout, target=replace(layout.target, namespace=replace(layout.target.namespace, database="elsewhere")))
