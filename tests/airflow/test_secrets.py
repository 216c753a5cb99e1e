"""No secret and no business value leaves by Airflow: XCom, task log, exception text, trigger event, hook message, serialised DAG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.hooks.mssql import MssqlDatabaseAuthorityHook
from airflow_dpone_xmin.hooks.postgres import PostgresSourceAuthorityHook
from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator
from airflow_dpone_xmin.registry.keys import read_signer
from airflow_dpone_xmin.registry.sign import sign_registry
from airflow_dpone_xmin.sensors.repair_authority import RepairAuthoritySensor
from airflow_dpone_xmin.triggers.repair_authority import RepairAuthorityTrigger, look
from tests.airflow.conftest import context
from tests.approvals import Owner
from tests.secrets import PASSWORDS, TABLE, TOKEN, VALUE, Sink, unique_amount
from tests.world import READER, WRITER, Setup, World


@pytest.fixture
def sink(caplog: pytest.LogCaptureFixture) -> Sink:
    return Sink(caplog)


@pytest.fixture
def world(worlds: Setup, approver: Owner, sink: Sink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, embedded_only: None) -> World:
    world = worlds(*TABLE, key=("code",), reconciliation={"guards": {"max_delete_rows": 2}})
    sink.key(approver.private)
    registry = tmp_path / "registry.json"
    document = world.registry().model_dump_json(by_alias=True, exclude_unset=True).encode()
    registry.write_bytes(sign_registry(document, read_signer(approver.private)))
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__REGISTRY", str(registry))
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__TRUSTED_KEYS", str(approver.public))
    connect(monkeypatch, world)
    return world


def connect(environ: pytest.MonkeyPatch, world: World, **places: Any) -> None:
    """Airflow connections with a password and a token; *places* lead one elsewhere, with a wrong password."""
    for name, endpoint, password in (("src", world.source.endpoint(), "reader"), ("dwh", world.target.endpoint(), "writer")):
        elsewhere = places.get(name)
        found = {
            "conn_type": "postgres",
            "login": endpoint.user,
            "password": PASSWORDS["wrong" if elsewhere else password],
            "host": str(elsewhere or endpoint.host),
            "schema": endpoint.database,
            "extra": {"sslpassword": TOKEN},
        }
        environ.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(found))


def everything(sink: Sink, world: World, run_id: str, *, ref: str | None = None, ok: bool | None = None) -> None:
    """One task's whole life: DAG, run, result or exception, hooks, sensor, trigger."""
    with DAG("shop", schedule=None) as dag:
        task = XminReconcileOperator(task_id="orders", manifest=world.manifest(), repair_authority_ref=ref)
        sensor = RepairAuthoritySensor(task_id="wait", manifest=world.manifest(), repair_authority_ref="fix", deferrable=False)
    sink.take(json.dumps(DagSerialization.to_dict(dag), default=str), repr(task), vars(task))
    try:
        sink.take(json.dumps(task.execute(context(run_id))))
        ended = True
    except Exception as error:
        sink.fault(error)
        ended = False
    assert ok is None or ended is ok
    try:
        sink.take(sensor.poke(context(run_id)))
    except Exception as error:
        sink.fault(error)
    sink.take(look(world.manifest(), table=None, ref="fix"))
    trigger = RepairAuthorityTrigger(manifest=world.manifest(), table=None, repair_authority_ref="fix", poke_interval=1, deadline=0)
    sink.take(trigger.serialize())
    for hook in (PostgresSourceAuthorityHook("src"), MssqlDatabaseAuthorityHook("dwh", engine="embedded")):
        sink.take(hook.test_connection(), repr(hook), vars(hook))
        sink.take(hook.get_endpoint())


def test_a_day_that_ends_well(world: World, sink: Sink, approver: Owner) -> None:
    everything(sink, world, "r1", ok=True)
    everything(sink, world, "r1", ok=True)
    world.source.run("DELETE FROM orders WHERE code > (SELECT code FROM orders ORDER BY code OFFSET 9 LIMIT 1)")
    everything(sink, world, "stopped", ok=False)
    approver.admit(world, "stopped")
    everything(sink, world, "stopped", ref="fix", ok=True)
    assert VALUE in str(world.target_rows(("code",)))
    sink.rows(world)
    sink.search(expected=["committed", "guard.deletes_exceeded", "repair_authority", "every catalog_identity pin holds"])


def test_servers_that_refuse_or_are_gone(world: World, sink: Sink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    everything(sink, world, "r1", ok=True)
    with EmbeddedCluster() as strict:
        with strict.connect() as owner:
            for role in (READER, WRITER):
                owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")  # type: ignore[call-overload]
        (strict.data / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        strict.stop()
        strict.start()
        for place in (strict.socket, tmp_path / "nowhere"):
            for name in ("src", "dwh"):
                connect(monkeypatch, world, **{name: place})
                everything(sink, world, "r2", ok=False)
    sink.rows(world)
    sink.search(
        expected=[
            "mssql_transaction.unreachable",
            "postgres_source.unreachable",
            "mssql_transaction.authentication_failed",
            "postgres_source.authentication_failed",
        ]
    )


def test_values_that_servers_quote(world: World, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(sink, world, "r1", ok=True)
    world.target.run(unique_amount(world))
    world.source.run(f"INSERT INTO orders SELECT '{VALUE}-twin', note, amount, at FROM orders LIMIT 1")
    everything(sink, world, "twin", ok=False)
    world.source.run(f"UPDATE orders SET at = '-infinity', note = 'x' WHERE code = '{VALUE}-twin'")
    everything(sink, world, "late", ok=False)

    def burst(*_: Any, **named: Any) -> None:
        raise ValueError(f"password={PASSWORDS['writer']} {named['endpoints']('dwh', conn_id='dwh').password} {VALUE}")

    monkeypatch.setattr("airflow_dpone_xmin.runtime.reconcile.reconcile", burst)
    everything(sink, world, "burst", ok=False)
    sink.rows(world)
    sink.search(expected=["mssql_transaction.constraint_violation", "DPONE_POSTGRES_MSSQL_SOURCE_VALUE_UNREPRESENTABLE", "run.unexpected"])
