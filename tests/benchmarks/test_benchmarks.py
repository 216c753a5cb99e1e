"""Every leg works and says something, on tiny data. Nothing here looks at how fast it was."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from benchmarks import tables
from benchmarks.budgets import judge
from benchmarks.command import RESULTS, measure
from benchmarks.legs import LEGS
from benchmarks.measure import Findings, ratio
from benchmarks.model import Document, Peers
from benchmarks.peers import RESULTS as PEER_RESULTS
from benchmarks.place import opened
from benchmarks.scale import SCALES
from benchmarks.tpch import Tpch
from tests.world import MSSQL_URL

ROOT = Path(__file__).parents[2]


def _valid(text: str, model: type[Document] | type[Peers]) -> None:
    jsonschema.validate(json.loads(text), model.model_json_schema())


@pytest.fixture(autouse=True)
def _embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MSSQL_URL, raising=False)


@pytest.mark.timeout(900)  # half a minute, many times that on a busy machine
def test_every_leg_finds_something(tmp_path: Path) -> None:
    steps: list[str] = []
    document = measure(SCALES["tiny"], list(LEGS), steps.append)
    assert {leg.name: leg.status for leg in document.legs} == {**dict.fromkeys(LEGS, "run"), "sql_server": "not_run"}
    assert {found.leg for found in document.ratios} == {"extract", "delta", "keys", "stage", "finalize", "whole"}
    assert {(run.leg, run.table, run.kind) for run in document.runs} == {
        (leg, table, kind)
        for leg, table in (("whole", "wide"), ("growth", "orders"), ("growth", "lineitem"))
        for kind in ("baseline", "incremental")
    }
    assert {cost.table for cost in document.costs} == {"wide", "keys"}
    assert [(part.lanes, len(part.lane_peak_mib)) for part in document.lanes] == [(1, 1)]
    assert all(found.ratio.low > 0 for found in document.ratios)
    assert all(run.seconds.low > 0 and run.peak_mib.low > 0 for run in document.runs)
    assert all(part.rows_per_second > 0 and min(part.lane_peak_mib) > 10 for part in document.lanes)
    # tiny tables have no verdict, but everything that a large one needs was measured
    assert {budget.verdict for budget in document.budgets} == {"not_run"}
    assert [budget.work for budget in document.budgets if budget.reason.startswith("not measured")] == [
        "memory's growth from 500k rows to the largest table"
    ]
    _valid(document.model_dump_json(), Document)
    assert all(build(document)[1] for build in tables.TABLES.values())
    plots = pytest.importorskip("benchmarks.plots")
    assert len(plots.write_plots(document, tmp_path)) == len(plots.PLOTS)
    assert steps


def test_a_refresh_inserts_and_deletes_as_specified() -> None:
    with opened() as place:
        tpch = Tpch(place, 8_000)
        before = {row[0] for row in tpch.source.rows("SELECT o_orderkey FROM orders")}
        tpch.refresh()
        tpch.refresh()
        after = {row[0] for row in tpch.source.rows("SELECT o_orderkey FROM orders")}
        lines = {row[0] for row in tpch.source.rows("SELECT DISTINCT l_orderkey FROM lineitem")}
    assert len(after - before) == len(before - after) == 4  # twice SF × 1,500 orders
    assert lines == after


def test_a_budget_is_judged_at_its_own_size_only() -> None:
    def verdict(rows: int, seconds: float) -> str:
        from benchmarks.budgets import EXTRACT

        found = Findings(ratios=[ratio("extract", "a", "b", rows=rows, seconds=[seconds], other=[1.0], budget=EXTRACT)])
        return next(budget.verdict for budget in judge(found, SCALES["full"]) if budget.work == EXTRACT)

    assert [verdict(2_000_000, 1.35), verdict(2_000_000, 1.36), verdict(200_000, 1.0)] == ["met", "missed", "not_run"]


def test_the_committed_documents_are_valid_and_the_plots_show_them() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    _valid(text, Document)
    document = Document.model_validate_json(text)
    _valid(PEER_RESULTS.read_text(encoding="utf-8"), Peers)
    plots = sorted((ROOT / "docs" / "images").glob("benchmark-*.svg"))
    assert [path.stem.split("-")[1] for path in plots] == ["changes", "growth", "lanes", "memory"]
    for path in plots:
        assert f"{document.scale} {document.date}" in path.read_text(encoding="utf-8")
