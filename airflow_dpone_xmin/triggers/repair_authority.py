"""The trigger that waits for a repair authority: one look after another, in a thread, until it is usable, hopeless or too late.

Imported by the triggerer and, for :func:`look`, by the sensor: Airflow's trigger base and contracts at module level, everything else
inside the look. What is serialised is a manifest, a reference and times; endpoints and trust are resolved where the look happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_dpone_xmin.triggers.looking import ANSWER_SECONDS, Looking

if TYPE_CHECKING:
    from airflow_dpone_xmin.runtime.approvals import AuthorityStatus


def look(manifest: str | Path | Mapping[str, Any], *, table: str | None, ref: str) -> AuthorityStatus:
    """Look once, blocking: verify the registry, resolve route and connections, ask the state database.

    :returns: whatever refuses the look is a status as well; the text of an unexpected fault is withheld.
    """
    from airflow_dpone_xmin.operators.errors import coded
    from airflow_dpone_xmin.operators.selection import select
    from airflow_dpone_xmin.runtime.approvals import authority_status, refusal_status

    try:
        selected = select(manifest, table=table)
        repair = selected.repair(ref)
        assert repair is not None
        return authority_status(selected.route, endpoints=selected.endpoints(), repair=repair)
    except Exception as fault:
        return refusal_status(coded(fault))


def told(ref: str, status: AuthorityStatus) -> str:
    """One line for the log."""
    verdict = "ready" if status.ready else "refused" if status.final else "waiting"
    return f"Repair authority {ref}: {verdict} ({status.reason}). {status.message}"


class RepairAuthorityTrigger(BaseTrigger):
    """Fires once, when waiting has become pointless for a good or a bad reason.

    The event holds everything that the sensor needs to resume: ``outcome`` (``ready``, ``refused`` or ``timeout``), ``ref``, ``message``
    and, when refused, the ``error`` as mapping.

    :param manifest: the manifest itself; a path of the worker may not exist here.
    :param table: the one of several tables.
    :param repair_authority_ref: id of the approval.
    :param poke_interval: seconds between two looks.
    :param deadline: Unix time at which waiting ends: absolute, so that a restart of the triggerer does not prolong it.
    """

    def __init__(
        self, *, manifest: Mapping[str, Any], table: str | None, repair_authority_ref: str, poke_interval: float, deadline: float
    ) -> None:
        super().__init__()
        self.manifest, self.table = dict(manifest), table
        self.repair_authority_ref = repair_authority_ref
        self.poke_interval, self.deadline = poke_interval, deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments; no credential and no address is among them."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "manifest": self.manifest,
                "table": self.table,
                "repair_authority_ref": self.repair_authority_ref,
                "poke_interval": self.poke_interval,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, say what is missing, sleep, until an end is reached."""
        status: AuthorityStatus | None = None
        looking = Looking(self._look)
        while True:
            try:
                status = await looking.answer(self._patience(first=status is None))
            except TimeoutError:
                self.log.warning("Repair authority %s: the state database has not answered yet.", self.repair_authority_ref)
            else:
                self.log.info("%s", told(self.repair_authority_ref, status))
                if status.ready or status.final:
                    yield TriggerEvent(self._event("ready" if status.ready else "refused", status))
                    return
            remaining = self.deadline - time.time()
            if remaining <= 0:
                yield TriggerEvent(self._event("timeout", status))
                return
            await asyncio.sleep(0 if looking.pending else min(self.poke_interval, remaining))

    def _patience(self, *, first: bool) -> float:
        """A first look gets its time even when the triggerer starts late: until then nobody has looked since the approval may have come."""
        return ANSWER_SECONDS if first else max(1.0, min(ANSWER_SECONDS, self.deadline - time.time()))

    def _look(self) -> AuthorityStatus:
        return look(self.manifest, table=self.table, ref=self.repair_authority_ref)

    def _event(self, outcome: str, status: AuthorityStatus | None) -> dict[str, Any]:
        error = status.error.to_dict() if status is not None and status.error is not None else None
        message = status.message if status is not None else "The state database did not answer."
        return {"outcome": outcome, "ref": self.repair_authority_ref, "message": message, "error": error}
