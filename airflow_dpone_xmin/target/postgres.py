"""The embedded engine: PostgreSQL standing in for SQL Server, with true transactions, locks and crashes.

Target, staging and state are schemas of one database: it has no cross-database transaction. Imports contracts and the target's own
modules; expressions are spelled in ``target/postgres_sql.py``, DDL in ``target/postgres_ddl.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import NAMESPACE_OID, UUID, uuid5

import pyarrow as pa
from psycopg import sql
from sqlalchemy import URL, Dialect, Table, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, Projection
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Namespace, TableName
from airflow_dpone_xmin.target import postgres_queries as queries
from airflow_dpone_xmin.target import postgres_sql as _spellings  # noqa: F401  (registers them)
from airflow_dpone_xmin.target.authority import verify_place
from airflow_dpone_xmin.target.engine import LOCK_SECONDS, Isolation, Role, Session, closing_on_error, observe
from airflow_dpone_xmin.target.facts import ColumnFacts, IndexFacts, ObservedDatabase, SessionFacts, TableFacts, assemble, exactly_in
from airflow_dpone_xmin.target.sql import STAGE_PREFIX, STAGING, STATE, TARGET, TARGET_DBO, Stage, difference_table, namespace_of

_LOGIN_STATES = (
    ("3D000", re.compile(r'database ".*" does not exist', re.IGNORECASE)),
    ("42501", re.compile(r"permission denied for database", re.IGNORECASE)),
    ("28000", re.compile(r'password|authentication|pg_hba|role "', re.IGNORECASE)),
)
_LOGIN_SECONDS = 10
#: SQLSTATE, or its two-character class, whatever was being done.
_STATES: dict[str, str] = {
    "40001": "conflict",
    "40P01": "conflict",
    "55P03": "lock_timeout",
    "57014": "lock_timeout",  # a statement that ran out of time: HYT00 of SQL Server
    "42501": "permission_denied",
    "28": "authentication_failed",
    "3D000": "authentication_failed",  # SQL Server tells both by one refusal of the login, too
    "23": "constraint_violation",
}
_LOST = ("", "57P01", "57P02", "57P03", "08000", "08003", "08006", "08001", "08004")


class PostgresEngine:
    """The embedded engine for one login and layout.

    :param endpoint: address and credentials of the runtime login.
    :param state: the state entry's endpoint, when it is another one.
    """

    key_collation = "C"
    type_aliases: Mapping[str, str] = {}
    text_units: Literal["utf8"] = "utf8"

    def __init__(self, endpoint: Endpoint, layout: Layout, *, state: Endpoint | None = None) -> None:
        self.layout = layout
        self.url = _url(endpoint, layout.target.namespace.database)
        self._engine = create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        state_url = _url(state or endpoint, layout.state.database)
        self._state_engine = create_engine(state_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self.dialect: Dialect = self._engine.dialect
        self._loader: Any = None
        self._token_seen = False

    # ---- sessions and transactions ----------------------------------------------------------------------------------------
    def namespace(self, logical: str) -> Namespace:
        """The real namespace of a logical schema."""
        return namespace_of(self.layout, logical)

    def connect(
        self, role: Role, *, cancel: Cancellation, statement_timeout: float | None = None, lock_timeout: float = LOCK_SECONDS
    ) -> Session:
        """Open a session; every role is the same database here, the state role by its own login."""
        try:
            connection = (self._state_engine if role == "state" else self._engine).connect()
        except DBAPIError as error:
            raise self.translate(error.orig or error, "connect") from None
        translation = {logical: self.namespace(logical).schema for logical in (TARGET, TARGET_DBO, STAGING, STATE)}
        connection = connection.execution_options(schema_translate_map=translation, preserve_rowcount=True)
        session = Session(connection, translate=self.translate, cancel=cancel, interrupt=lambda driver, _: driver.cancel_safe(timeout=5.0))
        with closing_on_error(session):
            session.command("session.pins", "SET TIME ZONE 'UTC'")
            session.command("session.pins", "SET search_path = pg_catalog")
            self.limit_locks(session, lock_timeout)
            if statement_timeout is not None:
                limit = {"value": f"{int(statement_timeout * 1000)}ms"}
                session.command("session.pins", "SELECT set_config('statement_timeout', :value, false)", limit)
        return session

    def begin_exclusive(
        self, session: Session, *, resource: str, tables: Sequence[Table], timeout: float, isolation: Isolation = "SERIALIZABLE"
    ) -> None:
        """Session advisory lock in autocommit first: a lock taken by a query inside SERIALIZABLE would read the old revision."""
        self.limit_locks(session, timeout)
        session.command("lock.application", "SELECT pg_advisory_lock(:key)", {"key": _advisory_key(resource)})
        session.command("transaction.begin", f"BEGIN ISOLATION LEVEL {isolation}")
        session.command("transaction.begin", "SET LOCAL dpone.transaction = 'open'")  # takes no snapshot, and ends with the transaction
        for table in tables:
            real = self.namespace(str(table.schema))
            session.command("lock.table", f"LOCK TABLE {_quote(real.schema)}.{_quote(table.name)} IN SHARE ROW EXCLUSIVE MODE")

    def limit_locks(self, session: Session, seconds: float) -> None:
        """For the session, not for its transaction: ``SET LOCAL`` would need one."""
        session.command("lock.timeout", "SELECT set_config('lock_timeout', :value, false)", {"value": f"{int(seconds * 1000)}ms"})

    def commit(self, session: Session, *, resource: str) -> None:
        """Assert transaction and lock, then commit: the lock alone outlives a lost transaction."""
        state = session.scalar(
            "transaction.assert",
            text(
                "SELECT current_setting('dpone.transaction', true) = 'open' AND EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory'"
                " AND granted AND pid = pg_backend_pid() AND (classid::bigint << 32 | objid::bigint) = :key)"
            ),
            {"key": _advisory_key(resource)},
        )
        if state is not True:
            raise XminError("mssql_transaction.session_invalid", "The session no longer holds its transaction and lock.")
        session.command("transaction.commit", "COMMIT")

    def rollback(self, session: Session) -> None:
        """Roll back if a transaction is open."""
        session.quietly(text("ROLLBACK"))

    def release(self, session: Session, *, resource: str) -> None:
        """Give the advisory lock back."""
        session.quietly(text("SELECT pg_advisory_unlock(:key)"), {"key": _advisory_key(resource)})

    def take_lease(self, session: Session, *, resource: str) -> None:
        """Try the advisory lock once."""
        if session.scalar("lease.take", text("SELECT pg_try_advisory_lock(:key)"), {"key": _advisory_key(resource)}) is not True:
            raise XminError("invocation.attempt_conflict", "Another session holds this lease.")

    def holds_lease(self, session: Session, *, resource: str) -> bool:
        """Whether this backend holds the advisory lock."""
        return bool(
            session.scalar(
                "lease.check",
                text(
                    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
                    " AND (classid::bigint << 32 | objid::bigint) = :key)"
                ),
                {"key": _advisory_key(resource)},
            )
        )

    # ---- observation ------------------------------------------------------------------------------------------------------
    def session_facts(self, session: Session) -> SessionFacts:
        """System identifier, user, database, backend."""
        return SessionFacts(*session.first("session.facts", text(queries.SESSION_FACTS)))

    def observe_database(self, session: Session, name: str) -> ObservedDatabase | None:
        """Database OID, the owner's token row, and uuid5 of system identifier and OID."""
        table = f"{_quote(self.layout.dbo)}.dpone_database_token"
        if not self._token_seen:
            self._token_seen = bool(session.scalar("authority.token", text("SELECT to_regclass(:name) IS NOT NULL"), {"name": table}))
        token = f"(SELECT token FROM {table})" if self._token_seen else "''"  # which no signed pin can be
        row = session.first("authority.observe", text(queries.OBSERVE_DATABASE.format(token=token)), {"name": name})
        if row is None:
            return None
        return ObservedDatabase(
            name=row[0],
            database_id=row[1],
            create_token=row[2],
            multi_user=row[3],
            has_access=row[4],
            database_guid=uuid5(NAMESPACE_OID, f"{row[5]}:{row[1]}"),
        )

    def separate_commit(self, session: Session) -> str | None:
        """Never: both are schemas of one database."""
        return None

    def describe(self, session: Session, namespace: Namespace, names: Sequence[str]) -> dict[str, TableFacts]:
        """Columns, indexes, triggers and constraints from the system catalogs."""
        asked = {"schema": namespace.schema, "names": list(names)}
        tables = exactly_in(namespace.schema, session.rows("describe.tables", queries.TABLES, asked))
        by = {"oids": [row[1] for row in tables]}
        return assemble(
            [(row[0], row[1]) for row in tables],
            columns=[(row[0], ColumnFacts(*row[1:])) for row in session.rows("describe.columns", queries.COLUMNS, by)],
            indexes=[
                (row[0], IndexFacts(row[1], row[2], row[3], tuple(row[4]), row[5]))
                for row in session.rows("describe.indexes", queries.INDEXES, by)
            ],
            others=[tuple(row) for row in session.rows("describe.others", queries.OTHERS, by)],
        )

    def case_variants(self, session: Session, table: TableName) -> list[str]:
        """Relations of any kind."""
        names = session.rows("describe.variants", queries.CASE_VARIANTS, {"schema": table.namespace.schema, "name": table.name})
        return [row[0] for row in names]

    def schemas_like(self, session: Session, namespace: Namespace) -> list[str]:
        """By case alone: names are compared by bytes here."""
        return [row[0] for row in session.rows("describe.schemas", queries.SCHEMAS_LIKE, {"schema": namespace.schema})]

    def missing_grants(self, session: Session, wanted: Mapping[str, Sequence[str]], *, role: Role) -> list[str]:
        """Ask ``has_table_privilege`` once for all, then ``has_schema_privilege`` and the right to a temporary table."""
        tables: list[tuple[str, str, str]] = []
        schemas: list[tuple[str, str, str]] = []
        for name, privileges in wanted.items():
            logical, _, table = name.partition(".")
            schema = self.namespace(logical).schema
            (tables if table else schemas).extend((schema, table, privilege) for privilege in privileges)
        missing = [f"{row[2]} on {row[0]}.{row[1]}" for row in _asked(session, "grants.check", queries.TABLE_GRANTS, tables)]
        return missing + [f"{row[2]} on {row[0]}" for row in _asked(session, "grants.check", queries.SCHEMA_GRANTS, schemas)]

    def surplus_grants(self, session: Session, allowed: Mapping[str, Sequence[str]]) -> list[str]:
        """Rights on any column count; so does a trigger of one's own, and membership in the owner's role."""
        rights: list[tuple[str, str, str]] = []
        for name, privileges in allowed.items():
            logical, _, table = name.partition(".")
            changing = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "TRIGGER", "OWNERSHIP")
            rights += [(self.namespace(logical).schema, table, right) for right in changing if right not in privileges]
        return [f"{row[2]} on {row[0]}.{row[1]}" for row in _asked(session, "grants.surplus", queries.SURPLUS_GRANTS, rights)]

    def may_alter(self, session: Session, table: TableName) -> bool:
        """Membership in the owner's role: PostgreSQL has no other right to ALTER a table."""
        return bool(session.scalar("grants.alter", queries.MAY_ALTER, {"schema": table.namespace.schema, "name": table.name}))

    # ---- staging ----------------------------------------------------------------------------------------------------------
    def difference_table(self, session: Session, projection: Projection) -> Table:
        """A temporary table that the end of the transaction drops."""
        table = difference_table("#dpone_difference", projection)
        table._prefixes = ["TEMPORARY"]
        table.dialect_options["postgresql"]["on_commit"] = "DROP"
        session.execute("finalize.difference", CreateTable(table))
        return table

    def create_stage(self, session: Session, stage: Stage) -> None:
        """An unlogged heap: a crash empties it, and an emptied stage fails its proofs."""
        stage.table._prefixes = ["UNLOGGED"]
        session.execute("stage.create", CreateTable(stage.table))

    def bulk_load(self, stage: Stage, reader: pa.RecordBatchReader, *, place: SessionFacts, cancel: Cancellation) -> int:
        """COPY from Arrow over a connection of its own, kept for the next load: connecting reads the whole type catalog."""
        from adbc_driver_postgresql import dbapi
        from psycopg.conninfo import make_conninfo

        # As a URL a blank in a password would become a plus sign, which libpq takes for one.
        parts = {**self.url.query, **self.url.translate_connect_args(username="user", database="dbname")}
        try:
            with observe("stage.load"):
                connection, self._loader = self._loader or dbapi.connect(make_conninfo(**parts)), None
                try:
                    with connection.cursor() as cursor:
                        unregister = cancel.on_cancel(cursor.adbc_cancel)
                        try:
                            cursor.execute(queries.SESSION_FACTS)
                            verify_place(place, SessionFacts(*cursor.fetchone()))
                            schema = self.namespace(STAGING).schema
                            count = cursor.adbc_ingest(stage.table.name, reader, mode="append", db_schema_name=schema)
                            connection.commit()
                        finally:
                            unregister()
                except BaseException:
                    connection.close()
                    raise
                self._loader = connection
        except dbapi.Error as error:
            cancel.check()
            raise self.translate(error, "stage.load") from None
        return int(count)

    def wire_type(self, plan: ColumnPlan) -> pa.DataType | None:
        """Decimals travel as decimal128 of the column's own scale."""
        return pa.decimal128(plan.precision, plan.scale) if plan.family is Family.DECIMAL else None

    def index_stage(self, session: Session, stage: Stage) -> None:
        """A unique index, then statistics."""
        table = f"{_quote(self.namespace(STAGING).schema)}.{_quote(stage.table.name)}"
        columns = ", ".join(_quote(name) for name in stage.key)
        try:
            session.command("stage.index", f"CREATE UNIQUE INDEX ON {table} ({columns})")
        except XminError as error:
            if error.details.get("sqlstate") == "23505":
                raise XminError(
                    "staging.key_invalid", "The source delivered one key more than once.", details={"key": list(stage.key)}
                ) from None
            raise
        session.command("stage.statistics", f"ANALYZE {table}")

    def drop_stages(self, session: Session, load_ids: Sequence[UUID]) -> int:
        """Drop by name."""
        names = {f"{STAGE_PREFIX}{load_id.hex}_{suffix}" for load_id in load_ids for suffix in ("rows", "keys")}
        live = names & set(self._stage_names(session))
        for name in sorted(live):
            session.command("stage.drop", f"DROP TABLE IF EXISTS {_quote(self.namespace(STAGING).schema)}.{_quote(name)}")
        return len(live)

    def list_stages(self, session: Session) -> list[UUID]:
        """Load ids found in staging table names."""
        return sorted({UUID(hex=name[len(STAGE_PREFIX) :].partition("_")[0]) for name in self._stage_names(session)})

    def _stage_names(self, session: Session) -> list[str]:
        rows = session.rows(
            "stage.list",
            text("SELECT tablename FROM pg_tables WHERE schemaname = :schema AND tablename ~ :pattern"),
            {"schema": self.namespace(STAGING).schema, "pattern": f"^{STAGE_PREFIX}[0-9a-f]{{32}}_(rows|keys)$"},
        )
        return [row[0] for row in rows]

    # ---- spelling and errors ----------------------------------------------------------------------------------------------
    def advice(self, session: Session) -> list[str]:
        """None: this engine stands in for SQL Server."""
        return []

    def column_type(self, plan: ColumnPlan) -> str:
        """The plan's embedded type."""
        return plan.embedded_type

    def translate(self, error: BaseException, label: str) -> XminError:
        """Classify by SQLSTATE."""
        state = str(getattr(error, "sqlstate", None) or (_login_state(error) if label == "connect" else ""))
        details = {"step": label, "sqlstate": state or "none", "engine": "embedded"}
        code = _code_of(state, label)
        return XminError(code, f"Step {label} failed with SQLSTATE {state or 'none'}.", details=details)

    def close(self) -> None:
        """The loader's connection is all that is kept open."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None
        self._engine.dispose()
        self._state_engine.dispose()


def _quote(name: str) -> str:
    """For statements as text, where the dialect's own quoting would double a percent sign once too often."""
    return sql.Identifier(name).as_string(None)


