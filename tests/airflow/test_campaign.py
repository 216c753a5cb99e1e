"""The campaign's operators without a scheduler: open, lanes, a coordinator that defers, publishes and replays."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.operators.campaign import (
    BackfillCampaignOperator,
    BackfillLaneOperator,
    BackfillOpenOperator,
    campaign_task_group,
    longest_pause,
)
from airflow_dpone_xmin.operators.errors import XminRetryableError
from airflow_dpone_xmin.triggers.campaign import CampaignStatus, CampaignTrigger, Patience, look
from tests.world import WRITER, World

from .conftest import COLUMNS, context

CHUNK = {"column": "id", "from": 1, "to": 40, "step": 10}


@pytest.fixture
def loading(deployment: World) -> World:
    """The deployment's table, to be loaded by a campaign."""
    backfill = {"inner_mode": "incremental_append", "publication": {"mode": "shadow_swap"}, "chunk": CHUNK}
    deployment.manifest_over = {
        "source": {"options": {"xmin_execution": {"mode": "initial", "handoff_id": "orders_v1"}}},
        "sink": {"strategy": {"mode": "backfill", "backfill": backfill}},
    }
    schema = deployment.target.layout(deployment.table).target.namespace.schema
    deployment.target.run(f"ALTER TABLE {deployment.target_name} OWNER TO {WRITER}", f'GRANT CREATE ON SCHEMA "{schema}" TO {WRITER}')
    return deployment


def task(kind: Any, world: World, **parameters: Any) -> Any:
    return kind(task_id="t", manifest=world.manifest(), **parameters)


def event_of(trigger: CampaignTrigger) -> dict[str, Any]:
    """What the trigger fires, after the round trip through its serialised form."""
    path, arguments = trigger.serialize()
    assert path == "airflow_dpone_xmin.triggers.campaign.CampaignTrigger"

    async def first() -> dict[str, Any]:
        async for event in CampaignTrigger(**arguments).run():
            return dict(event.payload)
        raise AssertionError("no event")

    return asyncio.run(asyncio.wait_for(first(), 60))


def test_open_lanes_and_a_coordinator_that_defers(loading: World) -> None:
    opened = task(BackfillOpenOperator, loading).execute(context("r1"))
    assert (opened["status"], opened["progress"]["chunks"]) == ("open", 4)
    coordinator = task(BackfillCampaignOperator, loading, poke_interval=0.2)
    with pytest.raises(TaskDeferred) as deferred:
        coordinator.execute(context("r1"))
    assert task(BackfillLaneOperator, loading, lane=1).execute(context("r1")) == {"chunks": 4, "rows": 40}
    event = event_of(deferred.value.trigger)  # type: ignore[arg-type]
    assert event["outcome"] == "complete" and "4/4 chunks, 40 rows" in event["message"]
    resumed = task(BackfillCampaignOperator, loading)  # a fresh instance, as Airflow resumes it
    summary = resumed.execute_complete(context("r1"), event)
    assert resumed.receipt == ("dwh", summary["receipt_id"]) and [link.name for link in resumed.operator_extra_links] == ["Receipt"]
    assert (summary["status"], summary["revision"], summary["counts"]["active_after"]) == ("committed", 1, 40)
    assert loading.target_rows(COLUMNS) == loading.source_rows(COLUMNS)
    assert task(BackfillCampaignOperator, loading).execute(context("r2"))["status"] == "replayed"


def test_inline_lanes_do_everything_in_one_task(loading: World) -> None:
    summary = task(BackfillCampaignOperator, loading, inline_lanes=2).execute(context("r1"))
    assert (summary["status"], summary["payload_reason"]) == ("committed", "campaign")
    assert [phase["event"] for phase in summary["phases"]] == ["CAMPAIGN_INDEXES_COMPLETE", "CAMPAIGN_PUBLISHED_COMPLETE"]
    assert summary["phases"][-1]["rows"] == 40
    assert loading.target_rows(COLUMNS) == loading.source_rows(COLUMNS)


def test_a_campaign_without_lanes_is_stalled(loading: World, monkeypatch: pytest.MonkeyPatch) -> None:
    task(BackfillOpenOperator, loading).execute(context("r1"))
    coordinator = task(BackfillCampaignOperator, loading, poke_interval=0.1)
    coordinator.stall_seconds = 0.5  # the constructor demands more than a lease
    with pytest.raises(TaskDeferred) as deferred:
        coordinator.execute(context("r1"))
    event = event_of(deferred.value.trigger)  # type: ignore[arg-type]
    assert (event["outcome"], event["error"]["code"]) == ("refused", "campaign.stalled")
    with pytest.raises(AirflowFailException, match=r"campaign\.stalled"):
        task(BackfillCampaignOperator, loading).execute_complete(context("r1"), event)


