"""The page inside Airflow's UI: in Airflow's own application, behind its own login, on real catalogs."""

from __future__ import annotations

import html
import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from fastapi.routing import APIRoute
from sqlalchemy import insert

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.operators.campaign import BackfillOpenOperator
from airflow_dpone_xmin.plugins.app import create_app, require_access
from airflow_dpone_xmin.plugins.xmin import XminPlugin
from airflow_dpone_xmin.runtime.overview import CatalogView, Entry, Survey, read_catalogs, read_receipt, survey
from airflow_dpone_xmin.target.catalog import build_catalog
from tests.airflow.conftest import Client, Operator, context
from tests.world import Setup, World

PAGE = "/dpone-xmin"
PATHS = {"/": "/", "/receipts/{entry}/{receipt_id}": f"/receipts/dwh/{uuid.UUID(int=7)}", "/static/{name}": "/static/page.css"}


# ---- access -----------------------------------------------------------------------------------------------------------------
def test_every_route_of_the_page_is_known_to_these_tests_and_guarded() -> None:
    routes = create_app().routes
    assert all(type(route) is APIRoute for route in routes), "a mount or a documentation route would be anonymous"
    assert {route.path for route in routes} == set(PATHS)  # type: ignore[attr-defined]
    for route in routes:
        assert route.methods == {"GET"}  # type: ignore[attr-defined]
        assert require_access in [one.call for one in route.dependant.dependencies]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", [*PATHS.values(), "/static/page.js"])
@pytest.mark.parametrize(("role", "status"), [(None, 401), ("", 403), ("NO_PLUGINS", 403), ("NO_XCOM", 403)])
def test_nobody_and_a_user_without_access_see_nothing(as_role: Client, path: str, role: str | None, status: int) -> None:
    answer = as_role(role).get(PAGE + path)
    assert answer.status_code == status
    assert answer.json().keys() == {"detail"}


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/static/app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py"])
@pytest.mark.parametrize("role", [None, "VIEWER"])
def test_nothing_else_answers(as_role: Client, path: str, role: str | None) -> None:
    assert as_role(role).get(PAGE + path).status_code in (401, 404, 422)


