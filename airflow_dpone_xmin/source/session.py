"""One ADBC session to the source: statements, Arrow streams, cancellation, and the only place that reads driver errors.

Autocommit, with explicit ``BEGIN``; a transaction's settings are ``SET LOCAL`` only, because a pooler in transaction mode leaks anything
else. Imports contracts only.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from adbc_driver_manager._reader import AdbcRecordBatchReader
from psycopg import conninfo, pq, sql

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint

#: Without these a vanished network leaves a read waiting for hours.
_DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "15",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "application_name": "dpone-xmin",
}
_STREAM_BATCH_BYTES = 16 * 1024 * 1024
_CANCEL_INTERVAL_SECONDS = 0.25
_CLOSE_SECONDS = 10.0

#: SQLSTATE, or its two-character class → code (PostgreSQL appendix A).
_BY_SQLSTATE: Mapping[str, str] = {
    "08": "postgres_source.lost",
    "22": "postgres_source.value_unreadable",
    "28": "postgres_source.authentication_failed",
    "3F000": "postgres_source.relation_missing",
    "42P01": "postgres_source.relation_missing",
    "42501": "postgres_source.permission_denied",
    "42703": "postgres_source.projection_invalid",
    "42704": "postgres_source.projection_invalid",
    # A conflict with recovery is an ERROR when the session is active and a FATAL when it is idle: one retryable outcome.
    "40": "postgres_source.lost",
    "25P03": "postgres_source.lost",
    "25P04": "postgres_source.deadline",
    "53": "postgres_source.lost",
    "53300": "postgres_source.unreachable",
    "55P03": "postgres_source.lock_timeout",
    "57": "postgres_source.lost",
    "57P03": "postgres_source.unreachable",
    "58": "postgres_source.lost",
}
#: A refused login carries no SQLSTATE through libpq's connection functions; its text is matched here and never shown.
_LOGIN_REFUSED = re.compile(r"password|authentication|pg_hba|role \"|certificate|28P01|28000", re.IGNORECASE)
_DATABASE_MISSING = re.compile(r"database \".*\" does not exist|3D000", re.IGNORECASE)
_CONNECT_DENIED = re.compile(r"permission denied for database|CONNECT privilege", re.IGNORECASE)


def conninfo_of(endpoint: Endpoint) -> str:
    """The endpoint as a connection string of libpq, composed by psycopg; ``extra`` options that libpq does not know are left out."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    given_options = {name: value for name, value in endpoint.extra.items() if name in known and value is not None}
    options = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in given_options.items()}
    named = {
        "host": endpoint.host,
        "port": endpoint.port,
        "dbname": endpoint.database,
        "user": endpoint.user,
        "password": endpoint.password,
    }
    given = {name: str(value) for name, value in named.items() if value is not None}
    # Arrow text is UTF-8 whatever the database's encoding is; libpq would keep the latter.
    return conninfo.make_conninfo(**{**_DEFAULTS, **options, **given, "client_encoding": "UTF8"})


