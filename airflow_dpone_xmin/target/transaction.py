"""The frame of every exclusive transaction: lock, begin, and on any error roll back; unlock when the outcome is known.

A commit in doubt is decided under the same lock: lock, then look. Imports contracts and the target's own engine and session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Table

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.target.engine import Engine, Isolation, Session


class CommitInDoubt(Exception):
    """COMMIT was sent and its answer is unknown; only the receipt can tell."""


@contextmanager
def exclusive(
    engine: Engine,
    session: Session,
    *,
    resource: str,
    timeout: float,
    tables: Sequence[Table] = (),
    isolation: Isolation = "SERIALIZABLE",
) -> Iterator[None]:
    """Hold the application lock *resource* around one transaction; the body commits or rolls back.

    :param timeout: seconds to wait for any lock.
    :param tables: tables locked against other writers.
    """
    engine.begin_exclusive(session, resource=resource, tables=tables, timeout=timeout, isolation=isolation)
    try:
        yield
    except CommitInDoubt:
        # The lock may go only when the outcome is known, and the server knows it once the session has ended.
        session.close()
        raise
    except BaseException:
        engine.rollback(session)
        raise
    finally:
        engine.release(session, resource=resource)


def commit_or_doubt(engine: Engine, session: Session, *, resource: str) -> None:
    """Commit inside :func:`exclusive`.

    :raises XminError: ``mssql_transaction.session_invalid`` before COMMIT was sent.
    :raises CommitInDoubt: whatever happened to COMMIT itself.
    """
    try:
        engine.commit(session, resource=resource)
    except Exception as error:
        if isinstance(error, XminError) and error.code == "mssql_transaction.session_invalid":
            raise
        raise CommitInDoubt from error


T = TypeVar("T")


def probe(engine: Engine, session: Session, find: Callable[[], T | None], *, resource: str, timeout: float) -> T | None:
    """Decide a commit in doubt: a receipt found at any time means committed; absent under the lock means rolled back.

    :param session: a new session in the target's database.
    :param find: looks for the receipt on it.
    :returns: the receipt, or None when the transaction rolled back.
    :raises XminError: ``mssql_transaction.commit_outcome_unknown`` when the lock is not to be had.
    """
    found = find()
    if found is not None:
        return found
    try:
        engine.begin_exclusive(session, resource=resource, tables=[], timeout=timeout)
    except XminError as error:
        raise XminError(
            "mssql_transaction.commit_outcome_unknown",
            "The commit was sent, its answer was lost, and its lock is still held.",
            details={"cause": error.code},
        ) from None
    try:
        found = find()
        engine.rollback(session)
    finally:
        engine.release(session, resource=resource)
    return found


@contextmanager
def outcome_unknown() -> Iterator[None]:
    """Around the probe: whatever keeps it from looking leaves the outcome unknown.

    :raises XminError: ``mssql_transaction.commit_outcome_unknown``.
    """
    try:
        yield
    except XminError as error:
        if error.code == "mssql_transaction.commit_outcome_unknown":
            raise
        raise XminError(
            "mssql_transaction.commit_outcome_unknown",
            "The commit was sent, its answer was lost, and the server cannot be asked.",
            details={"cause": error.code},
        ) from None


def rolled_back(doubt: CommitInDoubt) -> XminError:
    """What to raise once the lock has shown that nothing was committed."""
    cause = doubt.__cause__
    if isinstance(cause, XminError):
        return cause
    return XminError("mssql_transaction.connection_lost", "The transaction rolled back: no receipt exists under the lock.")
