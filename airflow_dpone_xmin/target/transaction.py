"""The frame of every exclusive transaction: lock, begin, and on any error roll back; unlock when the outcome is known.

Imports contracts and the target's own engine and session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Table

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.target.engine import Engine, Isolation
from airflow_dpone_xmin.target.session import Session


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
    except XminError as error:
        if error.code == "mssql_transaction.session_invalid":
            raise
        raise CommitInDoubt from error
    except Exception as error:
        raise CommitInDoubt from error
