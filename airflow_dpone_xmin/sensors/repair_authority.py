"""The sensor that waits for an owner's approval of an exceptional run, without holding a worker.

Imported by DAG files: Airflow's SDK and contracts at module level, everything else inside ``execute``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, AirflowSkipException

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.operators.errors import to_airflow
from airflow_dpone_xmin.operators.inline import InlineDeleteMode, authored_manifest
from airflow_dpone_xmin.operators.selection import authority_ref, manifest_source, portable_manifest

if TYPE_CHECKING:
    from airflow_dpone_xmin.runtime.approvals import AuthorityStatus

log = logging.getLogger(__name__)

BACKSTOP_SECONDS = 300.0
"""How much later than the deadline Airflow itself ends the deferral, should no triggerer run."""


class RepairAuthoritySensor(BaseSensorOperator):
    """Wait until a repair authority could be used by the next run of a route.

    It must exist, prove its digest and signature, be unconsumed, valid now and bound to the route's current checkpoint. A missing row, a
    checkpoint or owner that differs and a server that is away are waited for; an authority that is expired, consumed, altered, unsigned
    or of another environment or route fails at once. Every look says in the log what is missing. The sensor only looks: the run itself
    admits the authority again, under the target lock. No XCom or Variable is read, none is written.

    Without a reference there is nothing to wait for, and the sensor succeeds: an ordinary run may follow.

    :param repair_authority_ref: id of the approval; templated, ``""``, ``"None"`` and None name nothing.
    :param manifest: as of :class:`~airflow_dpone_xmin.operators.reconcile.XminReconcileOperator`, like all parameters up to
        *max_delete_rows*: pass the same ones to both.
    :param process: name of an inline route; required then, because the operator's default is the name of its own task.
    :param deferrable: wait in the triggerer; otherwise as ``mode`` says.
    :param kwargs: of ``BaseSensorOperator``: ``poke_interval``, ``timeout``, ``soft_fail`` (skip instead of failing, time-out included) …
    :raises XminError: ``DPONE_MANIFEST_INVALID`` while the DAG is parsed.
    :raises AirflowFailException: waiting cannot help; its text begins with the code.
    :raises AirflowSensorTimeout: not usable in time.
    """

    template_fields: Sequence[str] = ("manifest", "table", "repair_authority_ref")
    ui_color = "#f5ead6"

    def __init__(
        self,
        *,
        repair_authority_ref: str | None,
        manifest: str | Path | Mapping[str, Any] | None = None,
        table: str | None = None,
        process: str | None = None,
        source_table: str | None = None,
        target_table: str | None = None,
        unique_key: str | Sequence[str] | None = None,
        source_conn: str | None = None,
        target_conn: str | None = None,
        target_type: Literal["mssql", "embedded"] = "mssql",
        state_conn: str | None = None,
        state_schema: str | None = None,
        delete_mode: InlineDeleteMode | None = "timestamp_only",
        max_delete_ratio: float | Decimal | str | None = 0.05,
        max_delete_rows: int | None = 100_000,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.manifest = authored_manifest(
            manifest,
            default_process=None,
            process=process,
            source_table=source_table,
            target_table=target_table,
            unique_key=unique_key,
            source_conn=source_conn,
            target_conn=target_conn,
            target_type=target_type,
            state_conn=state_conn,
            state_schema=state_schema,
            delete_mode=delete_mode,
            max_delete_ratio=max_delete_ratio,
            max_delete_rows=max_delete_rows,
        )
        self.table = table
        self.repair_authority_ref = repair_authority_ref
        self.deferrable = deferrable

    def execute(self, context: Context) -> None:
        """Look once, then defer or poke."""
        ref = authority_ref(self.repair_authority_ref)
        if ref is None:
            log.info("No repair authority is named; there is nothing to wait for.")
            return
        if not self.deferrable:
            super().execute(context)
        elif not self._look_once(ref):
            self._defer(ref)

    def poke(self, context: Context) -> bool:
        """One look.

        :raises AirflowFailException: waiting cannot help.
        """
        ref = authority_ref(self.repair_authority_ref)
        assert ref is not None
        status = self._look(ref)
        if status.final:
            assert status.error is not None
            raise to_airflow(status.error)
        return status.ready

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> None:
        """Resume with what the trigger saw; everything that is needed is in the event."""
        event = event or {}
        outcome, ref, message = event.get("outcome"), event.get("ref"), event.get("message")
        log.info("Repair authority %s: %s. %s", ref, outcome, message)
        if outcome == "ready":
            return
        if outcome == "refused" and event.get("error"):
            self._end(to_airflow(XminError.from_dict(event["error"])))
        self._end(AirflowSensorTimeout(f"Repair authority {ref} was not usable within {self.timeout:.0f} s: {message}"))

    def _look_once(self, ref: str) -> bool:
        status = self._look(ref)
        if status.final:
            assert status.error is not None
            self._end(to_airflow(status.error))
        return status.ready

    def _look(self, ref: str) -> AuthorityStatus:
        from airflow_dpone_xmin.triggers.repair_authority import look, told

        status = look(manifest_source(self, self.manifest), table=self.table, ref=ref)
        log.info("%s", told(ref, status))
        return status

    def _defer(self, ref: str) -> None:
        from airflow_dpone_xmin.triggers.repair_authority import RepairAuthorityTrigger

        self.defer(
            trigger=RepairAuthorityTrigger(
                manifest=portable_manifest(self, self.manifest),
                table=self.table or None,
                repair_authority_ref=ref,
                poke_interval=self.poke_interval,
                deadline=time.time() + self.timeout,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout + BACKSTOP_SECONDS),
        )

    def _end(self, failure: AirflowException) -> NoReturn:
        if self.soft_fail or self.never_fail:
            raise AirflowSkipException(f"Skipped instead of failed: {failure}") from None
        raise failure from None
