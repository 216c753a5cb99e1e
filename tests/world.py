"""A whole small world for integration tests: a source database, a target on the engine under test, owners, least-privilege logins.

Everything is created the way an owner would: from ``ddl render`` output. Nothing here is a mock.
"""

from __future__ import annotations

import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.manifest import parse_manifest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Namespace, Route, TableName
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.policy.route import resolve_routes, select_route
from airflow_dpone_xmin.registry.discover import discover_source
from airflow_dpone_xmin.runtime.evidence import Outcome
from airflow_dpone_xmin.runtime.reconcile import reconcile, source_request
from airflow_dpone_xmin.source.describe import describe
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect, engine_for
from airflow_dpone_xmin.target.ddl import Script, render_catalog, render_route
from airflow_dpone_xmin.target.engine import Engine
from tests.flavour import is_babelfish, supported

_GUID = re.compile("[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}")
READER, WRITER = "dpone_reader", "dpone_writer"
MSSQL_URL = "DPONE_TEST_MSSQL_URL"
MSSQL_SUFFIX = os.environ.get("DPONE_TEST_MSSQL_SUFFIX", "")
"""Another set of databases, for a second session of tests at once: the two tables in ``dbo`` are one test's at a time."""
MSSQL_DATABASES = {role: f"dpone_{name}{MSSQL_SUFFIX}" for role, name in (("target", "target"), ("staging", "stage"), ("state", "state"))}

#: Modes of a route, and the ``reconciliation`` block that selects each. Guards are absent unless a test sets them.
MODES: dict[str, Any] = {
    "timestamp_only": {"guards": {}},
    "timestamp_and_flag": {"delete_mode": "timestamp_and_flag", "guards": {}},
    "flag_only": {"delete_mode": "flag_only", "guards": {}},
    "hard_delete": {"delete_policy": "hard_delete", "guards": {}},
    "never": None,
}


@dataclass
class SourceSide:
    """One source database on a real cluster."""

    cluster: EmbeddedCluster
    database: str

    def endpoint(self) -> Endpoint:
        return Endpoint(entry="src", host=str(self.cluster.socket), port=None, database=self.database, user=READER)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
        return self.cluster.connect(self.database, autocommit=autocommit)

    def run(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload]

    def authority(self, *relations: str) -> dict[str, Any]:
        with self.cluster.connect(self.database, user=READER) as connection:
            found = discover_source(lambda query: connection.execute(query).fetchall(), relations, physical_cluster=False)
        return dict(found.fragment)


class EmbeddedTarget:
    """Target side on the embedded engine: three schemas of one database."""

    kind = "embedded"

    def __init__(self, cluster: EmbeddedCluster, database: str) -> None:
        self.cluster, self.database = cluster, database

    def layout(self, table: str) -> Layout:
        return Layout(
            engine="embedded",
            target=TableName(Namespace(self.database, "landing"), table),
            staging=Namespace(self.database, "staging"),
            state=Namespace(self.database, "governance"),
        )

    def endpoint(self, *, owner: bool = False) -> Endpoint:
        user = "postgres" if owner else WRITER
        return Endpoint(entry="dwh", host=str(self.cluster.socket), port=None, database=self.database, user=user)

    def execute(self, script: Script) -> None:
        self.run(*script.statements)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return self.cluster.connect(self.database)

    def run(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload]

    def name(self, schema: str, table: str) -> str:
        return f'"{schema}"."{table}"'

    def drop(self) -> None:
        self.cluster.drop_database(self.database)


