"""Lanes that stop and wake, parents that die, and everything that could happen at once with a campaign: one wins, nothing is half."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.runtime.campaign import abandon_campaign
from airflow_dpone_xmin.runtime.lanes import run_lanes
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from tests.beside import beside
from tests.campaigns import COLUMNS, INTEGER, TABLE, Step, chunks, gated, incremental, initial, lane, opened, published, refusal, sibling
from tests.children import CONTEXT, Job, run_at_gate, start
from tests.flavour import needs_table_locks
from tests.world import MODES, Setup, World

pytestmark = pytest.mark.certify("concurrency")


@pytest.fixture
def campaign(worlds: Setup) -> Callable[..., World]:
    def make(chunk: dict[str, Any] = INTEGER, *, in_place: bool = False, wait: int = 20) -> World:
        over = initial(chunk, in_place=in_place)
        over["sink"]["options"] = {"lock_timeout_seconds": wait}
        return worlds(*TABLE, manifest_over=over, reconciliation=MODES["timestamp_only"])

    return make


def contents(world: World) -> list[tuple[Any, ...]]:
    """Every row of the target's schema with the load that wrote it, and every receipt."""
    queries = [f"SELECT * FROM {sibling(world, table)} ORDER BY id" for table in world.landed()]
    queries += [f"SELECT * FROM {world.state_name(name)} ORDER BY 1" for name in ("dpone_load_receipt", "dpone_commit_receipt")]
    return [tuple(row) for query in queries for row in world.target.rows(query)]


def race(*steps: tuple[Step, str]) -> list[tuple[Any, ...]]:
    """Each step in a process of its own, all of them waiting for each other before their labels; their answers in order."""
    gate, queues = CONTEXT.Barrier(len(steps)), [CONTEXT.Queue() for _ in steps]
    children = [start(gated, step, label, gate, queue) for (step, label), queue in zip(steps, queues, strict=True)]
    answers = [queue.get(timeout=120) for queue in queues]
    for child in children:
        child.join(30)
    assert all(answer[0] != "crashed" for answer in answers), answers
    return answers


# ---- stopped and killed ---------------------------------------------------------------------------------------------------
def stopped_lane(world: World, label: str) -> tuple[Any, int]:
    """A lane with a lease of one second that stops itself before *label*."""
    answers = CONTEXT.Queue()
    child = start(gated, Step.of(world, "lane", "stopping", ttl=1.0), label, None, answers, True)
    said, pid = answers.get(timeout=60)
    assert said == "stopped"
    return child, pid


def test_a_lane_that_slept_through_its_lease_changes_nothing(campaign: Callable[..., World]) -> None:
    """Outside its transaction: another lane takes the chunk over and finishes; the sleeper wakes, and nothing moves."""
    world = campaign()
    opened(world)
    sleeper, pid = stopped_lane(world, "stage.load")
    other = start(gated, Step.of(world, "lane", "other", number=1, ttl=1.0), "nothing", None, queue := CONTEXT.Queue())
    assert queue.get(timeout=120)[0] == "done"
    other.join(30)
    before = contents(world)
    assert [row[1] for row in chunks(world)] == ["committed"] * 10
    os.kill(pid, signal.SIGCONT)
    sleeper.join(60)
    assert contents(world) == before
    assert published(world).receipt.counts.inserted == 1000
    incremental(world)
    world.run()
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
    assert world.staged() == []


@pytest.mark.parametrize("label", ["chunk.append", "chunk.fence", "transaction.commit"])
def test_a_lane_that_sleeps_inside_its_transaction_stops_only_its_chunk(campaign: Callable[..., World], label: str) -> None:
    """Its locks live as long as it does: all other chunks are committed. Before the fence its epoch is lost, after it its commit counts."""
    world = campaign(wait=1)
    opened(world)
    sleeper, pid = stopped_lane(world, label)
    queue = CONTEXT.Queue()
    other = start(gated, Step.of(world, "lane", "other", number=1, ttl=1.0), "nothing", None, queue)
    until = time.monotonic() + 90
    while sum(row[1] == "committed" for row in chunks(world)) < 9:
        assert time.monotonic() < until, chunks(world)
        time.sleep(0.1)
    (left,) = [row for row in chunks(world) if row[1] != "committed"]
    assert left[0] == 0
    os.kill(pid, signal.SIGCONT)
    sleeper.join(90)
    answer = queue.get(timeout=90)
    assert answer[0] == "done" or answer[1] == "mssql_transaction.lock_timeout", answer
    other.join(30)
    lane(world, "third")
    rows = world.target.rows(f"SELECT count(*), sum(rows_count) FROM {world.state_name('dpone_load_receipt')}")
    assert tuple(map(int, rows[0])) == (10, 1000)
    assert published(world).receipt.counts.inserted == 1000
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_an_abandoned_campaign_s_lane_writes_no_more(campaign: Callable[..., World]) -> None:
    """In place there is no shadow whose absence would stop it."""
    world = campaign(in_place=True)
    opened(world)
    sleeper, pid = stopped_lane(world, "stage.load")
    abandon_campaign(world.route(), "r1", endpoints=world.endpoints)
    before = contents(world)
    os.kill(pid, signal.SIGCONT)
    sleeper.join(60)
    assert refusal(lane, world, "later").code == "campaign.not_open"
    assert contents(world) == before
    assert {row[1] for row in chunks(world)} == {"abandoned"}


