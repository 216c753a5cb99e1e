"""What a report may say: a leg that did not run is never passed, and only SQL Server makes a release ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.certification.verdict import ENGINES, KINDS, LEGS, SCENARIOS, Case, Session, States, certificate

WHOLE = States("incremental run", "raised", 2, ("a", "b"))
ALL_KINDS = tuple(replace(WHOLE, scenario=scenario, kind=kind) for scenario in sorted(SCENARIOS) for kind in KINDS)
SERVERS = Session(flavours={"embedded": "embedded", "mssql": "sql_server"}, versions={"mssql": {"target": "t"}})


def all_passed(*engines: str) -> list[Case]:
    """As many passed cases of each leg as it has at least."""
    return [
        Case(leg, engine, "passed", ALL_KINDS if leg == "fault_matrix" else ())
        for engine in engines
        for leg in LEGS
        for _ in range(LEGS[leg])
    ]


def judged(cases: list[Case], session: Session = SERVERS) -> tuple[str, bool, dict[str, Any]]:
    report = certificate(cases, session)
    return report["status"], report["release_ready"], {engine["engine"]: engine for engine in report["engines"]}


def leg(engine: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [leg for leg in engine["legs"] if leg["leg"] == name]
    return dict(found)


def test_everything_on_sql_server() -> None:
    status, ready, engines = judged(all_passed(*ENGINES))
    assert (status, ready) == ("passed", True)
    assert {engine["verdict"] for engine in engines.values()} == {"passed"}
    assert {engine["coverage"] for engine in engines.values()} == {"complete"}


def test_nothing() -> None:
    status, ready, engines = judged([])
    assert (status, ready) == ("not_run", False)
    for engine in engines.values():
        assert (engine["verdict"], engine["flavour"], engine["versions"], engine["coverage"]) == ("not_run", None, {}, "not_run")
        assert {leg["verdict"] for leg in engine["legs"]} == {"not_run"}


def test_the_embedded_engine_alone_is_partial() -> None:
    status, ready, engines = judged(all_passed("embedded"))
    assert (status, ready) == ("passed_partial", False)
    assert (engines["embedded"]["verdict"], engines["mssql"]["verdict"]) == ("passed", "not_run")


@pytest.mark.parametrize("flavour", ["babelfish", "unknown", None])
def test_another_server_is_no_sql_server(flavour: str | None) -> None:
    flavours = {} if flavour is None else {"mssql": flavour}
    assert judged(all_passed(*ENGINES), replace(SERVERS, flavours=flavours))[:2] == ("passed_partial", False)


@pytest.mark.parametrize("missing", LEGS)
@pytest.mark.parametrize("how", ["absent", "skipped", "one of two skipped"])
def test_a_leg_that_did_not_run(missing: str, how: str) -> None:
    cases = [case for case in all_passed(*ENGINES) if (case.leg, case.engine) != (missing, "mssql") or how == "one of two skipped"]
    if how != "absent":
        cases.append(Case(missing, "mssql", "skipped"))
    status, ready, engines = judged(cases)
    assert (status, ready) == ("passed_partial", False)
    assert leg(engines["mssql"], missing)["verdict"] == engines["mssql"]["verdict"] == "not_run"
    assert engines["embedded"]["verdict"] == "passed"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LEGS)
def test_a_failure_anywhere_fails(name: str, engine: str) -> None:
    status, ready, engines = judged([*all_passed(*ENGINES), Case(name, engine, "failed")])
    assert (status, ready) == ("failed", False)
    assert leg(engines[engine], name)["verdict"] == engines[engine]["verdict"] == "failed"


def test_a_divergent_state_fails_although_its_case_passed() -> None:
    divergent = Case("fault_matrix", "embedded", "passed", (replace(WHOLE, divergent=("b",)),))
    status, ready, engines = judged([*all_passed(*ENGINES), divergent])
    assert (status, ready) == ("failed", False)
    assert leg(engines["embedded"], "fault_matrix")["divergent_states"] == 1


def test_a_matrix_without_states_did_not_run() -> None:
    cases = [replace(case, states=()) for case in all_passed(*ENGINES)]
    assert {leg(engine, "fault_matrix")["verdict"] for engine in judged(cases)[2].values()} == {"not_run"}


def test_states_that_several_cases_tried_count_once() -> None:
    parts = [replace(part, found=3, tried=tried) for part in ALL_KINDS for tried in (("a", "b"), ("b", "c"))]
    found = leg(judged([Case("fault_matrix", "embedded", "passed", (part,)) for part in parts * 2])[2]["embedded"], "fault_matrix")
    assert (found["states_tried"], found["coverage"], found["verdict"]) == (3 * len(ALL_KINDS), "complete", "passed")


def test_a_sample_is_never_complete() -> None:
    """Neither when the caller chose cases, nor when states were left out."""
    status, ready, engines = judged(all_passed(*ENGINES), replace(SERVERS, sampled=True))
    assert (status, ready, engines["mssql"]["coverage"]) == ("passed_partial", False, "sampled")
    for states in ((replace(WHOLE, found=3), *ALL_KINDS[1:]), ALL_KINDS[1:]):
        fewer = [replace(case, states=states if case.states else ()) for case in all_passed(*ENGINES)]
        status, ready, engines = judged(fewer)
        assert (status, ready, engines["mssql"]["coverage"]) == ("passed_partial", False, "sampled")
        assert leg(engines["mssql"], "fault_matrix")["coverage"] == "sampled"


@pytest.mark.parametrize("name", LEGS)
def test_a_leg_with_fewer_cases_is_not_complete(name: str) -> None:
    """A file of tests that is gone leaves no skipped case behind."""
    cases = all_passed(*ENGINES)
    cases.remove(next(case for case in cases if (case.leg, case.engine) == (name, "mssql")))
    status, ready, engines = judged(cases)
    assert (status, ready, leg(engines["mssql"], name)["coverage"]) == ("passed_partial", False, "sampled")


@pytest.mark.parametrize("missing", sorted(SCENARIOS))
def test_a_scenario_that_nobody_broke_is_missed(missing: str) -> None:
    states = tuple(part for part in ALL_KINDS if part.scenario != missing)
    cases = [replace(case, states=states if case.states else ()) for case in all_passed(*ENGINES)]
    assert leg(judged(cases)[2]["mssql"], "fault_matrix")["coverage"] == "sampled"


def test_a_session_that_broke_off_proves_nothing() -> None:
    status, ready, engines = judged(all_passed(*ENGINES), replace(SERVERS, broken=True))
    assert (status, ready) == ("failed", False)
    assert {leg["verdict"] for engine in engines.values() for leg in engine["legs"]} == {"not_run"}


def test_what_needs_the_source_alone() -> None:
    """It counts where the leg ran, makes no leg run by itself, and its failure is everybody's."""
    shared = Case("source_mutation", None, "passed")
    engines = judged([*all_passed("embedded"), shared])[2]
    assert leg(engines["embedded"], "source_mutation")["cases"]["passed"] == LEGS["source_mutation"] + 1
    assert leg(engines["mssql"], "source_mutation") == leg(judged([])[2]["mssql"], "source_mutation")
    failed = judged([*all_passed("embedded"), replace(shared, outcome="failed")])
    assert failed[0] == "failed"
    assert {leg(engine, "source_mutation")["verdict"] for engine in failed[2].values()} == {"failed"}
