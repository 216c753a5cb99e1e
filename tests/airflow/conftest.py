"""Airflow without a scheduler: a home of its own, a signed registry, connections in the environment, plain context dicts."""

from __future__ import annotations

import os
import shutil
import tempfile

# Before anything imports Airflow: its import creates the home directory.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="dpone-test-airflow-")
    _OURS: str | None = os.environ["AIRFLOW_HOME"]
else:
    _OURS = None
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
# Every test process has a metadata database of its own.
os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{tempfile.mkdtemp(prefix='dpone-test-metadata-')}/airflow.db"

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.registry.keys import read_signer
from airflow_dpone_xmin.registry.sign import sign_registry
from tests.approvals import Owner
from tests.world import Setup, World

TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, code varchar(10) NOT NULL, qty integer)",
    "INSERT INTO orders SELECT g, 'c' || g, g FROM generate_series(1, 40) g",
)
COLUMNS = ("id", "code", "qty")


@pytest.fixture(scope="session", autouse=True)
def airflow_home() -> Iterator[None]:
    """Remove the home that was made for these tests."""
    yield
    shutil.rmtree(Path(os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")).parent, ignore_errors=True)
    if _OURS is not None:
        shutil.rmtree(_OURS, ignore_errors=True)


def connection(endpoint: Endpoint) -> str:
    """An endpoint as Airflow's environment variable for a connection."""
    return json.dumps({"conn_type": "postgres", "host": endpoint.host, "schema": endpoint.database, "login": endpoint.user})


def context(run_id: str, *, try_number: int = 1, map_index: int = -1) -> Any:
    """The parts of a task's context that the operator reads."""
    return {"run_id": run_id, "ti": SimpleNamespace(try_number=try_number, map_index=map_index)}


@pytest.fixture
def approver(tmp_path: Path) -> Owner:
    """Who signs the deployment's registry and approves its exceptional runs."""
    return Owner(tmp_path, name="test")


@pytest.fixture
def deployment(worlds: Setup, approver: Owner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, embedded_only: None) -> World:
    """Forty orders, and an Airflow that is configured for them."""
    world = worlds(*TABLE)
    private, public = approver.private, approver.public
    registry = tmp_path / "registry.json"
    registry.write_bytes(sign_registry(world.registry().model_dump_json(by_alias=True, exclude_unset=True).encode(), read_signer(private)))
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__REGISTRY", str(registry))
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__TRUSTED_KEYS", str(public))
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__WORK_DIR", str(tmp_path / "airflow-work"))
    monkeypatch.setenv("AIRFLOW_CONN_SRC", connection(world.source.endpoint()))
    monkeypatch.setenv("AIRFLOW_CONN_DWH", connection(world.target.endpoint()))
    return world


Operator = Callable[..., Any]


@pytest.fixture
def operator(deployment: World) -> Operator:
    """Builds operators for the deployment's manifest."""
    from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator

    def make(**parameters: Any) -> Any:
        return XminReconcileOperator(task_id="orders", **{"manifest": deployment.manifest(), **parameters})

    return make


# ---- Airflow's API server ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def metadata() -> None:
    """This process's metadata database."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="session")
def server(metadata: None) -> Iterator[Any]:
    """Airflow's whole API server application, with the plugin where Airflow mounts it."""
    os.environ["AIRFLOW__CORE__AUTH_MANAGER"] = "tests.airflow.guard.Guard"
    from airflow.api_fastapi.app import create_app as create_airflow

    yield create_airflow("core")
    del os.environ["AIRFLOW__CORE__AUTH_MANAGER"]


Client = Callable[[str | None], Any]


@pytest.fixture
def as_role(server: Any) -> Client:
    """A browser that is logged in with a role; None for nobody."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    def make(role: str | None) -> Any:
        client = TestClient(server, follow_redirects=False)
        if role is not None:
            client.cookies.set("_token", get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="someone", role=role)))
        return client

    return make