def inline(job: Job, answers: Any) -> None:
    job.forgive()
    run_lanes(job.route, job.run_id, 2, endpoints=job.endpoints, progress=lambda event: answers.put(event.event))


def children_of(pid: int) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_lanes_end_with_their_parent(campaign: Callable[..., World]) -> None:
    """SIGKILL leaves the parent no last word; its lanes end by themselves, and another run takes their chunks up."""
    world = campaign({**INTEGER, "step": 25})
    opened(world)
    answers = CONTEXT.Queue()
    parent = start(inline, Job.of(world, "r1"), answers)
    assert answers.get(timeout=120) == "CHUNK_COMPLETE"
    assert parent.pid is not None
    lanes = children_of(parent.pid)
    assert len(lanes) >= 2
    parent.kill()
    parent.join(30)
    until = time.monotonic() + 30
    while any(map(alive, lanes)):
        assert time.monotonic() < until, "orphans are left"
        time.sleep(0.05)
    assert any(row[1] != "committed" for row in chunks(world)), "they were killed in the middle of their work"
    for number in range(2):  # the same lanes of the same run take their own leases back at once
        lane(world, "r1", number)
    assert published(world).receipt.counts.inserted == 1000


def test_lanes_run_in_a_daemonic_worker_too(campaign: Callable[..., World]) -> None:
    """As the pool processes of Celery are."""
    world = campaign()
    opened(world)
    answers = CONTEXT.Queue()
    parent = CONTEXT.Process(target=inline, args=(Job.of(world, "r1"), answers), daemon=True)
    parent.start()
    for _ in range(10):
        assert answers.get(timeout=120) == "CHUNK_COMPLETE"
    parent.join(60)
    assert parent.exitcode == 0
    assert published(world).receipt.counts.inserted == 1000


# ---- at once --------------------------------------------------------------------------------------------------------------
def test_one_campaign_opened_twice_at_once(campaign: Callable[..., World]) -> None:
    world = campaign()
    step = Step.of(world, "open")
    answers = race((step, "lock.application"), (step, "lock.application"))
    done = [answer[1].campaign for answer in answers if answer[0] == "done"]
    assert done and all(found == done[0] for found in done)
    assert all(answer[2] for answer in answers if answer[0] == "refused"), answers
    assert len(chunks(world)) == 10


def test_two_campaigns_for_one_target(campaign: Callable[..., World]) -> None:
    """Each of another handoff: one is opened, the other is told who has the target."""
    world = campaign()
    first = Step.of(world, "open")
    world.manifest_over = {**initial(INTEGER, handoff="orders_v2")}
    second = Step.of(world, "open")
    answers = race((first, "target.has_rows"), (second, "target.has_rows"))
    assert sorted(answer[0] for answer in answers) == ["done", "refused"]
    (refused,) = [answer for answer in answers if answer[0] == "refused"]
    assert refused[1] in ("campaign.target_fenced", "mssql_transaction.conflict")
    assert len(chunks(world)) == 10


