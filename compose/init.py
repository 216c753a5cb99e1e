"""Everything that an environment's owner does before the first run, for the compose environment: run it again at any time.

Databases, sample tables, least-privilege logins, catalog, a signed registry, target tables, and the Airflow connections as a file for
``airflow connections import``. What exists is left alone. Configured by environment variables (see docker-compose.yaml); owner URLs are
SQLAlchemy URLs of an administrator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.manifest import parse_manifest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint, FixedEndpoints, Layout, Namespace, Route, TableName
from airflow_dpone_xmin.policy.route import resolve_routes
from airflow_dpone_xmin.registry.discover import discover_source
from airflow_dpone_xmin.registry.keys import generate_keypair, read_signer
from airflow_dpone_xmin.registry.load import load_registry
from airflow_dpone_xmin.registry.parse import parse_document
from airflow_dpone_xmin.registry.sign import sign_registry
from airflow_dpone_xmin.runtime.endpoints import endpoint_from_url
from airflow_dpone_xmin.runtime.provision import discover_databases
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.source.describe import describe
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect, engine_for
from airflow_dpone_xmin.target.ddl import Script, render_catalog, render_route

READER, RUNTIME, SOURCE = "dpone_reader", "dpone_runtime", "shop"
TABLES: Mapping[str, tuple[list[str], str, str]] = {
    "customers": (["id"], "id bigint PRIMARY KEY, name varchar(80) NOT NULL, city varchar(40)", "g, 'customer ' || g, 'city ' || g % 50"),
    "products": (["id"], "id integer PRIMARY KEY, title varchar(80) NOT NULL, price numeric(12,2)", "g, 'product ' || g, g * 0.99"),
    "orders": (
        ["id"],
        "id bigint PRIMARY KEY, customer_id bigint NOT NULL, placed_at timestamptz NOT NULL, status varchar(12) NOT NULL",
        "g, g % 1000 + 1, timestamptz '2026-01-01' + g * interval '1 minute', 'placed'",
    ),
    "payments": (["id"], "id bigint PRIMARY KEY, order_id bigint NOT NULL, amount numeric(12,2) NOT NULL", "g, g, g * 1.5"),
    "order_lines": (
        ["order_id", "line_no"],
        "order_id bigint, line_no integer, product_id integer NOT NULL, quantity integer NOT NULL, PRIMARY KEY (order_id, line_no)",
        "g / 3, g % 3, g % 200 + 1, g % 7 + 1",
    ),
}
"""Key, columns and generated values of the sample tables."""


@dataclass(frozen=True)
class Settings:
    """What the environment says.

    :param owner: directory that only the owner sees: the private key.
    :param config: directory that Airflow reads: registry and public key.
    """

    engine: str
    source: Endpoint
    target: Endpoint
    source_password: str
    target_password: str
    owner: Path
    config: Path
    rows: int

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Settings:
        """From environment variables."""
        names = {side: f"DPONE_{side.upper()}_OWNER_URL" for side in ("source", "target")}
        ends = {side: endpoint_from_url(env[name], entry=side, variable=name) for side, name in names.items()}
        return cls(
            engine=env.get("DPONE_ENGINE", "mssql"),
            source=ends["source"],
            target=ends["target"],
            source_password=env["DPONE_SOURCE_PASSWORD"],
            target_password=env["DPONE_TARGET_PASSWORD"],
            owner=Path(env["DPONE_OWNER_DIR"]),
            config=Path(env["DPONE_CONFIG_DIR"]),
            rows=int(env.get("DPONE_SAMPLE_ROWS", "10000")),
        )

    @property
    def databases(self) -> tuple[str, str, str]:
        """Target, staging and state: three databases of SQL Server, three schemas of one embedded database."""
        return ("DWH", "DWH_Stage", "DWH_State") if self.engine == "mssql" else ("dwh", "dwh", "dwh")

    @property
    def layout(self) -> Layout:
        """Where everything of the target is, for a table that does not matter."""
        target, staging, state = self.databases
        return Layout(
            engine="mssql" if self.engine == "mssql" else "embedded",
            target=TableName(Namespace(target, "landing"), "-"),
            staging=Namespace(staging, "staging"),
            state=Namespace(state, "dpone"),
        )

    @property
    def runtime(self) -> dict[str, Endpoint]:
        """Registry entry → the login that runs use; state is reached by the target's."""
        target = dataclasses.replace(self.target, user=RUNTIME, password=self.target_password, database=self.databases[0])
        return {
            "oltp": dataclasses.replace(self.source, user=READER, password=self.source_password, database=SOURCE),
            "dwh": target,
            "dwh_state": target,
        }


