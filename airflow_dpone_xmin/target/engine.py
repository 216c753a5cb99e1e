"""The engine protocol: everything in which SQL Server and the embedded engine differ, and nothing else branches on a dialect.

``target/mssql.py`` and ``target/postgres.py`` implement it, one file (with its DDL and spelling) per dialect. Imports contracts and
the target's own plain types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol
from uuid import UUID

import pyarrow as pa
from sqlalchemy import Dialect, Table

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Projection
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Layout, Namespace, TableName
from airflow_dpone_xmin.target.facts import ObservedDatabase, SessionFacts, TableFacts
from airflow_dpone_xmin.target.session import Session
from airflow_dpone_xmin.target.tables import Stage

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
