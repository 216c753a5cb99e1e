"""T-SQL that the lifecycle really runs, compared with what was reviewed; and rules that SQL Server has and PostgreSQL forgives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column

from airflow_dpone_xmin.contracts.columns import Family
from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Namespace, TableName
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import ddl_dialect
from airflow_dpone_xmin.target.ddl import Script, render_catalog, render_route, type_text
from airflow_dpone_xmin.target.evolution import plan_evolution
from airflow_dpone_xmin.target.facts import ColumnFacts, IndexFacts, TableFacts
from airflow_dpone_xmin.target.mssql import MssqlEngine
from airflow_dpone_xmin.target.sql import Physical, target_table
from tests.golden.recorder import Recorder, document, recording
from tests.target.test_evolution import SAFE
from tests.target.test_evolution import TABLE as ORDERS
from tests.world import MODES, Setup, World

HERE = Path(__file__).parent
#: Every type of the first release, a composite key with text, and a value column of each family.
TABLE = (
    "CREATE TABLE orders (id bigint, code varchar(10), u uuid NOT NULL, si smallint, i integer,"
    " price numeric(10,2), big numeric(38,4), ok boolean,"
    " note text, day date, clock time, at timestamp, atz timestamptz, blob bytea,"
    " js jsonb, r real, d double precision, PRIMARY KEY (id, code))",
    "INSERT INTO orders (id, code, u) SELECT g, 'c' || g, '00000000-0000-4000-8000-000000000000' FROM generate_series(1, 5) g",
)
KEY = ("id", "code")


@pytest.fixture
def embedded(engine_name: str) -> None:
    """The recording is the same whatever runs it; once is enough."""
    if engine_name != "embedded":
        pytest.skip("golden text is recorded on the embedded engine")


def live(world: World) -> None:
    """One life of a route: baseline, no-op, changes of every kind."""
    world.run("1")
    world.run("1")
    world.run("2")
    world.source.run(
        "DELETE FROM orders WHERE id = 1",
        "UPDATE orders SET i = 1 WHERE id = 2",
        "INSERT INTO orders (id, code, u) SELECT 9, 'n', u FROM orders LIMIT 1",
    )
    world.run("3")
    world.source.run("INSERT INTO orders (id, code, u) SELECT 1, 'c1', u FROM orders LIMIT 1")
    world.run("4")


def check(name: str, text: str, update: bool) -> None:
    """Compare with the file, or write it."""
    path = HERE / name
    if update:
        path.write_text(text)
        return
    assert path.exists(), f"{name} is missing; run `pytest tests/golden --update-golden` and review it"
    assert text == path.read_text(), f"{name} differs; review the change, then run `pytest tests/golden --update-golden`"


@pytest.mark.parametrize("mode", MODES)
def test_statements_of_a_life(worlds: Setup, embedded: None, mode: str, request: pytest.FixtureRequest) -> None:
    """The statements of a route's life are the reviewed ones, and pass the linter."""
    world = worlds(*TABLE, key=KEY, reconciliation=MODES[mode])
    with recording() as recorder:
        live(world)
    require_actions(recorder, mode)
    text = document(recorder.found)
    assert lint(text) == []
    check(f"life_{mode}.sql", text, request.config.getoption("--update-golden"))


def test_rendered_ddl(worlds: Setup, embedded: None, request: pytest.FixtureRequest) -> None:
    """Catalog and target DDL are the reviewed ones; keys of text are BIN2; no unique index has a nullable column."""
    world = worlds(*TABLE, key=KEY, provision=False)
    layout = Layout(
        engine="mssql",
        target=TableName(Namespace("DWH", "landing"), "orders"),
        staging=Namespace("DWH_Stage", "staging"),
        state=Namespace("Sys", "governance"),
    )
    engine = MssqlEngine(Endpoint("dwh", "server", None, "DWH", "login"), layout)
    dialect, catalog = ddl_dialect(layout), build_catalog()
    update = request.config.getoption("--update-golden")
    text = _script(render_catalog(engine, dialect, catalog, login="dpone_runtime"))
    assert lint(text) == []
    check("ddl_catalog.sql", text, update)
    for mode in MODES:
        world.reconciliation = MODES[mode]
        script = render_route(
            engine,
            dialect,
            catalog,
            projection=world.projection(),
            mode=world.route().delete_mode,
            binding_id=UUID(int=7),
            login="dpone_runtime",
        )
        text = _script(script)
        assert lint(text) == []
        assert "code nvarchar(10) COLLATE Latin1_General_100_BIN2 NOT NULL" in text
        check(f"ddl_{mode}.sql", text, update)


def test_evolution_ddl(worlds: Setup, embedded: None, request: pytest.FixtureRequest) -> None:
    """The DDL of every safe change is the reviewed one; a T-SQL server runs the same cases in ``tests/target/test_evolution.py``."""
    blocks = []
    for case, (ddl, _, _) in SAFE.items():
        world = worlds(*ORDERS, reconciliation=MODES["timestamp_only"], provision=False)
        route = world.route()
        layout = replace(route.layout, engine="mssql", target=TableName(Namespace("DWH", "landing"), "orders"))
        engine = MssqlEngine(Endpoint("dwh", "server", None, "DWH", "login"), layout)
        before = target_table("orders", world.projection(), route.delete_mode)
        facts = TableFacts(
            columns=tuple(
                ColumnFacts(c.name, type_text(engine, c), bool(c.nullable), collation(c), computed=False, identity=False)
                for c in before.columns
            ),
            indexes=(IndexFacts("pk_orders", unique=True, primary=True, columns=("id",)),),
        )
        world.source.run(*ddl.split("; "))
        route = replace(route, layout=layout)
        needed = plan_evolution(engine, ddl_dialect(layout), facts, route, world.projection(), source_changed=True)
        blocks.append(f"-- {case}\n" + ("" if needed is None else "".join(f"{statement}\nGO\n" for statement in needed.script)))
    check("evolution.sql", "\n".join(blocks), request.config.getoption("--update-golden"))


