"""The report of real small sessions: a failing case, a skipped one, a divergent state, a session that breaks off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.certification.plugin import REPORT, ROOT, SCHEMA
from tests.certification.verdict import LEGS, SCENARIOS
from tests.cli.test_documents import validate

HEAD = """
import os, signal
import pytest
from tests.certification.record import record_server, record_states
from tests.certification.verdict import SCENARIOS, States

@pytest.fixture(params=["embedded"])
def engine_name(request):
    return request.param
"""
#: As many cases as each leg has at least; of the matrix those that hand over no states.
PASSING = "".join(
    f"""
@pytest.mark.certify("{leg}")
@pytest.mark.parametrize("_", range({least}))
def test_{leg}(engine_name, _):
    pass
"""
    for leg, least in LEGS.items()
)
MATRIX = """
@pytest.mark.certify("fault_matrix")
def test_matrix(engine_name, record_property):
    record_server(record_property, engine="embedded", flavour="embedded", versions={{"source": "s", "target": "t"}})
    for scenario in SCENARIOS:
        for kind in ("raised", "session", "process", "lost_ack"):
            record_states(record_property, States(scenario, kind, 2, {tried}, {divergent}))
    assert not {divergent}
"""
WHOLE = MATRIX.format(tried=("a", "b"), divergent=())
KILLED = """
@pytest.mark.certify("lifecycle")
def test_z(engine_name):
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Certified:
    """One session: exit code, report, output."""

    def __init__(self, directory: Path, body: str, *arguments: str) -> None:
        (directory / "tests").mkdir(exist_ok=True)
        (directory / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers =\n  certify(leg): x\n  nightly: x\n")
        (directory / "tests" / "test_cases.py").write_text(HEAD + body)
        command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.certification.plugin", *arguments]
        quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "--import-mode=importlib"}
        environment = {**os.environ, **quick, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTEST_XDIST_WORKER", None)
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
        self.code, self.output = done.returncode, done.stdout + done.stderr
        path = directory / REPORT
        self.report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if self.report:
            validate("certification", self.report)

    def leg(self, name: str, engine: str = "embedded") -> dict[str, Any]:
        (found,) = [leg for e in self.report["engines"] if e["engine"] == engine for leg in e["legs"] if leg["leg"] == name]
        return dict(found)


def test_all_legs_of_the_embedded_engine(tmp_path: Path) -> None:
    """Partial is no failure of the command; the table and the file say the same."""
    done = Certified(tmp_path, PASSING + WHOLE + "\ndef test_of_no_leg():\n    assert False\n", "-n", "2")
    assert (done.code, done.report["status"], done.report["release_ready"]) == (0, "passed_partial", False), done.output
    embedded, mssql = done.report["engines"]
    assert (embedded["verdict"], embedded["coverage"], embedded["versions"]) == ("passed", "complete", {"source": "s", "target": "t"})
    assert (mssql["verdict"], mssql["coverage"], mssql["flavour"]) == ("not_run", "not_run", None)
    assert (done.leg("fault_matrix")["states_tried"], done.leg("fault_matrix")["divergent_states"]) == (8 * len(SCENARIOS), 0)
    assert "passed_partial, release_ready: false" in done.output
    assert done.output.count("not_run") >= 5


def test_a_failing_case(tmp_path: Path) -> None:
    failing = '\n@pytest.mark.certify("lifecycle")\ndef test_wrong(engine_name):\n    assert False\n'
    done = Certified(tmp_path, PASSING + WHOLE + failing)
    assert (done.code, done.report["status"]) == (1, "failed"), done.output
    assert (done.leg("lifecycle")["verdict"], done.leg("concurrency")["verdict"]) == ("failed", "passed")
    assert done.leg("lifecycle")["cases"] == {"passed": LEGS["lifecycle"], "failed": 1, "skipped": 0}


def test_a_teardown_that_fails(tmp_path: Path) -> None:
    body = """
@pytest.fixture
def broken():
    yield
    assert False

@pytest.mark.certify("lifecycle")
def test_x(engine_name, broken):
    pass
"""
    done = Certified(tmp_path, PASSING + WHOLE + body)
    assert (done.code, done.leg("lifecycle")["verdict"]) == (1, "failed"), done.output


SKIPS = {
    "lifecycle": ("@pytest.mark.skip", "pass"),
    "concurrency": ("@pytest.mark.skipif(True, reason='x')", "pass"),
    "source_mutation": ("@pytest.mark.xfail", "assert False"),
    "permission_denial": ("", "pytest.skip('no server')"),
}


def test_skipped_legs(tmp_path: Path) -> None:
    """Whatever is not a pass is none; a case that passed beside it does not make the leg passed."""
    body = "".join(
        f'\n{mark}\n@pytest.mark.certify("{leg}")\ndef test_skipped_{leg}(engine_name):\n    {inside}\n'
        for leg, (mark, inside) in SKIPS.items()
    )
    done = Certified(tmp_path, PASSING + WHOLE + body)
    assert (done.code, done.report["status"]) == (0, "passed_partial"), done.output
    for name in SKIPS:
        assert (done.leg(name)["verdict"], done.leg(name)["cases"]) == ("not_run", {"passed": LEGS[name], "failed": 0, "skipped": 1})
    assert (done.leg("fault_matrix")["verdict"], done.report["engines"][0]["verdict"]) == ("passed", "not_run")


def test_a_divergent_state(tmp_path: Path) -> None:
    done = Certified(tmp_path, PASSING + MATRIX.format(tried=("a", "b"), divergent=("b",)))
    assert (done.code, done.report["status"]) == (1, "failed"), done.output
    assert (done.leg("fault_matrix")["verdict"], done.leg("fault_matrix")["divergent_states"]) == ("failed", 4 * len(SCENARIOS))


def test_a_divergent_state_that_no_assertion_told(tmp_path: Path) -> None:
    done = Certified(tmp_path, PASSING + MATRIX.format(tried=("a", "b"), divergent=("b",)).replace("assert not", "assert"))
    assert (done.code, done.report["status"]) == (1, "failed"), done.output


@pytest.mark.parametrize("arguments", [("-m", "not nightly"), ("tests/test_cases.py",), ("--ignore-glob=*z.py",), ("--ignore=tests/x.py",)])
def test_a_sample(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Whoever chooses cases gets a sample."""
    done = Certified(tmp_path, PASSING + WHOLE, *arguments)
    assert (done.code, done.report["status"], done.report["engines"][0]["coverage"]) == (0, "passed_partial", "sampled"), done.output


def test_fewer_states_than_there_are(tmp_path: Path) -> None:
    done = Certified(tmp_path, PASSING + MATRIX.format(tried=("a",), divergent=()))
    assert (done.code, done.leg("fault_matrix")["coverage"], done.leg("lifecycle")["coverage"]) == (0, "sampled", "complete"), done.output
    assert done.report["engines"][0]["coverage"] == "sampled"


@pytest.mark.parametrize(
    "body",
    ["raise KeyboardInterrupt", 'pytest.exit("enough")', "unknown leg", "import nothing_of_this_name"],
    ids=["interrupted", "exit", "unknown leg", "file not read"],
)
def test_a_session_that_breaks_off(tmp_path: Path, body: str) -> None:
    """No leg of it is passed, and the command fails."""
    case = f'\n@pytest.mark.certify("lifecycle")\ndef test_z(engine_name):\n    {body}\n'
    if body == "unknown leg":
        case = case.replace("lifecycle", "no_such_leg").replace(body, "pass")
    elif body.startswith("import"):
        case = f"\n{body}\n"
    done = Certified(tmp_path, PASSING + WHOLE + case)
    assert done.code != 0
    assert done.report["status"] == "failed", done.output
    assert "passed" not in {done.leg(name)["verdict"] for name in ("lifecycle", "concurrency", "fault_matrix")}


def test_a_killed_worker(tmp_path: Path) -> None:
    """Its case failed, whatever the others did."""
    done = Certified(tmp_path, PASSING + WHOLE + KILLED, "-n", "1")
    assert (done.code, done.report["status"], done.leg("lifecycle")["verdict"]) == (1, "failed", "failed"), done.output


def test_an_older_report_does_not_outlive_a_session(tmp_path: Path) -> None:
    assert Certified(tmp_path, PASSING + WHOLE).report
    done = Certified(tmp_path, PASSING + WHOLE + KILLED)
    assert done.code != 0
    assert not done.report


def test_every_leg_has_cases_of_this_suite() -> None:
    """A leg whose marks were lost would be told as not run; here it is a failure."""
    files = {leg: [] for leg in ("lifecycle", "concurrency", "source_mutation", "permission_denial", "fault_matrix")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for leg, found in files.items():
            if path.parent.name != "certification" and f'mark.certify("{leg}")' in text:
                found.append(path.name)
    assert all(files.values()), files
    assert {path.name for path in (ROOT / "tests" / "faults").glob("test_*.py")} == set(files["fault_matrix"])
    assert SCHEMA.exists()