def test_two_coordinators_publish_at_once(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    lane(world)
    step = Step.of(world, "publish")
    answers = race((step, "lease.take"), (step, "lease.take"))
    done = [answer[1] for answer in answers if answer[0] == "done"]
    assert [outcome.status for outcome in done].count("committed") == 1
    assert all(answer[1:] == ("invocation.attempt_conflict", True) for answer in answers if answer[0] == "refused")
    assert published(world).status == "replayed"
    assert len(world.target.rows(f"SELECT 1 FROM {world.state_name('dpone_commit_receipt')}")) == 1


def test_a_long_reader_delays_the_exchange_and_not_the_other_readers(
    campaign: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange gives up its place in the queue again and again, until the reader has ended."""
    world = campaign()
    needs_table_locks(world.target)
    opened(world)
    lane(world)
    monkeypatch.setattr("airflow_dpone_xmin.target.publish.SEAL_SECONDS", 0.5)
    monkeypatch.setattr("airflow_dpone_xmin.target.publish.SEAL_PAUSE_SECONDS", 0.2)
    query, attempts, served = f"SELECT count(*) FROM {world.target_name}", 0, set()

    def observer(event: Event) -> None:
        nonlocal attempts
        if (event.phase, event.label) == ("before", "exchange.seal"):
            attempts += 1
            if attempts == 4:
                reader.execute("ROLLBACK")

    def others(stop: threading.Event) -> None:
        with world.target.connect() as connection:
            while not stop.wait(0.01):
                connection.execute(query).fetchone()
                served.add(attempts)

    OBSERVERS.append(observer)
    try:
        with world.target.connect() as reader, beside(others):
            reader.execute("BEGIN TRANSACTION")
            # SQL Server's readers keep a lock to their end only when they ask for one
            reader.execute(query if world.target.kind == "embedded" else f"{query} WITH (TABLOCK, HOLDLOCK)").fetchone()
            assert published(world).receipt.counts.inserted == 1000
    finally:
        OBSERVERS.remove(observer)
    assert attempts >= 4
    assert len(served & {1, 2, 3}) >= 2, "others are served between two attempts, while the long reader still reads"
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_two_lanes_claim_one_chunk(campaign: Callable[..., World]) -> None:
    world = campaign({**INTEGER, "step": 1000})
    opened(world)
    answers = race((Step.of(world, "lane", number=0), "chunk.claim"), (Step.of(world, "lane", number=1), "chunk.claim"))
    assert sorted(answer[1].chunks for answer in answers) == [0, 1]
    assert chunks(world)[0][1:] == ("committed", chunks(world)[0][2], 1)
    assert published(world).receipt.counts.inserted == 1000


def killed(child: Any, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    child.join(30)


def test_what_a_killed_lane_staged_is_dropped_by_the_next_lane(campaign: Callable[..., World]) -> None:
    """Not by the first incremental run only; what a living lane staged stays."""
    world = campaign(wait=1)
    opened(world)
    sleeper = stopped_lane(world, "stage.prove")
    living = world.staged()
    killed(*stopped_lane(world, "stage.prove"))
    assert len(living) == 1 and len(world.staged()) == 2
    third = stopped_lane(world, "stage.prove")
    assert len(world.staged()) == 2 and set(living) < set(world.staged())
    killed(*third)
    killed(*sleeper)
    time.sleep(1.0)  # the leases of their chunks
    lane(world, "at last")
    assert world.staged() == []


def test_what_a_killed_lane_staged_goes_with_its_campaign(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    killed(*stopped_lane(world, "stage.prove"))
    assert len(world.staged()) == 1
    abandon_campaign(world.route(), "r1", endpoints=world.endpoints)
    assert world.staged() == []


@pytest.mark.parametrize("label", ["chunk.merge", "load_receipt.insert", "chunk.fence", "transaction.commit"])
def test_abandoning_races_with_a_lane_s_commit(campaign: Callable[..., World], label: str) -> None:
    """The chunk is committed before the end of the campaign, or not at all; either way nothing of it is left to write to."""
    world = campaign({**INTEGER, "step": 1000}, in_place=True)
    opened(world)
    worker, ender = race((Step.of(world, "lane"), label), (Step.of(world, "abandon"), "campaign.close"))
    if ender[0] == "refused":
        assert ender[2], ender
        abandon_campaign(world.route(), "r1", endpoints=world.endpoints)
    receipts = world.target.rows(f"SELECT 1 FROM {world.state_name('dpone_load_receipt')}")
    assert len(world.target_rows(COLUMNS)) == 1000 * len(receipts)
    if not receipts:
        assert worker[0] == "refused", worker
    assert refusal(lane, world).code == "campaign.not_open"


def test_an_incremental_run_races_with_the_opening(campaign: Callable[..., World]) -> None:
    """A run that was admitted before the campaign finds the fence under its lock; one that committed before it owns the target."""
    world = campaign()
    step = Step.of(world, "open")
    world.manifest_over, world.process = {}, "somebody"
    gate, one, two = CONTEXT.Barrier(2), CONTEXT.Queue(), CONTEXT.Queue()
    children = [start(run_at_gate, Job.of(world, "other"), gate, "stage.index", one), start(gated, step, "target.has_rows", gate, two)]
    run, campaigns = one.get(timeout=120), two.get(timeout=120)
    for child in children:
        child.join(30)
    winners = (run[0] == "committed") + (campaigns[0] == "done")
    assert winners == 1, (run, campaigns)
    if run[0] == "refused":
        assert run[1] in ("campaign.target_fenced", "mssql_transaction.conflict")
        assert world.target_rows(COLUMNS) == []
    else:
        assert campaigns[1] in ("target_ownership.conflict", "mssql_transaction.conflict", "mssql_transaction.lock_timeout")
        assert chunks(world) == []


def test_the_incremental_half_races_with_the_publication(campaign: Callable[..., World]) -> None:
    """It starts from the seed, or it is told that there is none yet."""
    world = campaign()
    opened(world)
    lane(world)
    step = Step.of(world, "publish")
    world.source.run("DELETE FROM orders WHERE id = 7")
    incremental(world)
    gate, one, two = CONTEXT.Barrier(2), CONTEXT.Queue(), CONTEXT.Queue()
    label = "exchange.table" if world.target.kind == "embedded" else "exchange.rename"
    children = [start(run_at_gate, Job.of(world, "other"), gate, None, one), start(gated, step, label, gate, two)]
    run, publication = one.get(timeout=120), two.get(timeout=120)
    for child in children:
        child.join(30)
    assert publication[0] == "done", publication
    assert run[0] == "committed" or run[1] in ("campaign.target_fenced", "checkpoint.seed_missing", "DPONE_TARGET_UNSUPPORTED"), run
    world.run()
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
