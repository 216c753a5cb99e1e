"""Round trip of every decided type: written to the source, replicated by the product, read back by the target's own driver, and equal.

``test_artifacts/type-matrix.json`` says which engine proved which type.
"""

from __future__ import annotations

import fcntl
import json
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.policy.types import KINDS, TYPES, Verdict
from airflow_dpone_xmin.runtime.check import check_connections
from tests.flavour import UNSENT, keeps_time
from tests.typecases import DEFINITIONS, GROUPS, NOTES, UNPROVEN, Case, expected_names
from tests.world import MODES, Setup, World

MATRIX = Path(__file__).parents[2] / "test_artifacts" / "type-matrix.json"
#: What the docs show; it changes when a result does.
PUBLISHED = Path(__file__).parents[2] / "docs" / "type-matrix.json"
#: Ids of the rows whose one value is changed; the edge values lie below.
CHANGED = 1_000_000
#: As the product pins them, so that the expected text is PostgreSQL's canonical one.
PINS = "SET TimeZone = 'UTC'; SET search_path = pg_catalog; SET extra_float_digits = 3"


def test_every_decided_type_has_a_case() -> None:
    assert {case.name for cases in GROUPS.values() for case in cases} == expected_names()
    assert all({**TYPES, **KINDS}[name].verdict is not Verdict.REFUSED for name in UNPROVEN)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "types.md").read_text()
    not_run = page.partition("`not_run` on every engine")[2].partition("\n\n")[0]
    assert all(f"`{name}`" in not_run for name in (*UNPROVEN, "citext", "hstore"))


@pytest.mark.parametrize("group", GROUPS)
def test_round_trip(worlds: Setup, engine_name: str, group: str) -> None:
    """Edge values arrive exactly, NULL and '' among them; then a change that only a comparison to the byte sees is an update."""
    cases = GROUPS[group]
    world = make(worlds, cases)
    if world.forgiving:
        cases = [case for case in cases if case.declared not in UNSENT]
        world = make(worlds, cases)
    fill(world, cases)
    with proving(world, cases) as proven:
        receipt = world.run().receipt
        assert receipt.counts.inserted == len(world.source.rows("SELECT id FROM orders"))
        wrong = differences(world, cases)
        for number, case in enumerate(cases):
            world.source.run(f"UPDATE orders SET c{number} = {literal(case.after)}::{case.declared} WHERE id = {CHANGED + number}")
        receipt = world.run().receipt
        assert receipt.payload is (Payload.FULL if group == "names" else Payload.DELTA)
        missed = not_updated(world, cases)
        assert (wrong, missed, differences(world, cases)) == ([], [], [])
        assert receipt.counts.updated == len(cases)
        proven.update(case.name for case in cases)


# ---- generated values -----------------------------------------------------------------------------------------------------
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=60)
STRATEGIES: dict[str, tuple[Case, st.SearchStrategy[Any]]] = {
    "int8": (Case("int8", "bigint", (), "", ""), st.integers(-(2**63), 2**63 - 1)),
    "numeric": (Case("numeric", "numeric(38,10)", (), "", ""), st.decimals(-(10**27), 10**27, allow_nan=False, places=10)),
    "float4": (Case("float4", "real", (), "", ""), st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)),
    "float8": (Case("float8", "double precision", (), "", ""), st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)),
    "text": (Case("text", "text", (), "", ""), _TEXT),
    "varchar": (Case("varchar", "varchar(20)", (), "", ""), _TEXT.map(lambda text: text[:20])),
    "bytea": (Case("bytea", "bytea", (), "", ""), st.binary(max_size=60)),
    "uuid": (Case("uuid", "uuid", (), "", ""), st.uuids()),
    "date": (Case("date", "date", (), "", ""), st.dates()),
    "time": (Case("time", "time", (), "", ""), st.times()),
    "timestamp": (Case("timestamp", "timestamp", (), "", ""), st.datetimes()),
    "timestamptz": (Case("timestamptz", "timestamptz", (), "", ""), st.datetimes(timezones=st.just(UTC))),
    "json": (Case("json", "json", (), "", ""), st.recursive(_TEXT | st.none() | st.integers(), st.lists).map(json.dumps)),
    "array": (Case("array", "text[]", (), "", "", True), st.lists(_TEXT | st.none(), max_size=5)),
    "range": (Case("int8range", "int8range", (), "", "", True), st.integers(0, 2**62).map(lambda low: f"[{low},{low + 1})")),
}


