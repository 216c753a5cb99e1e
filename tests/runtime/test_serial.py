"""A registry older than the last one that a state database accepted: refused by everything that reads state, and nothing is written."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import airflow_dpone_xmin.runtime
from airflow_dpone_xmin.contracts.campaign import CampaignSpec
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.runtime.approvals import authority_status
from airflow_dpone_xmin.runtime.campaign import (
    abandon_campaign,
    campaign_target,
    look_at_campaign,
    open_campaign,
    plan_campaign,
    publish_campaign,
    rehearse_campaign,
)
from airflow_dpone_xmin.runtime.check import check_connections
from airflow_dpone_xmin.runtime.inspect import export_bundle, looking, opened, receipt_documents, state_document
from airflow_dpone_xmin.runtime.lane import run_lane
from airflow_dpone_xmin.runtime.lanes import resolved, run_campaign, run_lanes
from airflow_dpone_xmin.runtime.plan import plan_document
from airflow_dpone_xmin.runtime.provision import catalog_differences, render_scripts, upgrade_catalog
from airflow_dpone_xmin.runtime.reconcile import dry_run, reconcile
from airflow_dpone_xmin.runtime.repair import approve, authority_documents, propose
from airflow_dpone_xmin.target.connect import engine_of
from tests.approvals import Owner, _with_owner, everything
from tests.world import Setup, World

TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")
CODE = "registry.rollback"

#: Read the source only, or open nothing by themselves.
EXEMPT = {render_scripts, engine_of, plan_campaign, resolved}
SPEC = CampaignSpec(kind="integer", column="id", low=1, high=5, step=5, buckets=None, publication="in_place", lanes=1)


@pytest.fixture
def world(worlds: Setup) -> World:
    """Serial 5 was accepted, then a run was stopped."""
    world = worlds(*TABLE, reconciliation={"guards": {"max_delete_rows": 0}}, serial=5)
    world.run("first")
    world.source.run("DELETE FROM orders WHERE id = 1")
    with pytest.raises(XminError, match=r"guard\.deletes_exceeded"):
        world.run("stopped")
    return world


def paths(world: World, owner: Owner) -> dict[Any, Callable[[Route], Any]]:
    """Every function of the runtime that takes a route and endpoints, and how it is called."""
    found, invocation = _with_owner(world), Invocation(world.process, "look")
    authority = owner.propose(world, "stopped")
    bounds = {"full_baseline": False, "max_delete_rows": None, "max_delete_ratio": None}
    new = {"authority_id": "x", "reason": "r", "valid_for": authority.expires_at - authority.created_at, **bounds}
    calls: dict[Any, Callable[[Route], Any]] = {
        reconcile: lambda route: reconcile(route, invocation, endpoints=found),
        dry_run: lambda route: dry_run(route, invocation, endpoints=found),
        check_connections: lambda route: codes(check_connections(route, endpoints=found)),
        plan_document: lambda route: problems(plan_document(route, endpoints=found)),
        state_document: lambda route: state_document(route, endpoints=found),
        receipt_documents: lambda route: receipt_documents(route, endpoints=found, run_id=None, limit=5),
        export_bundle: lambda route: export_bundle(route, endpoints=found, output=world.work_dir / "bundle"),
        authority_documents: lambda route: authority_documents(route, endpoints=found, ref=None),
        authority_status: lambda route: status(authority_status(route, endpoints=found, repair=owner.select(world, "fix"))),
        propose: lambda route: propose(route, Invocation(world.process, "stopped"), endpoints=found, **new),
        approve: lambda route: approve(route, authority, endpoints=found, owner="owner", envelope=owner.sign(authority)),
        catalog_differences: lambda route: catalog_differences(route, endpoints=found),
        upgrade_catalog: lambda route: upgrade_catalog(route, endpoints=found, owner="owner"),
        open_campaign: lambda route: open_campaign(initial(route), "look", endpoints=found),
        run_campaign: lambda route: run_campaign(initial(route), "look", endpoints=found),
        publish_campaign: lambda route: publish_campaign(initial(route), "look", endpoints=found),
        rehearse_campaign: lambda route: rehearse_campaign(initial(route), endpoints=found),
        look_at_campaign: lambda route: look_at_campaign(initial(route), endpoints=found),
        abandon_campaign: lambda route: abandon_campaign(initial(route), "look", endpoints=found),
        run_lane: lambda route: run_lane(initial(route), "look", 0, endpoints=found),
        run_lanes: lambda route: run_lanes(initial(route), "look", 1, endpoints=found),
        campaign_target: lambda route: campaign_target(initial(route), endpoints=found, cancel=Cancellation()).__enter__(),
        looking: lambda route: looking(route, found).__enter__(),
        opened: lambda route: opened(route, found).__enter__(),
    }
    return calls


def initial(route: Route) -> Route:
    """The initial half of a handoff to the same table."""
    return replace(route, campaign=SPEC, handoff_id="h", execution="initial")


def codes(report: Any) -> None:
    for finding in report.findings:
        if finding.code:
            raise XminError(finding.code, finding.subject)


def problems(document: Any) -> None:
    for problem in document["problems"]:
        raise XminError(problem["code"], problem["subject"])


def status(seen: Any) -> None:
    assert seen.final or seen.ready, "waiting cannot help"
    if seen.error:
        raise seen.error


def test_every_path_refuses_a_rollback(world: World, tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    calls, new = paths(world, owner), world.route()
    world.serial = 4
    old = world.route()
    before = everything(world), world.target.rows(f"SELECT serial FROM {world.state_name('dpone_registry_serial')}")
    for function, call in calls.items():
        with pytest.raises(XminError) as caught:
            call(old)
        assert caught.value.code == CODE, (function, caught.value)
    assert before == (everything(world), world.target.rows(f"SELECT serial FROM {world.state_name('dpone_registry_serial')}"))
    assert world.target.rows(f"SELECT count(*) FROM {world.state_name('dpone_run_state')} WHERE run_id = 'look'")[0][0] == 0
    calls[state_document](new)  # the one that was accepted goes on


def test_no_path_was_forgotten(world: World, tmp_path: Path) -> None:
    tried = {getattr(function, "__wrapped__", function) for function in (*paths(world, Owner(tmp_path)), *EXEMPT)}
    runtime = airflow_dpone_xmin.runtime
    for module in pkgutil.iter_modules(runtime.__path__):
        for name, function in inspect.getmembers(importlib.import_module(f"{runtime.__name__}.{module.name}"), inspect.isfunction):
            plain = getattr(function, "__wrapped__", function)
            if not name.startswith("_") and {"route", "endpoints"} <= set(inspect.signature(plain).parameters):
                assert plain in tried, f"{module.name}.{name} takes a route and endpoints: does it refuse a rollback?"


def test_a_newer_serial_is_remembered_by_runs_alone(world: World) -> None:
    """A look with a newer registry accepts nothing: whoever looks may not lock the others out."""
    world.serial = 9
    state_document(world.route(), endpoints=world.endpoints)
    assert check_connections(world.route(), endpoints=world.endpoints).ok
    world.serial = 5
    world.source.run("INSERT INTO orders VALUES (1, 1)")
    assert world.run(uuid.uuid4().hex).status == "committed"
