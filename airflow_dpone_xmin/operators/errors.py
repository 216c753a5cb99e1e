"""The one place where this product's errors become Airflow's. Imports Airflow's SDK and contracts."""

from __future__ import annotations

import traceback
from pathlib import Path

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_dpone_xmin.contracts.errors import XminError

MAX_RETRIES = 3


class _Coded(AirflowException):
    """What both exceptions carry; their text is code, message and hint.

    :param error: its ``code``, ``details`` and ``retryable`` are there for a ``retry_policy`` or an ``on_failure_callback`` to read.
    """

    def __init__(self, error: XminError) -> None:
        super().__init__(str(error))
        self.error = error
        self.code = error.code

    def __reduce__(self) -> tuple[type[_Coded], tuple[XminError]]:
        return type(self), (self.error,)


class XminRetryableError(_Coded):
    """An unknown outcome, a lost connection, a lost race: the next attempt finds the receipt or starts over."""


class XminFailError(_Coded, AirflowFailException):
    """Drift, a refusal or a guard: fails the task at once, because a retry would meet it again."""


def to_airflow(error: XminError) -> XminRetryableError | XminFailError:
    """The exception that makes Airflow do what the error means."""
    return XminRetryableError(error) if error.retryable else XminFailError(error)


def coded(fault: BaseException) -> XminError:
    """The product's own error as it is; ``run.unexpected`` for a fault without a code, such as a lost connection of a library in between.

    Its text is withheld: drivers quote values and addresses in theirs. The receipt makes a retry safe.

    :returns: for a fault, its class and the place where it was raised.
    """
    if isinstance(fault, XminError):
        return fault
    frames = traceback.extract_tb(fault.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = f"An unexpected {type(fault).__name__}{place}; its text is withheld, it may hold secrets."
    return XminError("run.unexpected", message, retryable=True)


def require_fenced_retries(retries: int | None, *, fenced: bool = True) -> None:
    """Allow at most three retries, and none where no receipt in the target fences them.

    :param retries: the task's ``retries``.
    :param fenced: whether a second attempt of the same run would find the receipt of the first.
    :raises XminError: ``DPONE_AIRFLOW_RETRIES_REQUIRE_TARGET_FENCE``.
    """
    allowed = MAX_RETRIES if fenced else 0
    if (retries or 0) > allowed:
        raise XminError(
            "DPONE_AIRFLOW_RETRIES_REQUIRE_TARGET_FENCE",
            f"The task asks for {retries} retries; this route allows {allowed}.",
            details={"retries": retries or 0, "allowed": allowed},
        )