def collation(column: Column[Any]) -> str | None:
    """As the database's default gives it to the target's text."""
    return "Latin1_General_CI_AS" if isinstance(column.type, Physical) and column.type.plan.family is Family.TEXT else None


def require_actions(recorder: Recorder, mode: str) -> None:
    """A recording that misses an action proves nothing about it."""
    labels = {label for label, _ in recorder.found}
    wanted = {"finalize.insert", "finalize.update", "finalize.classify", "checkpoint.compare_and_set", "head.update", "receipt.insert"}
    wanted |= set() if mode == "never" else {"finalize.delete"}
    wanted |= {"finalize.reactivate"} if mode not in ("never", "hard_delete") else set()
    assert wanted <= labels, wanted - labels


# ---- the linter -----------------------------------------------------------------------------------------------------------
_BIG = r"SUM\((?!CONVERT\(decimal\(38|\[?#?dpone_difference\]?\.\[?__dpone__n)"
RULES = {
    "COUNT( counts 32 bits on SQL Server: COUNT_BIG(": re.compile(r"\bCOUNT\(", re.I),
    "SUM of something that is neither decimal(38) nor bigint": re.compile(_BIG, re.I),
    "IS DISTINCT FROM needs SQL Server 2022": re.compile(r"IS (NOT )?DISTINCT FROM", re.I),
    "PostgreSQL cast": re.compile(r"(?<!SCHEMA)::"),
    "LIMIT": re.compile(r"\bLIMIT\b", re.I),
    "a bare boolean": re.compile(r"\b(true|false)\b", re.I),
    "a bit column as a condition": re.compile(r"(WHERE|AND|NOT|OR) \(?[^\s(]*__dpone__is_deleted(?! ?[=<!])", re.I),
    "MERGE": re.compile(r"\bMERGE\b", re.I),
}
#: A table of the target or of staging where it is read: after FROM, JOIN or a comma. The table that a DML changes is locked by row.
_PASS = re.compile(
    r"(?P<before>FROM|JOIN|,) (?P<table>\[DWH\]\.\[?landing\]?\.orders|\[DWH_Stage\]\.\[?staging\]?\.dpone_stg_LOAD_\w+)(?![.\w])"
    r"( AS \w+)?(?P<hint> WITH \(TABLOCK, HOLDLOCK\))?"
)
_CHANGED = re.compile(r"^(UPDATE|DELETE FROM) (\S+)", re.M)


def lint(text: str) -> list[str]:
    """What SQL Server would refuse, overflow or lock row by row; empty when nothing."""
    found = []
    for block in text.split("\n\n"):
        label = block.partition("\n")[0]
        found += [f"{label}: {rule}" for rule, pattern in RULES.items() if pattern.search(block.partition("\n")[2])]
        if label.startswith("-- finalize."):
            changed = _CHANGED.search(block)
            read = [m for m in _PASS.finditer(block) if changed is None or m["table"] != changed[2]]
            found += [f"{label}: no TABLOCK, HOLDLOCK on {m['table']}" for m in read if not m["hint"]]
        parameters = len(re.findall(r"(?<![:\w]):[A-Za-z_]\w*", block))
        if parameters > 2000:
            found.append(f"{label}: {parameters} parameters; SQL Server takes 2,100")
    nullable: set[str] = set()
    for table in re.finditer(r"CREATE TABLE (\S+) \((.*?)\n\)", text, re.S):
        nullable = {m[1] for m in re.finditer(r"^\s*(\S+) .* NULL,?\s*$", table[2], re.M) if "NOT NULL" not in m[0]}
        for unique in re.finditer(r"(?:UNIQUE|PRIMARY KEY) \(([^)]*)\)", table[2]):
            found += [f"{table[1]}: unique over nullable {name.strip()}" for name in unique[1].split(",") if name.strip() in nullable]
    return found


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ("-- x\nSELECT COUNT(*) FROM t;\n", "COUNT("),
        ("-- x\nSELECT SUM(n) FROM t;\n", "SUM of"),
        ("-- x\nSELECT 1 WHERE a IS DISTINCT FROM b;\n", "IS DISTINCT FROM"),
        ("-- x\nSELECT 1 FROM t WHERE NOT __dpone__is_deleted;\n", "bit column"),
        ("-- finalize.x\nSELECT 1 FROM [DWH].[landing].orders WHERE 1 = 1;\n", "no TABLOCK"),
        ("-- finalize.x\nUPDATE a SET b = 1 FROM q, [DWH_Stage].[staging].dpone_stg_LOAD_rows WHERE 1 = 1;\n", "no TABLOCK"),
        ("-- x\nSELECT 1 WHERE a IN (" + ", ".join(f":p_{n}" for n in range(2001)) + ");\n", "parameters"),
        ("CREATE TABLE t (\n\ta int NULL,\n\tUNIQUE (a)\n)\n", "nullable"),
    ],
)
def test_linter_sees(bad: str, rule: str) -> None:
    """Each rule refuses what it is for."""
    assert any(rule in line for line in lint(bad)), lint(bad)


def _script(script: Script) -> str:
    lines = [re.sub(r"[ \t]+\n", "\n", statement.strip()) for statement in script.statements]
    return "".join(f"{line}\nGO\n" for line in lines)