def main(connections: Path) -> None:
    """Set up everything that is missing."""
    settings = Settings.read(os.environ)
    create_source(settings)
    create_target(settings)
    registry = sign(settings)
    for route in routes(registry, settings.engine):
        create_table(settings, route)
    connections.write_text(json.dumps(airflow_connections(settings)))
    connections.chmod(0o600)


# ---- source -----------------------------------------------------------------------------------------------------------------
def create_source(settings: Settings) -> None:
    """Database, sample rows, and a login that may read them and nothing else."""
    with _postgres(settings.source, "postgres") as owner:
        if not owner.execute("SELECT 1 FROM pg_database WHERE datname = %s", [SOURCE]).fetchone():
            owner.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(SOURCE)))
    with _postgres(settings.source, SOURCE) as owner, owner.transaction():
        _postgres_login(owner, READER, settings.source_password)
        owner.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(sql.Identifier(READER)))
        for name, (_, columns, values) in TABLES.items():
            if owner.execute("SELECT to_regclass(%s)", [f"public.{name}"]).fetchone() == (None,):
                owner.execute(f"CREATE TABLE public.{name} ({columns})")  # type: ignore[call-overload]
                owner.execute(f"INSERT INTO public.{name} SELECT {values} FROM generate_series(1, {settings.rows}) AS g")  # type: ignore[call-overload]
            owner.execute(f"GRANT SELECT ON public.{name} TO {READER}")  # type: ignore[call-overload]


@contextlib.contextmanager
def _postgres(endpoint: Endpoint, database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(
        host=endpoint.host, port=endpoint.port, user=endpoint.user, password=endpoint.password, dbname=database, autocommit=True
    ) as connection:
        yield connection


def _postgres_login(owner: psycopg.Connection[Any], name: str, password: str) -> None:
    verb = "ALTER" if owner.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone() else "CREATE"
    owner.execute(sql.SQL(f"{verb} ROLE {{}} LOGIN PASSWORD {{}}").format(sql.Identifier(name), sql.Literal(password)))


# ---- target -----------------------------------------------------------------------------------------------------------------
def create_target(settings: Settings) -> None:
    """Databases, the runtime login, and the catalog with its grants."""
    if settings.engine == "mssql":
        for name in settings.databases:
            _run(settings, f"IF DB_ID(N'{name}') IS NULL CREATE DATABASE [{name}]")
        password = settings.target_password.replace("'", "''")
        _run(
            settings,
            f"IF SUSER_ID(N'{RUNTIME}') IS NULL CREATE LOGIN [{RUNTIME}] WITH PASSWORD = N'{password}'"
            f" ELSE ALTER LOGIN [{RUNTIME}] WITH PASSWORD = N'{password}'",
        )
    else:
        with _postgres(settings.target, "postgres") as owner:
            if not owner.execute("SELECT 1 FROM pg_database WHERE datname = %s", [settings.databases[0]]).fetchone():
                owner.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(settings.databases[0])))
            _postgres_login(owner, RUNTIME, settings.target_password)
    layout, catalog = settings.layout, build_catalog()
    if not _exists(settings, TableName(layout.state, catalog.version.name)):
        engine = engine_for(layout, target=settings.target, state=settings.target)
        _install(settings, render_catalog(engine, ddl_dialect(layout), catalog, login=RUNTIME))


def create_table(settings: Settings, route: Route) -> None:
    """One target table with its identity row and grants."""
    if _exists(settings, route.layout.target):
        return
    endpoints = FixedEndpoints(settings.runtime)
    found = describe(endpoints(route.source.entry, conn_id=""), source_request(route, work_dir=Path("/")))
    if found.projection is None:
        raise found.findings[0]
    engine = engine_for(route.layout, target=settings.target, state=settings.target)
    script = render_route(
        engine,
        ddl_dialect(route.layout),
        build_catalog(),
        projection=found.projection,
        mode=route.delete_mode,
        binding_id=uuid.uuid4(),
        login=RUNTIME,
        exchange=True,
    )
    _install(settings, script)


def _exists(settings: Settings, table: TableName) -> bool:
    owner = dataclasses.replace(settings.target, database=table.namespace.database)
    with (
        contextlib.closing(engine_for(settings.layout, target=owner, state=owner)) as engine,
        contextlib.closing(engine.connect("target", cancel=Cancellation())) as session,
    ):
        return table.name in engine.describe(session, table.namespace, [table.name])


