"""What a publication replaces: the rows of the live table against those of its shadow, and what an approval must have said of them.

A row that the chunks did not deliver is a deletion like any other: it is judged by the same guards, and becomes a tombstone where the
route keeps them. Imports contracts, policy and the target's own modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, MetaData, Table, and_, exists, insert, literal, select, true

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, LOAD_ID, UPDATED_AT, DeleteMode, Route
from airflow_dpone_xmin.contracts.state import ActionCounts
from airflow_dpone_xmin.policy.repair import admit_deletes, judge_deletes, require_bounds
from airflow_dpone_xmin.target.classify import PASS_HINT
from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.facts import TableFacts
from airflow_dpone_xmin.target.sql import TARGET, Count, Flag, Guid, Utc, active


@dataclass(frozen=True, slots=True)
class Replaced:
    """The live table's rows, counted under the lock.

    :param active: active rows.
    :param missing: those of them whose key was not delivered.
    :param tombstones: tombstones.
    :param retained: those of them whose key was not delivered.
    """

    active: int = 0
    missing: int = 0
    tombstones: int = 0
    retained: int = 0

    def counts(self, *, rows: int, mode: DeleteMode) -> ActionCounts:
        """The effects of replacing these rows by *rows*: a row on both sides was written anew and counts as updated."""
        matched, reactivated = self.active - self.missing, self.tombstones - self.retained
        soft, hard = (self.missing if mode.soft else 0), (self.missing if mode is DeleteMode.HARD else 0)
        active_after = rows + self.missing - soft - hard
        return ActionCounts(
            payload=rows,
            keys=rows,
            inserted=rows - matched - reactivated,
            updated=matched,
            reactivated=reactivated,
            unchanged=0,
            soft_deleted=soft,
            hard_deleted=hard,
            active_before=self.active,
            active_after=active_after,
            total_after=active_after + self.retained + soft,
        )

    def judge(self, route: Route, repair: RepairAuthority | None, *, rows: int) -> None:
        """Stop what guards and approval do not admit.

        :param rows: what replaces them.
        :raises XminError: ``guard.empty_snapshot``, ``guard.deletes_exceeded``, ``repair_authority.bounds_exceeded``.
        """
        missing = self.missing if route.delete_mode.reconciles else 0  # a route that never deletes keeps them
        verdict = judge_deletes(missing=missing, active_before=self.active, guards=route.guards)
        if repair is not None:
            require_bounds(repair, verdict)
        everything = rows == 0 and self.active > 0
        if not (everything or verdict.exceeded) or admit_deletes(repair, verdict, everything=everything):
            return
        details = {"missing": self.missing, "active": self.active}
        if everything:
            message = f"No chunk delivered a row; {self.active} active rows would be replaced by nothing."
            raise XminError("guard.empty_snapshot", message, details=details)
        limits = ", ".join(verdict.exceeded)
        message = f"{verdict.missing} of {self.active} active rows were not delivered by any chunk; limits exceeded: {limits}."
        raise XminError("guard.deletes_exceeded", message, details=details)


class Replacement:
    """The statements over both tables.

    :param facts: of the live table; its columns are read without their types, because the source is not asked at a publication.
    """

    def __init__(self, session: Session, route: Route, facts: TableFacts, *, live: str, filled: str) -> None:
        self._session, self._route, self._mode = session, route, route.delete_mode
        self._names = [column.name for column in facts.columns if not column.computed]
        self._live, self._filled = plain_table(live, facts), plain_table(filled, facts)

    def count_filled(self) -> int:
        """Rows of the table that was filled."""
        return self._count("publish.count", self._filled)

    def count_live(self) -> Replaced:
        """The live table against it."""
        alive, dead = active(self._live, self._mode), ~active(self._live, self._mode)
        rows = self._count("publish.active", self._live, alive)
        tombstones = self._count("publish.tombstones", self._live, dead) if self._mode.soft else 0
        return Replaced(
            active=rows,
            missing=self._count("publish.missing", self._live, and_(alive, self._absent())) if rows else 0,
            tombstones=tombstones,
            retained=self._count("publish.retained", self._live, and_(dead, self._absent())) if tombstones else 0,
        )

    def carry(self, replaced: Replaced, *, load_id: UUID, now: datetime) -> None:
        """Rows whose key was not delivered: tombstones stay what they are, active rows follow the route's delete mode.

        :param now: when their absence was detected, aware.
        :raises XminError: ``reconcile.invariant`` when other rows were carried than were counted.
        """
        if self._mode is DeleteMode.HARD:
            return
        moved = 0
        if replaced.retained:
            moved += self._insert("publish.carry", ~active(self._live, self._mode), {})
        if replaced.missing:
            gone: dict[str, Any] = {LOAD_ID: literal(load_id, Guid), UPDATED_AT: literal(now, Utc)} if self._mode.soft else {}
            if self._mode.has_timestamp:
                gone[DELETED_AT] = literal(now, Utc)
            elif self._mode.soft:
                gone[IS_DELETED] = true()
            moved += self._insert("publish.delete", active(self._live, self._mode), gone)
        if moved != replaced.retained + replaced.missing:
            raise XminError("reconcile.invariant", "The publication carried other rows than it had counted.")

    def _insert(self, label: str, condition: Any, values: dict[str, Any]) -> int:
        kept = select(*[values.get(name, self._live.c[name]) for name in self._names]).where(condition, self._absent())
        kept = kept.with_hint(self._live, PASS_HINT, "mssql")
        return self._session.execute(label, insert(self._filled).from_select(self._names, kept, include_defaults=False))

    def _absent(self) -> Any:
        same = and_(*[self._filled.c[name] == self._live.c[name] for name in self._route.key])
        return ~exists(select(1).select_from(self._filled).where(same).correlate(self._live))

    def _count(self, label: str, table: Table, condition: Any = None) -> int:
        query = select(Count()).select_from(table).with_hint(table, PASS_HINT, "mssql")
        return int(self._session.scalar(label, query if condition is None else query.where(condition)))


def plain_table(name: str, facts: TableFacts) -> Table:
    """The live table's columns without their types, those of the delete markers excepted."""
    typed: dict[str, Any] = {IS_DELETED: Flag, DELETED_AT: Utc}
    columns: list[Any] = [Column(column.name, *([typed[column.name]] if column.name in typed else [])) for column in facts.columns]
    return Table(name, MetaData(), *columns, schema=TARGET)
