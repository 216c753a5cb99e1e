"""The frame of every exclusive transaction: lock, begin, and on any error roll back; unlock when the outcome is known.

Imports the target's own engine and session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Table

from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.session import Session


class CommitInDoubt(Exception):
    """COMMIT was sent and its answer is unknown; only the receipt can tell."""


@contextmanager
def exclusive(engine: Engine, session: Session, *, resource: str, timeout: float, tables: Sequence[Table] = ()) -> Iterator[None]:
    """Hold the application lock *resource* around one serializable transaction; the body commits or rolls back.

    :param timeout: seconds to wait for any lock.
    :param tables: tables locked against other writers.
    """
    engine.begin_exclusive(session, resource=resource, tables=tables, timeout=timeout)
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
