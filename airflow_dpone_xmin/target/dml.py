"""The four business statements, one per disjoint action, in the order the finalizer runs them: delete, reactivate, update, insert.

A new row may reuse a deleted row's unique value, hence the order. No ``MERGE``. Imports contracts and the target's own modules.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Delete,
    Insert,
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
from airflow_dpone_xmin.target.sql import Differs, Guid, Utc
from airflow_dpone_xmin.target.tables import Stage, active


class Actions:
    """Builds the statements of one load.

    :param detected_at: server clock under the lock; detection time, not the source's delete time.
    """

    def __init__(
        self,
        target: Table,
        rows: Stage,
        difference: Table,
        *,
        projection: Projection,
        mode: DeleteMode,
        load_id: UUID,
        detected_at: datetime,
    ) -> None:
        self._target, self._rows, self._difference = target, rows, difference
        self._projection, self._mode = projection, mode
        self._load, self._now = literal(load_id, Guid), literal(detected_at, Utc)

    def delete_missing(self) -> Update | Delete:
        """Apply the delete policy to the materialised missing keys."""
        target, gone = self._target, self._difference
        match = and_(
            *[target.c[name] == gone.c[name] for name in self._projection.key],
            gone.c["pass"] == literal_column(str(BEFORE)),
            gone.c.kind == literal_column(str(MISSING)),
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
        alive = {IS_DELETED: false()} if self._mode is DeleteMode.FLAG_ONLY else {}
        extra: dict[str, Any] = {LOAD_ID: self._load, LOADED_AT: self._now, UPDATED_AT: self._now, **alive}
        names = [plan.name for plan in self._projection.columns]
        present = exists(
            select(1).select_from(target).where(rows.matches(target)).correlate(rows.rows).with_hint(target, PASS_HINT, "mssql")
        )
        source = (
            select(*[rows.value(plan) for plan in self._projection.columns], *extra.values())
            .select_from(rows.rows)
            .where(~present)
            .with_hint(rows.rows, PASS_HINT, "mssql")
        )
        return insert(target).from_select([*names, *extra], source, include_defaults=False)

    def _update_from_rows(self, condition: Any, values: dict[str, Any]) -> Update:
        return (
            update(self._target)
            .values(values)
            .where(and_(self._rows.matches(self._target), condition))
            .with_hint(PASS_HINT, self._rows.rows, "mssql")
        )

    def _values(self) -> dict[str, Any]:
        return {plan.name: self._rows.value(plan) for plan in self._projection.value_columns}

    def _touched(self) -> dict[str, Any]:
        return {LOAD_ID: self._load, UPDATED_AT: self._now}

    def _tombstone(self) -> dict[str, Any]:
        return {DELETED_AT: self._now} if self._mode.has_timestamp else {IS_DELETED: true()}

    def _alive(self) -> dict[str, Any]:
        return {DELETED_AT: null()} if self._mode.has_timestamp else {IS_DELETED: false()}
