"""The sensor on real databases: every reason, in the worker and in the triggerer, and the way back from a deferral."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.module_loading import import_string
from airflow.sdk.serde import deserialize, serialize

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import CheckpointBinding, RepairAuthority
from airflow_dpone_xmin.runtime.approvals import authority_status
from airflow_dpone_xmin.sensors.repair_authority import RepairAuthoritySensor
from airflow_dpone_xmin.target.repair import RepairSelection
from airflow_dpone_xmin.triggers import repair_authority as triggers
from airflow_dpone_xmin.triggers.repair_authority import RepairAuthorityTrigger
from tests.airflow.conftest import connection, context
from tests.approvals import Owner
from tests.runtime.test_repair import ended, insertion
from tests.world import World

WAIT_SECONDS = 60


@pytest.fixture
def stopped(deployment: World) -> World:
    """Run ``stopped`` found 10 of 40 rows missing; the guard allows two."""
    deployment.reconciliation = {**deployment.reconciliation, "guards": {"max_delete_rows": 2}}
    deployment.run("first")
    deployment.source.run("DELETE FROM orders WHERE id <= 10")
    with pytest.raises(XminError, match=r"guard\.deletes_exceeded"):
        deployment.run("stopped")
    return deployment


@pytest.fixture
def trigger_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The trigger's log, which Airflow otherwise writes past the standard library's handlers."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(RepairAuthorityTrigger, "log", logging.getLogger("tests.trigger"))
    return caplog


@pytest.fixture
def sensor(stopped: World) -> Callable[..., RepairAuthoritySensor]:
    """Builds sensors for approval ``fix`` of the stopped route."""

    def make(**parameters: Any) -> RepairAuthoritySensor:
        given = {"manifest": stopped.manifest(), "repair_authority_ref": "fix", "poke_interval": 0.2, "timeout": WAIT_SECONDS}
        return RepairAuthoritySensor(task_id="wait", **(given | parameters))

    return make


Sensor = Callable[..., RepairAuthoritySensor]


def deferred(task: RepairAuthoritySensor) -> TaskDeferred:
    """Execute; it must defer."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context("run"))
    return caught.value


def in_triggerer(deferral: TaskDeferred) -> dict[str, Any]:
    """Serialise the trigger as Airflow does, make a new one of it, run it in an event loop; the event, once through JSON."""
    classpath, kwargs = deferral.trigger.serialize()
    again = import_string(classpath)(**deserialize(json.loads(json.dumps(serialize(kwargs)))))
    assert again.serialize() == (classpath, kwargs)

    async def fire() -> Any:
        return [event async for event in again.run()]

    (event,) = asyncio.run(asyncio.wait_for(fire(), WAIT_SECONDS))
    return dict(json.loads(json.dumps(event.payload)))


def resume(task: RepairAuthoritySensor, event: Mapping[str, Any]) -> None:
    """What Airflow's task runner calls on a fresh instance."""
    task.resume_execution("execute_complete", {"event": event}, context("run"))


def status(world: World, approver: Owner) -> Any:
    return authority_status(world.route(), endpoints=world.endpoints, repair=approver.select(world, "fix"))


