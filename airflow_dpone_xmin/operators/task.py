"""What every operator does the same way: cancellable work in a thread, a log that tells an approver everything, errors mapped once.

Imported by every DAG file: Airflow's SDK and contracts at module level, everything else inside ``execute``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.operators.errors import coded, require_fenced_retries, to_airflow
from airflow_dpone_xmin.operators.stop import approval_request, without_command

if TYPE_CHECKING:
    from airflow_dpone_xmin.runtime.worker import CancellableWork

log = logging.getLogger(__name__)

KILL_GRACE_SECONDS = 30.0
"""How long ``on_kill`` waits; below Airflow's ``killed_task_cleanup_time`` of 60 seconds."""


class XminTask:
    """Mixed into the operators: calls use cases of the runtime; the operator says which in ``_execute``."""

    _work: CancellableWork[Any] | None = None
    _process: str | None = None
    _killed = False

    def execute(self, context: Context) -> Any:
        """Run one attempt of this task.

        :raises AirflowFailException: drift, refusals and guards; a retry cannot help.
        :raises AirflowException: what the next attempt may mend.
        """
        try:
            result = self._execute(context)
            self._require_alive(result=result)
            return result
        except Exception as fault:
            raise to_airflow(self._logged(coded(fault))) from None

    def on_kill(self) -> None:
        """Interrupt the drivers and wait for the work to end, at most :data:`KILL_GRACE_SECONDS`; ``execute`` then raises."""
        self._killed = True
        if self._work is None:
            log.warning("Asked to stop; the task ends before its next step.")
            return
        log.warning("Asked to stop; cancelling, for at most %.0f s.", KILL_GRACE_SECONDS)
        ended = self._work.stop()
        log.warning("The work has ended." if ended else "The work did not end in time; its receipt will tell what happened.")

    def _execute(self, context: Context) -> Any:
        """One attempt; sets ``_process`` as soon as it is known."""
        raise NotImplementedError

    def _run(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a use case in a thread that ``on_kill`` can end; its progress goes to the log."""
        from airflow_dpone_xmin.runtime.worker import cancellable

        self._work = cancellable(call, *arguments, **named, listener=_log_progress, grace=KILL_GRACE_SECONDS)
        self._require_alive()  # once the work is known to `on_kill`: a signal before or after this line is heard
        return self._work.wait()

    def _require_alive(self, *, result: Any = None) -> None:
        """:raises XminError: ``run.cancelled`` when ``on_kill`` came while nothing ran that it could interrupt."""
        from airflow_dpone_xmin.runtime.worker import stopped

        if self._killed:
            raise stopped(committed=result is not None)

    def _logged(self, error: XminError) -> XminError:
        """Log what the exception's text does not hold, once, and count the attempt."""
        from airflow_dpone_xmin.operators.publish import count_failure

        count_failure(self._process, error)
        request = approval_request(error)
        if request is not None:
            log.error("%s", request)
            return without_command(error)
        if error.details:
            log.error("%s details: %s", error.code, json.dumps(error.details, default=str))
        return error


class FencedTask(XminTask):
    """Mixed into the operators whose retries find the receipt of the try before: three at most, mapped or not."""

    retries: int | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_fenced_retries(self.retries)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """As of ``BaseOperator``; a mapped task is constructed by the worker, where its refusal would be retried."""
        partial: OperatorPartial = super().partial(**kwargs)  # type: ignore[misc]
        require_fenced_retries(partial.kwargs["retries"])
        return partial


def _log_progress(progress: Progress) -> None:
    """One line per phase: rows, bytes, seconds, rows/s. The record carries the event itself for programs that listen."""
    from airflow_dpone_xmin.runtime.progress import describe_progress

    level = logging.DEBUG if progress.event.endswith("_PROGRESS") else logging.INFO
    log.log(level, "%s", describe_progress(progress), extra={"dpone_progress": progress})