class MssqlTarget:
    """Target side on a T-SQL server: three databases, one set of uniquely named schemas per test.

    :param url: SQLAlchemy URL of an administrator's login.
    """

    kind = "mssql"
    password = "Dpone-tests-1"
    _numbers = itertools.count()

    def __init__(self, url: str) -> None:
        from sqlalchemy.engine import make_url

        self._url = make_url(url)
        self.suffix = f"{os.getpid()}_{next(self._numbers)}"

    def layout(self, table: str) -> Layout:
        names = MSSQL_DATABASES
        return Layout(
            engine="mssql",
            target=TableName(Namespace(names["target"], f"landing_{self.suffix}"), table),
            staging=Namespace(names["staging"], f"staging_{self.suffix}"),
            state=Namespace(names["state"], f"governance_{self.suffix}"),
        )

    def endpoint(self, *, owner: bool = False) -> Endpoint:
        url = self._url
        extra = {key: value for key, value in url.query.items() if isinstance(value, str)}
        as_owner = owner or self.babelfish
        login, password = (url.username, url.password) if as_owner else (WRITER, self.password)
        return Endpoint(
            entry="dwh",
            host=url.host,
            port=url.port,
            database=MSSQL_DATABASES["target"],
            user=login,
            password=None if password is None else str(password),
            extra=extra,
        )

    def execute(self, script: Script) -> None:
        """Run a script. The two tables in ``dbo`` belong to the database, so that every test makes them anew: one test at a time."""
        database = MSSQL_DATABASES["target"]
        if any("dpone_target_head" in statement and "CREATE TABLE" in statement for statement in script.statements):
            self.run(f"USE [{database}]", *[f"DROP TABLE IF EXISTS dbo.{name}" for name in ("dpone_target_identity", "dpone_target_head")])
        if self.babelfish:
            return self.run(*supported(script.statements))
        login = f"IF SUSER_ID('{WRITER}') IS NULL CREATE LOGIN {WRITER} WITH PASSWORD = '{self.password}'"
        return self.run(login, *script.statements)

    @cached_property
    def babelfish(self) -> bool:
        """Whether the server is that flavour."""
        with self._connect() as connection:
            return is_babelfish(connection)

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """The driver's own connection, which has ``execute`` as psycopg's has."""
        with self._connect() as connection:
            yield connection.connection.driver_connection

    def run(self, *statements: str) -> None:
        with self._connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._connect() as connection:
            return [tuple(_lower_guid(value) for value in row) for row in connection.exec_driver_sql(query).fetchall()]

    def name(self, schema: str, table: str) -> str:
        layout = self.layout(table)
        databases = {n.schema: n.database for n in (layout.target.namespace, layout.staging, layout.state)}
        return f"[{databases.get(schema, MSSQL_DATABASES['target'])}].[{schema}].[{table}]"

    def drop(self) -> None:
        """Schemas stay behind: the server is thrown away after the tests."""

    def _connect(self) -> Any:
        from sqlalchemy import create_engine
        from sqlalchemy.pool import NullPool

        from airflow_dpone_xmin.target.mssql_driver import odbc_url

        url = odbc_url(self.endpoint(owner=True), database=MSSQL_DATABASES["target"])
        return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect()


def _lower_guid(value: Any) -> Any:
    # The driver gives uniqueidentifier in upper case, PostgreSQL gives uuid in lower case.
    return value.lower() if isinstance(value, str) and _GUID.fullmatch(value) else value


