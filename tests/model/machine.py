"""The state machine: hypothesis chooses what happens next, and shrinks a history that breaks a promise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.approvals import Owner
from tests.faults.matrix import Boundary
from tests.model.history import KEYS, NEW_COLUMNS, REWRITES, TABLE
from tests.model.oracle import Change, Guards, Rows, Transaction
from tests.model.runs import BETWEEN, DECISIVE, READ, READING, STEPS, Runs
from tests.model.servers import Servers
from tests.world import MODES

GUARDS = (Guards(), Guards(ratio="0.4"), Guards(rows=1), Guards(rows=3, ratio="0.5"))
NEXT = st.integers(0, 2**16)
INSIDE = st.integers(-(2**16), -1)
#: How many steps of the source's life lie between two runs at least: a run is the dearest step, and after little it proves little.
BETWEEN_RUNS = (2, 2, 3, 3, 1, 0)


def step(act: Callable[..., None]) -> Callable[..., None]:
    """A rule; after one that failed, nothing is judged any more."""

    @functools.wraps(act)
    def guarded(self: Machine, *args: Any, **kw: Any) -> None:
        self.healthy = False
        act(self, *args, **kw)
        self.healthy = True
        self._servers.tally[act.__name__] += 1
        self.lived += 1

    return guarded


def ready(self: Machine) -> bool:
    """Whether enough has happened since the last run for another one."""
    return self.lived >= self.pause


def runs(act: Callable[..., None]) -> Callable[..., None]:
    """A step that runs."""

    @functools.wraps(act)
    def restarting(self: Machine, *args: Any, **kw: Any) -> None:
        act(self, *args, **kw)
        self.lived = -1  # the step itself counts

    return step(restarting)


def rules_of(machine: type) -> dict[str, Any]:
    """The rules of a state machine, as hypothesis keeps them, by name."""
    found = {name: getattr(member, "hypothesis_stateful_rule", None) for name, member in vars(machine).items()}
    return {name: rule for name, rule in found.items() if rule is not None}


class Machine(RuleBasedStateMachine):
    """Histories of one route.

    :param before_wrap: how many transaction ids the source has left before its counter wraps; None far away from it.
    """

    def __init__(self, servers: Servers, approver: Owner, *, before_wrap: int | None = None) -> None:
        super().__init__()
        self._servers, self._approver, self._before_wrap = servers, approver, before_wrap
        self.history: Runs | None = None
        self.healthy = False
        self.lived, self.pause = 0, 0

    @property
    def h(self) -> Runs:
        assert self.history is not None
        return self.history

    # ---- a tour ----------------------------------------------------------------------------------------------------------------
    def tour(self, data: st.DataObject) -> None:
        """Take every rule at least once, in random order; between them come what leads to it, again and again."""
        every, leading = rules_of(Machine), ("end", "begin", "end_prepared", "write")
        self._take(Machine.begin_history.hypothesis_stateful_initialize_rule, data)  # type: ignore[attr-defined]
        waiting = dict(every)
        while waiting:
            name = data.draw(st.sampled_from([name for name in (*waiting, *leading) if self._possible(every[name])]))
            waiting.pop(name, None)
            self._take(every[name], data)

    def _possible(self, rule: Any) -> bool:
        return all(holds(self) for holds in rule.preconditions)

    def _take(self, rule: Any, data: st.DataObject) -> None:
        arguments = {name: data.draw(strategy) for name, strategy in rule.arguments.items()}
        note(f"{rule.function.__name__}({arguments})")
        rule.function(self, **arguments)

    # ---- the beginning and the end ------------------------------------------------------------------------------------------
    @initialize(
        kind=st.sampled_from(sorted(KEYS)),
        mode=st.sampled_from(sorted(MODES)),
        guards=st.sampled_from(GUARDS),
        may_alter=st.booleans(),
        near=st.integers(0, 60),
        pause=st.sampled_from(BETWEEN_RUNS),
        data=st.data(),
    )
    @runs
    def begin_history(self, kind: str, mode: str, guards: Guards, may_alter: bool, near: int, pause: int, data: st.DataObject) -> None:
        self.pause = pause
        self.history = Runs(self._servers, self._approver, kind=kind, mode=mode, guards=guards, may_alter=may_alter)
        if self._before_wrap is not None:
            self.h.burn(max(0, self.h.before_wrap() - near))
        self.h.write(self._changes(data, count=data.draw(st.integers(0, 5))))
        self.h.run()

    def teardown(self) -> None:
        if self.history is None:
            return
        try:
            if self.healthy:
                if self._before_wrap is not None:
                    self._cross()
                self.h.quiesce()
                self._servers.tally["histories"] += 1
        finally:
            self.h.close()

    def _cross(self) -> None:
        """A history that has not come to the wrap does so before its last run, and rows change behind it."""
        self.h.settle()
        left = self.h.before_wrap()
        self._servers.tally["histories that crossed the wrap on their way"] += left <= 0
        self.h.burn(max(0, left))
        self.h.write([self.h.anything()])

    # ---- the source's life --------------------------------------------------------------------------------------------------
    @rule(data=st.data(), count=st.integers(1, 3))
    @step
    def write(self, data: st.DataObject, count: int) -> None:
        self.h.write(self._changes(data, count=count))

    @precondition(lambda self: len(self.h.source.open) < 3)
    @rule(data=st.data(), with_id=st.booleans(), count=st.integers(0, 2))
    @step
    def begin(self, data: st.DataObject, with_id: bool, count: int) -> None:
        """Open a transaction; until it writes it holds at most an id, and no lock on the table."""
        number = min(set(range(3)) - set(self.h.source.open))
        self.h.begin(number, with_id=with_id)
        self.h.write(self._changes(data, count=count, own=self.h.source.open[number]), number)

    @precondition(lambda self: self.h.source.open)
    @rule(data=st.data(), pick=NEXT, count=st.integers(1, 2))
    @step
    def write_in_transaction(self, data: st.DataObject, pick: int, count: int) -> None:
        number = self._open(pick)
        self.h.write(self._changes(data, count=count, own=self.h.source.open[number]), number)

    @precondition(lambda self: self.h.source.open)
    @rule(data=st.data(), pick=NEXT, depth=NEXT, action=st.sampled_from(["SAVEPOINT", "SAVEPOINT", "ROLLBACK TO", "RELEASE"]))
    @step
    def savepoint(self, data: st.DataObject, pick: int, depth: int, action: str) -> None:
        """A savepoint, with a change inside it, or the end of one."""
        number = self._open(pick)
        own = self.h.source.open[number]
        if action == "SAVEPOINT" or not own.savepoints:
            self.h.savepoint(number, "SAVEPOINT", len(own.savepoints))
            self.h.write(self._changes(data, count=1, own=own), number)
        else:
            self.h.savepoint(number, action, depth % len(own.savepoints))

    @precondition(lambda self: self.h.source.open)
    @rule(pick=NEXT, action=st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK"]))
    @step
    def end(self, pick: int, action: str) -> None:
        self.h.end(self._open(pick), action)

    @precondition(lambda self: self.h.source.open and len(self.h.source.prepared) < 2)
    @rule(pick=NEXT)
    @step
    def prepare(self, pick: int) -> None:
        self.h.end(self._open(pick), "PREPARE TRANSACTION")

    @precondition(lambda self: self.h.source.prepared)
    @rule(pick=NEXT, action=st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK"]))
    @step
    def end_prepared(self, pick: int, action: str) -> None:
        names = list(self.h.source.prepared)
        self.h.end_prepared(names[pick % len(names)], action)

    @rule(pick=NEXT, data=st.data(), count=st.integers(0, 2))
    @step
    def rewrite(self, pick: int, data: st.DataObject, count: int) -> None:
        """Rows change, and the table is written anew with them."""
        self.h.write(self._changes(data, count=count))
        possible = [statement for statement, exclusive in REWRITES if self.h.source.unlocked or not exclusive]
        self.h.rewrite(possible[pick % len(possible)])

    @precondition(lambda self: self.h.source.unlocked)
    @rule(data=st.data(), count=st.integers(0, 3))
    @step
    def truncate(self, data: st.DataObject, count: int) -> None:
        self.h.truncate(self._changes(data, count=count, view={}))

    @precondition(lambda self: self.h.source.unlocked and self.h.receipts and len(self.h.source.columns) < 7)
    @rule(pick=NEXT)
    @step
    def add_column(self, pick: int) -> None:
        self.h.add_column(*NEW_COLUMNS[pick % len(NEW_COLUMNS)])

    @rule(action=st.sampled_from(["burn", "burn", "restart", "crash"]), ids=st.integers(1, 40), data=st.data(), count=st.integers(0, 2))
    @step
    def live(self, action: str, ids: int, data: st.DataObject, count: int) -> None:
        """Rows change; transactions elsewhere, or a restart."""
        self.h.write(self._changes(data, count=count))
        if action == "burn":
            self.h.burn(ids)
        else:
            self.h.restart(crash=action == "crash")

    # ---- runs ---------------------------------------------------------------------------------------------------------------
    @precondition(ready)
    @rule(crash=st.booleans(), elsewhere=st.integers(0, 9))
    @runs
    def run(self, crash: bool, elsewhere: int) -> None:
        """One run, when transactions elsewhere have just ended, which wrote nothing; the source may crash as soon as it has been read."""
        self.h.burn(elsewhere)
        self.h.run(amid=(lambda: self.h.restart(crash=True)) if crash else None, at=READ)

    @precondition(ready)
    @rule(data=st.data(), at=st.sampled_from(READING) | st.sampled_from(BETWEEN) | NEXT, pick=NEXT, count=st.integers(1, 2))
    @runs
    def run_amid_changes(self, data: st.DataObject, at: int | Boundary, pick: int, count: int) -> None:
        """Rows change, or an open transaction commits, while the run is at some boundary."""
        if self.h.source.open and pick % 2:
            number = self._open(pick)
            self.h.run(amid=lambda: self.h.end(number, "COMMIT"), at=at)
            return
        changes = self._changes(data, count=count)
        self.h.run(amid=lambda: self.h.write(changes), at=at)

    @precondition(ready)
    @rule(
        kind=st.sampled_from(["raised", "raised", "raised", "session", "session", "source", "process"]),
        at=st.sampled_from([*DECISIVE, *BETWEEN]) | INSIDE | NEXT,
        data=st.data(),
        count=st.integers(0, 3),
    )
    @runs
    def run_broken(self, kind: str, at: int | Boundary, data: st.DataObject, count: int) -> None:
        """A run that has something to do breaks."""
        self.h.write(self._changes(data, count=count))
        self.h.run_broken(kind, at)

    @precondition(ready)
    @rule(
        kind=st.sampled_from(["raised", "raised", "session"]),
        at=st.sampled_from(STEPS) | INSIDE,
        data=st.data(),
        count=st.integers(1, 3),
    )
    @runs
    def break_transaction(self, kind: str, at: int | Boundary, data: st.DataObject, count: int) -> None:
        """A run that has something to do breaks inside its transaction on the target."""
        self.h.write(self._changes(data, count=count))
        self.h.run_broken(kind, at)

    @precondition(ready)
    @rule(label=st.sampled_from([None, "stage.create", "stage.subset"]), same=st.booleans())
    @runs
    def compete(self, label: str | None, same: bool) -> None:
        self.h.compete(label, same=same)

    @precondition(ready)
    @rule(data=st.data(), count=st.integers(0, 2))
    @runs
    def approve(self, data: st.DataObject, count: int) -> None:
        """What a guard stops is approved; the source may change before the approved run."""
        self.h.approve(self._changes(data, count=count))

    @precondition(lambda self: ready(self) and self.h.receipts)
    @rule(again=st.booleans(), pick=NEXT)
    @runs
    def look(self, again: bool, pick: int) -> None:
        """A run of before again, or a dry run."""
        run_ids = list(self.h.receipts)
        if again:
            self.h.run_again(run_ids[pick % len(run_ids)])
        else:
            self.h.preview()

    # ---- choices ------------------------------------------------------------------------------------------------------------
    def _open(self, pick: int) -> int:
        numbers = sorted(self.h.source.open)
        return numbers[pick % len(numbers)]

    def _changes(self, data: st.DataObject, *, count: int, own: Transaction | None = None, view: Rows | None = None) -> list[Change]:
        """Changes that wait for nobody and break no constraint."""
        source = self.h.source
        seen = source.view(own) if view is None else dict(view)
        busy, found = source.busy(own), []
        for _ in range(count):
            change = self._change(data, seen, [key for key in self.h.keys if key not in busy])
            if change is None:
                break
            found.append(change)
            if change.before is not None:
                del seen[change.before]
            if change.after is not None:
                seen[change.after[: source.width]] = change.after
        if found:
            note(f"{TABLE}: {found}")
        return found

    def _change(self, data: st.DataObject, seen: Rows, free: list[Any]) -> Change | None:
        """A new, changed, hardly changed, deleted, moved or merely touched row."""
        if not free:
            return None
        key = free[data.draw(NEXT) % len(free)]
        values = tuple(data.draw(st.sampled_from(pool)) for pool in self.h.pools)
        if key not in seen:
            return Change(None, (*key, *values))
        action = data.draw(st.sampled_from(["update", "delete", "move", "touch", "update one", "update hardly", "update hardly"]))
        row, width = seen[key], self.h.source.width
        unused = [other for other in free if other not in seen]
        if action == "move" and unused:
            return Change(key, (*unused[data.draw(NEXT) % len(unused)], *row[width:]))
        if action in ("update one", "update hardly"):
            at = data.draw(NEXT) % len(values)
            value = values[at] if action == "update one" else _hardly(row[width + at])
            return Change(key, (*row[: width + at], value, *row[width + at + 1 :]))
        return Change(key, {"delete": None, "update": (*key, *values)}.get(action, row))


def _hardly(value: Any) -> Any:
    """What is easily taken for *value*: the other case, a blank more, the other sign."""
    if isinstance(value, str):
        return value.swapcase() if value.swapcase() != value else f"{value} "
    return -value if isinstance(value, float | Decimal) else value