# ---- ready ----------------------------------------------------------------------------------------------------------------
def test_a_usable_approval_is_seen_at_once(stopped: World, sensor: Sensor, approver: Owner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    approver.admit(stopped, "stopped")
    for deferrable in (True, False):
        assert sensor(deferrable=deferrable).execute(context("run")) is None
    assert "Repair authority fix: ready (ready). It is valid until " in caplog.text
    assert "it allows 10 deleted rows, delete ratio 0.25." in caplog.text


def test_an_approval_that_comes_later_ends_the_deferral(
    stopped: World, sensor: Sensor, approver: Owner, trigger_log: pytest.LogCaptureFixture
) -> None:
    deferral = deferred(sensor())
    assert deferral.timeout > timedelta(seconds=WAIT_SECONDS)
    assert "Repair authority fix: waiting (repair_authority.not_found)" in trigger_log.text
    trigger_log.clear()
    threading.Timer(1.0, lambda: approver.admit(stopped, "stopped")).start()
    event = in_triggerer(deferral)
    assert (event["outcome"], event["ref"], event["error"]) == ("ready", "fix", None)
    lines = [record.getMessage() for record in trigger_log.records if record.name == "tests.trigger"]
    assert len(lines) > 1 and "ready (ready)" in lines[-1]
    assert all("waiting (repair_authority.not_found). No repair authority 'fix' exists" in line for line in lines[:-1])
    resume(sensor(), event)
    assert stopped.run("stopped", repair=approver.select(stopped, "fix")).receipt.repair_authority_id == "fix"


def test_what_is_serialised_holds_no_secret_and_no_address(stopped: World, sensor: Sensor, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads(connection(stopped.target.endpoint()))
    monkeypatch.setenv("AIRFLOW_CONN_DWH", json.dumps({**facts, "password": "hunter2"}))
    text = json.dumps(deferred(sensor()).trigger.serialize())
    assert "hunter2" not in text and facts["host"] not in text and facts["login"] not in text


def test_a_manifest_of_the_worker_is_carried_to_the_triggerer(stopped: World, sensor: Sensor, approver: Owner, tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text(json.dumps(stopped.manifest()))
    with DAG("shop", schedule=None) as dag:
        task = sensor(manifest="orders.json", table="public.orders")
    dag.fileloc = str(tmp_path / "shop.py")
    deferral = deferred(task)
    (tmp_path / "orders.json").unlink()
    approver.admit(stopped, "stopped")
    assert in_triggerer(deferral)["outcome"] == "ready"


@pytest.mark.parametrize("absent", [None, "", "None"])
def test_without_a_reference_there_is_nothing_to_wait_for(absent: str | None) -> None:
    RepairAuthoritySensor(task_id="wait", manifest="nowhere.yaml", repair_authority_ref=absent).execute(context("run"))


def test_an_inline_route_must_name_its_process() -> None:
    inline: dict[str, Any] = {"source_conn": "a", "target_conn": "b", "source_table": "s.t", "unique_key": "id"}
    with pytest.raises(XminError, match="missing: process"):
        RepairAuthoritySensor(task_id="wait", repair_authority_ref="fix", **inline)
    assert RepairAuthoritySensor(task_id="wait", repair_authority_ref="fix", process="p", **inline).manifest["name"] == "p"


# ---- waiting --------------------------------------------------------------------------------------------------------------
def test_a_checkpoint_that_is_not_reached_yet_is_waited_for(stopped: World, sensor: Sensor, approver: Owner) -> None:
    authority = approver.propose(stopped, "stopped")
    assert authority.checkpoint is not None
    later = CheckpointBinding(xmin=authority.checkpoint.xmin, revision=2)
    approver.approve(stopped, authority.model_copy(update={"checkpoint": later}))
    seen = status(stopped, approver)
    assert (seen.ready, seen.final, seen.reason) == (False, False, "repair_authority.binding_mismatch")
    assert seen.message.startswith("It is bound to another checkpoint: revision 2, xmin ") and "moved past" not in seen.message
    deferred(sensor())


def test_a_checkpoint_that_was_passed_is_told(stopped: World, sensor: Sensor, approver: Owner) -> None:
    approver.admit(stopped, "stopped")
    stopped.source.run("INSERT INTO orders SELECT g, 'c' || g, g FROM generate_series(1, 10) g")
    stopped.run("between")
    seen = status(stopped, approver)
    assert (seen.ready, seen.final) == (False, True), "revisions only rise"
    assert "bound to another checkpoint: revision 1" in seen.message and "moved past it" in seen.message
    with pytest.raises(AirflowFailException, match=r"repair_authority\.binding_mismatch"):
        sensor().execute({})


def test_a_server_that_is_away_is_waited_for(stopped: World, sensor: Sensor, approver: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    approver.admit(stopped, "stopped")
    facts = json.loads(connection(stopped.target.endpoint()))
    with monkeypatch.context() as broken:
        broken.setenv("AIRFLOW_CONN_DWH", json.dumps({**facts, "host": "/nowhere"}))
        deferral = deferred(sensor())
    assert in_triggerer(deferral)["outcome"] == "ready"


def test_a_look_that_is_blocked_is_given_time_and_is_not_repeated(
    stopped: World, sensor: Sensor, monkeypatch: pytest.MonkeyPatch, trigger_log: pytest.LogCaptureFixture
) -> None:
    deferral, looks, real = deferred(sensor()), [], triggers.look

    def slow(*args: Any, **kw: Any) -> Any:
        looks.append(time.monotonic())
        time.sleep(2.5)
        return replace(real(*args, **kw), ready=True)

    monkeypatch.setattr(triggers, "look", slow)
    monkeypatch.setattr(triggers, "ANSWER_SECONDS", 1.0)
    assert in_triggerer(deferral)["outcome"] == "ready"
    assert len(looks) == 1
    assert "has not answered yet" in trigger_log.text


def test_a_blocked_state_database_is_a_status(stopped: World, approver: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_dpone_xmin.runtime.approvals.LOOK_SECONDS", 0.5)
    with stopped.target.connect() as blocker, blocker.transaction():
        blocker.execute(f"LOCK TABLE {stopped.state_name('dpone_repair_authority')} IN ACCESS EXCLUSIVE MODE")
        seen = status(stopped, approver)
    assert (seen.ready, seen.final) == (False, False), seen
    assert status(stopped, approver).reason == "repair_authority.not_found"


def test_time_runs_out(stopped: World, sensor: Sensor, monkeypatch: pytest.MonkeyPatch) -> None:
    deferral = deferred(sensor(timeout=1))
    event = in_triggerer(deferral)
    assert (event["outcome"], event["error"]["code"]) == ("timeout", "repair_authority.not_found")
    with pytest.raises(AirflowSensorTimeout, match=r"fix was not usable within 1 s: No repair authority 'fix' exists"):
        resume(sensor(timeout=1), event)
    with pytest.raises(AirflowSkipException):
        resume(sensor(timeout=1, soft_fail=True), event)
    started = time.monotonic()
    assert in_triggerer(deferral)["outcome"] == "timeout"  # after a restart the deadline is the same
    assert time.monotonic() - started < 10
    with pytest.raises(AirflowSensorTimeout):
        sensor(timeout=0, deferrable=False).execute(context("run"))
    with pytest.raises(AirflowSkipException):
        sensor(timeout=0, deferrable=False, soft_fail=True).execute(context("run"))


# ---- refused --------------------------------------------------------------------------------------------------------------
def consumed(world: World, owner: Owner) -> None:
    world.run("stopped", repair=owner.admit(world, "stopped"))


def expired(world: World, owner: Owner) -> None:
    past = ended(owner.propose(world, "stopped"))
    world.target.run(insertion(world, past, owner.sign(past)))


def elsewhere(world: World, owner: Owner) -> None:
    foreign = owner.propose(world, "stopped").model_copy(update={"environment": "prod"})
    world.target.run(insertion(world, foreign, owner.sign(foreign)))


def altered(world: World, owner: Owner) -> None:
    owner.admit(world, "stopped")
    table = world.state_name("dpone_repair_authority")
    world.target.run(
        f"ALTER TABLE {table} DISABLE TRIGGER ALL", f"UPDATE {table} SET reason = 'x'", f"ALTER TABLE {table} ENABLE TRIGGER ALL"
    )


def unsigned(world: World, owner: Owner) -> None:
    owner.approve(world, owner.propose(world, "stopped"), envelope=None)


def stranger(world: World, owner: Owner) -> None:
    authority = owner.propose(world, "stopped")
    owner.approve(world, authority, envelope=Owner(owner.directory, name="stranger").sign(authority))


def another_route(world: World, owner: Owner) -> None:
    document = RepairAuthority.model_validate(owner.propose(world, "stopped").model_dump(mode="json") | {"state_key": "0" * 64})
    world.target.run(insertion(world, document, owner.sign(document)))


REASONS = [
    (consumed, "repair_authority.consumed"),
    (expired, "repair_authority.expired"),
    (elsewhere, "repair_authority.environment_mismatch"),
    (altered, "repair_authority.digest_mismatch"),
    (unsigned, "repair_authority.unsigned"),
    (stranger, "registry.key_unknown"),
    (another_route, "repair_authority.binding_mismatch"),
]


@pytest.mark.parametrize(("arrange", "code"), REASONS, ids=[code for _, code in REASONS])
def test_what_waiting_cannot_mend_fails_at_once(
    stopped: World, sensor: Sensor, approver: Owner, caplog: pytest.LogCaptureFixture, arrange: Callable[..., None], code: str
) -> None:
    caplog.set_level(logging.INFO)
    deferral = deferred(sensor())
    arrange(stopped, approver)
    event = in_triggerer(deferral)
    assert (event["outcome"], event["error"]["code"]) == ("refused", code)
    for fails in (
        lambda task: resume(task, event),
        lambda task: task.execute(context("run")),
        lambda task: task.poke(context("run")),
    ):
        with pytest.raises(AirflowFailException, match=f"^{code}: .*Hint: "):
            fails(sensor())
    assert f"Repair authority fix: refused ({code}). " in caplog.text
    for mode in (True, False):
        with pytest.raises(AirflowSkipException):
            sensor(soft_fail=True, deferrable=mode).execute(context("run"))
    with pytest.raises(AirflowSkipException):
        resume(sensor(soft_fail=True), event)


def test_an_untrusted_registry_is_refused_in_the_triggerer_too(
    stopped: World, sensor: Sensor, approver: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferral = deferred(sensor())
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__TRUSTED_KEYS", str(Owner(tmp_path, name="stranger").public))
    assert in_triggerer(deferral)["error"]["code"] == "registry.key_unknown"


def test_a_registry_that_is_just_being_replaced_is_waited_for(stopped: World, sensor: Sensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed read does not end a wait of hours."""
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__REGISTRY", "/nowhere/registry.json")
    assert sensor().poke(context("run")) is False


def test_an_unexpected_fault_is_waited_out_and_its_text_withheld(
    sensor: Sensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def burst(*_: Any, **__: Any) -> None:
        raise ValueError("password=hunter2")

    monkeypatch.setattr("airflow_dpone_xmin.runtime.approvals.authority_status", burst)
    with pytest.raises(TaskDeferred):
        sensor().execute(context("run"))
    assert "run.unexpected" in caplog.text and "hunter2" not in caplog.text


def test_an_event_without_content_is_a_time_out(sensor: Sensor) -> None:
    for event in (None, {}, {"outcome": "refused"}):
        with pytest.raises(AirflowSensorTimeout):
            sensor().execute_complete(context("run"), event)


def test_a_look_changes_nothing(stopped: World, approver: Owner) -> None:
    from tests.approvals import everything

    approver.admit(stopped, "stopped")
    before = everything(stopped)
    assert status(stopped, approver).ready
    assert everything(stopped) == before


def test_unsigned_approvals_are_usable_where_the_registry_allows_them(stopped: World, approver: Owner) -> None:
    unsigned(stopped, approver)
    seen = authority_status(stopped.route(), endpoints=stopped.endpoints, repair=RepairSelection("fix", None))
    assert seen.ready


def test_the_trigger_names_itself() -> None:
    trigger = RepairAuthorityTrigger(manifest={}, table=None, repair_authority_ref="fix", poke_interval=1, deadline=2)
    assert import_string(trigger.serialize()[0]) is RepairAuthorityTrigger
