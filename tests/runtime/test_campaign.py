"""A campaign on real databases: open, lanes, publication, handoff; and everything that must stop it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.runtime.campaign import abandon_campaign, look_at_campaign, plan_campaign
from airflow_dpone_xmin.runtime.lanes import run_lanes
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.shadow import backup_name
from tests.campaigns import COLUMNS, INTEGER, TABLE, incremental, initial, lane, opened, published, refusal
from tests.world import MODES, Setup, World


@pytest.fixture
def campaign(worlds: Setup) -> Callable[..., World]:
    def make(
        *statements: str, chunk: dict[str, Any] = INTEGER, in_place: bool = False, mode: str = "timestamp_only", **fields: Any
    ) -> World:
        over = initial(chunk, in_place=in_place)
        if mode == "never":  # absent, the block of an initial manifest means the default
            over["reconciliation"] = False
        return worlds(*(statements or TABLE), manifest_over=over, reconciliation=MODES[mode], **fields)

    return make


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("in_place", [False, True], ids=["shadow", "in_place"])
def test_campaign_then_incremental(campaign: Callable[..., World], mode: str, in_place: bool) -> None:
    """The whole handoff while the source changes; deletes included where the route deletes."""
    world = campaign(mode=mode, in_place=in_place)
    assert len(opened(world).chunks) == 10
    world.source.run(
        "UPDATE orders SET qty = 77 WHERE id % 50 = 0", "DELETE FROM orders WHERE id = 500", "INSERT INTO orders VALUES (5000, 1, 'x')"
    )
    assert lane(world).chunks == 10
    world.source.run("DELETE FROM orders WHERE id IN (1, 999)", "UPDATE orders SET id = 7000 WHERE id = 2")
    outcome = published(world)
    assert (outcome.receipt.kind, outcome.receipt.new_revision, outcome.receipt.counts.inserted) == ("seed", 1, 999)
    assert published(world, "r2").status == "replayed"
    assert lane(world).chunks == 0  # tried again by a scheduler that did not hear of its end
    incremental(world)
    run = world.run()
    assert (run.receipt.payload_reason, run.receipt.new_revision) == ("delta", 2)
    if mode == "never":
        assert set(world.source_rows(COLUMNS)) <= set(world.target_rows(COLUMNS))
    else:
        assert run.receipt.counts.deleted == 3
        assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
    assert world.staged() == []


@pytest.mark.parametrize(
    ("column", "rows", "chunk"),
    [
        ("uuid", "SELECT gen_random_uuid(), g FROM generate_series(1, 500) g", {"column": "id", "kind": "uuid", "buckets": 7}),
        (
            "varchar(20)",
            "SELECT 'k''' || md5(g::text)::varchar(10), g FROM generate_series(1, 500) g",
            {"column": "id", "kind": "ordered", "buckets": 7},
        ),
        (
            "date",
            "SELECT date '1999-06-01' + g, g FROM generate_series(1, 500) g",
            {"column": "id", "kind": "ordered", "buckets": 7},
        ),
        # neither its text nor its sign sorts like the number
        ("bigint", "SELECT g * 7 - 1700, g FROM generate_series(1, 500) g", {"column": "id", "kind": "ordered", "buckets": 7}),
        ("smallint", "SELECT g - 250, g FROM generate_series(1, 500) g", {"column": "id", "from": -32768, "to": 32767, "step": 10000}),
    ],
    ids=["uuid", "text", "date", "bigint", "smallint"],
)
def test_every_kind_of_plan_is_complete(campaign: Callable[..., World], column: str, rows: str, chunk: dict[str, Any]) -> None:
    world = campaign(f"CREATE TABLE orders (id {column} PRIMARY KEY, qty integer)", f"INSERT INTO orders {rows}", chunk=chunk)
    planned = plan_campaign(world.route(), endpoints=world.endpoints).ranges
    assert len(planned) == len(opened(world).chunks) == 7
    lane(world)
    published(world)
    assert world.target_rows(("id", "qty")) == world.source_rows(("id", "qty"))
    receipts = world.target.rows(f"SELECT rows_count FROM {world.state_name('dpone_load_receipt')} WHERE kind = 'chunk'")
    assert sum(row[0] for row in receipts) == 500 and len(receipts) == len(planned)


def test_lanes_are_interpreters_that_share_the_work(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    seen: list[str] = []
    result = run_lanes(world.route(), "r1", 2, endpoints=world.endpoints, progress=lambda p: seen.append(p.event))
    assert (result.chunks, result.rows, seen.count("CHUNK_COMPLETE")) == (10, 1000, 10)
    published(world)
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_lanes_that_all_die_are_told(campaign: Callable[..., World]) -> None:
    """Nobody is left to say why; what they had committed stays, and others finish it."""
    world = campaign()
    opened(world)

    def kill(_: Progress) -> None:
        for child in multiprocessing.active_children():
            child.kill()

    error = refusal(run_lanes, world.route(), "r1", 2, endpoints=world.endpoints, progress=kill)
    assert (error.code, error.retryable) == ("campaign.lane_failed", True)
    assert "-9" in error.message
    run_lanes(world.route(), "r1", 2, endpoints=world.endpoints)
    published(world)
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_opening_twice_keeps_anchor_and_plan(campaign: Callable[..., World]) -> None:
    world = campaign()
    first = opened(world)
    world.source.run("UPDATE orders SET qty = 1")
    assert opened(world, "r2").campaign == first.campaign


def test_altered_plans_are_refused(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    for chunk in ({**INTEGER, "step": 50}, {**INTEGER, "to": 2000}, {"column": "id", "kind": "ordered", "buckets": 4}):
        world.manifest_over = initial(chunk)
        for call in (opened, lane, published):
            refused = refusal(call, world)
            assert refused.code == "campaign.plan_changed" and "chunk plan" in refused.message
    world.manifest_over = initial(INTEGER)
    lane(world)
    assert published(world).status == "committed"


def test_rows_outside_the_authored_range_are_refused(campaign: Callable[..., World]) -> None:
    world = campaign(chunk={**INTEGER, "to": 999})
    assert refusal(opened, world).code == "campaign.rows_outside_range"
    assert refusal(look_at_campaign, world.route(), endpoints=world.endpoints).code == "campaign.not_open"


def test_a_column_that_no_index_leads_with_is_refused(campaign: Callable[..., World]) -> None:
    world = campaign(
        "CREATE TABLE orders (id bigint, part bigint, qty integer, PRIMARY KEY (part, id))",
        "INSERT INTO orders SELECT g, g % 3, 1 FROM generate_series(1, 1000) g",
        key=("part", "id"),
    )
    assert refusal(plan_campaign, world.route(), endpoints=world.endpoints).code == "campaign.plan_invalid"


def test_the_incremental_half_refuses_without_its_seed(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    incremental(world)
    assert refusal(world.run).code == "campaign.target_fenced"
    world.manifest_over, world.process = initial(INTEGER), "orders_process"
    lane(world)
    published(world)
    incremental(world, handoff="another")
    error = refusal(world.run)
    assert (error.code, error.details["handoff_id"]) == ("checkpoint.seed_missing", "another")
    incremental(world)
    assert world.run().status == "committed"


def test_nobody_else_writes_while_a_campaign_fills_the_target(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    world.manifest_over, world.process = {}, "somebody_else"
    assert refusal(world.run).code == "campaign.target_fenced"
    world.manifest_over = initial(INTEGER, handoff="orders_v2")
    assert refusal(opened, world).code == "campaign.target_fenced"


def test_abandoned_campaigns_leave_nothing_behind(campaign: Callable[..., World]) -> None:
    world = campaign()
    shadow = opened(world).campaign.shadow
    abandon_campaign(world.route(), "r1", endpoints=world.endpoints)
    for call in (opened, lane, published):
        assert refusal(call, world).code == "campaign.not_open"
    schema = world.target.layout(world.table).target.namespace.schema
    assert world.target.rows(f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{schema}' AND table_name = '{shadow}'") == []
    world.manifest_over = initial(INTEGER, handoff="orders_v2")
    opened(world)
    lane(world)
    assert published(world).status == "committed"
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_only_an_open_campaign_is_abandoned(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    lane(world)
    published(world)
    refused = refusal(abandon_campaign, world.route(), "r1", endpoints=world.endpoints)
    assert (refused.code, "is published already" in refused.message) == ("campaign.not_open", True)
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_abandoning_without_a_live_table_says_what_to_do(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    world.target.run(f"DROP TABLE {world.target_name}")
    refused = refusal(abandon_campaign, world.route(), "r1", endpoints=world.endpoints)
    assert refused.code == "DPONE_TARGET_UNSUPPORTED" and "then abandon the campaign" in refused.hint


def test_publication_waits_for_every_chunk(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    assert refusal(published, world).code == "campaign.incomplete"


def test_foreign_rows_in_the_shadow_stop_the_publication(campaign: Callable[..., World]) -> None:
    world = campaign()
    shadow = opened(world).campaign.shadow
    lane(world)
    name = world.target.name(world.target.layout(world.table).target.namespace.schema, shadow)
    world.target.run(f"INSERT INTO {name} SELECT * FROM {name} WHERE id = 8")
    assert refusal(published, world).code == "campaign.key_not_unique"
    world.target.run(f"DELETE FROM {name} WHERE id = 8")
    assert refusal(published, world).code == "campaign.count_mismatch"


def test_a_changed_source_stops_the_lanes(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    world.source.run("ALTER TABLE orders ADD COLUMN more text DEFAULT 'x'")
    assert refusal(lane, world).code == "campaign.projection_changed"


def test_in_place_needs_an_empty_table(campaign: Callable[..., World]) -> None:
    world = campaign(in_place=True)
    other = dict(world.manifest_over)
    world.manifest_over, world.process = {}, "owner"
    world.run()
    world.manifest_over, world.process = other, "orders_process"
    assert refusal(opened, world).code in ("campaign.target_not_empty", "target_ownership.conflict")


def test_a_unique_value_that_moves_while_lanes_load_in_place_has_a_way_out(campaign: Callable[..., World]) -> None:
    world = campaign(in_place=True)
    world.source.run("UPDATE orders SET qty = id")
    world.target.run(f"CREATE UNIQUE INDEX ux_qty ON {world.target_name} (qty) WHERE __dpone__deleted_at IS NULL AND qty IS NOT NULL")
    opened(world)
    moved: list[str] = []

    def observer(event: Event) -> None:
        if (event.phase, event.label, moved) == ("after", "chunk.merge", []):
            moved.append(event.label)
            world.source.run("UPDATE orders SET qty = -1 WHERE id = 5", "UPDATE orders SET qty = 5 WHERE id = 995")

    OBSERVERS.append(observer)
    try:
        error = refusal(lane, world)
    finally:
        OBSERVERS.remove(observer)
    assert error.code == "campaign.key_not_unique" and "drop it from the live table" in error.hint
    schema = world.target.layout(world.table).target.namespace.schema
    world.target.run(f"DROP INDEX {'landing.ux_qty' if world.target.kind == 'embedded' else f'ux_qty ON [{schema}].[{world.table}]'}")
    lane(world)
    published(world)
    incremental(world)
    world.run()
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)


def test_the_live_table_is_readable_and_old_until_the_exchange(campaign: Callable[..., World]) -> None:
    world = campaign()
    opened(world)
    lane(world)
    assert world.target_rows(COLUMNS) == []
    published(world)
    assert len(world.target_rows(COLUMNS)) == 1000
    schema = world.target.layout(world.table).target.namespace.schema
    backup = backup_name(look_at_campaign(world.route(), endpoints=world.endpoints).campaign, world.table)
    assert world.target.rows(f"SELECT count(*) FROM {world.target.name(schema, backup)}") == [(0,)], "the table that was live is kept"
