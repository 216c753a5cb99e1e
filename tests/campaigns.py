"""A world's manifest as an initial campaign, its steps, the same steps in children that die or stop, and a source that never rests."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import psycopg
import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Listener, silent
from airflow_dpone_xmin.demo.source import _DDL, KEY, read_flights
from airflow_dpone_xmin.runtime import lane as lanes_module
from airflow_dpone_xmin.runtime.campaign import abandon_campaign, open_campaign, publish_campaign
from airflow_dpone_xmin.runtime.lane import run_lane
from airflow_dpone_xmin.target import campaign_ledger
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from tests.beside import beside
from tests.children import Job, die
from tests.world import MODES, Setup, World

COLUMNS = ("id", "qty", "note")
TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer, note text)",
    "INSERT INTO orders SELECT g, g % 10, 'n' || g FROM generate_series(1, 1000) g",
)
INTEGER = {"column": "id", "from": 1, "to": 1000, "step": 100}
Phase = Literal["open", "lane", "publish", "abandon"]


# ---- the manifest and its steps -------------------------------------------------------------------------------------------
def initial(chunk: dict[str, Any], *, in_place: bool = False, handoff: str = "orders_v1") -> dict[str, Any]:
    """What makes the world's manifest an initial one."""
    inner = "incremental_merge" if in_place else "incremental_append"
    backfill = {"inner_mode": inner, "publication": {"mode": "in_place" if in_place else "shadow_swap"}, "chunk": chunk}
    return {
        "source": {"options": {"xmin_execution": {"mode": "initial", "handoff_id": handoff}}},
        "sink": {"strategy": {"mode": "backfill", "backfill": backfill}},
    }


def incremental(world: World, *, handoff: str = "orders_v1") -> None:
    """The scheduled half of the handoff."""
    world.process = f"{world.table}_incremental"
    world.manifest_over = {"source": {"options": {"xmin_execution": {"mode": "incremental", "handoff_id": handoff}}}}


def opened(world: World, run_id: str = "r1", **kw: Any) -> Any:
    return open_campaign(world.route(), run_id, endpoints=world.endpoints, **kw)


def lane(world: World, run_id: str = "r1", number: int = 0, **kw: Any) -> Any:
    return run_lane(world.route(), run_id, number, **{"endpoints": world.endpoints, **kw})


def published(world: World, run_id: str = "r1", **kw: Any) -> Any:
    return publish_campaign(world.route(), run_id, endpoints=world.endpoints, **kw)


def refusal(call: Callable[..., Any], *arguments: Any, **kw: Any) -> XminError:
    with pytest.raises(XminError) as refused:
        call(*arguments, **kw)
    return refused.value


def sibling(world: World, name: str) -> str:
    """Qualified name of another table beside the live one."""
    return str(world.target.name(world.target.layout(world.table).target.namespace.schema, name))


def chunks(world: World) -> list[tuple[Any, ...]]:
    """(number, status, owner, epoch) of every chunk."""
    return [
        tuple(row)
        for row in world.target.rows(f"SELECT chunk_no, status, owner, epoch FROM {world.state_name('dpone_campaign_chunk')} ORDER BY 1")
    ]


# ---- the flights of 2013, in 64 chunks ------------------------------------------------------------------------------------
FLIGHT_CHUNK = {"column": "time_hour", "kind": "ordered", "buckets": 64}


def flights_world(worlds: Setup, rows: int) -> World:
    """About so many flights at the source and an empty live table."""
    from adbc_driver_postgresql import dbapi

    over = initial(FLIGHT_CHUNK, handoff="flights_v1")
    world = worlds(_DDL, table="flights", key=KEY, manifest_over=over, reconciliation=MODES["timestamp_only"], provision=False)
    with dbapi.connect(world.source.cluster.uri(world.source.database)) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("flights", read_flights(rows), mode="append", db_schema_name="public")
        connection.commit()
    world.source.run(f"ALTER TABLE public.flights ADD PRIMARY KEY ({', '.join(KEY)})", "ANALYZE public.flights")
    world.provision_target()
    return world


_SOME = "(SELECT ctid FROM flights TABLESAMPLE BERNOULLI ({percent}) FOR UPDATE SKIP LOCKED)"
_MOVED = f"flight = flight % 10000 + 10000 * nextval('tick')::int WHERE ctid = ANY (ARRAY{_SOME})"
_CHANGES = (
    f"UPDATE flights SET arr_delay = coalesce(arr_delay, 0) + 1 WHERE ctid = ANY (ARRAY{_SOME})",
    f"DELETE FROM flights WHERE ctid = ANY (ARRAY{_SOME})",
    # keys change: to a range that was read, to one that was not, to none that was planned
    f"UPDATE flights SET time_hour = time_hour - interval '40 days', {_MOVED}",
    f"UPDATE flights SET time_hour = time_hour + interval '90 days', {_MOVED}",
    "INSERT INTO flights SELECT year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier,"
    " flight % 10000 + 10000 * nextval('tick')::int, tailnum, origin, dest, air_time, distance, hour, minute, time_hour"
    " FROM flights TABLESAMPLE BERNOULLI ({percent})",
)