@pytest.mark.parametrize("filled", [True, False])
def test_a_coordinator_that_is_stopped_during_a_look_neither_publishes_nor_defers(
    loading: World, monkeypatch: pytest.MonkeyPatch, filled: bool
) -> None:
    task(BackfillOpenOperator, loading).execute(context("r1"))
    if filled:
        task(BackfillLaneOperator, loading).execute(context("r1"))
    coordinator = task(BackfillCampaignOperator, loading)

    def shot(*arguments: Any, **named: Any) -> Any:
        coordinator.on_kill()
        return look(*arguments, **named)

    monkeypatch.setattr("airflow_dpone_xmin.triggers.campaign.look", shot)
    with pytest.raises(XminRetryableError, match=r"run\.cancelled"):
        coordinator.execute(context("r1"))
    assert loading.target_rows(COLUMNS) == []


def test_looks_that_fail_are_waited_out_for_as_long_as_a_stall(loading: World, monkeypatch: pytest.MonkeyPatch) -> None:
    task(BackfillOpenOperator, loading).execute(context("r1"))
    arguments: dict[str, Any] = {"table": None, "since": time.time(), "stall_seconds": 900.0}
    patience = Patience(0.2)
    monkeypatch.setenv("AIRFLOW__DPONE_XMIN__REGISTRY", "/nowhere/registry.json")
    failed = look(loading.manifest(), **arguments)
    assert failed.error is not None and failed.error.code == "registry.unreadable" and not patience.ends(failed)
    monkeypatch.undo()
    assert not patience.ends(CampaignStatus(False, "well again"))
    time.sleep(0.3)
    assert patience.ends(failed), "nothing but failures since"
    refused = CampaignStatus(False, "", XminError("campaign.not_open", "."))
    assert Patience(900).ends(refused) and Patience(900).ends(CampaignStatus(True, ""))


def test_a_lane_without_an_open_campaign_fails_at_once(loading: World) -> None:
    with pytest.raises(AirflowFailException, match=r"campaign\.not_open"):
        task(BackfillLaneOperator, loading).execute(context("r1"))
    with pytest.raises(AirflowFailException, match=r"campaign\.not_open"):
        task(BackfillCampaignOperator, loading).execute(context("r1"))


def test_a_stall_limit_within_the_lease_is_refused_while_the_dag_is_parsed(loading: World) -> None:
    with pytest.raises(XminError) as refused:
        task(BackfillCampaignOperator, loading, stall_seconds=90)
    assert refused.value.code == "DPONE_OPTION_UNSUPPORTED"


def test_a_stall_limit_within_the_retry_delay_is_refused_too(loading: World) -> None:
    with pytest.raises(XminError, match="390 seconds"):
        task(BackfillCampaignOperator, loading, stall_seconds=390, retry_delay=timedelta(minutes=5))
    assert task(BackfillCampaignOperator, loading, retry_delay=timedelta(hours=1)).stall_seconds > 3690


