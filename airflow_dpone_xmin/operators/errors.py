"""The one place where this product's errors become Airflow's. Imports Airflow's SDK and contracts."""

from __future__ import annotations

import traceback
from pathlib import Path

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_dpone_xmin.contracts.errors import XminError

MAX_RETRIES = 3


def to_airflow(error: XminError) -> AirflowException:
    """The exception that makes Airflow do what the error means.

    Drift, refusals and guards fail the task at once, because a retry would meet them again. An unknown outcome, a lost connection or a
    lost race leaves the task to its retries: the next attempt of the run finds the receipt or starts over.

    :returns: ``AirflowFailException`` or, when *error* is retryable, ``AirflowException``; code, message and hint are its text.
    """
    return AirflowException(str(error)) if error.retryable else AirflowFailException(str(error))


def unexpected(fault: BaseException) -> XminError:
    """A fault without a code of its own. Its text is withheld: drivers quote values and addresses in theirs.

    :returns: ``run.unexpected`` with the fault's class and the place where it was raised.
    """
    frames = traceback.extract_tb(fault.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return XminError("run.unexpected", f"An unexpected {type(fault).__name__}{place}; its text is withheld, it may hold secrets.")


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
