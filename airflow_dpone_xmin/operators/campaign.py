"""The operators of an initial load: open, lane, and the coordinator that publishes; ``campaign_task_group`` puts them together.

Imported by every DAG file: Airflow's SDK and contracts at module level, everything else inside ``execute``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context, TaskGroup
from airflow.sdk.configuration import conf

from airflow_dpone_xmin.contracts.campaign import LEASE_TTL
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.operators.committed import CommittedTask
from airflow_dpone_xmin.operators.errors import MAX_RETRIES, to_airflow
from airflow_dpone_xmin.operators.selection import SelectedRoute, authority_ref, manifest_source, portable_manifest, select
from airflow_dpone_xmin.operators.task import FencedTask

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_dpone_xmin.runtime.evidence import Outcome

log = logging.getLogger(__name__)


class _CampaignTask(FencedTask, BaseOperator):
    """What the three have in common: the manifest."""

    template_fields: Sequence[str] = ("manifest", "table")
    ui_color = "#e9f3ea"

    def __init__(self, *, manifest: str | Path | Mapping[str, Any], table: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.manifest = str(manifest) if isinstance(manifest, Path) else manifest
        self.table = table

    def _execute(self, context: Context) -> Any:
        selected = select(manifest_source(self, self.manifest), table=self.table)
        self._process = selected.route.process
        return self._campaign(context, selected)

    def _campaign(self, context: Context, selected: SelectedRoute) -> Any:
        raise NotImplementedError


class BackfillOpenOperator(_CampaignTask):
    """Open the campaign: capture the XMin anchor, write the chunk plan, create the shadow. Opening again changes nothing.

    :param manifest: an initial manifest (``sink.strategy.mode: backfill``): a mapping, or a path relative to the DAG file's folder.
        Templated.
    :param table: ``schema.table`` when the manifest names several. Templated; empty means None.
    :param repair_authority_ref: id of the one-shot approval of replacing a table that has an owner or tombstones. Templated; ``""``,
        ``"None"`` and None name nothing.
    :returns: where the campaign stands, as XCom.
    :raises AirflowFailException: refusals; a retry cannot help.
    :raises AirflowException: lost connection, lock timeout, cancellation.
    """

    template_fields: Sequence[str] = (*_CampaignTask.template_fields, "repair_authority_ref")

    def __init__(self, *, repair_authority_ref: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repair_authority_ref = repair_authority_ref

    def _campaign(self, context: Context, selected: SelectedRoute) -> dict[str, Any]:
        from airflow_dpone_xmin.runtime.campaign import open_campaign
        from airflow_dpone_xmin.runtime.evidence import campaign_document

        found = self._run(
            open_campaign,
            selected.route,
            str(context["run_id"]),
            endpoints=selected.endpoints(),
            repair=selected.repair(authority_ref(self.repair_authority_ref)),
        )
        log.info("%s: %s", selected.route.process, found.sentence())
        return campaign_document(selected.route, found)


class BackfillLaneOperator(_CampaignTask):
    """One lane: fill chunks of the open campaign until all are committed. Map it over lane numbers, on any executor.

    A lane that fails or dies costs its chunk's lease; the others take it over, and this task's retry takes its own lease back at once.

    :param lane: number of the lane, 0-based.
    :param kwargs: ``manifest`` and ``table`` as of :class:`BackfillOpenOperator`; of ``BaseOperator``; ``retries`` may be 0 to 3.
    :returns: ``{"chunks": …, "rows": …}`` that this lane committed.
    """

    def __init__(self, *, lane: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lane = lane

    def _campaign(self, context: Context, selected: SelectedRoute) -> dict[str, int]:
        from airflow_dpone_xmin.runtime.lane import run_lane

        route = selected.route
        result = self._run(run_lane, route, str(context["run_id"]), self.lane, endpoints=selected.endpoints())
        log.info("Lane %d committed %d chunks, %d rows; the campaign has no chunk left.", self.lane, result.chunks, result.rows)
        return {"chunks": result.chunks, "rows": result.rows}


class BackfillCampaignOperator(CommittedTask, _CampaignTask):
    """The coordinator: wait for the lanes without a worker, then prove, publish and seed. The source is not opened.

    Runs beside mapped lanes (see :func:`campaign_task_group`), or alone with lanes of its own: *inline_lanes* opens, fills and publishes
    in one task, in ``spawn``ed interpreters, without deferring.

    :param manifest: as of :class:`BackfillOpenOperator`, like *table* and *repair_authority_ref*.
    :param inline_lanes: number of lanes of its own; None waits for mapped ones.
    :param poke_interval: seconds between two looks of the trigger.
    :param stall_seconds: without a living lane and without progress for so long, the task fails as stalled. It must exceed the longest
        pause between two tries of a lane, with its exponential backoff, plus the lease of 90 seconds; None is twice that, at least 900.
        The lanes' pauses are this task's own, in a task group the lanes'. A ``retry_policy`` that waits longer needs a limit that does.
    :param deferrable: wait in the triggerer; otherwise in this worker.
    :returns: the evidence summary of the seed, as XCom.
    :raises AirflowFailException: ``campaign.stalled`` and every refusal.
    """

    template_fields: Sequence[str] = (*_CampaignTask.template_fields, "repair_authority_ref")

    def __init__(
        self,
        *,
        inline_lanes: int | None = None,
        poke_interval: float = 15.0,
        stall_seconds: float | None = None,
        repair_authority_ref: str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stall_seconds = stall_limit(self, stall_seconds)
        self.inline_lanes, self.poke_interval = inline_lanes, poke_interval
        self.repair_authority_ref, self.deferrable = repair_authority_ref, deferrable

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Resume with what the trigger saw: publish, or fail as it says."""
        event = event or {}
        log.info("%s", event.get("message", "The campaign was not looked at."))
        if event.get("outcome") != "complete":
            told = event.get("error")
            error = XminError.from_dict(told) if told else XminError("campaign.stalled", "The trigger ended without an event.")
            raise to_airflow(self._logged(error))
        return self.execute(context)

    def _campaign(self, context: Context, selected: SelectedRoute) -> dict[str, Any]:
        from airflow_dpone_xmin.runtime.campaign import publish_campaign
        from airflow_dpone_xmin.runtime.lanes import run_campaign

        route, run_id = selected.route, str(context["run_id"])
        endpoints = selected.endpoints()
        common = {
            "endpoints": endpoints,
            "repair": selected.repair(authority_ref(self.repair_authority_ref)),
        }
        if self.inline_lanes is None:
            self._wait(selected)
            outcome: Outcome = self._run(publish_campaign, route, run_id, **common)
        else:
            outcome = self._run(run_campaign, route, run_id, self.inline_lanes, **common)
        receipt = outcome.receipt
        log.info(
            "%s: %d rows published and seeded at xmin %d, revision %d. Receipt %s%s.",
            route.layout.target.display,
            receipt.counts.payload,
            receipt.new_xmin,
            receipt.new_revision,
            receipt.receipt_id,
            ", replayed" if receipt.replayed else "",
        )
        return self._committed(context, route, endpoints, outcome)

    def _wait(self, selected: SelectedRoute) -> None:
        """Return when every chunk is committed; defer until then."""
        from airflow_dpone_xmin.triggers.campaign import CampaignTrigger, Patience, look

        manifest = portable_manifest(self, self.manifest)
        since, patience = time.time(), Patience(self.stall_seconds)
        while True:
            status = look(manifest, table=self.table or None, since=since, stall_seconds=self.stall_seconds)
            log.info("%s", status.message)
            self._require_alive()
            if patience.ends(status):
                if status.error is not None:
                    raise status.error
                return
            if self.deferrable:
                trigger = CampaignTrigger(
                    manifest=manifest,
                    table=self.table or None,
                    poke_interval=self.poke_interval,
                    stall_seconds=self.stall_seconds,
                    since=since,
                )
                self.defer(trigger=trigger, method_name="execute_complete")
            self._run(_sleep, self.poke_interval)