def test_a_viewer_sees_page_and_static_files_and_can_change_nothing(as_role: Client, deployment: World) -> None:
    viewer = as_role("VIEWER")
    for path in ("/", "/static/page.css", "/static/page.js"):
        assert viewer.get(PAGE + path).status_code == 200
    assert viewer.get(f"{PAGE}/static/other.css").status_code == 404
    assert viewer.get(f"{PAGE}/receipts/dwh/not-a-uuid").status_code == 422
    policy = viewer.get(f"{PAGE}/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert viewer.request(method, f"{PAGE}/").status_code == 405


def test_the_page_is_in_airflows_navigation(as_role: Client) -> None:
    plugins = {plugin["name"]: plugin for plugin in as_role("VIEWER").get("/api/v2/plugins").json()["plugins"]}
    (view,) = plugins[XminPlugin.name]["external_views"]
    assert (view["href"], view["url_route"], view["destination"]) == (f"{PAGE}/", "dpone-xmin", "nav")


# ---- content ----------------------------------------------------------------------------------------------------------------
def words(text: str) -> str:
    """A page without its tags, blanks collapsed."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def guarded(world: World) -> dict[str, Any]:
    """The deployment's manifest with a guard that two deletes do not break."""
    return {**world.manifest(), "reconciliation": {**world.manifest()["reconciliation"], "guards": {"max_delete_rows": 2}}}


def test_routes_receipts_and_stops_are_shown(as_role: Client, deployment: World, operator: Operator) -> None:
    viewer = as_role("VIEWER")
    assert "No route has committed yet" in viewer.get(f"{PAGE}/").text
    first = operator(manifest=guarded(deployment)).execute(context("run-1"))
    deployment.source.run("DELETE FROM orders WHERE id <= 2", "UPDATE orders SET qty = 0 WHERE id = 3")
    second = operator(manifest=guarded(deployment)).execute(context("run-2"))
    page = viewer.get(f"{PAGE}/").text
    seen = words(page)
    assert "1 routes" in seen and "0 stopped" in seen
    assert f"orders_process src:public.orders → {deployment.target.database}.landing.orders" in seen
    for summary in (first, second):
        assert f"{PAGE}/receipts/dwh/{summary['receipt_id']}" in page
    assert "0 / 1 / 0 / 2" in seen
    assert len(re.search(r'polyline points="([^"]*)"', page).group(1).split()) == 2  # type: ignore[union-attr]

    deployment.source.run("DELETE FROM orders WHERE id <= 30")
    with pytest.raises(AirflowFailException, match=r"guard\.deletes_exceeded"):
        operator(manifest=guarded(deployment)).execute(context("run-3", map_index=4))
    seen = words(viewer.get(f"{PAGE}/").text)
    assert "1 stopped" in seen
    state = deployment.target.rows("SELECT state_key, safe_xmin FROM governance.dpone_source_state")[0]
    for fact in ("run-3 [4]", "guard.deletes_exceeded", f"revision 2, xmin {state[1]}", "28 of 38 active rows", bytes(state[0]).hex()):
        assert fact in seen

    operator().execute(context("run-4"))  # without guards: the checkpoint moves, nothing waits any more
    seen = words(viewer.get(f"{PAGE}/").text)
    assert "0 stopped" in seen and "The checkpoint has moved since." in seen


def test_a_campaign_that_waits_for_an_approval_is_shown(as_role: Client, deployment: World, operator: Operator) -> None:
    """Its phases have no invocation; the refusal of the newest one counts."""
    operator().execute(context("run-1"))
    backfill = {
        "inner_mode": "incremental_append",
        "publication": {"mode": "shadow_swap"},
        "chunk": {"column": "id", "kind": "ordered", "buckets": 4},
    }
    deployment.manifest_over = {
        "source": {"options": {"xmin_execution": {"mode": "initial", "handoff_id": "orders_v1"}}},
        "sink": {"strategy": {"mode": "backfill", "backfill": backfill}},
    }
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=r"target_ownership\.conflict"):
            BackfillOpenOperator(task_id="open", manifest=deployment.manifest()).execute(context("load-1"))
    seen = words(as_role("VIEWER").get(f"{PAGE}/").text)
    assert "1 stopped" in seen and "target_ownership.conflict" in seen and "load-1" in seen


def test_a_receipt_has_a_page_of_its_own(as_role: Client, deployment: World, operator: Operator) -> None:
    summary = operator().execute(context("run-1", map_index=7))
    answer = as_role("VIEWER").get(f"{PAGE}/receipts/dwh/{summary['receipt_id']}")
    seen = words(answer.text)
    assert answer.status_code == 200
    for fact in ("40 inserted", "run-1 [7]", "revision 1", "40 rows; 40 keys", f"{deployment.target.database}.landing.orders"):
        assert fact in seen
    for unknown in (f"dwh/{uuid.uuid4()}", f"src/{summary['receipt_id']}", f"nothing/{summary['receipt_id']}"):
        answer = as_role("VIEWER").get(f"{PAGE}/receipts/{unknown}")
        assert (answer.status_code, "evidence.not_found" in answer.text) == (404, True)


def test_what_a_database_holds_cannot_become_markup(as_role: Client, deployment: World, operator: Operator) -> None:
    run, paths = "<script>alert(1)</script>", ["/"]
    paths.append(f"/receipts/dwh/{operator(manifest=guarded(deployment)).execute(context(run))['receipt_id']}")
    deployment.source.run("DELETE FROM orders")
    with pytest.raises(AirflowFailException):
        operator(manifest=guarded(deployment)).execute(context(f"{run}2"))
    for path in paths:
        page = as_role("VIEWER").get(PAGE + path).text
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_campaigns_and_their_lanes_are_shown(as_role: Client, deployment: World) -> None:
    fill_campaign(deployment)
    seen = words(as_role("VIEWER").get(f"{PAGE}/").text)
    for fact in ("1 open campaigns", "handoff orders-1, shadow_swap", "1 of 3", "1 committed", "1 000"):
        assert fact in seen
    assert "chunk 1: lane-a" in seen and "chunk 2: lane-b lease ran out" in seen


