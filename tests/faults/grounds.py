"""Where the states of a fault matrix begin, and how sessions die there: by the means of the server under test.

The embedded engine's database is copied back before each state. No test can copy a T-SQL server's three databases back under their own
identity: there, each state begins with changes of its own, and the route goes on living.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import psycopg

from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.target.engine import Event
from tests.world import MSSQL_DATABASES, WRITER, World

LEFT = "sessions of the product are left on the target"


class Ground(Protocol):
    """A server's ways."""

    copies: bool
    """Whether every state begins as a copy, which costs little."""

    def keep(self, world: World, pend: Callable[[], None]) -> None:
        """Once, before the first state; *pend* makes the changes of one run."""
        ...

    def reset(self, world: World, pend: Callable[[], None]) -> None:
        """The beginning of a state."""
        ...

    def drop(self, world: World) -> None:
        """After the last state."""
        ...

    def wait_until_quiet(self, world: World, name: str) -> None:
        """Until no session of the product is left on the target; *name* of the state, for a failure."""
        ...

    def end_session(self, world: World, what: Event | Progress) -> None:
        """End the session that is about to act; around a bulk load, which has a connection of its own, all of the product's."""
        ...


class Copied:
    """A fresh copy under the signed name and OID; all sessions of the one before end."""

    copies = True

    def __init__(self) -> None:
        self._template, self._oid = "", 0

    def keep(self, world: World, pend: Callable[[], None]) -> None:
        pend()
        target = world.target
        self._template = f"{target.database}_template"
        (row,) = target.rows(f"SELECT oid::bigint FROM pg_database WHERE datname = '{target.database}'")
        self._oid = int(row[0])
        target.cluster.create_database(self._template, options=f'TEMPLATE "{target.database}"')

    def reset(self, world: World, pend: Callable[[], None]) -> None:
        world.target.drop()
        world.target.cluster.create_database(world.target.database, options=f'TEMPLATE "{self._template}" OID = {self._oid}')

    def drop(self, world: World) -> None:
        world.target.cluster.drop_database(self._template)

    def wait_until_quiet(self, world: World, name: str) -> None:
        with world.target.connect() as owner:
            wait_until_quiet(owner, name)

    def end_session(self, world: World, what: Event | Progress) -> None:
        kill_session(world, what)


class Living:
    """Each state has changes of its own. The tests are the only ones who use the three databases."""

    copies = False

    def keep(self, world: World, pend: Callable[[], None]) -> None:
        pass

    def reset(self, world: World, pend: Callable[[], None]) -> None:
        pend()

    def drop(self, world: World) -> None:
        pass

    def wait_until_quiet(self, world: World, name: str) -> None:
        until = time.monotonic() + 30
        while sessions(world):
            assert time.monotonic() < until, f"{name}: {LEFT}"
            time.sleep(0.05)

    def end_session(self, world: World, what: Event | Progress) -> None:
        session = what.session if isinstance(what, Event) else None
        if session is None:
            world.target.run(*[f"KILL {number}" for number in sessions(world)])
            return
        cursor = session.connection.connection.cursor()
        (number,) = cursor.execute("SELECT @@SPID").fetchone()
        cursor.close()
        world.target.run(f"KILL {number}")


def ground_of(world: World) -> Ground:
    """The ways of the world's target."""
    return Living() if world.target.kind == "mssql" else Copied()


def sessions(world: World) -> list[int]:
    """Every session in the three databases of a T-SQL server but the one that asks."""
    names = ", ".join(f"'{name}'" for name in MSSQL_DATABASES.values())
    query = f"SELECT session_id FROM sys.dm_exec_sessions WHERE session_id <> @@SPID AND DB_NAME(database_id) IN ({names})"
    return [row[0] for row in world.target.rows(query)]


def kill_session(world: World, what: Event | Progress) -> None:
    """End the backend that is about to act; around a bulk load, which has a connection of its own, all of the product's."""
    session = what.session if isinstance(what, Event) else None
    with world.target.connect() as owner:
        if session is None:
            owner.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND usename = %s",
                [WRITER],
            )
            return
        pid = session.connection.connection.driver_connection.info.backend_pid
        owner.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def wait_until_quiet(owner: psycopg.Connection[Any], name: str = "", *, looks: int = 400) -> None:
    """Wait until no session of the product is left on this database."""
    for _ in range(looks):
        busy = owner.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = %s", [WRITER]
        ).fetchone()
        if busy == (0,):
            return
        owner.execute("SELECT pg_sleep(0.02)")
    raise AssertionError(f"{name}: {LEFT}")