def _readable(text: str) -> adbc.Connection:
    """A connection whose types the driver knows: it looks them up as it connects, and reads nothing right under *quote_all_identifiers*."""
    connection = adbc.connect(text, autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1::int4")
        if cursor.fetchall() == [(1,)]:
            return connection
    connection.close()
    given = conninfo.conninfo_to_dict(text).get("options") or ""
    return adbc.connect(conninfo.make_conninfo(text, options=f"{given} -c quote_all_identifiers=off".strip()), autocommit=True)


class Session:
    """One connection; a context manager that always closes it.

    :param endpoint: where to connect; never printed.
    :param cancel: interrupts whatever statement runs; ``run.cancelled`` is raised then.
    :raises XminError: ``postgres_source.unreachable``, ``.authentication_failed``, ``.permission_denied``, ``run.cancelled``.
    """

    def __init__(self, endpoint: Endpoint, *, cancel: Cancellation | None = None) -> None:
        self._cancel = cancel or Cancellation()
        self._cancel.check()
        self._entry = endpoint.entry
        self._deadline: float | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        try:
            self._connection = _readable(conninfo_of(endpoint))
        except adbc.Error as error:
            raise self._connect_error(error) from None
        self._unregister = self._cancel.on_cancel(self._interrupt)

    def limit(self, seconds: float) -> None:
        """Start the clock of an overall deadline; statements after it are cut off by the server at its end."""
        self._deadline = time.monotonic() + seconds

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the deadline, None without one."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def execute(self, statement: sql.Composable) -> None:
        """Run a statement without a result."""
        with self._cursor() as cursor, self._translated():
            cursor.execute(statement.as_string(None))

    def rows(self, statement: sql.Composable) -> list[tuple[Any, ...]]:
        """Run a small query and return its rows; columns must be cast to types that Arrow knows."""
        with self._cursor() as cursor, self._translated():
            cursor.execute(statement.as_string(None))
            return list(cursor.fetchall())

    def one(self, statement: sql.Composable) -> tuple[Any, ...]:
        """The only row of a small query."""
        (row,) = self.rows(statement)
        return row

    @contextmanager
    def stream(self, statement: sql.Composable) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Run a query and hand out its schema and batches; errors while streaming are translated like any other."""
        with self._cursor() as cursor:
            with self._translated():
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_STREAM_BATCH_BYTES)})
                cursor.execute(statement.as_string(None))
                # pyarrow's own reader would lose the SQLSTATE of an error in mid-stream.
                handle = cursor.fetch_arrow()  # kept by name: it releases the stream when it is collected
                reader = AdbcRecordBatchReader._import_from_c(handle.address)
            try:
                yield reader.schema, self._batches(reader)
            finally:
                with suppress(Exception):
                    reader.close()

    def close(self) -> None:
        """Close the connection; an open transaction ends with it."""
        if self._closed.is_set():
            return
        self._unregister()
        self._closed.set()
        # A cancel request may hang on a dead network; the connection is left to the collector then.
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            with suppress(Exception):
                self._connection.close()
            self._lock.release()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- details ----------------------------------------------------------------------------------------------------------
    @contextmanager
    def _cursor(self) -> Iterator[adbc.Cursor]:
        self._cancel.check()
        self._check_deadline()
        cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            with suppress(Exception):
                cursor.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (adbc.Error, pa.ArrowException, OSError) as error:
            raise self._translate(error) from None

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while True:
            self._cancel.check()
            self._check_deadline()
            try:
                with self._translated():
                    batch = reader.read_next_batch()
            except StopIteration:
                return
            yield batch

    def _interrupt(self) -> None:
        # A cancel request that arrives between two statements is lost, so it is repeated until the session is closed.
        threading.Thread(target=self._cancel_until_closed, name="dpone-xmin-cancel", daemon=True).start()

    def _cancel_until_closed(self) -> None:
        while not self._closed.is_set():
            with self._lock, suppress(Exception):
                if not self._closed.is_set():
                    self._connection.adbc_cancel()
            self._closed.wait(_CANCEL_INTERVAL_SECONDS)

    def _check_deadline(self) -> None:
        remaining = self.remaining_seconds
        if remaining is not None and remaining <= 0:
            raise XminError("postgres_source.deadline", f"The boundary on {self._entry!r} ran past its deadline.")

    def _translate(self, error: Exception) -> XminError:
        """Map a driver error to a code by SQLSTATE; its text is never shown, it may hold values or addresses."""
        self._cancel.check()
        state = getattr(error, "sqlstate", None) or ""
        remaining = self.remaining_seconds
        if state == "57014":
            # A timeout of ours, or somebody else's pg_cancel_backend(): both may be tried again.
            code = "postgres_source.deadline" if remaining is not None and remaining < 1 else "postgres_source.lost"
        elif state:
            code = _BY_SQLSTATE.get(state) or _BY_SQLSTATE.get(state[:2]) or "run.unexpected"
        else:
            lost = (adbc_driver_manager.AdbcStatusCode.IO, adbc_driver_manager.AdbcStatusCode.INVALID_STATE)
            code = "postgres_source.lost" if isinstance(error, OSError) or getattr(error, "status_code", None) in lost else "run.unexpected"
        seen = f"SQLSTATE {state}" if state else "no SQLSTATE"
        return XminError(
            code, f"A statement on {self._entry!r} failed with {seen}.", details={"sqlstate": state, "kind": type(error).__name__}
        )

    def _connect_error(self, error: Exception) -> XminError:
        # What follows the address, which could hold any word.
        text = re.split(r'(?:port \d+|socket "[^"]*") failed: ', str(error))[-1]
        if _DATABASE_MISSING.search(text):
            return XminError(
                "postgres_source.unreachable",
                f"The server of {self._entry!r} answers, but has no such database.",
                hint="Check the database name of the connection.",
                retryable=False,
            )
        if _CONNECT_DENIED.search(text):
            return XminError(
                "postgres_source.permission_denied", f"The role of {self._entry!r} may not connect.", hint="Grant CONNECT on the database."
            )
        if _LOGIN_REFUSED.search(text):
            return XminError("postgres_source.authentication_failed", f"The server of {self._entry!r} refused the login.")
        return XminError("postgres_source.unreachable", f"The server of {self._entry!r} cannot be reached.")
