"""The fault matrix: find every boundary of a run, break the run there, and look at what the servers hold afterwards.

A boundary is one (label, phase, n-th time) of an executed statement, a commit, a bulk load or a progress event. It is recorded from a
run, never listed by hand. Where each state begins, and how a session dies, is the server's: :mod:`tests.faults.grounds`.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Any, Literal, NamedTuple

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.repair import RepairSelection
from tests.certification.record import Record, record_states
from tests.certification.verdict import States
from tests.children import Job, die, start
from tests.faults.grounds import ground_of
from tests.world import MSSQL_URL, World

Kind = Literal["raised", "session", "process", "lost_ack"]
COLUMNS = ("id", "code", "qty", "note")
#: Seconds of a sample, and of every state; a T-SQL server is asked over the network, and makes the beginning of each state anew.
LIMIT, NIGHTLY_LIMIT = (3600, 86_400) if os.environ.get(MSSQL_URL) else (600, 7200)

TURN = int(os.environ.get("DPONE_TEST_TURN") or date.today().toordinal())
"""Which part of the states a sample takes; a failure tells it, and the variable brings it back."""

#: Reads of admission that repeat per catalog table or grant: nothing happens between them, so a sample keeps the first and the last.
REPEATED = ("describe.table", "describe.columns", "describe.indexes", "describe.triggers", "describe.constraints", "grants.check")


class Boundary(NamedTuple):
    """Where a run is broken."""

    label: str
    phase: str
    nth: int

    def __str__(self) -> str:
        return f"{self.phase} {self.label} #{self.nth}"


@dataclass(frozen=True)
class Position:
    """What must move together, read by the owner after everything is quiet."""

    rows: tuple[Any, ...]
    checkpoint: tuple[Any, ...]
    head: tuple[Any, ...]
    receipts: tuple[Any, ...]
    consumptions: tuple[Any, ...] = ()


class Counting:
    """Counts boundaries and calls *act* at one of them, once."""

    def __init__(self, at: Boundary | None = None, act: Callable[[Event | Progress], None] | None = None) -> None:
        self.seen: list[Boundary] = []
        self.hit = False
        self._at, self._act = at, act
        self._counts: Counter[tuple[str, str]] = Counter()

    def event(self, event: Event) -> None:
        """An observer of the target's sessions."""
        self._pass(event.label, event.phase, event)

    def progress(self, progress: Progress) -> None:
        """A listener of the run: the source side's phases."""
        if progress.event != "POSTGRES_COPY_PROGRESS":
            self._pass(f"progress.{progress.event}", "after", progress)

    def _pass(self, label: str, phase: str, what: Event | Progress) -> None:
        self._counts[label, phase] += 1
        boundary = Boundary(label, phase, self._counts[label, phase])
        self.seen.append(boundary)
        if boundary == self._at and not self.hit:
            self.hit = True
            assert self._act is not None
            self._act(what)


@contextmanager
def observing(counting: Counting) -> Iterator[None]:
    """Listen to every target session of this process."""
    OBSERVERS.append(counting.event)
    try:
        yield
    finally:
        OBSERVERS.remove(counting.event)


