"""The oracle: plain dictionaries of what the source holds and of what the target must hold. It knows no product code.

A row is a tuple of values in column order, a key the tuple of its first columns. ``Source`` follows every statement of a history;
``Target.apply`` says what one committed run must have done, and ``Target.stop`` what must have stopped it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Rows = dict[Key, Row]

SOFT = ("timestamp_only", "timestamp_and_flag", "flag_only")


# ---- source ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Change:
    """One change of one row: *before* is its key if it exists, *after* the row it becomes; None where there is none."""

    before: Key | None
    after: Row | None

    def keys(self, width: int) -> set[Key]:
        found = set() if self.before is None else {self.before}
        return found if self.after is None else found | {self.after[:width]}


@dataclass
class Transaction:
    """An open or prepared transaction: what it changed, per key (None: deleted), and the keys that nobody else may touch meanwhile."""

    overlay: dict[Key, Row | None] = field(default_factory=dict)
    busy: set[Key] = field(default_factory=set)
    savepoints: list[dict[Key, Row | None]] = field(default_factory=list)

    def savepoint(self) -> None:
        self.savepoints.append(dict(self.overlay))

    def rollback_to(self, depth: int) -> None:
        """Back to savepoint number *depth*, which stays."""
        self.overlay = dict(self.savepoints[depth])
        del self.savepoints[depth + 1 :]

    def release(self, depth: int) -> None:
        del self.savepoints[depth:]


@dataclass
class Source:
    """Committed rows, and who is changing what."""

    width: int
    """Number of key columns."""
    columns: list[str]
    committed: Rows = field(default_factory=dict)
    open: dict[int, Transaction] = field(default_factory=dict)
    prepared: dict[str, Transaction] = field(default_factory=dict)

    def view(self, own: Transaction | None = None) -> Rows:
        """Rows that a statement outside any transaction, or inside *own*, sees."""
        seen = dict(self.committed)
        for key, row in ({} if own is None else own.overlay).items():
            if row is None:
                seen.pop(key, None)
            else:
                seen[key] = row
        return seen

    def busy(self, own: Transaction | None = None) -> set[Key]:
        """Keys that others are changing: a statement on them would wait."""
        others = [transaction for transaction in self.transactions() if transaction is not own]
        return set().union(*(transaction.busy for transaction in others)) if others else set()

    def transactions(self) -> list[Transaction]:
        return [*self.open.values(), *self.prepared.values()]

    @property
    def unlocked(self) -> bool:
        """Whether nobody holds a lock on the table."""
        return not any(transaction.busy for transaction in self.transactions())

    def change(self, changes: Iterable[Change], own: Transaction | None = None) -> None:
        """Apply changes, in *own* or committed at once."""
        overlay: dict[Key, Row | None] = {} if own is None else own.overlay
        for change in changes:
            if change.before is not None:
                overlay[change.before] = None
            if change.after is not None:
                overlay[change.after[: self.width]] = change.after
            if own is not None:
                own.busy |= change.keys(self.width)
        if own is None:
            self._merge(overlay)

    def commit(self, transaction: Transaction) -> None:
        self._merge(transaction.overlay)

    def _merge(self, overlay: dict[Key, Row | None]) -> None:
        self.committed = self.view(Transaction(overlay))

    def lose_sessions(self) -> None:
        """A restart: open transactions roll back, prepared ones stay."""
        self.open.clear()

    def rewrite(self, change: Any) -> None:
        """Every committed row becomes what *change* makes of it."""
        self.committed = {key: change(row) for key, row in self.committed.items()}

    def add_column(self, name: str, default: Any) -> None:
        """Transactions that are open have not touched the table: it was locked."""
        self.columns.append(name)
        self.rewrite(lambda row: (*row, default))


# ---- target ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Stored:
    """A target row: its values, the load that last acted on it, and when its deletion was detected."""

    row: Row
    load: str
    deleted_at: Any = None


@dataclass(frozen=True)
class Guards:
    """Limits on deletes; None is absent."""

    rows: int | None = None
    ratio: str | None = None

    def document(self) -> dict[str, Any]:
        wanted = {"max_delete_rows": self.rows, "max_delete_ratio": None if self.ratio is None else float(self.ratio)}
        return {name: value for name, value in wanted.items() if value is not None}

    def exceeded(self, missing: int, active: int) -> bool:
        too_many = self.rows is not None and missing > self.rows
        return too_many or (self.ratio is not None and missing > 0 and Fraction(missing, active) > Fraction(self.ratio))


@dataclass(frozen=True)
class Approval:
    """What an owner allows: deletes up to both bounds, or a baseline of nothing."""

    rows: int | None
    ratio: Fraction | None
    baseline: bool

    def too_small(self, missing: int, active: int) -> bool:
        if self.rows is None or self.ratio is None:
            return False
        return missing > self.rows or (missing > 0 and Fraction(missing, active) > self.ratio)


@dataclass
class Target:
    """Active rows and tombstones, as the last committed run left them."""

    mode: str
    guards: Guards
    active: dict[Key, Stored] = field(default_factory=dict)
    tombstones: dict[Key, Stored] = field(default_factory=dict)

    @property
    def reconciles(self) -> bool:
        return self.mode != "never"

    def missing(self, snapshot: Rows) -> set[Key]:
        return set(self.active) - set(snapshot) if self.reconciles else set()

    def stop(self, snapshot: Rows, *, full: bool, approval: Approval | None = None) -> str | None:
        """Code that must stop a run on *snapshot*, None when it must commit.

        :param full: whether the payload is full.
        """
        missing, active = len(self.missing(snapshot)), len(self.active)
        if approval is not None and approval.too_small(missing, active):
            return "repair_authority.bounds_exceeded"
        code, baseline = None, False
        if not snapshot and (self.reconciles or full):
            code, baseline = ("guard.empty_snapshot", not active) if self.active or full else (None, False)
        elif self.guards.exceeded(missing, active):
            code = "guard.deletes_exceeded"
        if approval is None:
            return code
        if code is None:
            return "repair_authority.unused"
        return None if (approval.baseline if baseline else approval.rows is not None) else code

    def apply(self, snapshot: Rows, *, load: str, detected_at: Any) -> dict[str, int]:
        """What a committed run on *snapshot* does; returns the counters it must report."""
        gone = self.missing(snapshot)
        counts = {"active_before": len(self.active), "inserted": 0, "updated": 0, "reactivated": 0, "deleted": len(gone)}
        for key in gone:
            stored = self.active.pop(key)
            if self.mode in SOFT:
                self.tombstones[key] = replace(stored, load=load, deleted_at=detected_at)
        for key, row in snapshot.items():
            stored_row = self.active.get(key)
            if stored_row is not None and exact(stored_row.row) == exact(row):
                continue
            action = "updated" if stored_row else "reactivated" if self.tombstones.pop(key, None) else "inserted"
            counts[action] += 1
            self.active[key] = Stored(row, load)
        counts |= {"active_after": len(self.active), "total_after": len(self.active) + len(self.tombstones)}
        return counts

    def widen(self) -> None:
        """The target's table got a column: it is NULL until a run fills it."""
        for rows in (self.active, self.tombstones):
            for key, stored in rows.items():
                rows[key] = replace(stored, row=(*stored.row, None))


def exact(value: Any) -> str:
    """A form in which values are equal only when every byte is: 0.0 and -0.0 differ."""
    return repr(value)


def listing(rows: Iterable[Row]) -> list[str]:
    """Rows in the exact form, ordered."""
    return sorted(exact(tuple(row)) for row in rows)