@dataclass
class World:
    """Source, target, registry and manifest of one route."""

    source: SourceSide
    target: Any
    work_dir: Path
    table: str = "orders"
    key: tuple[str, ...] = ("id",)
    process: str = "orders_process"
    manifest_over: dict[str, Any] = field(default_factory=dict)
    reconciliation: Any = field(default_factory=lambda: {"enabled": True, "mode": "key_snapshot", "guards": {}})
    serial: int = 1
    binding_id: uuid.UUID = field(default_factory=uuid.uuid4)
    _registry: RegistryDocument | None = None

    # ---- set-up -----------------------------------------------------------------------------------------------------------
    def provision_catalog(self) -> None:
        engine = self.engine(owner=True)
        self.target.execute(render_catalog(engine, ddl_dialect(engine.layout), build_catalog(), login=WRITER))
        engine.close()

    def provision_target(self) -> None:
        engine, route = self.engine(owner=True), self.route()
        script = render_route(
            engine,
            ddl_dialect(engine.layout),
            build_catalog(),
            projection=self.projection(),
            mode=route.delete_mode,
            binding_id=self.binding_id,
            login=WRITER,
            exchange=route.campaign is not None,
        )
        self.target.execute(script)
        engine.close()

    def projection(self) -> Projection:
        described = describe(self.source.endpoint(), source_request(self.route(), work_dir=self.work_dir))
        if described.projection is None:
            raise described.findings[0]
        return described.projection

    def engine(self, *, owner: bool = False) -> Engine:
        endpoint = self.target.endpoint(owner=owner)
        return engine_for(self.target.layout(self.table), target=endpoint, state=endpoint)

    # ---- route ------------------------------------------------------------------------------------------------------------
    def registry(self) -> RegistryDocument:
        """What the owner would sign now; pins are observed once until :meth:`forget_pins`."""
        if self._registry is None:
            self._registry = self._discover()
        if self._registry.serial != self.serial:
            self._registry = self._registry.model_copy(update={"serial": self.serial})
        return self._registry

    def forget_pins(self) -> None:
        self._registry = None

    def _discover(self) -> RegistryDocument:
        engine = self.engine(owner=True)
        layout = engine.layout
        session = engine.connect("target", cancel=Cancellation())
        pins = {}
        for name in {layout.target.namespace.database, layout.staging.database, layout.state.database}:
            seen = engine.observe_database(session, name)
            assert seen is not None
            pins[name] = {"database_id": seen.database_id, "create_token": seen.create_token, "database_guid": str(seen.database_guid)}
        session.close()
        engine.close()
        return RegistryDocument.model_validate(
            {
                "kind": "dpone.registry.v1",
                "environment": "test",
                "serial": self.serial,
                "not_before": "2020-01-01T00:00:00Z",
                "not_after": "2100-01-01T00:00:00Z",
                "connections": {
                    "src": {
                        "type": "postgres",
                        "connection": {
                            "database": self.source.database,
                            "postgres_source_authority": self.source.authority(f"public.{self.table}"),
                        },
                    },
                    "dwh": {
                        "type": self.target.kind,
                        "connection": {
                            "database": layout.target.namespace.database,
                            "schema": layout.target.namespace.schema,
                            "staging": {"database": layout.staging.database, "schema": layout.staging.schema},
                            "database_authorities": pins,
                        },
                    },
                },
            }
        )

    def manifest(self) -> dict[str, Any]:
        layout = self.target.layout(self.table)
        document: dict[str, Any] = {
            "name": self.process,
            "source": {"connection_id": "src", "table": {"schema": "public", "name": self.table}, "options": {}},
            "sink": {
                "type": self.target.kind,
                "connection_id": "dwh",
                "table": {"name": self.table},
                "strategy": {"mode": "incremental_merge", "unique_key": list(self.key)},
                "options": {"lock_timeout_seconds": 20},
            },
            "state": {"type": self.target.kind, "database": layout.state.database, "schema": layout.state.schema},
            "runtime": {"storage": {"work_dir": str(self.work_dir), "min_free_bytes": 0}},
        }
        if self.reconciliation is not None:
            document["reconciliation"] = self.reconciliation
        return _merge(document, self.manifest_over)

    def route(self) -> Route:
        return select_route(resolve_routes(parse_manifest(self.manifest()), self.registry()), None)

    def endpoints(self, entry: str, *, conn_id: str) -> Endpoint:
        return {"src": self.source.endpoint, "dwh": self.target.endpoint}[entry]()

    @property
    def forgiving(self) -> bool:
        """Whether the server cannot express the grants that runs ask for (``tests/flavour.py``)."""
        return getattr(self.target, "babelfish", False)

    # ---- use --------------------------------------------------------------------------------------------------------------
    def run(self, run_id: str | None = None, **kw: Any) -> Outcome:
        route = kw.pop("route", None) or self.route()
        invocation = Invocation(process=route.process, run_id=run_id or uuid.uuid4().hex)
        return reconcile(route, invocation, endpoints=kw.pop("endpoints", self.endpoints), **kw)

    def source_rows(self, columns: Sequence[str] = ("*",)) -> list[tuple[Any, ...]]:
        return _ordered(self.source.rows(f'SELECT {", ".join(columns)} FROM public."{self.table}"'))

    def target_rows(self, columns: Sequence[str], *, active: bool = True) -> list[tuple[Any, ...]]:
        where = f"WHERE {self.alive()}" if active else ""
        return _ordered(self.target.rows(f"SELECT {', '.join(columns)} FROM {self.target_name} {where}"))

    def alive(self) -> str:
        """The condition of an active target row."""
        mode = self.route().delete_mode
        if mode.has_timestamp:
            return "__dpone__deleted_at IS NULL"
        if mode.has_flag:
            return "__dpone__is_deleted = 0" if self.target.kind == "mssql" else "NOT __dpone__is_deleted"
        return "1 = 1"

    @property
    def target_name(self) -> str:
        """Qualified name of the target table."""
        return str(self.target.name(self.target.layout(self.table).target.namespace.schema, self.table))

    def state_name(self, table: str) -> str:
        """Qualified name of a table of the state namespace."""
        return str(self.target.name(self.target.layout(self.table).state.schema, table))

    def dbo_name(self, table: str) -> str:
        """Qualified name of a table beside the target."""
        return str(self.target.name("dbo", table))

    def staged(self) -> list[str]:
        """Names of staging tables that exist."""
        return [name for name in self._tables(self.target.layout(self.table).staging) if name.startswith("dpone")]

    def landed(self) -> list[str]:
        """Names of the tables that exist in the target's schema: the live one, and what a campaign puts beside it."""
        return self._tables(self.target.layout(self.table).target.namespace)

    def indexes(self) -> dict[str, list[str]]:
        """Those tables, each with the names of its indexes."""
        schema = self.target.layout(self.table).target.namespace.schema
        query = f"SELECT tablename, indexname FROM pg_indexes WHERE schemaname = '{schema}'"
        if self.target.kind == "mssql":
            catalog = f"[{MSSQL_DATABASES['target']}].sys"
            query = (
                f"SELECT t.name, i.name FROM {catalog}.indexes AS i JOIN {catalog}.tables AS t ON t.object_id = i.object_id"
                f" JOIN {catalog}.schemas AS s ON s.schema_id = t.schema_id WHERE s.name = '{schema}' AND i.type <> 0"
            )
        found: dict[str, list[str]] = {table: [] for table in self.landed()}
        for table, index in sorted(self.target.rows(query)):
            found[table].append(index)
        return found

    def _tables(self, namespace: Namespace) -> list[str]:
        database = f"[{namespace.database}]." if self.target.kind == "mssql" else ""
        query = f"SELECT TABLE_NAME FROM {database}INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = '{namespace.schema}'"
        return sorted(row[0] for row in self.target.rows(query))


Setup = Callable[..., World]


def _ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    """One form for what drivers spell differently."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