def _sleep(seconds: float, *, progress: object, cancel: Cancellation) -> None:
    cancel.wait(seconds)


def stall_limit(lane: BaseOperator | MappedOperator, asked: float | None) -> float:
    """Seconds without a living lane and without progress after which waiting is pointless.

    :param lane: the task whose ``retry_delay``, ``retry_exponential_backoff`` and ``max_retry_delay`` the lanes have.
    :param asked: the user's limit; None is twice what a lane that failed may be away, at least 900.
    :raises XminError: ``DPONE_OPTION_UNSUPPORTED`` when a lane may be away for longer than asked.
    """
    away = longest_pause(lane) + LEASE_TTL.total_seconds()
    limit = max(900.0, 2 * away) if asked is None else asked
    if limit <= away:
        message = f"`stall_seconds` must exceed the lanes' longest retry delay plus the lease of 90 seconds, {away:.0f} seconds."
        raise XminError("DPONE_OPTION_UNSUPPORTED", message)
    return limit


def longest_pause(task: BaseOperator | MappedOperator) -> float:
    """Seconds between two of a task's four tries, at most: Airflow draws a pause from one to two times its exponential backoff."""
    delay, backoff = task.retry_delay.total_seconds(), task.retry_exponential_backoff
    factor = 2.0 if backoff is True else float(backoff)
    if factor <= 0 or factor == 1:
        return delay
    drawn = 2 * max(1, math.ceil(delay * max(1.0, factor ** (MAX_RETRIES - 1))))
    limits = [float(conf.getint("core", "max_task_retry_delay", fallback=86_400))]
    if task.max_retry_delay:
        limits.append(task.max_retry_delay.total_seconds())
    return min(drawn, *limits)


