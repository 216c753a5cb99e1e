"""What a run leaves in Airflow beside its log and XCom: asset events, metrics, the link to the receipt, lineage."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _serialize_outlet_events
from airflow.sdk.observability import stats

from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.links.receipt import ReceiptLink
from airflow_dpone_xmin.operators.lineage import operator_lineage
from tests.airflow.conftest import Operator, context
from tests.world import World

ORDERS = Asset("orders", uri="mssql://dwh/DWH/landing/orders")


class Metrics:
    """A metrics backend that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, dict[str, str]]] = []

    def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: dict[str, str] | None = None) -> None:
        self.seen.append((stat, count, tags or {}))

    def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False, *, tags: dict[str, str] | None = None) -> None:
        self.seen.append((stat, value, tags or {}))

    def timing(self, stat: str, dt: Any, *, tags: dict[str, str] | None = None) -> None:
        self.seen.append((stat, dt, tags or {}))

    def of(self, stat: str, tag: str) -> dict[str, float]:
        return {tags[tag]: value for name, value, tags in self.seen if name == stat}


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    backend = Metrics()
    stats.initialize(factory=lambda: backend, export_legacy_names=False)
    yield backend
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def emitted(events: OutletEventAccessors) -> list[dict[str, Any]]:
    """The events as the supervisor would send them."""
    return json.loads(json.dumps(list(_serialize_outlet_events(events))))  # type: ignore[no-any-return]


def test_the_event_of_every_asset_carries_receipt_and_counts_and_a_replay_the_same_receipt(deployment: World, operator: Operator) -> None:
    receipts = []
    for attempt in (1, 2):
        events = OutletEventAccessors()
        task = operator(outlets=[ORDERS, AssetAlias("landing")])
        summary = task.execute({**context("run-1", try_number=attempt), "outlet_events": events})
        (event,) = emitted(events)
        assert event["dest_asset_key"] == {"name": "orders", "uri": "mssql://dwh:1433/DWH/landing/orders"}
        assert event["extra"]["counts"]["inserted"] == 40
        assert event["extra"]["status"] == ("committed", "replayed")[attempt - 1]
        assert {name: summary[name] for name in event["extra"]} == event["extra"]
        receipts.append(event["extra"]["receipt_id"])
    assert receipts[0] == receipts[1]


def test_telling_airflow_fails_and_the_committed_task_succeeds(
    deployment: World, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    # a context without accessors: whatever goes wrong here, the rows are committed
    assert operator(outlets=[ORDERS]).execute(context("run-1"))["status"] == "committed"
    assert "telling Airflow of it failed with KeyError" in caplog.text


def test_a_run_a_replay_and_a_refusal_are_counted(deployment: World, operator: Operator, metrics: Metrics) -> None:
    operator().execute(context("run-1"))
    assert metrics.of("dpone_xmin.runs", "outcome") == {"committed": 1}
    rows = metrics.of("dpone_xmin.rows", "action")
    assert (rows["inserted"], rows["updated"], rows["soft_deleted"]) == (40, 0, 0)
    assert {"postgres_copy", "stage_rows", "finalize"} <= set(metrics.of("dpone_xmin.phase", "phase"))
    assert metrics.of("dpone_xmin.active_rows", "process") == {"orders_process": 40}
    assert set(metrics.of("dpone_xmin.replay_amplification_xids", "process")) == {"orders_process"}

    metrics.seen.clear()
    operator().execute(context("run-1"))
    assert [(name, tags["outcome"]) for name, _, tags in metrics.seen] == [("dpone_xmin.runs", "replayed")]

    metrics.seen.clear()
    with pytest.raises(AirflowFailException):
        operator(repair_authority_ref="nothing").execute(context("run-2"))
    (one,) = metrics.seen
    assert one == ("dpone_xmin.runs", 1, {"process": "orders_process", "outcome": "failed", "code": "repair_authority.not_found"})


def test_the_link_leads_to_the_receipt_and_nowhere_without_one(
    deployment: World, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, key, link = operator(), SimpleNamespace(), ReceiptLink()
    assert [type(one) for one in task.operator_extra_links] == [ReceiptLink]
    assert link.get_link(task, ti_key=key) == ""  # type: ignore[arg-type]
    receipt = task.execute(context("run-1"))["receipt_id"]
    assert link.get_link(task, ti_key=key) == f"/dpone-xmin/receipts/dwh/{receipt}"  # type: ignore[arg-type]
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    assert link.get_link(task, ti_key=key) == f"https://airflow.example/team/dpone-xmin/receipts/dwh/{receipt}"  # type: ignore[arg-type]


def test_lineage_names_both_tables_and_counts_rows_read_and_moved(deployment: World, operator: Operator) -> None:
    pytest.importorskip("airflow.providers.openlineage", reason="the OpenLineage provider is not installed")
    assert operator().get_openlineage_facets_on_complete(None) is None
    operator().execute(context("run-1"))
    deployment.source.run("DELETE FROM orders WHERE id <= 2", "UPDATE orders SET qty = 0 WHERE id = 3")
    task = operator()
    counts = task.execute(context("run-2"))["counts"]
    lineage = task.get_openlineage_facets_on_complete(None)
    (read,), (written,) = lineage.inputs, lineage.outputs
    assert (read.namespace, read.name) == ("postgres://localhost:5432", f"{deployment.source.database}.public.orders")
    assert (written.namespace, written.name) == ("postgres://localhost:5432", f"{deployment.target.database}.landing.orders")
    assert read.inputFacets["inputStatistics"].rowCount == counts["payload"]
    assert written.outputFacets["outputStatistics"].rowCount == 3

    again = operator()
    assert again.execute(context("run-2", try_number=2))["status"] == "replayed"
    replay = again.get_openlineage_facets_on_complete(None)
    assert [(one.namespace, one.name) for one in (*replay.inputs, *replay.outputs)] == [
        (one.namespace, one.name) for one in (read, written)
    ]
    assert (replay.inputs[0].inputFacets, replay.outputs[0].outputFacets) == ({}, {}), "its rows are told once, by who moved them"

    host = Endpoint("dwh", "sql.example", 1444, None, "login", "s3cret")
    lineage = operator_lineage(deployment.route(), task._done[2].receipt.counts, source=host, target=host)
    assert lineage is not None and lineage.inputs[0].namespace == "postgres://sql.example:1444"
    assert "s3cret" not in repr(lineage) and "login" not in repr(lineage)


def test_without_the_lineage_provider_nothing_is_told(deployment: World, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", None)
    task = operator()
    task.execute(context("run-1"))
    assert task.get_openlineage_facets_on_complete(None) is None