def _install(settings: Settings, script: Script) -> None:
    """All of a rendered script, or nothing: a second run finds what it needs or starts over."""
    mssql = settings.engine == "mssql"
    begin, commit = ("SET XACT_ABORT ON; BEGIN TRANSACTION", "COMMIT TRANSACTION") if mssql else ("BEGIN", "COMMIT")
    _run(settings, begin, *script.statements, commit)


def _run(settings: Settings, *statements: str) -> None:
    """As the owner, each statement a batch of its own."""
    if settings.engine != "mssql":
        with _postgres(settings.target, settings.databases[0]) as owner:
            for statement in statements:
                owner.execute(statement)  # type: ignore[call-overload]
        return
    from airflow_dpone_xmin.target.mssql_driver import odbc_url

    url = odbc_url(settings.target, database="master")
    with create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


# ---- registry ---------------------------------------------------------------------------------------------------------------
def sign(settings: Settings) -> Any:
    """Discover the pins, and sign them when they are new; nobody reviews them here, which is what makes this a demonstration.

    :returns: the verified registry.
    """
    settings.owner.mkdir(parents=True, exist_ok=True)
    settings.config.mkdir(parents=True, exist_ok=True)
    private, public = settings.owner / "dpone-registry.key", settings.config / "dpone-registry.pub"
    if not private.exists():
        generate_keypair(settings.owner, name="dpone-registry")
    public.write_bytes((settings.owner / public.name).read_bytes())
    target = settings.config / "registry.json"
    connections = _entries(settings)
    with contextlib.suppress(XminError):
        known = load_registry(target, trusted_keys=[public], environment="compose")
        if known.document.connections == parse_document(json.dumps(_document(connections)).encode()).connections:
            return known.document
    target.write_bytes(sign_registry(json.dumps(_document(connections)).encode(), read_signer(private)))
    return load_registry(target, trusted_keys=[public], environment="compose").document


def _document(connections: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "kind": "dpone.registry.v1",
        "environment": "compose",
        "serial": int(now.timestamp()),
        "not_before": (now - timedelta(minutes=5)).isoformat(),
        "not_after": (now + timedelta(days=365)).isoformat(),
        "connections": connections,
    }


def _entries(settings: Settings) -> dict[str, Any]:
    target, staging, state = settings.databases
    reader = settings.runtime["oltp"]
    with _postgres(reader, SOURCE) as connection:
        rows = lambda query: connection.execute(query.as_string(None)).fetchall()  # noqa: E731
        source = discover_source(rows, [f"public.{name}" for name in TABLES], physical_cluster=False)
    login = settings.runtime["dwh"]
    pins = discover_databases(login, engine=settings.engine, databases=sorted({target, staging, state}))
    return {
        "oltp": {"type": "postgres", "connection": {"database": SOURCE, "postgres_source_authority": source.fragment}},
        "dwh": {
            "type": settings.engine,
            "connection": {
                "database": target,
                "schema": "landing",
                "staging": {"database": staging, "schema": "staging"},
                "database_authorities": {name: pins[name] for name in {target, staging}},
            },
        },
        "dwh_state": {
            "type": settings.engine,
            "airflow_conn_id": "dwh",
            "connection": {"database": state, "schema": "dpone", "database_authorities": {state: pins[state]}},
        },
    }


def routes(registry: Any, engine: str) -> list[Route]:
    """The routes of the example DAGs, as far as their tables are concerned."""
    tables = [{"name": name, "unique_key": key} for name, (key, _, _) in TABLES.items()]
    manifest = {
        "name": "compose",
        "source": {"connection_id": "oltp"},
        "sink": {"type": engine, "connection_id": "dwh", "strategy": {"mode": "incremental_merge"}},
        "schemas": {"public": {"tables": tables}},
        "reconciliation": {"enabled": True, "mode": "key_snapshot", "delete_mode": "timestamp_only"},
        "state": {"type": engine, "connection_id": "dwh_state"},
    }
    return resolve_routes(parse_manifest(manifest), registry)


def airflow_connections(settings: Settings) -> dict[str, Any]:
    """For ``airflow connections import``; they hold credentials, and no trust."""
    kinds = {"oltp": "dpone_xmin_postgres", "dwh": "dpone_xmin_mssql"}
    return {
        name: {
            "conn_type": kind,
            "host": endpoint.host,
            "port": endpoint.port,
            "schema": endpoint.database,
            "login": endpoint.user,
            "password": endpoint.password,
            "extra": json.dumps(dict(endpoint.extra)),
        }
        for name, kind in kinds.items()
        for endpoint in [settings.runtime[name]]
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
