"""Blocking work in a thread, so that the main thread stays free to hear signals. Imports contracts only.

A driver blocked in C delays every Python signal handler of the thread that called it, and ADBC takes SIGINT for itself there. In Airflow
SIGTERM alone does not fail a task: its handler calls ``on_kill`` and returns, and ``execute`` goes on.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener

T = TypeVar("T")
_POLL_SECONDS = 0.5
_SLICE_SECONDS = 0.05


class CancellableWork(Generic[T]):
    """One call that :meth:`stop` can end from the main thread, also from a signal handler on top of :meth:`wait`.

    The state that both share is written once and read by polling: a lock would be held by the very frame that a handler interrupts.

    :param call: the blocking work; it must obey the cancellation.
    :param cancel: flag and driver interrupts of the work.
    :param grace: seconds that a cancelled call may take to end.
    """

    def __init__(self, call: Callable[[], T], *, cancel: Cancellation, grace: float) -> None:
        self._call, self._cancel, self._grace = call, cancel, grace
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._done = False
        self._give_up_at: float | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._run), name="dpone-xmin-work", daemon=True)

    def wait(self) -> T:
        """Start the call and wait for its end.

        :returns: the call's result.
        :raises XminError: ``run.cancelled`` when it was stopped, whether or not it had already finished; else whatever the call raised.
        """
        self._thread.start()
        try:
            while not self._done and not self._late():
                self._thread.join(_POLL_SECONDS)
        except BaseException:  # a time-out of the scheduler: what nobody waits for must not go on
            self.request_stop()
            raise
        if self._cancel.cancelled:
            raise self._cancelled()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def stop(self) -> bool:
        """Cancel and wait for the end, at most the grace period. Safe in a signal handler.

        :returns: whether the call has ended.
        """
        self.request_stop()
        while self._thread.ident is not None and not self._done and not self._late():
            time.sleep(_SLICE_SECONDS)
        return self._done

    def request_stop(self) -> None:
        """Cancel, without waiting. Safe in a signal handler."""
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + self._grace
            # In a thread of its own: a driver's cancel request opens a connection and may take its time.
            threading.Thread(target=self._cancel.cancel, name="dpone-xmin-cancel", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # handed to the waiting thread
            self._error = error
        finally:
            self._done = True

    def _late(self) -> bool:
        return self._give_up_at is not None and time.monotonic() >= self._give_up_at

    def _cancelled(self) -> XminError:
        if self._result:
            return stopped(committed=True)
        if not self._done:
            return XminError(
                "run.cancelled",
                f"The run was asked to stop; its driver did not answer within {self._grace:.0f} s and is left behind.",
                hint="Run again: the receipt tells whether the transaction committed.",
            )
        if isinstance(self._error, XminError) and self._error.code == "run.cancelled":
            return self._error
        return stopped()


def cancellable(call: Callable[..., T], *arguments: Any, listener: Listener, grace: float, **named: Any) -> CancellableWork[T]:
    """A use case of the runtime as work, not started yet: it is called with the rest, its ``progress`` and its ``cancel``."""
    cancel = Cancellation()
    return CancellableWork(lambda: call(*arguments, **named, progress=listener, cancel=cancel), cancel=cancel, grace=grace)


def stopped(*, committed: bool = False) -> XminError:
    """``run.cancelled`` of work that was asked to stop.

    :param committed: its work had ended already.
    """
    if not committed:
        return XminError("run.cancelled", "The run was asked to stop.")
    return XminError(
        "run.cancelled",
        "The run was asked to stop when its transaction had already committed.",
        hint="Try the same run again: it answers from its receipt.",
    )
