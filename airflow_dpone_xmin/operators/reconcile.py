"""The operator of an incremental run: resolve, build the invocation, call ``runtime.reconcile`` once, publish, map errors once.

Imported by every DAG file: Airflow's SDK and contracts at module level, everything else inside ``execute``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseOperator, Context

from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.operators.committed import CommittedTask
from airflow_dpone_xmin.operators.errors import require_fenced_retries
from airflow_dpone_xmin.operators.inline import InlineDeleteMode, authored_manifest
from airflow_dpone_xmin.operators.selection import authority_ref, manifest_source, select
from airflow_dpone_xmin.operators.task import FencedTask

if TYPE_CHECKING:
    from airflow_dpone_xmin.contracts.route import Route
    from airflow_dpone_xmin.runtime.evidence import Outcome

log = logging.getLogger(__name__)


class XminReconcileOperator(CommittedTask, FencedTask, BaseOperator):
    """Make a target table equal to one snapshot of a PostgreSQL table, deletes included, in one target transaction.

    The run is identified by process, ``run_id`` and ``map_index``, never by the try number: a retry, and a cleared task too, answers from
    the receipt if an earlier attempt committed. New work needs a new DAG run. Registry and trusted keys come from the section
    ``[dpone_xmin]`` of Airflow's configuration; credentials from the Airflow connections that the registry's entries name.

    Evidence beside the log and the returned summary: the event of every asset among ``outlets`` carries receipt and counts (consumers
    deduplicate on ``receipt_id``), the link *Receipt*, metrics ``dpone_xmin.*``, and OpenLineage datasets with row counts.

    :param manifest: a mapping, or the path of a YAML or JSON file, relative to the DAG file's folder. Templated. Exclusive with the
        inline parameters below.
    :param table: ``schema.table`` of the one route to run, when the manifest names several. Templated; empty means None.
    :param process: stable name that owns the checkpoint of an inline route; by default ``dag_id.task_id``, so renaming either starts
        over. Not with ``manifest``, whose ``name`` it is.
    :param source_table: source relation, ``schema.table`` or ``table`` of schema public.
    :param target_table: target table, ``schema.table`` or ``table`` of the registry's schema; by default the relation's name.
    :param unique_key: key column, or columns in order.
    :param source_conn: registry entry of the source.
    :param target_conn: registry entry of the target and its staging.
    :param target_type: ``mssql``, or ``embedded`` for PostgreSQL standing in for it.
    :param state_conn: registry entry of the state database, on the target's server; the target's own by default.
    :param state_schema: schema of the state catalog; that of *state_conn*'s entry by default, else ``dbo``.
    :param delete_mode: how a row that is gone from the source is marked; None never deletes.
    :param max_delete_ratio: largest share of active rows that one run may delete, 0 to 1; None for no limit.
    :param max_delete_rows: largest number of rows that one run may delete; None for no limit.
    :param repair_authority_ref: id of the one-shot approval of an exceptional run. Templated; ``""``, ``"None"`` and None name nothing,
        as an absent parameter of the run may render.
    :param kwargs: of ``BaseOperator``. ``retries`` may be 0 to 3: the receipt fences them.
    :returns: the evidence summary (see :func:`~airflow_dpone_xmin.operators.publish.evidence_summary`) as XCom.
    :raises XminError: ``DPONE_AIRFLOW_RETRIES_REQUIRE_TARGET_FENCE`` and ``DPONE_MANIFEST_INVALID`` while the DAG is parsed.
    :raises AirflowFailException: drift, refusals and guards; a retry cannot help.
    :raises AirflowException: unknown outcome, lost connection or race, lock timeout, cancellation; the next attempt finds the receipt or
        starts over.
    """

    template_fields: Sequence[str] = ("manifest", "table", "repair_authority_ref")
    ui_color = "#e8f1f8"

    def __init__(
        self,
        *,
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
        repair_authority_ref: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.manifest = authored_manifest(
            manifest,
            default_process=f"{self.dag_id}.{self.task_id}",
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

    def _execute(self, context: Context) -> dict[str, Any]:
        from airflow_dpone_xmin.runtime.reconcile import reconcile

        selected = select(manifest_source(self, self.manifest), table=self.table)
        route, ref = selected.route, authority_ref(self.repair_authority_ref)
        require_fenced_retries(self.retries, fenced=route.execution != "initial")
        invocation = Invocation(process=route.process, run_id=str(context["run_id"]), map_index=_map_index(context))
        self._process = route.process
        _announce(route, invocation, ref=ref)
        found = selected.endpoints()
        outcome = self._run(reconcile, route, invocation, endpoints=found, repair=selected.repair(ref))
        _conclude(outcome)
        return self._committed(context, route, found, outcome)


def _map_index(context: Context) -> int:
    """The task's index under dynamic mapping, -1 when it is not mapped."""
    index = getattr(context["ti"], "map_index", None)
    return -1 if index is None else int(index)


def _announce(route: Route, invocation: Invocation, *, ref: str | None) -> None:
    log.info(
        "%s: %s.%s → %s, run %s%s. Clearing this task keeps its run: it would answer from the receipt. New work needs a new DAG run.",
        route.process,
        route.source.schema,
        route.source.relation,
        route.layout.target.display,
        invocation.run_id,
        f" [{invocation.map_index}]" if invocation.map_index >= 0 else "",
    )
    if ref is not None:
        log.info("Exceptional run: repair authority %s is selected.", ref)
    for notice in route.notices:
        log.warning("Manifest: %s", notice)


def _conclude(outcome: Outcome) -> None:
    receipt, counts = outcome.receipt, outcome.receipt.counts
    if receipt.replayed:
        log.info("This run had already committed; nothing was read or written. Receipt %s.", receipt.receipt_id)
    log.info(
        "%s payload (%s): %d rows = %d inserted + %d updated + %d reactivated + %d unchanged; %d deleted; %d active. "
        "Checkpoint revision %d, xmin %d, replay amplification %d. Receipt %s.",
        receipt.payload.value,
        receipt.payload_reason,
        counts.payload,
        counts.inserted,
        counts.updated,
        counts.reactivated,
        counts.unchanged,
        counts.deleted,
        counts.active_after,
        receipt.new_revision,
        receipt.new_xmin,
        receipt.replay_amplification,
        receipt.receipt_id,
    )
    if receipt.repair_authority_id is not None:
        log.info("Repair authority %s is consumed by this receipt.", receipt.repair_authority_id)
    if outcome.cleanup_error is not None:
        log.warning("Committed, but cleaning up failed: %s The next run sweeps it.", outcome.cleanup_error)
