"""Permission denial: every right that ``ddl render`` prints, taken away alone, is refused by ``check`` and by the use; nothing changes.

The rights are read from the rendered scripts themselves, so that none can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.runtime.check import check_connections
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect
from airflow_dpone_xmin.target.ddl import render_catalog, render_route
from tests.campaigns import INTEGER, Step, initial
from tests.world import MODES, WRITER, Setup, World

pytestmark = pytest.mark.certify("permission_denial")

GRANT = re.compile(r"GRANT (?P<rights>[A-Z, ]+?)(?P<on> ON .+)? TO (?P<login>\S+)")
OWNER = re.compile(r"(?P<table>ALTER TABLE .+ OWNER TO )(?P<login>\S+)")
RECORDS = ("dpone_run_state", "dpone_load_audit", "dpone_registry_serial")
NO_RIGHT = ("CREATE USER", "IF USER_ID(")

TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer, note text)",
    "INSERT INTO orders SELECT g, g, 'note' FROM generate_series(1, 6) g",
)
PENDING = ("DELETE FROM orders WHERE id = 1", "UPDATE orders SET qty = 0 WHERE id = 2", "INSERT INTO orders VALUES (7, 7, '')")


class Right(NamedTuple):
    """One rendered right of the runtime login: how the owner takes it away, and how it is given again."""

    name: str
    privilege: str
    revoke: tuple[str, ...]
    grant: tuple[str, ...]


def rendered(world: World) -> tuple[list[Right], list[Right]]:
    """Every right of the catalog's script, and of the route's."""
    engine, route = world.engine(owner=True), world.route()
    dialect, catalog = ddl_dialect(engine.layout), build_catalog()
    scripts = (
        render_catalog(engine, dialect, catalog, login=WRITER),
        render_route(
            engine,
            dialect,
            catalog,
            projection=world.projection(),
            mode=route.delete_mode,
            binding_id=world.binding_id,
            login=WRITER,
            exchange=route.campaign is not None,
        ),
    )
    engine.close()
    catalogs, routes = (list(_rights(script.statements)) for script in scripts)
    assert catalogs and routes
    return catalogs, routes


def _rights(statements: tuple[str, ...]) -> Iterator[Right]:
    use: tuple[str, ...] = ()
    given: list[str] = []
    for statement in statements:
        if statement.startswith("USE "):
            use = (statement,)
        elif WRITER in statement and not statement.startswith(NO_RIGHT):
            if owner := OWNER.fullmatch(statement):
                # The rights of whoever becomes the owner go with the table.
                yield Right("OWNERSHIP", "ownership", (*use, owner["table"] + "CURRENT_USER", *given), (*use, statement))
                continue
            found = GRANT.fullmatch(statement)
            given.append(statement)
            assert found, f"a statement about the login that this test does not understand: {statement}"
            for right in found["rights"].split(", "):
                what = right + (found["on"] or "")
                yield Right(
                    " ".join((*use, what)),
                    right,
                    (*use, f"REVOKE {what} FROM {found['login']}"),
                    (*use, f"GRANT {what} TO {found['login']}"),
                )


def contents(world: World) -> dict[str, Any]:
    """Every row of target and catalog that a use could write, apart from the records of what was seen and tried."""
    tables = [world.target_name, *(world.dbo_name(table.name) for table in build_catalog().target_tables)]
    tables += [world.state_name(table.name) for table in build_catalog().state_tables if table.name not in RECORDS]
    return {table: sorted(map(repr, world.target.rows(f"SELECT * FROM {table}"))) for table in tables}


def denied(world: World, rights: list[Right], use: Callable[[], object]) -> None:
    """Without each of *rights*: ``check`` says so, *use* is refused with a code that no retry mends, and nothing is written."""
    before = contents(world)
    for right in rights:
        _denied(world, right, use)
        assert contents(world) == before, right.name
        assert world.staged() == [], right.name


def _denied(world: World, right: Right, use: Callable[[], object]) -> None:
    world.target.run(*right.revoke)
    try:
        told = [finding for finding in check_connections(world.route(), endpoints=world.endpoints).findings if finding.ok is False]
        assert told, f"check does not predict the refusal without {right.name}"
        assert all(finding.code for finding in told), told
        with pytest.raises(XminError) as caught:
            use()
        assert (caught.value.code, caught.value.retryable) == ("mssql_transaction.permission_denied", False), (
            f"{right.name}: {caught.value}"
        )
        assert caught.value.code in {finding.code for finding in told}, f"{right.name}: check says {told}"
        missing = caught.value.details.get("missing", [right.privilege])
        assert all(text.startswith(right.privilege) for text in missing), f"{right.name}: {missing}"
    finally:
        world.target.run(*right.grant)


def exact(world: World) -> tuple[list[Right], list[Right]]:
    """The rendered rights, after PUBLIC has lost its own: what the login may do is what the scripts granted."""
    if world.target.kind == "mssql" and world.target.babelfish:
        pytest.skip("not provable on this flavour: it has no grants of the database or schema")
    catalogs, routes = rendered(world)
    if world.target.kind == "embedded":
        database = f'DATABASE "{world.target.database}"'
        # The test's database is a copy, which has lost the grants of the database itself.
        world.target.run(f"REVOKE ALL ON {database} FROM PUBLIC", f"GRANT CONNECT ON {database} TO {WRITER}")
        world.target.run(*[statement for right in catalogs for statement in right.grant])
    return catalogs, routes


def pending(world: World) -> None:
    """A baseline, and a change of every kind after it."""
    world.run()
    world.source.run(*PENDING)


def same(world: World) -> bool:
    return bool(world.target_rows(("id", "qty", "note")) == world.source_rows(("id", "qty", "note")))


def test_each_right_on_the_catalog(worlds: Setup) -> None:
    """Schemas, staging, state, head: with all of them the run commits what none of the refused ones wrote."""
    world = worlds(*TABLE, reconciliation=MODES["timestamp_and_flag"])
    catalogs, _ = exact(world)
    pending(world)
    denied(world, catalogs, world.run)
    assert world.run().status == "committed"
    assert same(world)


@pytest.mark.parametrize("mode", MODES)
def test_each_right_on_the_target(worlds: Setup, mode: str) -> None:
    """Least privilege per mode: only ``hard_delete`` is given DELETE, and each right that is given is needed."""
    world = worlds(*TABLE, reconciliation=MODES[mode])
    _, routes = exact(world)
    assert any("DELETE" in right.name for right in routes) is (mode == "hard_delete")
    pending(world)
    denied(world, routes, world.run)
    assert world.run().status == "committed"
    assert same(world) is (mode != "never")


def test_each_right_of_a_campaign(worlds: Setup) -> None:
    """What only an initial load needs is missed by its opening, not hours later by its publication."""
    world = worlds(*TABLE, manifest_over=initial({**INTEGER, "step": 1000}), reconciliation=MODES["timestamp_only"])
    _, routes = exact(world)
    denied(world, routes, Step.of(world, "open", "r1", ttl=60.0).run)
    for phase in ("open", "lane", "publish"):
        Step.of(world, phase, "r1", ttl=60.0).run()  # type: ignore[arg-type]
    assert same(world)
