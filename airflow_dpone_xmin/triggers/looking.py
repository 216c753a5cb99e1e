"""A blocking look in a thread, asked again and again by a trigger's loop. Imports the standard library only.

A thread cannot be cancelled, and a second one would only queue behind it: a look that has not answered in time goes on, and the next
question waits for the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 60.0
"""How long one look is waited for before the log says so."""


class Looking(Generic[T]):
    """One look at a time.

    :param look: the blocking call.
    """

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._pending: asyncio.Task[T] | None = None

    @property
    def pending(self) -> bool:
        """Whether a look has not answered yet."""
        return self._pending is not None

    async def answer(self, seconds: float) -> T:
        """The answer of the look that is under way, or of a new one.

        :raises TimeoutError: it did not answer within *seconds*.
        """
        self._pending = self._pending or asyncio.create_task(asyncio.to_thread(self._look))
        answered = await asyncio.wait_for(asyncio.shield(self._pending), seconds)
        self._pending = None
        return answered
