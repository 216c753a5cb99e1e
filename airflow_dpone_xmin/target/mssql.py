"""SQL Server: the engine that the product is for.

Driver autocommit with explicit ``BEGIN TRANSACTION``/``COMMIT`` (a driver transaction around an explicit one leaves ``@@TRANCOUNT`` 2
and commits nothing), one statement per execute, all results drained, no silent reconnect. Imports contracts and the target's own
modules; the drivers lazily. Spelling of expressions is in ``target/mssql_sql.py``, DDL in ``target/mssql_ddl.py``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
from sqlalchemy import URL, Dialect, Table, create_engine, text
from sqlalchemy import Engine as Pool
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, Projection
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Namespace, TableName
from airflow_dpone_xmin.target import mssql_queries as queries
from airflow_dpone_xmin.target import mssql_sql as _spellings  # noqa: F401  (registers them)
from airflow_dpone_xmin.target.authority import verify_place
from airflow_dpone_xmin.target.engine import LOCK_SECONDS, Isolation, Role, Session, closing_on_error, observe
from airflow_dpone_xmin.target.facts import ColumnFacts, IndexFacts, ObservedDatabase, SessionFacts, TableFacts, assemble, exactly_in
from airflow_dpone_xmin.target.mssql_driver import bulk_session, code_of, limit_statements, login_timeout, odbc_url, require_pyodbc
from airflow_dpone_xmin.target.sql import (
    KEY_COLLATION,
    STAGE_PREFIX,
    STAGING,
    STATE,
    TARGET,
    TARGET_DBO,
    Stage,
    difference_table,
    namespace_of,
)

_NATIVE_ERROR = re.compile(r"\((\d+)\)")
_PINS = "SET XACT_ABORT, QUOTED_IDENTIFIER, ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL ON"


class MssqlEngine:
    """SQL Server for one login and layout.

    :param endpoint: address and credentials of the sink entry.
    :param state: the state entry's endpoint.
    """

    key_collation = KEY_COLLATION
    type_aliases: Mapping[str, str] = {"integer": "int"}
    text_units: Literal["utf16"] = "utf16"

    def __init__(self, endpoint: Endpoint, layout: Layout, *, state: Endpoint | None = None) -> None:
        self.layout = layout
        self._endpoint, self._state = endpoint, state or endpoint
        self._pools: dict[Role, Pool] = {}
        self.dialect: Dialect = MSDialect_pyodbc()

    # ---- sessions and transactions ----------------------------------------------------------------------------------------
    def namespace(self, logical: str) -> Namespace:
        """The real namespace of a logical schema."""
        return namespace_of(self.layout, logical)

    def connect(
        self, role: Role, *, cancel: Cancellation, statement_timeout: float | None = None, lock_timeout: float = LOCK_SECONDS
    ) -> Session:
        """Open a session whose current database is the role's."""
        require_pyodbc()
        try:
            connection = self._pool(role).connect()
        except DBAPIError as error:
            raise self.translate(error.orig or error, "connect") from None
        translation = {logical: _dotted(self.namespace(logical)) for logical in (TARGET, TARGET_DBO, STAGING, STATE)}
        connection = connection.execution_options(schema_translate_map=translation, preserve_rowcount=True)
        session = Session(connection, translate=self.translate, cancel=cancel, interrupt=_interrupt)
        with closing_on_error(session):
            if statement_timeout is not None:
                limit_statements(connection.connection.driver_connection, self._endpoint_of(role), seconds=statement_timeout)
            session.command("session.pins", _PINS)
            session.command("session.pins", "SET NUMERIC_ROUNDABORT OFF")
            session.command("session.pins", "SET NOCOUNT OFF")
            self.limit_locks(session, lock_timeout)
        return session

    def _pool(self, role: Role) -> Pool:
        if role not in self._pools:
            waits = {"timeout": login_timeout(self._endpoint_of(role))}
            self._pools[role] = create_engine(self._url(role), poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=waits)
        return self._pools[role]

    def _url(self, role: Role) -> URL:
        namespace = {"target": self.layout.target.namespace, "staging": self.layout.staging, "state": self.layout.state}[role]
        return odbc_url(self._endpoint_of(role), database=namespace.database)

    def _endpoint_of(self, role: Role) -> Endpoint:
        return self._state if role == "state" else self._endpoint

    def begin_exclusive(
        self, session: Session, *, resource: str, tables: Sequence[Table], timeout: float, isolation: Isolation = "SERIALIZABLE"
    ) -> None:
        """Begin, then take a transaction-owned lock in the current database; table locks come with the statements' hints."""
        milliseconds = int(timeout * 1000)
        self.limit_locks(session, timeout)
        session.command("transaction.isolation", f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        session.command("transaction.begin", "BEGIN TRANSACTION")
        self._take(session, "lock.application", resource=resource, owner="Transaction", milliseconds=milliseconds)

    def limit_locks(self, session: Session, seconds: float) -> None:
        """``SET LOCK_TIMEOUT`` holds until the next one."""
        session.command("lock.timeout", f"SET LOCK_TIMEOUT {int(seconds * 1000)}")

    def _take(self, session: Session, label: str, *, resource: str, owner: str, milliseconds: int) -> None:
        # sp_getapplock reports failure by its return code and raises nothing.
        code = session.scalar(label, queries.TAKE_LOCK, {"resource": resource, "owner": owner, "timeout": milliseconds})
        if code is None or int(code) < 0:
            self.rollback(session)
            if owner == "Session":
                raise XminError("invocation.attempt_conflict", "Another session holds this lease.", details={"return_code": code})
            raise XminError("mssql_transaction.lock_timeout", "The application lock was not granted.", details={"return_code": code})

    def commit(self, session: Session, *, resource: str) -> None:
        """One open, healthy transaction that holds its lock exclusively, or no commit."""
        row = session.first("transaction.assert", queries.ASSERT_COMMIT, {"resource": resource})
        assert row is not None
        if (int(row[0]), int(row[1]), str(row[2])) != (1, 1, "Exclusive"):
            raise XminError(
                "mssql_transaction.session_invalid",
                "The session may not commit.",
                details={"trancount": int(row[0]), "xact_state": int(row[1]), "applock_mode": str(row[2])},
            )
        session.command("transaction.commit", "COMMIT TRANSACTION")

    def rollback(self, session: Session) -> None:
        """Roll back if a transaction is open."""
        session.quietly(text("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"))

    def release(self, session: Session, *, resource: str) -> None:
        """A transaction's lock ended with it; a session's lease is given back."""
        session.quietly(queries.RELEASE_LEASE, {"resource": resource})

    def take_lease(self, session: Session, *, resource: str) -> None:
        """A session application lock, without waiting."""
        self._take(session, "lease.take", resource=resource, owner="Session", milliseconds=0)

    def holds_lease(self, session: Session, *, resource: str) -> bool:
        """Whether the session's lock mode is still Exclusive."""
        return session.scalar("lease.check", queries.LEASE_MODE, {"resource": resource}) == "Exclusive"

    # ---- observation ------------------------------------------------------------------------------------------------------
    def session_facts(self, session: Session) -> SessionFacts:
        """Server, login, database, session id with its login time."""
        return _session_facts(session.first("session.facts", queries.SESSION_FACTS))

    def observe_database(self, session: Session, name: str) -> ObservedDatabase | None:
        """The three pinned fields and the access state, after the metadata right was proven."""
        if not session.scalar("authority.metadata_right", queries.METADATA_RIGHT):
            return ObservedDatabase(name=name, database_id=0, create_token="", database_guid=None, metadata_visible=False)
        rows = session.rows("authority.observe", queries.OBSERVE_DATABASE, {"name": name})
        row = next((row for row in rows if row[0] == name), rows[0] if rows else None)
        if row is None:
            return None
        return ObservedDatabase(
            name=row[0],
            database_id=int(row[1]),
            create_token=row[2],
            database_guid=UUID(str(row[3])) if row[3] else None,
            online=row[4] == "ONLINE",
            multi_user=row[5] == "MULTI_USER",
            has_access=row[6] == 1,
        )

    def separate_commit(self, session: Session) -> str | None:
        """In an availability group databases commit separately, unless both are in one group with per-database DTC support."""
        databases = {self.layout.target.namespace.database, self.layout.state.database}
        if len(databases) == 1 or not session.scalar("authority.hadr", queries.HADR_ENABLED):
            return None
        rows = session.rows("authority.groups", queries.AVAILABILITY_GROUPS, {"names": sorted(databases)})
        grouped = [row for row in rows if row[1] is not None]
        if not grouped:
            return None
        if len(grouped) == len(rows) and len({row[2] for row in grouped}) == 1 and all(row[3] for row in grouped):
            return None
        return "one of them is in an availability group without visible per-database DTC support, or they are in different groups"

    def describe(self, session: Session, namespace: Namespace, names: Sequence[str]) -> dict[str, TableFacts]:
        """Columns, indexes, triggers and constraints from the catalog views of the tables' own database."""
        database = self._quote(namespace.database)
        asked = {"schema": namespace.schema, "names": list(names)}
        tables = exactly_in(namespace.schema, session.rows("describe.tables", queries.of_names(queries.TABLES, database), asked))
        if not tables:
            return {}
        by = {"oids": [row[1] for row in tables]}
        columns = session.rows("describe.columns", queries.of_objects(queries.COLUMNS, database), by)
        parts = session.rows("describe.indexes", queries.of_objects(queries.INDEXES, database), by)
        others = session.rows("describe.others", queries.of_objects(queries.OTHERS, database), by)
        return assemble(
            [(row[0], row[1]) for row in tables],
            columns=[(row[0], _column(row)) for row in columns],
            indexes=_indexes(parts),
            others=[tuple(row) for row in others],
        )

    def case_variants(self, session: Session, table: TableName) -> list[str]:
        """Tables, views and synonyms; only a case-sensitive database can hold two of a name."""
        query = text(queries.CASE_VARIANTS.format(db=self._quote(table.namespace.database)))
        rows = session.rows("describe.variants", query, {"schema": table.namespace.schema, "name": table.name})
        return [row[0] for row in exactly_in(table.namespace.schema, rows)]

    def schemas_like(self, session: Session, namespace: Namespace) -> list[str]:
        """By the database's collation, or by case alone."""
        query = text(queries.SCHEMAS_LIKE.format(db=self._quote(namespace.database)))
        return [row[0] for row in session.rows("describe.schemas", query, {"schema": namespace.schema})]

    def missing_grants(self, session: Session, wanted: Mapping[str, Sequence[str]], *, role: Role) -> list[str]:
        """Ask ``HAS_PERMS_BY_NAME`` once for all; USAGE has no counterpart, CREATE is two rights."""
        rights = []
        for name, privileges in wanted.items():
            logical, _, table = name.partition(".")
            for privilege in privileges:
                rights += _permissions(self._quote, self.namespace(logical), table, privilege)
        lacking = session.rows("grants.check", queries.permissions(rights, held=False))
        return [f"{row[1]} on {row[0]}" for row in lacking]

    def surplus_grants(self, session: Session, allowed: Mapping[str, Sequence[str]]) -> list[str]:
        """Effective rights, whatever they come from; ALTER covers TRUNCATE, and a schema's ALTER or CONTROL may drop its tables."""
        rights: set[tuple[str, str, str]] = set()
        for name, privileges in allowed.items():
            logical, _, table = name.partition(".")
            namespace = self.namespace(logical)
            for privilege in set(_CHANGING) - set(privileges):
                rights.update(_permissions(self._quote, namespace, table, privilege))
            schema = f"{self._quote(namespace.database)}.{self._quote(namespace.schema)}"
            rights.update((schema, "SCHEMA", privilege) for privilege in ("ALTER", "CONTROL", "TAKE OWNERSHIP"))
        held = session.rows("grants.surplus", queries.permissions(sorted(rights), held=True))
        return sorted(f"{row[1]} on {row[0]}" for row in held)

    def may_alter(self, session: Session, table: TableName) -> bool:
        """ALTER on the table."""
        right = _permissions(self._quote, table.namespace, table.name, "ALTER")
        return not session.rows("grants.alter", queries.permissions(right, held=False))

    # ---- staging ----------------------------------------------------------------------------------------------------------
    def difference_table(self, session: Session, projection: Projection) -> Table:
        """A temporary table of the session."""
        table = difference_table("#dpone_difference", projection)
        session.execute("finalize.difference", CreateTable(table))
        return table

    def create_stage(self, session: Session, stage: Stage) -> None:
        """A heap, so that the bulk load is minimally logged under its table lock."""
        session.execute("stage.create", CreateTable(stage.table))

    def bulk_load(self, stage: Stage, reader: pa.RecordBatchReader, *, place: SessionFacts, cancel: Cancellation) -> int:
        """``bulkcopy_arrow`` over a session of its own; a cancellation is seen by the reader, between two batches."""
        namespace = self.namespace(STAGING)
        table = f"{self._quote(namespace.schema)}.{self._quote(stage.table.name)}"
        mappings = [(index, plan.name) for index, plan in enumerate(stage.columns)]
        with observe("stage.load"), bulk_session(self._endpoint, database=namespace.database, translate=self.translate) as session:
            try:
                with contextlib.closing(session.cursor()) as cursor:
                    cursor.execute(str(queries.SESSION_FACTS))
                    (row,) = cursor.fetchall()  # an open batch would refuse the copy
                    verify_place(place, _session_facts(row))
                    # The driver's default time-out of 30 seconds would kill long loads.
                    result = cursor.bulkcopy_arrow(
                        table, reader, timeout=0, column_mappings=mappings, table_lock=True, keep_nulls=True, batch_size=0
                    )
            except XminError:
                raise
            except Exception as error:
                cancel.check()
                raise self.translate(error, "stage.load") from None
            except BaseException as error:
                # The loader's native part panics with a BaseException of its own; Ctrl-C and SystemExit pass.
                if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                    raise
                raise self.translate(error, "stage.load") from None
        return int(result["rows_copied"])

    def wire_type(self, plan: ColumnPlan) -> pa.DataType | None:
        """Decimals with the target's scale; timestamptz as UTC without zone."""
        if plan.family is Family.DECIMAL:
            return pa.decimal128(plan.precision, plan.scale)
        return pa.timestamp("us") if plan.family is Family.TIMESTAMPTZ else None

    def index_stage(self, session: Session, stage: Stage) -> None:
        """A unique clustered index: proves uniqueness, gives order and statistics."""
        namespace = self.namespace(STAGING)
        table = f"{self._quote(namespace.schema)}.{self._quote(stage.table.name)}"
        columns = ", ".join(self._quote(name) for name in stage.key)
        try:
            session.command("stage.index", f"CREATE UNIQUE CLUSTERED INDEX [cx_{stage.table.name}] ON {table} ({columns})")
        except XminError as error:
            if error.details.get("sqlstate") == "23000" or error.details.get("native") == 1505:
                raise XminError(
                    "staging.key_invalid", "The source delivered one key more than once.", details={"key": list(stage.key)}
                ) from None
            raise

    def drop_stages(self, session: Session, load_ids: Sequence[UUID]) -> int:
        """Drop by name."""
        names = {f"{STAGE_PREFIX}{load_id.hex}_{suffix}" for load_id in load_ids for suffix in ("rows", "keys")}
        live = sorted(names & set(self._stage_names(session)))
        for name in live:
            session.command("stage.drop", f"DROP TABLE IF EXISTS {self._quote(self.namespace(STAGING).schema)}.{self._quote(name)}")
        return len(live)

    def list_stages(self, session: Session) -> list[UUID]:
        """Load ids found in staging table names."""
        return sorted({UUID(hex=name[len(STAGE_PREFIX) :].partition("_")[0]) for name in self._stage_names(session)})

    def _stage_names(self, session: Session) -> list[str]:
        rows = session.rows("stage.list", queries.LIST_STAGES, {"schema": self.namespace(STAGING).schema})
        pattern = re.compile(f"{STAGE_PREFIX}[0-9a-f]{{32}}_(rows|keys)")
        return [row[0] for row in exactly_in(self.namespace(STAGING).schema, rows) if pattern.fullmatch(row[0])]

    # ---- spelling and errors ----------------------------------------------------------------------------------------------
    def advice(self, session: Session) -> list[str]:
        """READ_COMMITTED_SNAPSHOT lets readers see the last commit while the finalizer holds its table lock."""
        on = session.scalar("advice.row_versions", queries.READ_COMMITTED_SNAPSHOT)
        return [] if on else ["READ_COMMITTED_SNAPSHOT is off: readers of the target wait for the finalizer; consider turning it on"]

    def column_type(self, plan: ColumnPlan) -> str:
        """The plan's SQL Server type."""
        return plan.mssql_type

    def translate(self, error: BaseException, label: str) -> XminError:
        """Classify by SQLSTATE and native number; the vendor's text stays here."""
        arguments = getattr(error, "args", ())
        state = str(arguments[0]) if arguments and re.fullmatch(r"[0-9A-Z]{5}", str(arguments[0])) else ""
        found = _NATIVE_ERROR.search(str(arguments[-1])) if arguments else None
        native = int(found.group(1)) if found else 0
        details = {"step": label, "sqlstate": state or "none", "native": native, "engine": "mssql"}
        return XminError(
            code_of(state, native, label), f"Step {label} failed with SQLSTATE {state or 'none'}, error {native}.", details=details
        )

    def close(self) -> None:
        """Nothing is kept open."""
        for pool in self._pools.values():
            pool.dispose()

    def _quote(self, name: str) -> str:
        return str(self.dialect.identifier_preparer.quote_identifier(name))


def _dotted(namespace: Namespace) -> str:
    # SQLAlchemy splits "db.schema"; brackets keep a dot inside a name.
    return f"[{namespace.database}].[{namespace.schema}]"


def _interrupt(_: Any, cursor: Any) -> None:
    if cursor is not None:
        cursor.cancel()


def _session_facts(row: Any) -> SessionFacts:
    return SessionFacts(topology=str(row[0]), principal=str(row[1]), database=str(row[2]), session=str(row[3]))


def _column(row: Any) -> ColumnFacts:
    kind = queries.type_text(row[2], row[3], row[4], row[5])
    return ColumnFacts(row[1], kind, bool(row[6]), row[7], bool(row[8]), bool(row[9]))


def _indexes(parts: Sequence[Any]) -> list[tuple[int, IndexFacts]]:
    grouped: dict[tuple[int, str], list[Any]] = {}
    for row in parts:
        grouped.setdefault((row[0], row[1]), []).append(row)
    return [
        (oid, IndexFacts(name, bool(rows[0][2]), bool(rows[0][3]), tuple(row[5] for row in rows), rows[0][4]))
        for (oid, name), rows in grouped.items()
    ]


def _permissions(quote: Any, namespace: Namespace, table: str, privilege: str) -> list[tuple[str, str, str]]:
    database, schema = quote(namespace.database), f"{quote(namespace.database)}.{quote(namespace.schema)}"
    if table:
        return [(f"{schema}.{quote(table)}", "OBJECT", privilege)]
    return [(database, "DATABASE", "CREATE TABLE"), (schema, "SCHEMA", "ALTER")] if privilege == "CREATE" else []


_CHANGING = ("INSERT", "UPDATE", "DELETE", "ALTER", "CONTROL", "TAKE OWNERSHIP")
