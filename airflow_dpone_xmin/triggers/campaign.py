"""The trigger that watches a campaign: chunks, rows and lanes, one look after another, until it is complete or stalled.

It only looks; it never copies data. Imported by the triggerer and, for :func:`look`, by the coordinator: Airflow's trigger base and
contracts at module level, everything else inside the look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.triggers.looking import ANSWER_SECONDS, Looking


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """One look.

    :param error: what refused or failed the look; some may pass.
    """

    complete: bool
    message: str
    error: XminError | None = None


def look(manifest: Mapping[str, Any], *, table: str | None, since: float, stall_seconds: float) -> CampaignStatus:
    """Look once, blocking.

    :param since: Unix time at which the waiting began: a resumed campaign is given a whole stall limit.
    :param stall_seconds: longest time without a living lane and without a change.
    :returns: a refusal is a status as well.
    """
    from airflow_dpone_xmin.operators.errors import coded
    from airflow_dpone_xmin.operators.selection import select
    from airflow_dpone_xmin.runtime.campaign import look_at_campaign

    try:
        selected = select(manifest, table=table)
        found = look_at_campaign(selected.route, endpoints=selected.endpoints())
    except Exception as fault:
        error = coded(fault)
        return CampaignStatus(False, str(error), error)
    message = f"{selected.route.process}: {found.sentence()}"
    quiet = min((found.now - found.last_change).total_seconds(), time.time() - since)
    if not found.complete and not found.lanes and quiet > stall_seconds:
        return CampaignStatus(False, message, XminError("campaign.stalled", f"{found.sentence()}; nothing has moved for {quiet:.0f} s."))
    return CampaignStatus(found.complete, message)


class Patience:
    """Ends a wait that has become pointless: by a refusal, or after nothing but failed looks for as long as a campaign may stall.

    :param seconds: the stall limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._well = seconds, time.monotonic()

    def ends(self, status: CampaignStatus) -> bool:
        """Whether this look is the last one."""
        if status.error is None:
            self._well = time.monotonic()
            return status.complete
        return not status.error.may_pass or time.monotonic() - self._well > self._seconds


class CampaignTrigger(BaseTrigger):
    """Fires once, when every chunk is committed or waiting has become pointless.

    The event holds ``outcome`` (``complete`` or ``refused``), ``message`` and, when refused, the ``error`` as mapping.

    :param manifest: the manifest itself; a path of the worker may not exist here.
    :param table: the one of several tables.
    :param poke_interval: seconds between two looks.
    :param stall_seconds: as of :func:`look`.
    :param since: Unix time: absolute, so that a restart of the triggerer does not prolong the waiting.
    """

    def __init__(self, *, manifest: Mapping[str, Any], table: str | None, poke_interval: float, stall_seconds: float, since: float) -> None:
        super().__init__()
        self.manifest, self.table = dict(manifest), table
        self.poke_interval, self.stall_seconds, self.since = poke_interval, stall_seconds, since

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments; no credential and no address is among them."""
        names = ("manifest", "table", "poke_interval", "stall_seconds", "since")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, tell, sleep."""
        looking, patience = Looking(self._look), Patience(self.stall_seconds)
        while True:
            try:
                status = await looking.answer(ANSWER_SECONDS)
            except TimeoutError:
                self.log.warning("The state database has not answered yet.")
                continue
            self.log.info("%s", status.message)
            if patience.ends(status):
                error = None if status.error is None else status.error.to_dict()
                outcome = "complete" if status.complete else "refused"
                yield TriggerEvent({"outcome": outcome, "message": status.message, "error": error})
                return
            await asyncio.sleep(self.poke_interval)

    def _look(self) -> CampaignStatus:
        return look(self.manifest, table=self.table, since=self.since, stall_seconds=self.stall_seconds)