def _url(endpoint: Endpoint, database: str) -> URL:
    """A database reached over TCP, or over the unix socket directory that the host names."""
    socket = endpoint.host is not None and endpoint.host.startswith("/")
    query = {str(name): str(value) for name, value in endpoint.extra.items()} | ({"host": str(endpoint.host)} if socket else {})
    asked = query.get("connect_timeout", "")  # 0 would wait for ever
    query["connect_timeout"] = str(min(int(asked) or _LOGIN_SECONDS, _LOGIN_SECONDS) if asked.isdigit() else _LOGIN_SECONDS)
    return URL.create(
        "postgresql+psycopg",
        username=endpoint.user,
        password=endpoint.password,
        database=database,
        host=None if socket else endpoint.host,
        port=endpoint.port,
        query=query,
    )


def _login_state(error: BaseException) -> str:
    """A refused login has no SQLSTATE in libpq; its text, from after the address on, is matched here and never shown."""
    text = str(error).rpartition(" failed: ")[2]
    return next((state for state, pattern in _LOGIN_STATES if pattern.search(text)), "08001")


def _code_of(state: str, label: str) -> str:
    known = _STATES.get(state) or _STATES.get(state[:2])
    if known is None and label == "connect":
        return "mssql_transaction.unreachable"
    return f"mssql_transaction.{known or ('connection_lost' if state in _LOST else 'statement_failed')}"


def _advisory_key(resource: str) -> int:
    return int.from_bytes(hashlib.sha256(resource.encode()).digest()[:8], "big", signed=True)


def _asked(session: Session, label: str, query: Any, rights: Sequence[tuple[str, str, str]]) -> list[Any]:
    schemas, tables, privileges = (list(part) for part in zip(*rights, strict=True)) if rights else ([], [], [])
    return session.rows(label, query, {"schemas": schemas, "tables": tables, "privileges": privileges})
