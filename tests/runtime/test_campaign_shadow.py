"""What does not follow a rename: replayed, or refused by name; when the campaign opens, and again when it was added meanwhile.

Statements are those of the embedded engine; what SQL Server needs is in its golden scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_dpone_xmin.target import postgres_shadow
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from tests.campaigns import COLUMNS, INTEGER, TABLE, incremental, initial, lane, opened, published, refusal
from tests.world import MODES, WRITER, Setup, World

#: what is hung on the live table → what the refusal names
OBSTACLES = {
    "view": ("CREATE VIEW landing.v AS SELECT id FROM landing.orders", "view landing.v"),
    "materialized view": ("CREATE MATERIALIZED VIEW landing.v AS SELECT id FROM landing.orders", "view landing.v"),
    "rule": ("CREATE RULE r AS ON DELETE TO landing.orders DO ALSO NOTIFY gone", "rule r"),
    "row security": ("ALTER TABLE landing.orders ENABLE ROW LEVEL SECURITY", "row security"),
    "forced row security": ("ALTER TABLE landing.orders FORCE ROW LEVEL SECURITY", "row security"),
    "policy": ("CREATE POLICY p ON landing.orders USING (true)", "policy p"),
    "publication": ("CREATE PUBLICATION pub FOR TABLE landing.orders", "publication pub"),
    "column grant": ("GRANT SELECT (qty) ON landing.orders TO PUBLIC", "grants on column qty"),
    "owned sequence": (f"SET LOCAL ROLE {WRITER}; CREATE SEQUENCE landing.s OWNED BY landing.orders.qty", "sequence landing.s"),
    "statistics": ("CREATE STATISTICS landing.st ON id, qty FROM landing.orders", "statistics object landing.st"),
    "function of its row": ("CREATE FUNCTION landing.f(landing.orders) RETURNS int LANGUAGE sql AS 'SELECT 1'", "function landing.f"),
    "function of its rows": ("CREATE FUNCTION landing.f(landing.orders[]) RETURNS int LANGUAGE sql AS 'SELECT 1'", "function landing.f"),
    "column of its row": ("CREATE TABLE landing.other (o landing.orders)", "landing.other"),
    "parsed function": (
        "CREATE FUNCTION landing.f() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM landing.orders; END",
        "function landing.f",
    ),
    "child": ("CREATE TABLE landing.child () INHERITS (landing.orders)", "landing.child"),
    "storage parameters": ("ALTER TABLE landing.orders SET (fillfactor = 70)", "storage parameters"),
    "replica identity": ("ALTER TABLE landing.orders REPLICA IDENTITY FULL", "replica identity"),
    "comment on an index": ("COMMENT ON INDEX landing.pk_orders IS 'x'", "comment on landing.pk_orders"),
    "comment on a key": ("COMMENT ON CONSTRAINT pk_orders ON landing.orders IS 'x'", "comment on landing.pk_orders"),
    "statistics target": ("ALTER TABLE landing.orders ALTER COLUMN qty SET STATISTICS 900", "statistics settings of column qty"),
    "planner's guess": ("ALTER TABLE landing.orders ALTER COLUMN qty SET (n_distinct = 77)", "statistics settings of column qty"),
    "foreign key to it": ("CREATE TABLE landing.other (id bigint REFERENCES landing.orders (id))", "other_id_fkey"),
    "trigger": (
        "CREATE TRIGGER t AFTER INSERT ON landing.orders FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "trigger t",
    ),
}


@pytest.fixture
def campaign(worlds: Setup, embedded_only: None) -> Callable[..., World]:
    def make(*statements: str, chunk: dict[str, Any] = INTEGER) -> World:
        return worlds(*(statements or TABLE), manifest_over=initial(chunk), reconciliation=MODES["timestamp_only"])

    return make


def ready(world: World) -> None:
    """Every chunk committed."""
    opened(world)
    lane(world)


def named(world: World, call: Callable[..., Any], expected: str) -> None:
    error = refusal(call, world)
    assert error.code in ("campaign.shadow_refused", "DPONE_TARGET_UNSUPPORTED"), error
    assert expected in str(error.details), error.details


def test_obstacles_are_refused_by_name(campaign: Callable[..., World]) -> None:
    """At the opening, and at the publication when they were added in between; removed, it goes through."""
    world = campaign()
    for name, (statement, expected) in OBSTACLES.items():
        with world.target.connect() as owner:
            owner.execute("BEGIN")
            owner.execute(statement)
            found = [row[0] for row in owner.execute(_query(), {"schema": "landing", "name": "orders"}).fetchall()]
            owner.execute("ROLLBACK")
        assert any(expected in text for text in found), (name, found)
    world.target.run(OBSTACLES["view"][0])
    named(world, opened, "view landing.v")
    world.target.run("DROP VIEW landing.v")
    ready(world)
    for kind in ("view", "policy", "trigger", "foreign key to it"):
        world.target.run(OBSTACLES[kind][0])
        named(world, published, OBSTACLES[kind][1])
        assert world.target_rows(COLUMNS) == []
        drop = {"view": "VIEW landing.v", "policy": "POLICY p ON landing.orders", "trigger": "TRIGGER t ON landing.orders"}
        world.target.run(f"DROP {drop.get(kind, 'TABLE landing.other')}")
    assert published(world).status == "committed"


def _query() -> str:
    return str(postgres_shadow._OBSTACLES).replace(":schema", "%(schema)s").replace(":name", "%(name)s")


def test_a_fresh_live_table_has_no_obstacle(campaign: Callable[..., World]) -> None:
    """The closed query refuses what it does not know; keys, indexes, defaults and NOT NULL are known."""
    world = campaign()
    world.target.run(
        "ALTER TABLE landing.orders ALTER COLUMN qty SET DEFAULT 7", "CREATE INDEX more ON landing.orders (qty) INCLUDE (note)"
    )
    ready(world)
    assert published(world).status == "committed"
    indexes = {row[0] for row in world.target.rows("SELECT indexname FROM pg_indexes WHERE tablename = 'orders'")}
    assert {"pk_orders", "more"} <= indexes and not any(name.startswith("dpone") for name in indexes)


def test_what_is_added_while_it_publishes_waits(campaign: Callable[..., World]) -> None:
    """Between the last look and the rename nothing can be hung on the live table: a view and a right wait, and then get the new table."""
    world = campaign()
    ready(world)
    with world.target.connect() as owner:
        owner.execute("SET lock_timeout = '300ms'")

        def observer(event: Event) -> None:
            if event.phase == "after" and event.label == "shadow.obstacles" and published_now:
                for statement in ("CREATE VIEW landing.late AS SELECT * FROM landing.orders", "GRANT SELECT ON landing.orders TO PUBLIC"):
                    with pytest.raises(Exception, match="lock timeout"):
                        owner.execute(statement)
                tried.append(event.label)

        published_now, tried = True, []
        OBSERVERS.append(observer)
        try:
            assert published(world).status == "committed"
        finally:
            OBSERVERS.remove(observer)
        assert tried
        owner.execute("CREATE VIEW landing.late AS SELECT count(*) FROM landing.orders")
        assert owner.execute("SELECT * FROM landing.late").fetchone() == (1000,)


def test_what_can_be_replayed_is(campaign: Callable[..., World]) -> None:
    """Owner, grants with and without grant option, descriptions of table and columns as they are at the end; nobody else gets a right."""
    world = campaign()
    roles = [f"{name}_{world.target.database}" for name in ("granted", "granting", "stranger")]
    world.target.run(*[f"CREATE ROLE {role}" for role in roles])
    granted, granting, stranger = roles
    try:
        world.target.run(
            f"GRANT SELECT ON landing.orders TO {granted}, PUBLIC",
            f"GRANT SELECT, UPDATE ON landing.orders TO {granting} WITH GRANT OPTION",
            "COMMENT ON TABLE landing.orders IS 'it''s: %s'",
            "COMMENT ON COLUMN landing.orders.qty IS 'old'",
            "COMMENT ON COLUMN landing.orders.note IS 'goes'",
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {WRITER} IN SCHEMA landing GRANT ALL ON TABLES TO {stranger}",
        )
        opened(world)
        world.target.run(
            "COMMENT ON COLUMN landing.orders.qty IS 'new'",
            "COMMENT ON COLUMN landing.orders.note IS NULL",
            f"GRANT INSERT ON landing.orders TO {granted}",
        )
        lane(world)
        before = described(world)
        published(world)
        assert described(world) == before
        assert before[1] == "it's: %s" and (stranger not in str(before)) and f"{granting}" in str(before)
    finally:
        world.target.run(f"DROP OWNED BY {', '.join(roles)}", *[f"DROP ROLE {role}" for role in roles])


def described(world: World) -> tuple[Any, ...]:
    acl = "SELECT a.grantee::regrole::text, a.privilege_type, a.is_grantable FROM pg_class c, aclexplode(c.relacl) a"
    (table,) = world.target.rows(
        "SELECT relowner::regrole::text, obj_description(oid, 'pg_class') FROM pg_class WHERE oid = 'landing.orders'::regclass"
    )
    columns = world.target.rows(
        "SELECT attname, attnotnull, col_description(attrelid, attnum) FROM pg_attribute"
        " WHERE attrelid = 'landing.orders'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY 1"
    )
    return (*table, *columns, *world.target.rows(f"{acl} WHERE c.oid = 'landing.orders'::regclass ORDER BY 1, 2"))


def test_an_owner_who_could_not_own_the_new_table_is_found_before_the_first_chunk(campaign: Callable[..., World]) -> None:
    world = campaign()
    role = f"elsewhere_{world.target.database}"
    world.target.run(f"CREATE ROLE {role}", f"GRANT {role} TO {WRITER}", f"GRANT CREATE ON SCHEMA landing TO {role}")
    try:
        world.target.run(f"ALTER TABLE landing.orders OWNER TO {role}", f"REVOKE CREATE ON SCHEMA landing FROM {role}")
        error = refusal(opened, world)
        assert error.code == "mssql_transaction.permission_denied" and "owner" in str(error.details["missing"])
    finally:
        world.target.run("ALTER TABLE landing.orders OWNER TO postgres", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_indexes_that_change_while_the_campaign_runs(campaign: Callable[..., World]) -> None:
    """Added, dropped, replaced under the same name, before and after a publication that failed: the next one follows."""
    world = campaign()
    world.target.run("CREATE INDEX kept ON landing.orders (qty)", "CREATE INDEX gone ON landing.orders (note)")
    ready(world)
    world.target.run("CREATE VIEW landing.v AS SELECT id FROM landing.orders")
    assert refusal(published, world).code == "campaign.shadow_refused"  # the shadow has its indexes by now
    world.target.run(
        "DROP VIEW landing.v",
        "DROP INDEX landing.gone",
        "DROP INDEX landing.kept",
        "CREATE INDEX kept ON landing.orders (qty DESC)",
        "CREATE INDEX a_first ON landing.orders (note, qty)",
        "CREATE UNIQUE INDEX u ON landing.orders (note) WHERE __dpone__deleted_at IS NULL",
    )
    wanted = indexes(world)
    assert published(world).status == "committed"
    assert indexes(world) == wanted


def test_an_index_that_changes_during_the_publication_asks_for_another_one(campaign: Callable[..., World]) -> None:
    world = campaign()
    ready(world)
    seen: list[str] = []

    def observer(event: Event) -> None:
        if event.phase == "after" and event.label == "shadow.index":
            seen.append(event.label)
        elif seen == ["shadow.index"] * 2 and event.label == "transaction.begin":
            seen.clear()
            world.target.run("CREATE INDEX late ON landing.orders (qty)")

    OBSERVERS.append(observer)
    try:
        error = refusal(published, world)
    finally:
        OBSERVERS.remove(observer)
    assert (error.code, error.retryable) == ("campaign.shadow_changed", True)
    assert published(world).status == "committed"
    assert "late" in str(indexes(world))


def indexes(world: World) -> list[tuple[Any, ...]]:
    query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'landing' AND tablename = 'orders' ORDER BY 1"
    return [tuple(row) for row in world.target.rows(query)]


def test_a_value_that_moved_between_rows_has_a_way_out(campaign: Callable[..., World]) -> None:
    """A unique index beside the key sees two rows of different times; the hint's steps lead to parity."""
    world = campaign(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer NOT NULL, note text)",
        "INSERT INTO orders SELECT g, g, 'n' || g FROM generate_series(1, 1000) g",
    )
    unique = "CREATE UNIQUE INDEX u ON landing.orders (qty) WHERE __dpone__deleted_at IS NULL"
    world.target.run(unique)
    opened(world)
    done: list[int] = []

    def observer(event: Event) -> None:
        if event.phase == "after" and event.label == "chunk.fence" and not done:
            done.append(1)
            world.source.run("UPDATE orders SET qty = -1 WHERE id = 5", "UPDATE orders SET qty = 5 WHERE id = 955")

    OBSERVERS.append(observer)
    try:
        lane(world)
    finally:
        OBSERVERS.remove(observer)
    error = refusal(published, world)
    assert error.code == "campaign.key_not_unique" and "create it again" in error.hint
    world.target.run("DROP INDEX landing.u")
    assert published(world).status == "committed"
    incremental(world)
    world.run()
    world.target.run(unique)
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