@dataclass
class Matrix:
    """One scenario: a source with pending changes, and a target that is as it was before them.

    :param run_id: of the run under test.
    :param repair: the approval that it selects.
    :param generation: how often changes were made.
    """

    world: World
    reason: str = "delta"
    run_id: str = ""
    repair: RepairSelection | None = None
    generation: int = 0
    old: Position | None = None
    boundaries: list[Boundary] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    divergent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ground = ground_of(self.world)

    @property
    def scenario(self) -> str:
        """What is broken, for a report."""
        return "incremental run"

    def attempt_all(self, kind: Kind, states: Sequence[Boundary], record: Record) -> None:
        """Try the states; hand over, and print, how many there were of how many."""
        tried: list[str] = []
        try:
            for boundary in states:
                self.attempt(boundary, kind)
                tried.append(str(boundary))
        finally:
            found = len(every(self.boundaries, kind))
            record_states(record, States(self.scenario, kind, found, tuple(tried), tuple(self.divergent)))
            print(
                f"{self.scenario}, {kind}: {len(tried)} states of {found}; divergent states: {len(self.divergent)}; DPONE_TEST_TURN={TURN}"
            )
        assert states, "no boundary was found"
        assert self.divergent == []

    def prepare(self) -> None:
        """The run under test begins here. Records its boundaries from one healthy run."""
        self.world.route()  # observes and remembers the pins
        self.ground.keep(self.world, self.pend)
        self.reset()
        counting = Counting()
        with observing(counting):
            outcome = self.world.run(self.run_id, repair=self.repair, progress=counting.progress)
        assert outcome.receipt.payload_reason == self.reason
        assert outcome.status == "committed"
        assert self.is_new(self.position())
        self.boundaries = counting.seen

    def pend(self) -> None:
        """The changes of one run: a row is deleted, one comes back, one changes and one is new."""
        self.generation += 1
        self.run_id = f"fault-{self.generation}"
        gone, there = (1, 2) if self.generation % 2 else (2, 1)
        self.world.source.run(
            f"DELETE FROM orders WHERE id IN ({there}, {99 + self.generation})",
            f"INSERT INTO orders VALUES ({gone}, 'back', 1, NULL), ({100 + self.generation}, 'new', 9, '')",
            f"UPDATE orders SET qty = -{self.generation} WHERE id = 3",
        )

    def few(self, states: Sequence[Boundary]) -> Sequence[Boundary]:
        """A sample that costs no more than it may: without copies, both sides of the last commit, and two of the others in their turn."""
        if self.ground.copies:
            return states
        ends = [b for b in states if b.label == "transaction.commit"][-2:]
        others = [b for b in states if b not in ends]
        return [*its_turn(others, -(-len(others) // 2)), *ends]

    def reset(self) -> None:
        """Changes are pending again; what the target holds now is old."""
        self.ground.reset(self.world, self.pend)
        self.old = self.position()

    def drop(self) -> None:
        """Remove what the ground kept."""
        self.ground.drop(self.world)

    # ---- looking ----------------------------------------------------------------------------------------------------------
    def position(self, name: str = "") -> Position:
        """The state once no session of the product is left."""
        self.ground.wait_until_quiet(self.world, name)
        return self.read_position()

    def read_position(self) -> Position:
        """The state as it is committed now."""
        world = self.world

        def read(query: str) -> tuple[Any, ...]:
            return tuple(tuple(row) for row in world.target.rows(query))

        return Position(
            rows=read(f"SELECT * FROM {world.target_name} ORDER BY id"),
            checkpoint=read(f"SELECT revision, safe_xmin, load_id, receipt_id FROM {world.state_name('dpone_source_state')}"),
            head=read(f"SELECT revision, load_id, state_key FROM {world.dbo_name('dpone_target_head')}"),
            receipts=read(
                f"SELECT new_revision, new_xmin, load_id, receipt_id, run_id FROM {world.state_name('dpone_commit_receipt')} ORDER BY 1, 4"
            ),
        )

    def is_new(self, position: Position) -> bool:
        """Whether target, checkpoint, head and receipt all name one new commit, and the target equals the source."""
        assert self.old is not None
        if len(position.receipts) != len(self.old.receipts) + 1:
            return False
        (checkpoint,), (head,), receipt = position.checkpoint, position.head, position.receipts[-1]
        return (
            checkpoint[0] == head[0] == receipt[0] == self.old.checkpoint[0][0] + 1
            and checkpoint[1] == receipt[1]
            and checkpoint[2] == head[1] == receipt[2]
            and checkpoint[3] == receipt[3]
            and receipt[4] == self.run_id
            and self.world.target_rows(COLUMNS) == self.world.source_rows(COLUMNS)
        )

    # ---- breaking ---------------------------------------------------------------------------------------------------------
    def attempt(self, boundary: Boundary, kind: Kind) -> None:
        """One state: break the run at *boundary*, judge what is left, retry the same invocation, judge again."""
        name = f"{kind}: {boundary}"
        self.reset()
        error = self._in_child(boundary) if kind == "process" else self._here(boundary, kind)
        if error is not None and not isinstance(error, XminError):
            raise AssertionError(f"{name}: {type(error).__name__} instead of a typed error") from error
        left = self.position(name)
        self.states[kind] += 1
        if left != self.old and not self.is_new(left):
            self.divergent.append(name)
            return
        outcome = self.world.run(self.run_id, repair=self.repair)
        assert (outcome.status == "replayed") is (left != self.old), f"{name}: a retry of a committed run answers from its receipt"
        if not self.is_new(self.position()):
            self.divergent.append(f"{name}, after its retry")
        if outcome.status == "replayed":
            self.world.run()  # a replay moves nothing; the next run sweeps
        assert self.world.staged() == [], f"{name}: staging tables are left"
        assert not self.world.work_dir.exists() or list(self.world.work_dir.iterdir()) == [], f"{name}: a work directory is left"

    def act_of(self, kind: Kind) -> Callable[[Event | Progress], None]:
        """What happens at the boundary, in this process."""
        return partial(self.ground.end_session, self.world) if kind == "session" else raise_fault

    def _here(self, boundary: Boundary, kind: Kind) -> BaseException | None:
        counting = Counting(boundary, self.act_of(kind))
        error: BaseException | None = None
        with observing(counting):
            try:
                self.world.run(self.run_id, repair=self.repair, progress=counting.progress)
            except Exception as caught:
                error = caught
        assert counting.hit, f"{boundary} was not hit"
        return error

    def _in_child(self, boundary: Boundary) -> None:
        child = start(run_and_die, Job.of(self.world, self.run_id, repair=self.repair), boundary)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL, f"{boundary} was not hit: exit code {child.exitcode}"


def run_and_die(job: Job, boundary: Boundary) -> None:
    """Body of a child: run, and be killed at *boundary*."""
    counting = Counting(boundary, lambda _: die())
    with observing(counting):
        job.run(progress=counting.progress)


def raise_fault(_: Event | Progress) -> None:
    raise XminError("mssql_transaction.statement_failed", "A fault was injected here.")


def every(boundaries: list[Boundary], kind: Kind) -> list[Boundary]:
    """All states: each boundary, both sides of it; an acknowledgement is lost after a commit only."""
    return [b for b in boundaries if kind != "lost_ack" or (b.label == "transaction.commit" and b.phase == "after")]


def sample(boundaries: list[Boundary], kind: Kind) -> list[Boundary]:
    """The states of the default run: every label of the one transaction, and of the rest the part whose turn it is.

    :data:`REPEATED` reads of admission are tried first and last only. A raised error after a step is the error before the next one, so
    the phase ``after`` is tried where something was made durable; the slower kinds take every twelfth of the rest.
    """
    last: dict[str, int] = {}
    for boundary in boundaries:
        last[boundary.label] = max(last.get(boundary.label, 0), boundary.nth)
    durable = ("transaction.commit", "stage.create", "stage.load", "audit.insert")
    kept = [b for b in boundaries if b.label not in REPEATED or b.nth in (1, last[b.label])]
    if kind == "lost_ack":
        return every(kept, kind)
    certain = [b for b in kept if b.label in durable]
    others = [b for b in kept if b.label not in durable and (b.phase == "before" or b.label.startswith("progress."))]
    if kind != "raised":
        return certain + its_turn(others, 12)
    inside = [b for b in from_the_last_lock(boundaries) if b in others]
    labels = dict.fromkeys(b.label for b in inside)
    certain += [b for label in labels for b in its_turn([other for other in inside if other.label == label], 4)]
    return certain + its_turn([b for b in others if b not in inside], 12)


def from_the_last_lock(boundaries: Sequence[Boundary]) -> Sequence[Boundary]:
    """What follows the begin of the last transaction, the one that everything commits in."""
    return boundaries[max(number for number, b in enumerate(boundaries) if (b.label, b.phase) == ("transaction.begin", "before")) :]


def its_turn(boundaries: Sequence[Boundary], share: int) -> list[Boundary]:
    """Each *share*-th of them, at least one; which, changes from day to day, so that all have had their turn after *share* days."""
    return list(boundaries[TURN % max(1, min(share, len(boundaries))) :: max(1, share)])
