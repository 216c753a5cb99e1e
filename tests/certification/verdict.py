"""What may be said about a certification: pure functions from the outcomes of its cases to the report.

A leg that did not run is ``not_run``, never passed; nothing is ready for release that a real SQL Server did not prove.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

KIND = "dpone.live_certification.v1"
ROUTE = "postgres_mssql_xmin_reconciliation"
#: Leg → how many cases it has at least: one whose file is gone or unmarked is not complete.
LEGS = {"lifecycle": 22, "concurrency": 27, "source_mutation": 29, "permission_denial": 12, "fault_matrix": 70}
#: What the matrix breaks.
SCENARIOS = frozenset(
    ["incremental run", "approved run", "approved transfer", *(f"campaign, {phase}" for phase in ("open", "lane", "publish", "abandon"))]
)
KINDS = ("raised", "session", "process", "lost_ack")
ENGINES = ("embedded", "mssql")
FLAVOURS = ("embedded", "sql_server", "babelfish", "unknown")
Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class States:
    """One kind of fault of one scenario of the matrix.

    :param found: how many states it has.
    :param tried: names of those that were tried.
    :param divergent: names of those after which target, head, checkpoint and receipt did not agree.
    """

    scenario: str
    kind: str
    found: int
    tried: tuple[str, ...]
    divergent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One finished test.

    :param engine: the target's engine; None for a case that needs the source alone.
    """

    leg: str
    engine: str | None
    outcome: Outcome
    states: tuple[States, ...] = ()


@dataclass(frozen=True)
class Session:
    """How the cases were run.

    :param sampled: a part of the cases was left out by the caller.
    :param broken: it ended early, or something failed that belongs to no leg.
    :param versions: engine → name → version, as the servers told.
    :param flavours: engine → which server it was.
    """

    sampled: bool = False
    broken: bool = False
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    flavours: Mapping[str, str] = field(default_factory=dict)


def certificate(cases: Collection[Case], session: Session) -> dict[str, Any]:
    """The report, apart from when, of what and how long."""
    engines = [_engine(name, cases, session) for name in ENGINES]
    verdicts = [engine["verdict"] for engine in engines]
    ready = any(map(_ready, engines))
    if session.broken or "failed" in verdicts:
        status = "failed"
    elif ready:
        status = "passed"
    else:
        status = "passed_partial" if any(leg["verdict"] == "passed" for engine in engines for leg in engine["legs"]) else "not_run"
    return {"v": 1, "kind": KIND, "route": ROUTE, "status": status, "release_ready": ready and status == "passed", "engines": engines}


def _ready(engine: Mapping[str, Any]) -> bool:
    return engine["flavour"] == "sql_server" and engine["coverage"] == "complete" and engine["verdict"] == "passed"


def _engine(name: str, cases: Collection[Case], session: Session) -> dict[str, Any]:
    legs = [_leg(leg, name, [case for case in cases if case.leg == leg], session) for leg in LEGS]
    verdicts = {leg["verdict"] for leg in legs}
    verdict = "failed" if "failed" in verdicts else "not_run" if "not_run" in verdicts else "passed"
    ran = any(leg["cases"]["passed"] or leg["cases"]["failed"] for leg in legs)
    whole = ran and all(leg["coverage"] == "complete" for leg in legs)
    return {
        "engine": name,
        "flavour": session.flavours.get(name) if ran else None,
        "versions": dict(session.versions.get(name, {})) if ran else {},
        "coverage": "not_run" if not ran else "complete" if whole else "sampled",
        "verdict": verdict,
        "legs": legs,
    }


def _leg(leg: str, engine: str, cases: Collection[Case], session: Session) -> dict[str, Any]:
    own = [case for case in cases if case.engine == engine]
    ran = any(case.outcome != "skipped" for case in own)
    # What needs the source alone counts for an engine that took part in the leg, and its failure for every engine.
    counted = [*own, *[case for case in cases if case.engine is None and (ran or case.outcome == "failed")]]
    outcomes = [case.outcome for case in counted]
    states = _merged(part for case in counted for part in case.states)
    divergent = sum(part["divergent"] for part in states)
    if "failed" in outcomes or divergent:
        verdict = "failed"
    elif not outcomes or "skipped" in outcomes or session.broken or (leg == "fault_matrix" and not states):
        verdict = "not_run"
    else:
        verdict = "passed"
    whole = verdict != "not_run" and not session.sampled and len(counted) >= LEGS[leg] and (leg != "fault_matrix" or _whole(states))
    return {
        "leg": leg,
        "verdict": verdict,
        "coverage": "not_run" if not ran else "complete" if whole else "sampled",
        "cases": {name: outcomes.count(name) for name in ("passed", "failed", "skipped")},
        "states_tried": sum(part["tried"] for part in states),
        "divergent_states": divergent,
        "states": states,
    }


def _whole(states: Collection[Mapping[str, Any]]) -> bool:
    """Every scenario was broken in every kind, in each of its states."""
    every = {(scenario, kind) for scenario in SCENARIOS for kind in KINDS}
    return every <= {(part["scenario"], part["kind"]) for part in states if part["tried"] == part["found"]}


def _merged(parts: Iterable[States]) -> list[dict[str, Any]]:
    """Per scenario and kind: a state that several cases tried counts once."""
    grouped: dict[tuple[str, str], list[States]] = {}
    for part in parts:
        grouped.setdefault((part.scenario, part.kind), []).append(part)
    return [
        {
            "scenario": scenario,
            "kind": kind,
            "found": max(part.found for part in group),
            "tried": len({name for part in group for name in part.tried}),
            "divergent": len({name for part in group for name in part.divergent}),
        }
        for (scenario, kind), group in sorted(grouped.items())
    ]
