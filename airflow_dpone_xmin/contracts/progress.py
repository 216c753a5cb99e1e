"""Progress of long work, told to whoever listens: the CLI's bars, the task log, the demo.

Imports the standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_dpone_xmin.contracts.errors import XminError


@dataclass(frozen=True, slots=True)
class Progress:
    """One event.

    :param event: stable name, for example ``POSTGRES_COPY_COMPLETE``; names that end in ``_COMPLETE`` close a phase.
    :param rows: rows so far.
    :param bytes: bytes so far.
    :param seconds: seconds since the phase began.
    :param total: expected rows, when known.
    :param note: short human addition, without business values.
    """

    event: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    total: int | None = None
    note: str = ""

    @property
    def rows_per_second(self) -> float:
        """Throughput of the phase so far."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


Listener = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """A listener that ignores every event."""


@dataclass(slots=True)
class Cancellation:
    """A flag that ``on_kill`` sets from another thread, and the driver calls to interrupt.

    Long work calls :meth:`check` between batches; a session that may block registers its cancel function with :meth:`on_cancel`.
    """

    _event: threading.Event = field(default_factory=threading.Event)
    _interrupts: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_cancel(self, interrupt: Callable[[], None]) -> Callable[[], None]:
        """Register *interrupt*; returns a function that unregisters it. Called at once when already cancelled."""
        with self._lock:
            self._interrupts.append(interrupt)
        if self._event.is_set():
            interrupt()

        def unregister() -> None:
            with self._lock:
                if interrupt in self._interrupts:
                    self._interrupts.remove(interrupt)

        return unregister

    def cancel(self) -> None:
        """Set the flag, then interrupt every registered driver call; interrupts must not raise."""
        self._event.set()
        with self._lock:
            interrupts = list(self._interrupts)
        for interrupt in interrupts:
            interrupt()

    def wait(self, seconds: float) -> bool:
        """Sleep, at most until the flag is set; returns whether it is."""
        return self._event.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Sleep; :raises XminError: ``run.cancelled`` as soon as the flag is set."""
        self.wait(seconds)
        self.check()

    @property
    def cancelled(self) -> bool:
        """Whether the work was cancelled."""
        return self._event.is_set()

    def check(self) -> None:
        """:raises XminError: ``run.cancelled`` once the flag is set."""
        if self._event.is_set():
            raise XminError("run.cancelled", "The run was asked to stop.")
