"""The demo's target: everything an environment's owner does before the first run, in an owner's order.

Catalog and table come from the same renderer as ``dpone-xmin ddl render``; the runtime login gets the rendered grants and nothing else; the
registry is discovered, reviewed by nobody (it is a demo) and signed with a fresh key. Imports contracts, policy, registry, target, runtime.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from psycopg.sql import Composable

from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint, FixedEndpoints, Layout, Namespace, Route, TableName
from airflow_dpone_xmin.demo import source
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster

DATABASE, WRITER, SCHEMA = "dwh", "dpone_writer", "landing"
SOURCE_ENTRY, TARGET_ENTRY, ENVIRONMENT = "flights_source", "flights_target", "demo"
MANIFEST = Path(__file__).with_name("dags") / "flights.yaml"


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the demo keeps registry and key pair."""

    directory: Path

    @property
    def registry(self) -> Path:
        """The signed registry."""
        return self.directory / "registry.json"

    @property
    def public(self) -> Path:
        """The trusted public key."""
        return self.directory / "demo.pub"


def endpoints(source_cluster: EmbeddedCluster, target_cluster: EmbeddedCluster) -> dict[str, Endpoint]:
    """Runtime logins of both sides: a reader, and a writer without any DDL right outside staging."""
    return {
        SOURCE_ENTRY: _endpoint(SOURCE_ENTRY, source_cluster, source.DATABASE, source.READER),
        TARGET_ENTRY: _endpoint(TARGET_ENTRY, target_cluster, DATABASE, WRITER),
    }


def create_target(source_cluster: EmbeddedCluster, target_cluster: EmbeddedCluster, keys: Keys) -> Route:
    """Database, login, catalog, signed registry, target table.

    :returns: the route that the demo's DAG runs.
    """
    target_cluster.create_database(DATABASE)
    with target_cluster.connect(DATABASE) as owner:
        owner.execute(f"CREATE ROLE {WRITER} LOGIN")  # type: ignore[call-overload]
        for statement in _catalog_script():
            owner.execute(statement)  # type: ignore[call-overload]
    sign(source_cluster, target_cluster, keys)
    route = load_route(keys)
    with target_cluster.connect(DATABASE) as owner:
        owner.execute(_route_script(route, endpoints(source_cluster, target_cluster)))  # type: ignore[call-overload]
    return route


def load_route(keys: Keys) -> Route:
    """The demo's route under the verified registry."""
    from airflow_dpone_xmin.policy.route import resolve_routes, select_route
    from airflow_dpone_xmin.registry.load import load_registry
    from airflow_dpone_xmin.runtime.manifests import load_manifest

    registry = load_registry(keys.registry, trusted_keys=[keys.public], environment=ENVIRONMENT)
    return select_route(resolve_routes(load_manifest(MANIFEST), registry.document), None)


def sign(source_cluster: EmbeddedCluster, target_cluster: EmbeddedCluster, keys: Keys) -> None:
    """Discover the pins of both sides, make a key pair, sign."""
    from airflow_dpone_xmin.registry.keys import generate_keypair, read_signer
    from airflow_dpone_xmin.registry.sign import sign_registry

    now = datetime.now(UTC)
    document = {
        "kind": "dpone.registry.v1",
        "environment": ENVIRONMENT,
        "serial": 1,
        "not_before": (now - timedelta(minutes=5)).isoformat(),
        "not_after": (now + timedelta(days=1)).isoformat(),
        "connections": {SOURCE_ENTRY: _source_entry(source_cluster), TARGET_ENTRY: _target_entry(target_cluster)},
    }
    private, _, _ = generate_keypair(keys.directory, name="demo")
    keys.registry.write_bytes(sign_registry(json.dumps(document).encode(), read_signer(private)))


# ---- details --------------------------------------------------------------------------------------------------------------
def _endpoint(entry: str, cluster: EmbeddedCluster, database: str, user: str) -> Endpoint:
    return Endpoint(entry=entry, host=str(cluster.socket), port=None, database=database, user=user)


def _layout() -> Layout:
    return Layout(
        engine="embedded",
        target=TableName(Namespace(DATABASE, SCHEMA), source.TABLE),
        staging=Namespace(DATABASE, "staging"),
        state=Namespace(DATABASE, "governance"),
    )


def _catalog_script() -> tuple[str, ...]:
    from airflow_dpone_xmin.target.catalog import build_catalog
    from airflow_dpone_xmin.target.connect import ddl_dialect, engine_for
    from airflow_dpone_xmin.target.ddl import render_catalog

    layout = _layout()
    nowhere = Endpoint(entry=TARGET_ENTRY, host=None, port=None, database=None, user=None)  # rendering connects to nothing
    engine = engine_for(layout, target=nowhere, state=nowhere)
    return render_catalog(engine, ddl_dialect(layout), build_catalog(), login=WRITER).statements


def _route_script(route: Route, found: dict[str, Endpoint]) -> str:
    from airflow_dpone_xmin.runtime.provision import render_scripts

    return render_scripts(route, endpoints=FixedEndpoints(found), login=WRITER, binding_id=uuid.uuid4(), part="route")


def _source_entry(cluster: EmbeddedCluster) -> dict[str, Any]:
    from airflow_dpone_xmin.registry.discover import discover_source

    with cluster.connect(source.DATABASE, user=source.READER) as reader:

        def rows(query: Composable) -> list[tuple[Any, ...]]:
            return reader.execute(query.as_string(None)).fetchall()  # type: ignore[call-overload]

        found = discover_source(rows, [f"public.{source.TABLE}"], physical_cluster=False)
    return {"type": "postgres", "connection": {"database": source.DATABASE, "postgres_source_authority": found.fragment}}


def _target_entry(cluster: EmbeddedCluster) -> dict[str, Any]:
    from airflow_dpone_xmin.registry.discover import database_fragment
    from airflow_dpone_xmin.target.connect import engine_for

    endpoint = _endpoint(TARGET_ENTRY, cluster, DATABASE, WRITER)
    engine = engine_for(_layout(), target=endpoint, state=endpoint)
    session = engine.connect("target", cancel=Cancellation())
    seen = engine.observe_database(session, DATABASE)
    session.close()
    engine.close()
    assert seen is not None and seen.database_guid is not None
    pins = database_fragment(database_id=seen.database_id, create_token=seen.create_token, database_guid=seen.database_guid)
    facts = {
        "database": DATABASE,
        "schema": SCHEMA,
        "staging": {"database": DATABASE, "schema": "staging"},
        "database_authorities": {DATABASE: pins},
    }
    return {"type": "embedded", "connection": facts}
