"""The engine protocol, everything in which SQL Server and the embedded engine differ, and the session that an engine opens.

Nothing else branches on a dialect: ``target/mssql.py`` and ``target/postgres.py`` implement the protocol, one file (with its DDL and
spelling) per dialect. A session labels its statements, drains their results and types their errors. Every statement, commit and bulk load
passes :func:`observe`, where tests stop, kill or break it and where golden T-SQL is recorded; in production nobody listens.
Imports contracts and the target's own plain types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

import pyarrow as pa
from sqlalchemy import Connection, Dialect, Executable, Table, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Projection
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Layout, Namespace, TableName
from airflow_dpone_xmin.target.facts import ObservedDatabase, SessionFacts, TableFacts
from airflow_dpone_xmin.target.sql import Stage

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


Role = Literal["target", "staging", "state"]
Isolation = Literal["SERIALIZABLE", "READ COMMITTED"]

LOCK_SECONDS = 30.0
"""A session that nobody told otherwise waits no longer than this for any lock."""


class Engine(Protocol):
    """One target server, seen by one login, for one layout."""

    layout: Layout
    dialect: Dialect
    key_collation: str
    type_aliases: Mapping[str, str]
    """Types that the catalog spells otherwise than DDL."""

    @property
    def text_units(self) -> Literal["utf16", "utf8"]:
        """Unit of ``Fingerprint`` over text, so that the Arrow side counts the same."""
        ...

    def connect(
        self, role: Role, *, cancel: Cancellation, statement_timeout: float | None = None, lock_timeout: float = LOCK_SECONDS
    ) -> Session:
        """Open a session whose current database is the role's.

        :param statement_timeout: seconds that any of its statements may take; None for no limit.
        :param lock_timeout: seconds that any of its statements may wait for a lock, until a transaction sets its own.

        :raises XminError: ``mssql_transaction.unreachable``, ``.authentication_failed``, ``.driver_missing``.
        """
        ...

    def limit_locks(self, session: Session, seconds: float) -> None:
        """How long the session's statements wait for a lock from now on."""
        ...

    def begin_exclusive(
        self, session: Session, *, resource: str, tables: Sequence[Table], timeout: float, isolation: Isolation = "SERIALIZABLE"
    ) -> None:
        """Take the application lock *resource*, then begin the transaction that reads after the lock was granted.

        :param tables: tables locked against other writers for the whole transaction.
        :param timeout: seconds to wait for any lock.
        :param isolation: READ COMMITTED for a chunk, whose lock does not exclude the other chunks' writers.
        :raises XminError: ``mssql_transaction.lock_timeout``.
        """
        ...

    def commit(self, session: Session, *, resource: str) -> None:
        """Assert that the session may commit, then commit.

        :raises XminError: ``mssql_transaction.session_invalid`` before the commit was sent; after that only
            ``mssql_transaction.commit_outcome_unknown``.
        """
        ...

    def rollback(self, session: Session) -> None:
        """Roll back if a transaction is open; never raises."""
        ...

    def release(self, session: Session, *, resource: str) -> None:
        """Give the application lock back after the outcome is known; never raises."""
        ...

    def take_lease(self, session: Session, *, resource: str) -> None:
        """Take a session application lock without waiting.

        :raises XminError: ``invocation.attempt_conflict``.
        """
        ...

    def holds_lease(self, session: Session, *, resource: str) -> bool:
        """Whether this very session still holds the lease."""
        ...

    def session_facts(self, session: Session) -> SessionFacts:
        """Server, principal, database and identity of the session."""
        ...

    def observe_database(self, session: Session, name: str) -> ObservedDatabase | None:
        """The live database of that name, or None; :raises XminError: metadata permission denied."""
        ...

    def separate_commit(self, session: Session) -> str | None:
        """Why target and state could commit separately, or None when one transaction holds both."""
        ...

    def describe(self, session: Session, namespace: Namespace, names: Sequence[str]) -> dict[str, TableFacts]:
        """The live tables by name; one that is missing, not a table, or invisible has no entry."""
        ...

    def schemas_like(self, session: Session, namespace: Namespace) -> list[str]:
        """Schemas of the namespace's database that the server's rules of equality, or case alone, take for the namespace's."""
        ...

    def case_variants(self, session: Session, table: TableName) -> list[str]:
        """Names in the table's schema, of whatever kind, that differ from its name only by case."""
        ...

    def missing_grants(self, session: Session, wanted: Mapping[str, Sequence[str]], *, role: Role) -> list[str]:
        """Grants that the session's login lacks, as readable sentences.

        :param wanted: logical ``schema.table`` → privileges; ``schema`` alone → schema privileges.
        """
        ...

    def surplus_grants(self, session: Session, allowed: Mapping[str, Sequence[str]]) -> list[str]:
        """Rights of the session's login that could change rows of these tables, or the tables, beyond those allowed.

        :param allowed: logical ``schema.table`` → privileges.
        :returns: readable sentences, ownership among them.
        """
        ...

    def may_alter(self, session: Session, table: TableName) -> bool:
        """Whether the session's login may change the table's columns."""
        ...

    def difference_table(self, session: Session, projection: Projection) -> Table:
        """Create the transaction's temporary difference table."""
        ...

    def create_stage(self, session: Session, stage: Stage) -> None:
        """Create a staging heap and commit it."""
        ...

    def bulk_load(self, stage: Stage, reader: pa.RecordBatchReader, *, place: SessionFacts, cancel: Cancellation) -> int:
        """Load all batches over a session of the loader's own and commit; returns the driver's row count, or -1 when it gives none.

        :param place: facts of the leased staging session; the loader's must be the same before a row goes in.
        :raises XminError: as :func:`target.authority.verify_place`.
        """
        ...

    def wire_type(self, plan: ColumnPlan) -> pa.DataType | None:
        """The Arrow type that the bulk loader wants for a column, None for the artifact's own."""
        ...

    def index_stage(self, session: Session, stage: Stage) -> None:
        """Create the unique clustered index on the key after the load.

        :raises XminError: ``staging.key_invalid``.
        """
        ...

    def drop_stages(self, session: Session, load_ids: Sequence[UUID]) -> int:
        """Drop the staging tables of these loads; returns how many."""
        ...

    def list_stages(self, session: Session) -> list[UUID]:
        """Load ids that have staging tables."""
        ...

    def translate(self, error: BaseException, label: str) -> Any:
        """A typed error for a driver error, without vendor text."""
        ...

    def advice(self, session: Session) -> list[str]:
        """What stops nothing but would help: for ``check``."""
        ...

    def column_type(self, plan: ColumnPlan) -> str:
        """Physical type of a target column, as :class:`ColumnFacts` spells it."""
        ...

    def namespace(self, logical: str) -> Namespace:
        """The real namespace of a logical schema."""
        ...

    def close(self) -> None:
        """Close what the engine keeps open."""
        ...
