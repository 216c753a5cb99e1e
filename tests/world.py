"""A whole small world for integration tests: a source database, a target on the engine under test, owners, least-privilege logins.

Everything is created the way an owner would: from ``ddl render`` output. Nothing here is a mock.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.endpoint import Endpoint
from airflow_dpone_xmin.contracts.manifest import parse_manifest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.contracts.route import Layout, Namespace, Route, TableName
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

READER, WRITER = "dpone_reader", "dpone_writer"


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
            engine="embedded", target=TableName(Namespace(self.database, "landing"), table), staging=Namespace(self.database, "staging"),
            state=Namespace(self.database, "governance"),
        )

    def endpoint(self, *, owner: bool = False) -> Endpoint:
        user = "postgres" if owner else WRITER
        return Endpoint(entry="dwh", host=str(self.cluster.socket), port=None, database=self.database, user=user)

    def execute(self, script: Script) -> None:
        with self.cluster.connect(self.database) as connection:
            for statement in script.statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def run(self, *statements: str) -> None:
        with self.cluster.connect(self.database) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.cluster.connect(self.database) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload]

    def name(self, schema: str, table: str) -> str:
        return f'"{schema}"."{table}"'


@dataclass
class World:
    """Source, target, registry and manifest of one route."""

    source: SourceSide
    target: Any
    work_dir: Path
    table: str = "orders"
    key: tuple[str, ...] = ("id",)
    manifest_over: dict[str, Any] = field(default_factory=dict)
    reconciliation: Any = field(default_factory=lambda: {"enabled": True, "mode": "key_snapshot", "guards": {}})
    serial: int = 1
    binding_id: uuid.UUID = field(default_factory=uuid.uuid4)

    # ---- set-up -----------------------------------------------------------------------------------------------------------
    def provision_catalog(self) -> None:
        engine = self.engine(owner=True)
        self.target.execute(render_catalog(engine, ddl_dialect(engine.layout), build_catalog(), login=WRITER))
        engine.close()

    def provision_target(self) -> None:
        engine, route = self.engine(owner=True), self.route()
        script = render_route(
            engine, ddl_dialect(engine.layout), build_catalog(), projection=self.projection(), mode=route.delete_mode,
            binding_id=self.binding_id, login=WRITER,
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
                "kind": "dpone.registry.v1", "environment": "test", "serial": self.serial, "not_before": "2020-01-01T00:00:00Z",
                "not_after": "2100-01-01T00:00:00Z",
                "connections": {
                    "src": {
                        "type": "postgres",
                        "connection": {
                            "database": self.source.database, "postgres_source_authority": self.source.authority(f"public.{self.table}"),
                        },
                    },
                    "dwh": {
                        "type": self.target.kind,
                        "connection": {
                            "database": layout.target.namespace.database, "schema": layout.target.namespace.schema,
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
            "name": "orders_process",
            "source": {"connection_id": "src", "table": {"schema": "public", "name": self.table}, "options": {}},
            "sink": {
                "type": self.target.kind, "connection_id": "dwh", "table": {"name": self.table},
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

    # ---- use --------------------------------------------------------------------------------------------------------------
    def run(self, run_id: str | None = None, **kw: Any) -> Outcome:
        route = kw.pop("route", None) or self.route()
        invocation = Invocation(process=route.process, run_id=run_id or uuid.uuid4().hex)
        return reconcile(route, invocation, endpoints=self.endpoints, registry_serial=kw.pop("serial", self.serial), **kw)

    def source_rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        with self.source.connect() as connection:
            return connection.execute(f'SELECT {", ".join(columns)} FROM public."{self.table}" ORDER BY 1').fetchall()  # type: ignore[call-overload]

    def target_rows(self, columns: Sequence[str], *, active: bool = True) -> list[tuple[Any, ...]]:
        mode = self.route().delete_mode
        where = ""
        if active and mode.has_timestamp:
            where = "WHERE __dpone__deleted_at IS NULL"
        elif active and mode.has_flag:
            where = "WHERE NOT __dpone__is_deleted" if self.target.kind == "embedded" else "WHERE __dpone__is_deleted = 0"
        schema = self.target.layout(self.table).target.namespace.schema
        rows: list[tuple[Any, ...]] = self.target.rows(f'SELECT {", ".join(columns)} FROM {self.target.name(schema, self.table)} {where} ORDER BY 1')
        return rows


Setup = Callable[..., World]


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
