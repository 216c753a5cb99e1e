"""Runs of a history: real ones, repeated, raced, broken and approved ones, each judged by the oracle."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.contracts.state import Invocation, Receipt
from airflow_dpone_xmin.runtime.evidence import Outcome
from airflow_dpone_xmin.runtime.reconcile import dry_run
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.repair import RepairSelection
from tests.approvals import Owner
from tests.children import Job, start
from tests.faults.grounds import kill_session, wait_until_quiet
from tests.faults.matrix import Boundary, Counting, observing, raise_fault, run_and_die
from tests.model.history import History
from tests.model.oracle import Approval, Change, Guards, Rows, Stored, exact, listing
from tests.model.servers import Servers, log_writer_wakes
from tests.world import READER

MARKS = ("__dpone__deleted_at", "__dpone__is_deleted")
#: The first step after the source is closed.
READ = Boundary("stage.create", "before", 1)
#: While the source is being read: a change could be seen by one half of a run only.
READING = (Boundary("progress.POSTGRES_SNAPSHOT_OPEN", "after", 1), Boundary("progress.POSTGRES_COPY_COMPLETE", "after", 1))
#: Between the halves of a run.
BETWEEN = (
    *READING,
    Boundary("progress.POSTGRES_KEYS_COMPLETE", "after", 1),
    READ,
    Boundary("finalize.classify", "before", 1),
)
#: The steps of the one transaction; a run that does not take one is not broken.
STEPS = (
    *(Boundary(f"finalize.{action}", "after", 1) for action in ("delete", "update", "reactivate", "insert")),
    *(Boundary(label, "after", 1) for label in ("checkpoint.compare_and_set", "checkpoint.insert", "head.update", "receipt.insert")),
)
#: With its commit and those before it.
DECISIVE = (
    *STEPS,
    *(Boundary("transaction.commit", phase, nth) for phase in ("before", "after") for nth in (1, 2, 3)),
)
FINISHED = Boundary("progress.FINALIZE_COMPLETE", "after", 1)
#: A lost race of two runs: retryable, nothing happened.
LOST_RACE = ("checkpoint.conflict", "mssql_transaction.conflict", "mssql_transaction.lock_timeout")


class Position(NamedTuple):
    """Everything that must move together or not at all."""

    columns: tuple[str, ...]
    rows: tuple[Any, ...]
    checkpoint: tuple[Any, ...]
    head: tuple[Any, ...]
    receipts: tuple[Any, ...]


@dataclass
class Attempt:
    """What one run did.

    :param snapshot: committed rows at the moment when its snapshot was taken; None when it never opened the source.
    """

    outcome: Outcome | None = None
    error: XminError | None = None
    snapshot: Rows | None = None
    seen: list[Boundary] = field(default_factory=list)


class Runs(History):
    """A history that runs.

    :param approver: approves what the guards stop.
    """

    def __init__(self, servers: Servers, approver: Owner, *, kind: str, mode: str, guards: Guards, may_alter: bool) -> None:
        super().__init__(servers, kind=kind, mode=mode, guards=guards, may_alter=may_alter)
        self._approver = approver
        self.receipts: dict[str, Receipt] = {}
        self.boundaries: list[Boundary] = []
        self._committed_shape = -1
        self._stopped = ""

    # ---- runs -------------------------------------------------------------------------------------------------------------
    def run(self, *, amid: Callable[[], None] | None = None, at: int | Boundary = 0) -> Attempt:
        """One run, and its judgement; the source may change under it, at any boundary of the run.

        :param at: boundary of the last healthy run, modulo their number.
        """
        before, run_id = self.position(), _run_id()
        attempt = self._attempt(run_id, at=self._boundary(at) if amid else None, act=lambda _: amid() if amid else None)
        self.judge(run_id, attempt, before)
        if attempt.outcome is not None:
            self.boundaries = attempt.seen
        return attempt

    def run_again(self, run_id: str) -> None:
        """The same invocation answers from its receipt; the source is not looked up, and nothing moves."""
        before = self.position()

        def closed(entry: str, *, conn_id: str) -> Endpoint:
            assert entry != "src", "a replay opened the source"
            return self.world.endpoints(entry, conn_id=conn_id)

        outcome = self.world.run(run_id, endpoints=closed)
        receipt = self.receipts[run_id]
        assert (outcome.status, outcome.receipt.receipt_id) == ("replayed", receipt.receipt_id)
        assert outcome.receipt.counts == receipt.counts
        assert self._unchanged(before)

    def run_broken(self, kind: str, at: int | Boundary) -> None:
        """Break a run at a boundary: all old or all new; then its retry converges.

        :param kind: ``raised``, ``process``, ``session`` (of the target) or ``source``.
        """
        before, run_id, boundary = self.position(), _run_id(), self._boundary(at)
        if kind == "process":
            child = start(_run_and_die, Job.of(self.world, run_id), boundary)
            for _ in range(600):
                child.join(0.1)
                if child.exitcode is not None:
                    break
                log_writer_wakes(self.world.source.cluster)
            assert child.exitcode is not None, "the child ended"
            attempt = Attempt(snapshot=dict(self.source.committed))
        else:
            act = {"raised": raise_fault, "session": partial(kill_session, self.world), "source": self._end_reader}[kind]
            attempt = self._attempt(run_id, at=boundary, act=act)
        self._follow_ddl()
        after, unchanged = self.position(), self._unchanged(before)
        retry = self._attempt(run_id)
        if len(after.receipts) > len(before.receipts):
            assert retry.outcome is not None and retry.outcome.status == "replayed", f"{kind} at {boundary}: a commit is found by its retry"
            assert attempt.snapshot is not None
            self._committed(run_id, retry.outcome.receipt, attempt.snapshot, before)
        else:
            assert unchanged, f"{kind} at {boundary}: a failed run changed something"
            self.judge(run_id, retry, after)

    def compete(self, label: str | None, *, same: bool) -> None:
        """Two runs at once, which meet before step *label*; each commits or may be retried, and revisions stay gapless."""
        before = self.position()
        run_ids = [_run_id()] * 2 if same else [_run_id(), _run_id()]
        attempts = _race([lambda run_id=run_id: self._attempt(run_id) for run_id in run_ids], label)  # type: ignore[misc]
        self._follow_ddl()
        done = [(run_id, attempt) for run_id, attempt in zip(run_ids, attempts, strict=True) if attempt.outcome is not None]
        for attempt in attempts:
            if attempt.error is not None and attempt.error.code not in LOST_RACE:
                assert attempt.error.code == self._expected_stop(self.source.committed), attempt.error
        if same:
            assert len({a.outcome.receipt.receipt_id for _, a in done if a.outcome}) <= 1
            done = done[:1]
        for run_id, attempt in sorted(done, key=lambda item: item[1].outcome.receipt.new_revision if item[1].outcome else 0):
            assert attempt.outcome is not None
            self._count(run_id, attempt.outcome.receipt, self.source.committed)
        if not done:
            assert self._expected_stop(self.source.committed) is not None, "one of two runs wins"
            assert self._unchanged(before)
        self._compare(self.position(), revisions=len(before.receipts) + len(done))

    def approve(self, changes: Sequence[Change] = ()) -> None:
        """A run; when a guard stops it, its owner approves exactly what it saw, and the same invocation runs again.

        :param changes: of the source, between the approval and the approved run.
        """
        attempt = self.run()
        if attempt.error is None:
            return self.write(changes)
        run_id = self._stopped
        if attempt.error.code == "DPONE_SCHEMA_EVOLUTION_REQUIRED":
            self.reader.execute("; ".join(attempt.error.details["ddl"]))  # type: ignore[call-overload]
            self._follow_ddl()
            return self.approve(changes)
        before = self.position()
        proposal = self._approver.propose(self.world, run_id, f"fix-{uuid.uuid4().hex}")
        selection = self._approver.approve(self.world, proposal)
        self.write(changes)
        ratio = proposal.allow.max_delete_ratio
        allowed = Approval(proposal.allow.max_delete_rows, None if ratio is None else Fraction(ratio), proposal.allow.full_baseline)
        self.judge(run_id, self._attempt(run_id, repair=selection), before, approval=allowed)

    def preview(self) -> None:
        """A dry run says what would stop a run, or counts what it would do; it changes nothing."""
        before = self.position()
        snapshot, expected = self.source.committed, self._expected_stop(self.source.committed)
        route = self.world.route()
        if self.target_columns != self.source.columns:
            expected = "DPONE_SCHEMA_EVOLUTION_REQUIRED"
        try:
            seen = dry_run(route, Invocation(route.process, _run_id()), endpoints=self.world.endpoints)
            found = None if seen.refusal is None else seen.refusal.code
            if self.target.reconciles:
                assert seen.classification.missing == len(self.target.missing(snapshot))
                assert seen.classification.absent == len(set(snapshot) - set(self.target.active) - set(self.target.tombstones))
        except XminError as error:
            found = error.code
        assert found == expected
        assert self._unchanged(before)

    def quiesce(self) -> None:
        """End everything; after one more run, approved if it must be, target and source are equal."""
        self.settle()
        self.approve()
        found = listing(self.world.target_rows(self.target_columns))
        real = listing(self.world.source_rows(self.source.columns))
        assert set(real) <= set(found) if self.target.mode == "never" else real == found
        assert self.world.staged() == []
        assert list(self.world.work_dir.iterdir()) == []

    # ---- judging ----------------------------------------------------------------------------------------------------------
    def judge(self, run_id: str, attempt: Attempt, before: Position, *, approval: Approval | None = None) -> None:
        """Committed: the target is the oracle's. Refused: as the oracle foretold, and nothing changed."""
        self._follow_ddl(attempt.snapshot)
        assert attempt.snapshot is not None, attempt.error
        if attempt.outcome is not None:
            expected = self._expected_stop(attempt.snapshot, approval=approval)
            assert expected is None, f"{expected} should have stopped this run"
            assert attempt.outcome.status == "committed"
            self._committed(run_id, attempt.outcome.receipt, attempt.snapshot, before)
            return
        assert attempt.error is not None
        assert attempt.error.code == self._expected_stop(attempt.snapshot, approval=approval), attempt.error
        assert self._unchanged(before)
        self._stopped = run_id

    def _committed(self, run_id: str, receipt: Receipt, snapshot: Rows, before: Position) -> None:
        self._count(run_id, receipt, snapshot)
        self._compare(self.position(), revisions=len(before.receipts) + 1)

    def _count(self, run_id: str, receipt: Receipt, snapshot: Rows) -> None:
        """Move the oracle over one commit; the receipt must say the same."""
        full = self._committed_shape != self.shape
        reason = "delta" if not full else "baseline" if self._committed_shape < 0 else "projection_changed"
        assert (receipt.payload_reason, receipt.payload.value) == (reason, "full" if full else "delta")
        expected = self.target.apply(snapshot, load=str(receipt.load_id), detected_at=receipt.detected_at)
        seen = receipt.counts
        assert expected == {name: getattr(seen, name) for name in expected}, (expected, seen)
        assert seen.payload == seen.inserted + seen.updated + seen.reactivated + seen.unchanged
        assert seen.payload <= len(snapshot) and (not full or seen.payload == len(snapshot))
        assert not self.target.reconciles or seen.keys == seen.active_after == len(snapshot)
        assert receipt.previous_xmin is None or receipt.previous_xmin <= receipt.new_xmin
        self.receipts[run_id] = receipt
        self._last, self._committed_shape = receipt, self.shape

    def _compare(self, now: Position, *, revisions: int) -> None:
        """Target, checkpoint, head and receipts against the oracle."""
        expected = [self._target_row(stored, deleted=False) for stored in self.target.active.values()]
        expected += [self._target_row(stored, deleted=True) for stored in self.target.tombstones.values()]
        assert list(now.rows) == sorted(expected), f"target {now.rows}, oracle {sorted(expected)}"
        assert [row[0] for row in now.receipts] == list(range(1, revisions + 1))
        if revisions:
            last = self._last
            wanted = (revisions, str(last.load_id))
            assert now.checkpoint == ((*wanted, last.new_xmin),)
            assert now.head == (wanted,)
            assert now.receipts[-1][1:] == (str(last.load_id), last.new_xmin, str(last.receipt_id))

    def _target_row(self, stored: Stored, *, deleted: bool) -> str:
        return exact((*stored.row, stored.load, *self._marks(dict(zip(MARKS, (stored.deleted_at, deleted), strict=True)))))

    def _marks(self, of: dict[str, Any]) -> list[Any]:
        """Those of the two delete markers that the mode has."""
        has = {"timestamp_only": MARKS[:1], "timestamp_and_flag": MARKS, "flag_only": MARKS[1:]}
        return [of[name] for name in has.get(self.target.mode, ())]

    def _expected_stop(self, snapshot: Rows, *, approval: Approval | None = None) -> str | None:
        if self.target_columns != self.source.columns and not self.may_alter:
            return "DPONE_SCHEMA_EVOLUTION_REQUIRED"
        return self.target.stop(snapshot, full=self._committed_shape != self.shape, approval=approval)

    def _unchanged(self, before: Position) -> bool:
        """Whether everything is as before; DDL of the run itself may have added a column, which the next commit judges."""
        return self.position(before.columns) == before

    def _follow_ddl(self, snapshot: Rows | None = None) -> None:
        """Learn which of the source's columns the target has: only those may have been added."""
        query = "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'landing' AND column_name !~ '^__dpone__'"
        live = [row[0] for row in self.reader.execute(query + " ORDER BY ordinal_position").fetchall()]  # type: ignore[call-overload]
        added = self.source.columns[len(self.target_columns) :]
        live = [name for name in self.source.columns if name in live]
        assert live in (self.target_columns, [*self.target_columns, *added])
        for name in live[len(self.target_columns) :]:
            self.target_columns.append(name)
            self.target.widen()

    def position(self, columns: tuple[str, ...] = ()) -> Position:
        """Everything as it is, once no session of the product is left."""
        wait_until_quiet(self.reader)
        named = columns or tuple(self.target_columns)
        selected = ", ".join([*named, "__dpone__load_id::text", *self._marks({name: name for name in MARKS})])
        state = self.world.state_name

        def read(query: str) -> tuple[Any, ...]:
            return tuple(tuple(row) for row in self.reader.execute(query).fetchall())  # type: ignore[call-overload]

        return Position(
            columns=named,
            rows=tuple(sorted(exact(row) for row in read(f"SELECT {selected} FROM {self.world.target_name}"))),
            checkpoint=read(f"SELECT revision, load_id::text, safe_xmin FROM {state('dpone_source_state')}"),
            head=read(f"SELECT revision, load_id::text FROM {self.world.dbo_name('dpone_target_head')}"),
            receipts=read(
                f"SELECT new_revision, load_id::text, new_xmin, receipt_id::text FROM {state('dpone_commit_receipt')} ORDER BY 1"
            ),
        )

    # ---- details ----------------------------------------------------------------------------------------------------------
    def _attempt(
        self,
        run_id: str,
        *,
        at: Boundary | None = None,
        act: Callable[[Any], None] | None = None,
        repair: RepairSelection | None = None,
    ) -> Attempt:
        attempt, counting = Attempt(), Counting(at, act)

        def progress(event: Progress) -> None:
            if event.event == "POSTGRES_SNAPSHOT_OPEN":
                attempt.snapshot = dict(self.source.committed)
            counting.progress(event)

        with observing(counting):
            try:
                attempt.outcome = self.world.run(run_id, progress=progress, repair=repair)
            except XminError as error:
                attempt.error = error
        attempt.seen = counting.seen
        return attempt

    def _end_reader(self, _: object) -> None:
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND usename = %s"
        self.owner.execute(query, [READER])

    def _boundary(self, at: int | Boundary) -> Boundary:
        """Boundary number *at* of the last healthy run; a negative one lies inside its transaction on the target."""
        if isinstance(at, Boundary):
            return at
        found = self.boundaries
        if at < 0 and found:
            found = found[found.index(Boundary("finalize.classify", "before", 1)) : found.index(FINISHED)]
        return found[at % len(found)] if found else Boundary("transaction.commit", "before", 1 + at % 4)


def _run_and_die(job: Job, boundary: Boundary) -> None:
    """Body of a child, which may be refused before it comes to the boundary."""
    with contextlib.suppress(XminError):
        run_and_die(job, boundary)


def _run_id() -> str:
    return uuid.uuid4().hex


def _race(runs: Sequence[Callable[[], Attempt]], label: str | None) -> list[Attempt]:
    """Run all in threads that wait for each other before step *label*, or at the start; one that ends early frees the others."""
    gate, here = threading.Barrier(len(runs)), threading.local()
    found: list[Any] = [None] * len(runs)

    def meet() -> None:
        if not getattr(here, "met", False):
            here.met = True
            with contextlib.suppress(threading.BrokenBarrierError):
                gate.wait(60)

    def observer(event: Event) -> None:
        if (event.phase, event.label) == ("before", label):
            meet()

    def work(index: int) -> None:
        try:
            if label is None:
                meet()
            found[index] = runs[index]()
        except BaseException as error:
            found[index] = error
        finally:
            gate.abort()

    OBSERVERS.append(observer)
    try:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(runs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        OBSERVERS.remove(observer)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found
