"""One database session on the target side: labelled statements, drained results, typed errors.

Every statement, commit and bulk load passes :func:`observe`, where tests stop, kill or break it and where golden T-SQL is recorded;
in production nobody listens. Imports contracts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Executable, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation

Phase = Literal["before", "after"]


class Event(NamedTuple):
    """One thing a session is about to do, or has done.

    :param label: stable name of the step, for example ``finalize.insert``.
    :param statement: the executable, or None for a bulk load.
    :param session: the session that does it, or None for a bulk load.
    """

    phase: Phase
    label: str
    statement: Executable | None
    session: Session | None = None


OBSERVERS: list[Callable[[Event], None]] = []


def notify(phase: Phase, label: str, statement: Executable | None = None, session: Session | None = None) -> None:
    """Tell every observer; what an observer raises is raised here."""
    for observer in OBSERVERS:
        observer(Event(phase, label, statement, session))


@contextmanager
def observe(label: str, statement: Executable | None = None, session: Session | None = None) -> Iterator[None]:
    """Tell the observers before and, when nothing was raised, after."""
    notify("before", label, statement, session)
    yield
    notify("after", label, statement, session)


Translate = Callable[[BaseException, str], XminError]


class Session:
    """One connection in driver autocommit; transactions are explicit statements of the engine.

    :param connection: an open SQLAlchemy connection with its schema translation set.
    :param translate: turns a driver error into a typed one without vendor text.
    :param cancel: interrupts the running statement when the run is cancelled.
    :param interrupt: called with driver connection and running cursor, from another thread; must not raise.
    """

    def __init__(
        self, connection: Connection, *, translate: Translate, cancel: Cancellation, interrupt: Callable[[Any, Any], None]
    ) -> None:
        self.connection = connection
        self._translate = translate
        self._cancel = cancel
        self._cursor: Any = None
        driver = connection.connection.driver_connection
        self._count = -1
        event.listen(connection, "before_cursor_execute", self._remember)
        event.listen(connection, "after_cursor_execute", self._drain)
        self._unregister = cancel.on_cancel(lambda: interrupt(driver, self._cursor))

    def execute(self, label: str, statement: Executable, params: Mapping[str, Any] | None = None) -> int:
        """Run a statement that returns no rows; returns the server's row count."""
        with self._step(label, statement):
            self.connection.execute(statement, params or {})
            return self._count

    def rows(self, label: str, statement: Executable, params: Mapping[str, Any] | None = None) -> list[Any]:
        """Run a query; returns all of its rows: callers ask for few."""
        with self._step(label, statement):
            return list(self.connection.execute(statement, params or {}).fetchall())

    def first(self, label: str, statement: Executable, params: Mapping[str, Any] | None = None) -> Any:
        """The first row of a query, or None."""
        rows = self.rows(label, statement, params)
        return rows[0] if rows else None

    def scalar(self, label: str, statement: Executable, params: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row, or None."""
        row = self.first(label, statement, params)
        return None if row is None else row[0]

    def command(self, label: str, sql: str, params: Mapping[str, Any] | None = None) -> int:
        """Run an engine's own statement, such as BEGIN; without *params* a colon in it is part of a name."""
        return self.execute(label, text(sql if params is not None else sql.replace(":", "\\:")), params)

    def quietly(self, statement: Executable, params: Mapping[str, Any] | None = None) -> None:
        """Run a clean-up statement; never raises. Where it cannot run the connection is ended, and the server cleans up by itself."""
        if self._ended:
            return
        try:
            self.connection.execute(statement, params or {})
        except SQLAlchemyError:
            self.connection.invalidate()

    @property
    def _ended(self) -> bool:
        return self.connection.closed or self.connection.invalidated

    def close(self) -> None:
        """Close the connection; an open transaction rolls back."""
        self._unregister()
        try:
            self.connection.close()
        except DBAPIError:
            self.connection.invalidate()

    def _remember(self, connection: Any, cursor: Any, *_: Any) -> None:
        self._cursor = cursor

    @contextmanager
    def _step(self, label: str, statement: Executable) -> Iterator[None]:
        self._cancel.check()
        if self._ended:
            # SQLAlchemy would connect again: a lease or a transaction would be gone without a word.
            raise XminError("mssql_transaction.connection_lost", f"The session ended before step {label}.", details={"step": label})
        with observe(label, statement, self):
            try:
                yield
            except DBAPIError as error:
                if self._cancel.cancelled:
                    raise XminError("run.cancelled", f"The run was cancelled during {label}.") from None
                # The driver's text may quote business values; only its class and codes go on.
                raise self._translate(error.orig or error, label) from None

    def _drain(self, connection: Any, cursor: Any, *_: Any) -> None:
        # On SQL Server an error can hide behind the first result until the later ones are read; SQLAlchemy would close the cursor first.
        self._count = int(cursor.rowcount)
        if cursor.description is None:
            while cursor.nextset():
                pass


@contextmanager
def closing_on_error(session: Session) -> Iterator[None]:
    """Close a session whose set-up fails, instead of leaving it to the garbage collector."""
    try:
        yield
    except BaseException:
        session.close()
        raise