class Restless:
    """Changes the source until it is told to stop: plain, late and prepared transactions, rollbacks among them.

    :param percent: of the rows, per change.
    """

    def __init__(self, world: World, *, percent: float, seed: int) -> None:
        self._world, self._percent, self._random = world, percent, random.Random(seed)
        self._running = beside(self._run, seconds=60)
        self.changes = 0
        world.source.run("CREATE SEQUENCE tick MAXVALUE 200000")

    def __enter__(self) -> Restless:
        self._running.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)
        assert self.changes > 10

    def _run(self, stop: threading.Event) -> None:
        with self._world.source.connect(autocommit=False) as late, self._world.source.connect() as plain:
            prepared: list[str] = []
            while not stop.wait(0.05):
                self._change(plain)
                kind = self._random.randrange(6)
                if kind == 0:
                    self._change(late)
                elif kind == 1:
                    self._random.choice((late.commit, late.commit, late.rollback))()
                elif kind == 2 and len(prepared) < 3:
                    with self._world.source.connect(autocommit=False) as other:
                        self._change(other)
                        prepared.append(f"p{self.changes}")
                        other.execute(f"PREPARE TRANSACTION '{prepared[-1]}'")  # type: ignore[call-overload]
                elif kind == 3 and prepared:
                    name = prepared.pop(self._random.randrange(len(prepared)))
                    plain.execute(f"{self._random.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{name}'")  # type: ignore[call-overload]
            late.commit()
            for name in prepared:
                plain.execute(f"COMMIT PREPARED '{name}'")  # type: ignore[call-overload]

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(self._random.choice(_CHANGES).format(percent=self._percent))  # type: ignore[call-overload]
        self.changes += 1


@contextmanager
def reading(world: World) -> Iterator[set[int]]:
    """A reader of the live table by its name: it always finds one, and collects how many rows it saw."""
    seen: set[int] = set()

    def read(stop: threading.Event) -> None:
        with world.target.connect() as connection:
            while not stop.wait(0.005):
                (count,) = connection.execute(f"SELECT count(*) FROM {world.target_name}").fetchone()
                seen.add(int(count))

    with beside(read):
        yield seen


# ---- steps in processes of their own --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Step:
    """One phase of a campaign, as a value that crosses into a child.

    :param ttl: seconds that a lease lives in the child; None for the product's own.
    """

    job: Job
    phase: Phase
    number: int = 0
    ttl: float | None = None
    over: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World, phase: Phase, run_id: str = "r1", **kw: Any) -> Step:
        repair = kw.pop("repair", None)
        return cls(Job.of(world, run_id, repair=repair), phase, **kw)

    def run(self, *, progress: Listener = silent) -> Any:
        job, known = self.job, self.job.endpoints
        job.forgive()
        if self.ttl is not None:
            campaign_ledger.LEASE_TTL = timedelta(seconds=self.ttl)
            lanes_module.RENEW_SECONDS, lanes_module.POLL_SECONDS, lanes_module.WAITS_SECONDS = self.ttl / 4, 0.2, (0.2, 0.5)
        if self.phase == "open":
            return open_campaign(job.route, job.run_id, endpoints=known, repair=job.repair, progress=progress)
        if self.phase == "lane":
            return run_lane(job.route, job.run_id, self.number, endpoints=known, progress=progress)
        if self.phase == "publish":
            return publish_campaign(job.route, job.run_id, endpoints=known, repair=job.repair, progress=progress)
        return abandon_campaign(job.route, job.run_id, endpoints=known)


def burn(step: Step, events: int | None, seconds: float | None) -> None:
    """Body of a child: the step, killed at its n-th event, after so many seconds, or not at all."""
    if seconds is not None:
        threading.Timer(seconds, die).start()
    left = events

    def observer(_: Event) -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left <= 0:
                die()

    OBSERVERS.append(observer)
    with suppress(XminError):  # what a lane died of is found out by the next one
        step.run()
    os._exit(0)  # not waiting for the timer


def gated(step: Step, label: str, gate: Any, answers: Any, stop: bool = False) -> None:
    """Body of a child: the step, which before its first *label* waits at *gate*, or stops itself by SIGSTOP; answers with how it ended."""
    reached = False

    def observer(event: Event) -> None:
        nonlocal reached
        if event.phase == "before" and event.label == label and not reached:
            reached = True
            if stop:
                answers.put(("stopped", os.getpid()))
                answers.close()
                answers.join_thread()
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                gate.wait(60)

    OBSERVERS.append(observer)
    answer: tuple[Any, ...] | None = None
    while answer is None:
        try:
            answer = ("done", step.run())
        except XminError as error:
            if gate is None or reached or not error.retryable:  # else it lost a race before the one that is looked at
                answer = ("refused", error.code, error.retryable)
        except BaseException as error:
            answer = ("crashed", f"{type(error).__name__}: {error}")
    if not stop:
        answers.put(answer)
