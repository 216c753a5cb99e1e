"""What a catalog's guarantees rest on is proven by content: schema spelling, trigger text, index filters; and nobody may go round them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.runtime.check import check_connections
from airflow_dpone_xmin.runtime.inspect import state_document
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.ddl import privileges
from tests.target.test_authority import refused
from tests.world import WRITER, Setup, World

TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")


@pytest.fixture
def world(worlds: Setup) -> World:
    return worlds(*TABLE)


def checked(world: World, code: str) -> list[str]:
    """What ``check`` says of *code*; everything that it fails by is that code."""
    failed = [finding for finding in check_connections(world.route(), endpoints=world.endpoints).findings if finding.ok is False]
    assert {finding.code for finding in failed} == {code}, failed
    return [finding.subject for finding in failed]


# ---- schemas --------------------------------------------------------------------------------------------------------------
ROLES: dict[str, Any] = {
    "target": lambda layout: (layout.target.namespace.schema, {"sink": {"table": {"schema": layout.target.namespace.schema.upper()}}}),
    "staging": lambda layout: (layout.staging.schema, {"sink": {"options": {"staging": {"schema": layout.staging.schema.upper()}}}}),
    "state": lambda layout: (layout.state.schema, {"state": {"schema": layout.state.schema.upper()}}),
}


@pytest.mark.parametrize("role", ROLES)
def test_a_schema_authored_in_another_case(world: World, role: str) -> None:
    """A server whose collation folds would find it: its own spelling decides, letter by letter, before the source is opened."""
    live, world.manifest_over = ROLES[role](world.target.layout(world.table))
    error = refused(world, "mssql_transaction.schema_ambiguous")
    assert [text.split(":")[0] for text in error.details["differences"]] == [role]
    assert f"a schema {live} beside or instead of {live.upper()}" in error.message
    assert checked(world, error.code) == error.details["differences"]


@pytest.mark.usefixtures("embedded_only")
@pytest.mark.parametrize("role", [*ROLES, "dbo"])
def test_a_decoy_schema(world: World, role: str) -> None:
    """In a case-sensitive database two schemas may share a name but for case: neither is then taken, by no path."""
    live = "dbo" if role == "dbo" else ROLES[role](world.target.layout(world.table))[0]
    world.target.run(f'CREATE SCHEMA "{live.title()}"')
    assert refused(world, "mssql_transaction.schema_ambiguous").details["differences"] == checked(
        world, "mssql_transaction.schema_ambiguous"
    )
    with pytest.raises(XminError, match=r"mssql_transaction\.schema_ambiguous"):
        state_document(world.route(), endpoints=world.endpoints)
    world.target.run(f'DROP SCHEMA "{live.title()}"')
    assert world.run().status == "committed"


# ---- triggers and filters -------------------------------------------------------------------------------------------------
IMMUTABLE = [(str(table.schema), table.name) for table in build_catalog().immutable]
_FUNCTION = "CREATE OR REPLACE FUNCTION {s}.{f}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
_TRIGGER = "CREATE TRIGGER tr_{t}_immutable BEFORE {events} ON {s}.{t} FOR EACH STATEMENT {when} EXECUTE FUNCTION {s}.{f}()"
_ALL = "UPDATE OR DELETE OR TRUNCATE"


def _embedded(schema: str, table: str) -> Iterator[list[str]]:
    def again(events: str = _ALL, when: str = "", function: str = "dpone_refuse_change") -> list[str]:
        drop = f"DROP TRIGGER tr_{table}_immutable ON {schema}.{table}"
        return [drop, _TRIGGER.format(t=table, s=schema, events=events, when=when, f=function)]

    yield again(events="UPDATE OR DELETE")
    yield again(events="DELETE OR TRUNCATE")
    yield again(when="WHEN (false)")
    yield [_FUNCTION.format(s=schema, f="harmless", body="RETURN NULL;"), *again(function="harmless")]


@pytest.mark.usefixtures("embedded_only")
@pytest.mark.parametrize(("logical", "table"), IMMUTABLE)
def test_a_trigger_of_the_right_name_that_guards_less(world: World, logical: str, table: str) -> None:
    schema = {"state": world.target.layout(world.table).state.schema, "dbo": "dbo"}[logical]
    for statements in _embedded(schema, table):
        world.target.run(*statements)
        error = refused(world, "mssql_transaction.catalog_mismatch")
        assert error.details["differences"] == checked(world, error.code)
        (difference,) = error.details["differences"]
        assert f"{table}: the immutability trigger tr_{table}_immutable is defined otherwise" in difference


@pytest.mark.usefixtures("embedded_only")
def test_the_triggers_function_was_replaced(world: World) -> None:
    schema = world.target.layout(world.table).state.schema
    world.target.run(_FUNCTION.format(s=schema, f="dpone_refuse_change", body="RETURN NULL;"))
    differences = refused(world, "mssql_transaction.catalog_mismatch").details["differences"]
    assert len(differences) == sum(logical == "state" for logical, _ in IMMUTABLE)


@pytest.mark.parametrize("body", ["RETURN", "THROW 50001, N'Rows of this table seldom change.', 1;"])
def test_a_trigger_on_sql_server_that_guards_less(world: World, engine_name: str, body: str) -> None:
    if engine_name != "mssql":
        pytest.skip("not provable on this flavour: T-SQL")
    state = world.target.layout(world.table).state
    name, table = f"[{state.schema}].[tr_dpone_commit_receipt_immutable]", f"[{state.schema}].[dpone_commit_receipt]"
    world.target.run(
        f"USE [{state.database}]",
        f"DROP TRIGGER {name}",
        f"CREATE TRIGGER {name} ON {table} INSTEAD OF UPDATE, DELETE AS BEGIN {body} END",
    )
    assert "is defined otherwise" in refused(world, "mssql_transaction.catalog_mismatch").message


def test_white_space_in_a_trigger_is_no_difference(world: World, engine_name: str) -> None:
    """Editors and deployment tools reflow scripts."""
    if engine_name != "mssql":
        pytest.skip("not provable on this flavour: T-SQL")
    state = world.target.layout(world.table).state
    name, table = f"[{state.schema}].[tr_dpone_commit_receipt_immutable]", f"[{state.schema}].[dpone_commit_receipt]"
    text = f"\n\nCREATE TRIGGER {name}\n  ON {table}\r\n\tINSTEAD OF UPDATE, DELETE\nAS\nBEGIN THROW 50001, N'Rows of this table never"
    world.target.run(f"USE [{state.database}]", f"DROP TRIGGER {name}", f"{text} change.', 1;\n END\n")
    assert world.run().status == "committed"


@pytest.mark.parametrize(
    "predicate",
    ["superseded_at_utc IS NOT NULL", "revision > 0", "superseded_at_utc IS NULL AND revision > 0", "superseded_by_state_key IS NULL"],
)
def test_a_filter_that_lets_two_owners_in(world: World, predicate: str) -> None:
    """One active owner per target: a unique index over anything else is another guarantee."""
    layout = world.target.layout(world.table)
    table, index = world.state_name("dpone_source_state"), "ux_dpone_source_state_active_owner"
    if world.target.kind == "mssql":
        drop = [f"USE [{layout.state.database}]", f"DROP INDEX {index} ON [{layout.state.schema}].[dpone_source_state]"]
        table = f"[{layout.state.schema}].[dpone_source_state]"
    else:
        drop = [f"DROP INDEX {layout.state.schema}.{index}"]
    world.target.run(*drop, f"CREATE UNIQUE INDEX {index} ON {table} (target_identity) WHERE {predicate}")
    error = refused(world, "mssql_transaction.catalog_mismatch")
    assert any("the unique filtered index (target_identity) is missing" in text for text in error.details["differences"])
    assert error.details["differences"] == checked(world, error.code)


# ---- rights ---------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("embedded_only")
def test_each_surplus_right_is_named(world: World) -> None:
    """What would change an immutable row, or the table under it, given one by one: run and check name it; taken back, the run commits."""
    schemas = {"state": world.target.layout(world.table).state.schema, "dbo": "dbo"}
    granted = {(str(table.schema), table.name): rights for table, rights in privileges(build_catalog()).items()}
    tried = 0
    for logical, table in IMMUTABLE:
        name = f"{schemas[logical]}.{table}"
        column = world.target.rows(
            "SELECT column_name FROM information_schema.columns"
            f" WHERE table_schema = '{schemas[logical]}' AND table_name = '{table}' ORDER BY ordinal_position LIMIT 1"
        )[0][0]
        rights = {right: (f"GRANT {right} ON", f"REVOKE {right} ON") for right in ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "TRIGGER")}
        cases = [
            (right, f"{give} {name} TO {WRITER}", f"{take} {name} FROM {WRITER}")
            for right, (give, take) in rights.items()
            if right not in granted[logical, table]
        ]
        cases.append(("UPDATE", f"GRANT UPDATE ({column}) ON {name} TO {WRITER}", f"REVOKE UPDATE ({column}) ON {name} FROM {WRITER}"))
        cases.append(("UPDATE", f"GRANT UPDATE ON {name} TO PUBLIC", f"REVOKE UPDATE ON {name} FROM PUBLIC"))
        for right, give, take in cases:
            world.target.run(give)
            error = refused(world, "mssql_transaction.permission_surplus")
            assert error.details["surplus"] == [f"{right} on {name}"]
            assert checked(world, error.code) == [f"surplus grant: {right} on {name}"]
            world.target.run(take)
            tried += 1
    assert tried >= 5 * len(IMMUTABLE)
    assert world.run().status == "committed"


@pytest.mark.usefixtures("embedded_only")
def test_ownership_is_a_surplus_right(world: World) -> None:
    """Owning a table, oneself or through a role that one may become."""
    name = world.state_name("dpone_commit_receipt")
    world.target.run(
        "DO $$ BEGIN CREATE ROLE dpone_owners NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"ALTER TABLE {name} OWNER TO dpone_owners",
    )
    assert world.run().status == "committed"
    world.target.run(f"GRANT dpone_owners TO {WRITER} WITH INHERIT FALSE")
    try:
        error = refused(world, "mssql_transaction.permission_surplus")
        assert error.details["surplus"] == ["OWNERSHIP on governance.dpone_commit_receipt"]
    finally:
        world.target.run(f"REVOKE dpone_owners FROM {WRITER}", f"ALTER TABLE {name} OWNER TO postgres", "DROP ROLE dpone_owners")


def test_what_is_asked_of_sql_server() -> None:
    """Rights on every immutable table and its schema; the statement is compiled, the flavour under test knows no grants."""
    from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Namespace, TableName
    from airflow_dpone_xmin.target.mssql import MssqlEngine

    state = Namespace("Gov", "governance")
    layout = Layout(engine="mssql", target=TableName(Namespace("DWH", "landing"), "orders"), staging=Namespace("Stage", "s"), state=state)
    engine, asked = MssqlEngine(Endpoint("dwh", "h", None, "DWH", "app"), layout), []

    class Answering:
        def rows(self, label: str, statement: Any) -> list[tuple[str, str]]:
            asked.append(str(statement.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})))
            return [("[Gov].[governance].[dpone_commit_receipt]", "CONTROL")]

    allowed = {"state.dpone_commit_receipt": ("SELECT", "INSERT"), "dbo.dpone_target_identity": ("SELECT",)}
    assert engine.surplus_grants(Answering(), allowed) == ["CONTROL on [Gov].[governance].[dpone_commit_receipt]"]  # type: ignore[arg-type]
    (statement,) = asked
    for securable, kind, rights in (
        ("[Gov].[governance].[dpone_commit_receipt]", "OBJECT", ("UPDATE", "DELETE", "ALTER", "CONTROL", "TAKE OWNERSHIP")),
        ("[DWH].[dbo].[dpone_target_identity]", "OBJECT", ("INSERT", "UPDATE", "DELETE", "ALTER", "CONTROL", "TAKE OWNERSHIP")),
        ("[Gov].[governance]", "SCHEMA", ("ALTER", "CONTROL", "TAKE OWNERSHIP")),
        ("[DWH].[dbo]", "SCHEMA", ("ALTER", "CONTROL", "TAKE OWNERSHIP")),
    ):
        assert [f"('{securable}', '{kind}', '{right}')" in statement.replace("N'", "'") for right in rights] == [True] * len(rights)
    assert "('[Gov].[governance].[dpone_commit_receipt]', 'OBJECT', 'INSERT')" not in statement.replace("N'", "'")
    assert "= 1" in statement and "HAS_PERMS_BY_NAME" in statement