def fill_campaign(world: World) -> None:
    """A campaign of three chunks as the catalog holds it: one committed, one leased, one whose lease ran out."""
    catalog, engine = build_catalog(), world.engine(owner=True)
    session = engine.connect("state", cancel=Cancellation())
    now, key = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None), b"c" * 32
    campaign = {
        "campaign_key": key, "process": "orders_process", "handoff_id": "orders-1", "environment": "test", "target_identity": b"t" * 32,
        "state_key": b"s" * 32, "plan_digest": b"p" * 32, "projection_fingerprint": b"f" * 32,
        "anchor_xmin": 1, "anchor_visible_horizon": 1,
        "anchor_snapshot": "1:1:", "publication": "shadow_swap", "status": "open", "chunk_count": 3,
        "created_at_utc": now, "updated_at_utc": now,
    }  # fmt: skip
    session.execute("test", insert(catalog.campaign).values(campaign))
    leases = [(None, None, 1000, uuid.uuid4()), ("lane-a", now.replace(year=2100), None, None), ("lane-b", now, None, None)]
    for number, (owner, until, rows, receipt) in enumerate(leases):
        chunk = {
            "campaign_key": key, "chunk_no": number, "status": "committed" if receipt else "leased", "epoch": 1, "owner": owner,
            "lease_until_utc": until, "rows_count": rows, "receipt_id": receipt, "updated_at_utc": now,
        }  # fmt: skip
        session.execute("test", insert(catalog.campaign_chunk).values(_given(chunk)))
    session.close()
    engine.close()


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# ---- faults -----------------------------------------------------------------------------------------------------------------
def test_a_missing_registry_a_missing_connection_and_an_absent_server_are_said(
    as_role: Client, deployment: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = as_role("VIEWER")
    monkeypatch.setenv("AIRFLOW_CONN_DWH", json.dumps({"conn_type": "postgres", "host": "/nowhere", "login": "s3cret-login"}))
    page = viewer.get(f"{PAGE}/").text
    assert "mssql_transaction.unreachable" in page and "s3cret" not in page and "/nowhere" not in page
    monkeypatch.delenv("AIRFLOW_CONN_DWH")
    assert "DPONE_CONNECTION_UNRESOLVED" in viewer.get(f"{PAGE}/").text
    monkeypatch.delenv("AIRFLOW__DPONE_XMIN__REGISTRY")
    assert "registry.location_missing" in viewer.get(f"{PAGE}/").text


def test_a_database_that_is_not_the_signed_one_is_not_read(worlds: Setup) -> None:
    world = worlds("CREATE TABLE orders (id bigint PRIMARY KEY)")
    entry = entry_of(world)
    assert catalog_of(world).routes == []
    facts = entry.facts.model_dump(by_alias=True, exclude_none=True)
    for pins in facts["connection"]["database_authorities"].values():
        pins["database_guid"] = uuid.uuid4()
    other = Entry(entry.environment, entry.name, type(entry.facts).model_validate(facts), entry.endpoint)
    for look in (lambda: survey(other), lambda: read_catalogs(other, Survey([(next(iter(other.databases)), "dbo")], {}))):
        with pytest.raises(XminError, match=r"mssql_transaction\.state_database_authority_mismatch"):
            look()


def test_the_catalogs_are_read_on_every_engine(worlds: Setup) -> None:
    world = worlds("CREATE TABLE orders (id bigint PRIMARY KEY)", "INSERT INTO orders SELECT generate_series(1, 5)")
    outcome = world.run("run-1")
    entry = entry_of(world)
    (route,) = catalog_of(world).routes
    assert (route.revision, route.receipts[0].receipt_id) == (1, outcome.receipt.receipt_id)
    assert route.target is not None and route.target.endswith(".orders")
    found = read_receipt(entry, survey(entry), outcome.receipt.receipt_id)
    assert found.counts == outcome.receipt.counts


def catalog_of(world: World) -> CatalogView:
    """What the page reads of the world's own catalog; a server under test may hold those of other tests."""
    entry = entry_of(world)
    schema = world.target.layout(world.table).state.schema
    (view,) = [view for view in read_catalogs(entry, survey(entry)) if view.schema == schema]
    return view


def entry_of(world: World) -> Entry:
    """The world's target entry, as the page sees it."""
    return Entry("test", "dwh", world.registry().connections["dwh"], world.target.endpoint())