@pytest.mark.parametrize(
    "tries",
    [
        {"retry_delay": timedelta(minutes=5)},
        {"retry_delay": timedelta(minutes=5), "max_retry_delay": timedelta(minutes=1)},  # which a constant pause ignores
        {"retry_delay": timedelta(minutes=5), "retry_exponential_backoff": 1},
        {"retry_delay": timedelta(minutes=5), "retry_exponential_backoff": 2},
        {"retry_delay": timedelta(minutes=5), "retry_exponential_backoff": 0.5},
        {"retry_delay": timedelta(minutes=5), "retry_exponential_backoff": 4, "max_retry_delay": timedelta(minutes=30)},
        {"retry_delay": timedelta(hours=2), "retry_exponential_backoff": 10},  # a day, as Airflow's configuration has it
        {"retry_delay": timedelta(0), "retry_exponential_backoff": 3},
    ],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_the_longest_pause_is_the_longest_that_airflow_makes_between_four_tries(tries: dict[str, Any], mapped: bool) -> None:
    with DAG("d", schedule=None):
        plain = BackfillLaneOperator(task_id="t", manifest={}, **tries)
        lane = BackfillLaneOperator.partial(task_id="m", manifest={}, **tries).expand(lane=[0]) if mapped else plain
    ended = datetime(2026, 1, 1, tzinfo=UTC)
    pauses = []
    for failed, run in itertools.product((1, 2, 3), range(2000)):  # the pause is drawn by run and try
        instance = SimpleNamespace(
            task=lane, try_number=failed, dag_id="d", task_id="t", logical_date=run, end_date=ended, retry_delay_override=None
        )
        pauses.append((TaskInstance.next_retry_datetime(instance) - ended).total_seconds())
    assert 0.99 * longest_pause(lane) - 1 <= max(pauses) <= longest_pause(lane)


def test_the_stall_limit_outlasts_lanes_that_back_off(loading: World) -> None:
    backoff = {"retry_exponential_backoff": 3, "retry_delay": timedelta(minutes=5)}
    assert task(BackfillCampaignOperator, loading, **backoff).stall_seconds == 2 * (2 * 9 * 300 + 90)
    with pytest.raises(XminError, match="5490 seconds"):
        task(BackfillCampaignOperator, loading, stall_seconds=5490, **backoff)
    with DAG("d", schedule=None) as dag:
        campaign_task_group(manifest=loading.manifest(), lane_kwargs={"retry_exponential_backoff": 3})
        campaign_task_group("alone", manifest=loading.manifest(), retry_exponential_backoff=3, stall_seconds=800)
        with TaskGroup("patient", default_args={"stall_seconds": 7000}):
            campaign_task_group(manifest=loading.manifest())
        with pytest.raises(XminError, match="5490 seconds"):
            campaign_task_group("short", manifest=loading.manifest(), lane_kwargs={"retry_exponential_backoff": 3}, stall_seconds=800)
    assert dag.get_task("campaign.publish").stall_seconds == 2 * 5490
    assert dag.get_task("alone.publish").stall_seconds == 800  # its own tries do not matter
    assert dag.get_task("patient.campaign.publish").stall_seconds == 7000


@pytest.mark.parametrize("lanes", [0, 65])
def test_the_task_group_has_between_one_and_sixty_four_lanes(loading: World, lanes: int) -> None:
    with DAG("d", schedule=None), pytest.raises(XminError, match="between 1 and 64"):
        campaign_task_group(manifest=loading.manifest(), lanes=lanes)


def test_the_task_group_maps_its_lanes_beside_the_coordinator(loading: World) -> None:
    with DAG("d", schedule=None) as dag:
        campaign_task_group(manifest=loading.manifest(), lanes=3)
    opened, lane, published = (dag.get_task(f"campaign.{name}") for name in ("open", "lane", "publish"))
    assert opened.downstream_task_ids == {lane.task_id, published.task_id}
    assert not lane.downstream_task_ids and lane.is_mapped
    assert published.stall_seconds > published.retry_delay.total_seconds() + 90


def tasks_of(dag: DAG, group: str = "campaign") -> list[Any]:
    """Open, lane and coordinator."""
    return [dag.get_task(f"{group}.{name}") for name in ("open", "lane", "publish")]


def test_what_the_dag_says_of_tries_and_places_goes_to_every_task_of_the_group(loading: World) -> None:
    defaults = {"retries": 1, "retry_delay": timedelta(minutes=2), "pool": "loads", "queue": "heavy", "priority_weight": 7}
    with DAG("d", schedule=None, default_args=defaults) as dag:
        campaign_task_group(manifest=loading.manifest())
        with TaskGroup("nearer", default_args={"retries": 2}):
            campaign_task_group(manifest=loading.manifest())
        campaign_task_group("told", manifest=loading.manifest(), retries=0, retry_delay=timedelta(seconds=9))
    for one in tasks_of(dag):
        assert {name: getattr(one, name) for name in defaults} == defaults
    assert {(one.retries, one.retry_delay) for one in tasks_of(dag, "nearer.campaign")} == {(2, timedelta(minutes=2))}
    assert {(one.retries, one.retry_delay) for one in tasks_of(dag, "told")} == {(0, timedelta(seconds=9))}


def test_a_dag_that_says_nothing_of_tries_gets_three_after_five_minutes(loading: World) -> None:
    with DAG("d", schedule=None) as dag:
        campaign_task_group(manifest=loading.manifest())
    assert {(one.retries, one.retry_delay) for one in tasks_of(dag)} == {(3, timedelta(minutes=5))}


def test_lanes_and_coordinator_are_placed_each_by_itself(loading: World) -> None:
    place = {"pool": "lanes", "queue": "heavy", "executor": "CeleryExecutor", "executor_config": {"cores": 2}, "priority_weight": 9}
    with DAG("d", schedule=None) as dag:
        campaign_task_group(manifest=loading.manifest(), lane_kwargs=place, pool="coordinators", poke_interval=3)
        with pytest.raises(TypeError, match="retries"):  # of every task
            campaign_task_group("other", manifest=loading.manifest(), lane_kwargs={"retries": 1})
    opened, lane, published = tasks_of(dag)
    assert {name: getattr(lane, name) for name in place} == place
    assert [one.pool for one in (opened, published)] == ["default_pool", "coordinators"]
    assert (opened.queue, published.queue, published.poke_interval) == ("default", "default", 3)