def test_generated_values(worlds: Setup, engine_name: str) -> None:
    """Whatever is drawn arrives exactly. Every example adds rows; the runs after the first are deltas."""
    cases = [case for case, _ in STRATEGIES.values()]
    world = make(worlds, cases)
    babelfish = getattr(world.target, "babelfish", False)
    drawn_from = [one.filter(keeps_time) if babelfish and case.name == "time" else one for case, one in STRATEGIES.values()]
    rows = st.lists(st.tuples(*[st.none() | strategy for strategy in drawn_from]), min_size=40, max_size=40)
    slots = ", ".join(f"%s::{case.declared}" for case in cases)
    offset = 0

    @settings(
        max_examples=4 if engine_name == "embedded" else 2, deadline=None, phases=[Phase.generate], database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(rows)
    def example(drawn: list[tuple[Any, ...]]) -> None:
        nonlocal offset
        with world.source.connect() as owner:
            owner.cursor().executemany(f"INSERT INTO orders VALUES (%s, {slots})", [(offset + n, *row) for n, row in enumerate(drawn)])
        offset += len(drawn)
        assert world.run().receipt.counts.inserted == len(drawn)
        assert differences(world, cases) == []

    example()


# ---- names in other catalogs ----------------------------------------------------------------------------------------------
def test_a_renamed_table_changes_the_text_of_a_regclass(worlds: Setup) -> None:
    """The row is untouched, its ``xmin`` too: only a full payload can see it."""
    case = Case("regclass", "regclass", (), "", "", contract=True)
    world = make(worlds, [case], "CREATE TABLE other (id integer)")
    world.source.run("INSERT INTO orders VALUES (1, 'other')")
    world.run()
    world.source.run("ALTER TABLE other RENAME TO another")
    receipt = world.run().receipt
    assert (receipt.payload, receipt.payload_reason, receipt.counts.updated) == (Payload.FULL, "projection_volatile", 1)
    assert differences(world, [case]) == []
    # The fingerprint did not change with it: drift of the target is still told from a change of the source.
    world.target.run(f"ALTER TABLE {world.target_name} DROP COLUMN c0")
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "DPONE_TARGET_UNSUPPORTED"


# ---- refusals -------------------------------------------------------------------------------------------------------------
def test_a_missing_contract_is_refused_by_name_in_check_and_run(worlds: Setup) -> None:
    world = make(worlds, [Case("interval", "interval", (), "", "", contract=True)])
    world.manifest_over = {}
    report = check_connections(world.route(), endpoints=world.endpoints)
    assert [finding.code for finding in report.findings if finding.ok is False and finding.area == "source"] == ["DPONE_TYPE_UNSUPPORTED"]
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "DPONE_TYPE_UNSUPPORTED"
    assert "'c0'" in caught.value.message


# ---- details --------------------------------------------------------------------------------------------------------------
def make(worlds: Setup, cases: Sequence[Case], *statements: str) -> World:
    """A world of one table with one column per case."""
    columns = ", ".join(f"c{number} {case.declared}" for number, case in enumerate(cases))
    strings = {f"c{number}": {"type": "string"} for number, case in enumerate(cases) if case.contract}
    return worlds(
        *(DEFINITIONS if any(case.name in KINDS for case in cases) else ()),
        *statements,
        f"CREATE TABLE orders (id bigint PRIMARY KEY, {columns})",
        reconciliation=MODES["timestamp_only"],
        manifest_over={"schema_contract": {"columns": strings}},
    )


def fill(world: World, cases: Sequence[Case]) -> None:
    """Row n holds every case's n-th value; one more row per case holds its value before the change."""
    slots = ", ".join(f"%s::{case.declared}" for case in cases)
    height = max(len(case.values) for case in cases)
    rows = [(n, *[case.values[n] if n < len(case.values) else None for case in cases]) for n in range(height)]
    rows += [(CHANGED + n, *[case.before if n == k else None for k, case in enumerate(cases)]) for n in range(len(cases))]
    with world.source.connect() as owner:
        owner.cursor().executemany(f"INSERT INTO orders VALUES (%s, {slots})", rows)


def differences(world: World, cases: Sequence[Case]) -> list[tuple[str, int]]:
    """(declaration, id) of every value that is not the same on both sides."""
    shown = ", ".join(source_form(case).format(f"c{n}") for n, case in enumerate(cases))
    with world.source.connect() as owner:
        owner.execute(PINS)
        query = f"SELECT id, {shown} FROM public.orders ORDER BY id"
        left = {row[0]: list(row[1:]) for row in owner.execute(query).fetchall()}  # type: ignore[call-overload]
        told = owner.pgconn.exec_(query.encode())
        for at, values in enumerate(left.values()):
            for n, case in enumerate(cases):
                if case.name in KINDS:  # what the output function wrote, before any driver reads it
                    text = told.get_value(at, n + 1)
                    values[n] = None if text is None else text.decode()
    mssql = world.target.kind == "mssql"
    wanted = ", ".join(
        f"CAST(c{n} AS nvarchar(40))" if mssql and case.name == "timestamptz" and not case.contract else f"c{n}"
        for n, case in enumerate(cases)
    )
    right = {row[0]: row[1:] for row in world.target.rows(f"SELECT id, {wanted} FROM {world.target_name}")}
    assert sorted(left) == sorted(right)
    return [
        (case.declared, key)
        for key in sorted(left)
        for case, one, other in zip(cases, left[key], right[key], strict=True)
        if exact(case, one) != exact(case, other)
    ]


def source_form(case: Case) -> str:
    """How the source shows a value of *case* without a loss: a cast to text takes padding away, of domains too."""
    if case.name in KINDS:
        return "{}"
    return "{}::text" if (case.contract and case.name != "bpchar") or case.name in ("json", "jsonb") else "{}"


def not_updated(world: World, cases: Sequence[Case]) -> list[str]:
    """Declarations whose changed row was not found to be changed."""
    query = f"SELECT id FROM {world.target_name} WHERE __dpone__updated_at > __dpone__loaded_at"
    updated = {row[0] for row in world.target.rows(query)}
    return [case.declared for number, case in enumerate(cases) if CHANGED + number not in updated]


def exact(case: Case, value: Any) -> Any:
    """One form for what the drivers spell differently, without losing a bit."""
    if value is None or case.contract:
        return value
    if case.name in ("float4", "float8"):
        return struct.pack("f" if case.name == "float4" else "d", value)
    if case.name == "numeric":
        return format(Decimal(value), "f") if Decimal(value) else "0"
    if case.name == "uuid":
        return str(uuid.UUID(str(value)))
    if case.name == "timestamptz":
        return (value if isinstance(value, datetime) else datetime.fromisoformat(value.replace(" +", "+"))).astimezone(UTC)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    assert isinstance(value, (bool, int, str, date, time, datetime)), type(value)
    return value


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def proving(world: World, cases: Sequence[Case]) -> Iterator[set[str]]:
    """Writes down what became of the cases, whatever happens."""
    proven: set[str] = set()
    try:
        yield proven
    finally:
        engine = world.target.kind + ("-babelfish" if getattr(world.target, "babelfish", False) else "")
        results = {case.name: "proven" if case.name in proven else "failed" for case in cases}
        record(engine, results)
        published = json.loads(PUBLISHED.read_text())
        assert {name: published[name].get(engine) for name in results} == results, f"copy {MATRIX} to {PUBLISHED} and run docs/generate.py"


def record(engine: str, results: dict[str, str]) -> None:
    """Merge into the matrix; types that nobody proved say ``not_run``. Several test processes may write."""
    MATRIX.parent.mkdir(exist_ok=True)
    with MATRIX.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        document = json.loads(file.read() or "{}")
        for name, rule in {**TYPES, **KINDS}.items():
            row = document.setdefault(name, {"verdict": rule.verdict.value, "embedded": "not_run", "mssql": "not_run"})
            if rule.verdict is Verdict.REFUSED:
                row["embedded"] = row["mssql"] = "refused"
            if name in NOTES:
                row["note"] = NOTES[name]
            if name in results:
                row[engine] = results[name]
        file.seek(0)
        file.truncate()
        file.write(json.dumps(document, indent=1, sort_keys=True) + "\n")
