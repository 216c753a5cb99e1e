"""The four business statements, one per disjoint action, in the order the finalizer runs them: delete, update, reactivate, insert.

A row that comes back or is new may reuse the unique value of a deleted or updated one, hence the order. No ``MERGE``.
Imports contracts and the target's own modules.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Delete,
    Insert,
    Select,
    Table,
    Update,
    and_,
    delete,
    exists,
    false,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, LOAD_ID, LOADED_AT, UPDATED_AT, DeleteMode
from airflow_dpone_xmin.target.classify import BEFORE, MISSING, PASS_HINT
from airflow_dpone_xmin.target.sql import KIND, PASS, Differs, Guid, Stage, Utc, active


class Actions:
    """Builds the statements of one load.

    :param difference: what a classification materialised; a chunk has none, and deletes nothing.
    :param detected_at: server clock under the lock; detection time, not the source's delete time.
    :param hint: how target and stage are locked; a chunk locks rows only, beside the other lanes.
    """

    def __init__(
        self,
        target: Table,
        rows: Stage,
        difference: Table | None,
        *,
        projection: Projection,
        mode: DeleteMode,
        load_id: UUID,
        detected_at: datetime,
        hint: str | None = PASS_HINT,
    ) -> None:
        self._target, self._rows, self._difference = target, rows, difference
        self._projection, self._mode, self._hint = projection, mode, hint
        self._load, self._now = literal(load_id, Guid), literal(detected_at, Utc)

    def delete_missing(self) -> Update | Delete:
        """Apply the delete policy to the materialised missing keys."""
        target, gone = self._target, self._difference
        assert gone is not None
        match = and_(
            *[target.c[name] == gone.c[name] for name in self._projection.key],
            gone.c[PASS] == literal_column(str(BEFORE)),
            gone.c[KIND] == literal_column(str(MISSING)),
        )
        if self._mode is DeleteMode.HARD:
            return delete(target).where(exists(select(1).select_from(gone).where(match).correlate(target)))
        return update(target).values({**self._tombstone(), **self._touched()}).where(match)

    def reactivate(self) -> Update:
        """A tombstone whose row is in the payload lives again, with the payload's values."""
        return self._update_from_rows(~active(self._target, self._mode), {**self._alive(), **self._touched(), **self._values()})

    def update_changed(self) -> Update:
        """Active rows that differ to the byte."""
        target, rows = self._target, self._rows
        differs = or_(*[Differs(plan.family, target.c[plan.name], rows.value(plan)) for plan in self._projection.value_columns])
        return self._update_from_rows(and_(active(target, self._mode), differs), {**self._touched(), **self._values()})

    def insert_absent(self) -> Insert:
        """Payload rows whose key the target does not have."""
        target, rows = self._target, self._rows
        present = self._hinted(select(1).select_from(target).where(rows.matches(target)).correlate(rows.rows), target)
        return self.append(~exists(present))

    def append(self, condition: Any = None) -> Insert:
        """Payload rows, all of them unless a condition says which: none is there in a chunk's range, or in a target that lacks them all."""
        rows = self._rows
        alive = {IS_DELETED: false()} if self._mode is DeleteMode.FLAG_ONLY else {}
        extra: dict[str, Any] = {LOAD_ID: self._load, LOADED_AT: self._now, UPDATED_AT: self._now, **alive}
        names = [plan.name for plan in self._projection.columns]
        source = select(*[rows.value(plan) for plan in self._projection.columns], *extra.values()).select_from(rows.rows)
        if condition is not None:
            source = source.where(condition)
        return insert(self._target).from_select([*names, *extra], self._hinted(source, rows.rows), include_defaults=False)

    def _update_from_rows(self, condition: Any, values: dict[str, Any]) -> Update:
        rows = self._rows
        changed = update(self._target).values(values).where(and_(rows.matches(self._target), condition))
        return changed if self._hint is None else changed.with_hint(self._hint, rows.rows, "mssql")

    def _hinted(self, query: Select[Any], table: Any) -> Select[Any]:
        return query if self._hint is None else query.with_hint(table, self._hint, "mssql")

    def _values(self) -> dict[str, Any]:
        return {plan.name: self._rows.value(plan) for plan in self._projection.value_columns}

    def _touched(self) -> dict[str, Any]:
        return {LOAD_ID: self._load, UPDATED_AT: self._now}

    def _tombstone(self) -> dict[str, Any]:
        return {DELETED_AT: self._now} if self._mode.has_timestamp else {IS_DELETED: true()}

    def _alive(self) -> dict[str, Any]:
        return {DELETED_AT: null()} if self._mode.has_timestamp else {IS_DELETED: false()}
