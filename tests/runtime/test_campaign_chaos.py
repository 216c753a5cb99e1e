"""A campaign of 64 chunks and 4 lanes while the source keeps changing and processes are killed: after the handoff, parity is exact."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest

from airflow_dpone_xmin.runtime.lanes import run_lanes
from tests.campaigns import Restless, Step, burn, chunks, flights_world, incremental, opened, published, reading
from tests.children import Job, start
from tests.world import Setup, World

LANES = 4


class Killer:
    """Keeps four lanes alive and gives each new one a fuse, until the kills are used up.

    :param kills: how many processes are to be killed.
    """

    def __init__(self, world: World, kills: int, seed: int) -> None:
        self._world, self._left, self._random = world, kills, random.Random(seed)
        self.killed = 0

    def fuse(self, longest: int) -> tuple[int | None, float | None]:
        if self._left <= 0:
            return None, None
        self._left -= 1
        return (self._random.randint(1, longest), None) if self._random.random() < 0.7 else (None, self._random.uniform(0.2, 1.5))

    def lanes(self) -> None:
        """Until every chunk is committed."""
        alive: list[Any] = [self._lane(number) for number in range(LANES)]
        until = time.monotonic() + 1200
        while any(alive):
            assert time.monotonic() < until, chunks(self._world)
            for number, child in enumerate(alive):
                if child is None or child.is_alive():
                    continue
                self._count(child)
                done = all(row[1] == "committed" for row in chunks(self._world))
                alive[number] = None if done else self._lane(number)
            time.sleep(0.02)

    def coordinators(self, attempts: int) -> None:
        """Publications that mostly die."""
        for _ in range(attempts):
            child = start(burn, Step.of(self._world, "publish"), *self.fuse(160))
            child.join(120)
            self._count(child)

    def parents(self, attempts: int) -> None:
        """Inline lanes, whose parent dies after a while."""
        for _ in range(attempts):
            child = start(inline, Job.of(self._world, "r1"))
            time.sleep(self._random.uniform(1.5, 4))
            child.kill()
            child.join(30)
            self._count(child)

    def _lane(self, number: int) -> Any:
        # Of the same run, or of another one: then the lease has to expire first.
        run_id = self._random.choice(("r1", "r1", "r2"))
        return start(burn, Step.of(self._world, "lane", run_id, number=number, ttl=1.5), *self.fuse(160))

    def _count(self, child: Any) -> None:
        assert child.exitcode in (0, -signal.SIGKILL)
        self.killed += child.exitcode == -signal.SIGKILL


def inline(job: Job) -> None:
    run_lanes(job.route, job.run_id, LANES, endpoints=job.endpoints)


def survive(worlds: Setup, *, rows: int, kills: int, coordinators: int, parents: int = 0, seed: int) -> int:
    """One campaign from the opening to the first incremental run; returns how many processes were killed."""
    world = flights_world(worlds, rows)
    killer = Killer(world, kills, seed)
    with Restless(world, percent=0.02 if rows > 50_000 else 0.5, seed=seed):
        assert len(opened(world).chunks) == 64
        with reading(world) as seen:
            killer.parents(parents)
            killer.lanes()
            killer.coordinators(coordinators)
            receipt = published(world).receipt
    proven = world.target.rows(f"SELECT count(*), sum(rows_count) FROM {world.state_name('dpone_load_receipt')} WHERE kind = 'chunk'")
    assert tuple(map(int, proven[0])) == (64, receipt.counts.inserted)
    assert seen <= {0, receipt.counts.inserted}, "readers see the old table or the new one"
    incremental(world, handoff="flights_v1")
    run = world.run()
    assert (run.receipt.payload_reason, run.receipt.new_revision) == ("delta", 2)
    assert world.target_rows(sorted(_columns(world))) == world.source_rows(sorted(_columns(world)))
    assert world.staged() == []
    assert list(world.work_dir.iterdir()) == []
    assert world.run().receipt.counts.deleted == 0
    print(f"campaign of 64 chunks, {receipt.counts.inserted} rows, seed {seed}: {killer.killed} processes killed; parity exact")
    return killer.killed


def _columns(world: World) -> list[str]:
    return [row[0] for row in world.source.rows("SELECT attname FROM pg_attribute WHERE attrelid = 'flights'::regclass AND attnum > 0")]


@pytest.mark.timeout(600)
def test_a_campaign_survives(worlds: Setup, embedded_only: None) -> None:
    """A bounded sample: lanes and coordinators die at random steps and at random times."""
    assert survive(worlds, rows=4000, kills=10, coordinators=2, seed=random.randrange(2**31)) >= 6


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_two_hundred_kills(worlds: Setup, embedded_only: None) -> None:
    """All flights; 200 deaths of lanes, parents and coordinators."""
    killed = 0
    while killed < 200:
        killed += survive(worlds, rows=336_776, kills=90, coordinators=12, parents=3, seed=random.randrange(2**31))
