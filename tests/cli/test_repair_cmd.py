"""``repair`` on real databases: from a stopped run to its approval, and whether it can be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.registry.keys import read_signer
from airflow_dpone_xmin.registry.sign import sign_registry
from airflow_dpone_xmin.runtime.reconcile import reconcile
from tests.approvals import Owner
from tests.world import Setup, World

from .conftest import Cli

TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 20) g")


def url(endpoint: Endpoint) -> str:
    return f"postgresql://{endpoint.user}@/{endpoint.database}?host={endpoint.host}"


@pytest.fixture
def stopped(cli: Cli, worlds: Setup, embedded_only: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The mapped task 3 of run ``stopped`` was stopped by a guard; registry, manifest and logins are at hand."""
    world = worlds(*TABLE, reconciliation={"guards": {"max_delete_rows": 2}})
    owner = Owner(tmp_path)
    document = world.registry().model_dump_json(by_alias=True, exclude_unset=True).encode()
    (tmp_path / "registry.json").write_bytes(sign_registry(document, read_signer(owner.private)))
    (tmp_path / "orders.json").write_text(json.dumps(world.manifest()))
    monkeypatch.setenv("DPONE_REGISTRY", str(tmp_path / "registry.json"))
    monkeypatch.setenv("DPONE_TRUSTED_KEYS", str(owner.public))
    monkeypatch.setenv("DPONE_CONN_SRC", url(world.source.endpoint()))
    monkeypatch.setenv("DPONE_CONN_DWH", url(world.target.endpoint()))
    monkeypatch.setenv("DPONE_CONN_OWNER", url(world.target.endpoint(owner=True)))
    world.run("first")
    world.source.run("DELETE FROM orders WHERE id <= 5")
    mapped = Invocation(process=world.process, run_id="stopped", map_index=3)
    with pytest.raises(XminError, match=r"guard\.deletes_exceeded"):
        reconcile(world.route(), mapped, endpoints=world.endpoints)
    return world


def test_show_says_whether_an_approval_is_usable_and_why_not(stopped: World, cli: Cli) -> None:
    def show() -> Any:
        return cli("repair", "show", "orders.json", "fix", "--format", "json")

    proposing = ("repair", "propose", "orders.json", "--run-id", "stopped", "--id", "fix", "--reason", "archived", "-o", "fix.yaml")
    assert cli(*proposing).code != 0  # the run itself was never there: only its mapped task
    shown = ("evidence", "show", "orders.json", "--run-id", "stopped")
    assert "guard.deletes_exceeded" not in cli(*shown).err
    assert "guard.deletes_exceeded" in cli(*shown, "--map-index", "3").err
    assert cli(*proposing, "--map-index", "3").code == 0
    reviewed = Path("fix.yaml").read_bytes()
    again = cli(*proposing, "--map-index", "3")
    assert (again.code, "registry.output_exists" in again.err, Path("fix.yaml").read_bytes()) == (1, True, reviewed)
    assert show().code != 0
    denied = cli("repair", "approve", "orders.json", "fix.yaml", "--owner", "dwh", "--key", "owner.key").err
    assert "mssql_transaction.permission_denied" in denied and "may not approve, and must not be granted it" in denied
    assert cli("repair", "approve", "orders.json", "fix.yaml", "--owner", "owner", "--key", "owner.key").code == 0
    document = show().json
    assert (document["state"], document["usable"], document["verdict"], document["reason"]) == ("valid", True, "ready", "archived")

    stopped.source.run("INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")
    stopped.run("between")
    document = show().json
    moved = "binding_mismatch"
    assert (document["state"], document["usable"], document["verdict"]) == (moved, False, f"repair_authority.{moved}")
    assert "moved past it" in document["message"]
    assert "usable" in cli("repair", "show", "orders.json", "fix").out
    assert moved in cli("repair", "list", "orders.json").out