def campaign_task_group(
    group_id: str = "campaign",
    *,
    manifest: str | Path | Mapping[str, Any],
    lanes: int = 4,
    table: str | None = None,
    repair_authority_ref: str | None = None,
    retries: int | None = None,
    retry_delay: timedelta | None = None,
    lane_kwargs: Mapping[str, Any] | None = None,
    **coordinator: Any,
) -> TaskGroup:
    """``open >> [mapped lanes ‖ coordinator]``: an initial load whose lanes run where the deployment's executor runs tasks.

    :param lanes: number of mapped lane tasks, 1 to 64.
    :param retries: of every task, 0 to 3; None is what ``default_args`` say, else 3.
    :param retry_delay: between two tries of every task; None is what ``default_args`` say, else 5 minutes.
    :param lane_kwargs: of ``BaseOperator`` for the lanes alone: ``pool``, ``queue``, ``executor``, ``executor_config``, …
    :param coordinator: further parameters of :class:`BackfillCampaignOperator`, for the coordinator alone.
    """
    if not 1 <= lanes <= 64:
        raise XminError("DPONE_OPTION_UNSUPPORTED", f"`lanes` must lie between 1 and 64, not {lanes}.")
    with TaskGroup(group_id) as group:
        said = {**group.dag.default_args, **group.default_args}
        shared: dict[str, Any] = {
            "manifest": manifest,
            "table": table,
            "retries": said.get("retries", 3) if retries is None else retries,
            "retry_delay": said.get("retry_delay", timedelta(minutes=5)) if retry_delay is None else retry_delay,
        }
        opened = BackfillOpenOperator(task_id="open", repair_authority_ref=repair_authority_ref, **shared)
        filled = BackfillLaneOperator.partial(task_id="lane", **shared, **(lane_kwargs or {})).expand(lane=list(range(lanes)))
        stall_seconds = coordinator.pop("stall_seconds", said.get("stall_seconds"))
        published = BackfillCampaignOperator(task_id="publish", repair_authority_ref=repair_authority_ref, **shared, **coordinator)
        published.stall_seconds = stall_limit(filled, stall_seconds)  # the lanes may back off where the coordinator does not
        opened >> [filled, published]
    return group
