"""``make certify``: runs the cases marked ``certify(leg)`` and nothing else, and writes what they proved.

``pytest -p tests.certification.plugin``. What cases hand over is in :mod:`tests.certification.record`.
"""

from __future__ import annotations

import io
import json
import platform
import subprocess
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console
from rich.table import Table

import airflow_dpone_xmin
from tests.certification.record import SERVER, STATES
from tests.certification.verdict import LEGS, ROUTE, Case, Outcome, Session, States, certificate

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "schemas" / "certification.schema.json"
REPORT = Path("test_artifacts") / "live_certification" / f"{ROUTE}.json"
_CASE = "certify"


def pytest_configure(config: pytest.Config) -> None:
    """Only the controller of a distributed run writes."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Certification(config), "certification")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the cases of a leg; each of them says which leg and engine it proves."""
    kept, others = [], []
    for item in items:
        marks = list(item.iter_markers("certify"))
        (kept if marks else others).append(item)
        for mark in marks[:1]:
            if mark.args[0] not in LEGS:
                raise pytest.UsageError(f"{item.nodeid}: {mark.args[0]} is no leg of the certification")
            callspec = getattr(item, "callspec", None)
            engine = callspec.params.get("engine_name") if callspec else None
            item.user_properties.append((_CASE, {"leg": mark.args[0], "engine": engine}))
    config.hook.pytest_deselected(items=others)
    items[:] = kept


class Certification:
    """Gathers the outcomes, judges them at the end, writes the report and shows it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.path = config.rootpath / REPORT
        self.report: dict[str, Any] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._properties: dict[str, list[tuple[str, Any]]] = {}
        self._collect_failed = False
        self._started = (time.monotonic(), datetime.now(UTC))

    def pytest_sessionstart(self) -> None:
        """A report of an earlier session says nothing about this one."""
        self.path.unlink(missing_ok=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read has cases that did not run."""
        self._collect_failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of a case's phases counts."""
        ranks: dict[Outcome, int] = {"passed": 0, "skipped": 1, "failed": 2}
        seen = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = max(seen, report.outcome, key=ranks.__getitem__)
        self._properties[report.nodeid] = report.user_properties or self._properties.get(report.nodeid, [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge, prove the report against its schema, write it; failed is failed for the shell too."""
        cases = list(self._cases())
        strays = [name for name, outcome in self._outcomes.items() if outcome == "failed" and not self._found(name, _CASE)]
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        stopped = bool(session.shouldfail or session.shouldstop)
        broken = bool(strays) or self._collect_failed or not ended or stopped
        started, at = self._started
        self.report = certificate(cases, Session(self._sampled(), broken, *self._servers())) | {
            "product": airflow_dpone_xmin.__version__,
            "commit": commit(),
            "python": platform.python_version(),
            "started_at_utc": at.isoformat(),
            "seconds": round(time.monotonic() - started, 1),
        }
        Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(self.report)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")
        if self.report["status"] == "failed" and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One table: engine by engine, leg by leg."""
        if self.report:
            terminalreporter.write_line("")
            terminalreporter.write(table(self.report))
            terminalreporter.write_line(f"{self.path}: {self.report['status']}, release_ready: {json.dumps(self.report['release_ready'])}")

    def _found(self, nodeid: str, key: str) -> list[Any]:
        return [value for name, value in self._properties[nodeid] if name == key]

    def _cases(self) -> Iterable[Case]:
        for nodeid, outcome in self._outcomes.items():
            states = tuple(
                States(**{**found, "tried": tuple(found["tried"]), "divergent": tuple(found["divergent"])})
                for found in self._found(nodeid, STATES)
            )
            for case in self._found(nodeid, _CASE):
                yield Case(case["leg"], case["engine"], outcome, states)

    def _servers(self) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        servers = [server for nodeid in self._outcomes for server in self._found(nodeid, SERVER)]
        return {s["engine"]: s["versions"] for s in servers}, {s["engine"]: s["flavour"] for s in servers}

    def _sampled(self) -> bool:
        """Whether whoever called it chose some of the cases."""
        option = self.config.option
        ways = ("markexpr", "keyword", "deselect", "lf", "ignore", "ignore_glob", "stepwise", "maxfail")
        chosen = any(getattr(option, way, None) for way in ways)
        return chosen or self.config.args_source is not pytest.Config.ArgsSource.TESTPATHS


def commit() -> str | None:
    """What was certified: the commit, marked as ``-dirty`` when files differ from it; None outside of a repository."""
    described = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def table(report: dict[str, Any]) -> str:
    """The report for a person."""
    shown = Table(title=f"certification: {report['route']}")
    for head in ("engine", "leg", "verdict", "coverage", "passed", "failed", "skipped", "states tried", "divergent states"):
        shown.add_column(head, justify="left" if head in ("engine", "leg", "verdict", "coverage") else "right")
    for engine in report["engines"]:
        for leg in engine["legs"]:
            numbers = (*leg["cases"].values(), leg["states_tried"], leg["divergent_states"])
            shown.add_row(engine["engine"], leg["leg"], leg["verdict"], leg["coverage"], *map(str, numbers))
        shown.add_section()
    text = io.StringIO()
    Console(file=text, width=120).print(shown)
    return text.getvalue()
