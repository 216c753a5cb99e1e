"""What every command keeps: light help, one JSON document, exit codes, no traceback, no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from airflow_dpone_xmin.cli import main as cli_main
from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import exit_code
from airflow_dpone_xmin.contracts.errors import XminError

from .conftest import Cli

# pydantic is not listed: newer versions of typer import it themselves
HEAVY = ["adbc_driver_manager", "adbc_driver_postgresql", "airflow", "cryptography", "mssql_python", "numpy", "pandas", "psycopg",
         "pyarrow", "pyodbc", "ruamel", "securesystemslib", "sqlalchemy"]  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["registry", "--help"], ["registry", "sign", "--help"], ["registry", "discover", "--help"]]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import json, sys\n"
        "from airflow_dpone_xmin.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        f"finally: print('loaded:' + json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.rpartition("loaded:")[2]) == []


def test_provider_discovery_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom airflow_dpone_xmin.provider_info import get_provider_info\nget_provider_info()\n"
        f"sys.exit(any(name in sys.modules for name in {[*HEAVY, 'typer', 'rich']!r}))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_help_names_the_exit_codes(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    for word in ("Exit codes", "75", "130"):
        assert word in done.out


@pytest.mark.parametrize(("code", "exits"), [("run.cancelled", 130), ("mssql_transaction.conflict", 75), ("guard.deletes_exceeded", 1)])
def test_what_a_person_stopped_is_not_what_may_simply_be_run_again(code: str, exits: int) -> None:
    assert exit_code(XminError(code, "It happened.")) == exits


def test_usage_errors(cli: Cli) -> None:
    for arguments in (
        ["nosuch"],
        ["registry", "nosuch"],
        ["registry", "sign"],
        ["registry", "verify", "--nosuch"],
        ["--format", "xml", "registry"],
    ):
        done = cli(*arguments)
        assert done.code == 2
        assert "Traceback" not in done.err
    done = cli("registry", "verify", "--nosuch", "--format", "json")
    assert (done.code, done.json["error"]["code"], done.err) == (2, "cli.usage", "")


def test_common_options_stand_before_or_after_the_command(cli: Cli, signed: Path) -> None:
    for arguments in (
        ["--registry", "r.json", "--trusted-key", "k.pub", "--format", "json", "registry", "verify"],
        ["registry", "verify", "--registry", "r.json", "--trusted-key", "k.pub", "--format", "json"],
        [
            "--registry",
            "absent.json",
            "--format",
            "human",
            "registry",
            "verify",
            "--registry=r.json",
            "--trusted-key=k.pub",
            "--format=json",
        ],
    ):
        assert cli(*arguments).json["serial"] == 1


def probe(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    """Add a command ``probe`` that raises *fault*."""
    app = typer.Typer()
    app.registered_commands = list(cli_main.app.registered_commands)
    app.registered_groups = list(cli_main.app.registered_groups)
    app.registered_callback = cli_main.app.registered_callback

    @app.command("probe")
    @command
    def run(context: CliContext, word: str = "x") -> None:
        raise fault

    monkeypatch.setattr(cli_main, "app", app)


@pytest.mark.parametrize(("retryable", "code"), [(False, 1), (True, 75)])
def test_refusals(retryable: bool, code: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    error = XminError("guard.deletes_exceeded", "Saw [bold]7[/] \x1b[31mrows[dpone_xmin].", details={"rows": 7}, retryable=retryable)
    probe(monkeypatch, error)
    human = cli("probe")
    assert human.code == code
    assert human.out == ""
    for word in ("guard.deletes_exceeded", "[bold]7[/]", "[dpone_xmin]", "rows: 7", "Hint: "):
        assert word in human.err
    assert "\x1b" not in human.err
    machine = cli("probe", "--format", "json")
    assert (machine.code, machine.err, machine.json) == (code, "", {"error": error.to_dict()})


def test_an_unexpected_fault_shows_its_type_only(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(monkeypatch, KeyError("postgresql://u:s3cret@h/db"))
    done = cli("probe")
    assert done.code == 1
    assert "run.unexpected" in done.err
    assert "KeyError" in done.err
    assert "s3cret" not in done.out + done.err
    assert "Traceback" not in done.err
    assert "Traceback" in cli("probe", "--debug").err


def test_what_libraries_print_stays_out_of_the_result(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.registered_callback = cli_main.app.registered_callback

    @app.command("probe")
    @command
    def run(context: CliContext) -> None:
        print("a library talks")
        context.output.result({"a": 1}, lambda console: console.print("one"))

    monkeypatch.setattr(cli_main, "app", app)
    done = cli("probe", "--format", "json")
    assert (done.json, done.err) == ({"a": 1}, "a library talks\n")
    assert cli("probe").out == "one\n"


def test_an_interrupt(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(monkeypatch, KeyboardInterrupt())
    assert cli("probe").code == 130


def test_a_reader_that_leaves_is_no_fault(signed: Path) -> None:
    program = "from airflow_dpone_xmin.cli.main import main; main()"
    line = f'"{sys.executable}" -c "{program}" registry show r.json --trusted-key k.pub --format json | true'
    done = subprocess.run(["bash", "-c", line], cwd=signed, capture_output=True, text=True, check=False, env={**os.environ})
    assert "Traceback" not in done.stderr


def test_the_console_script_is_installed() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="dpone-xmin")
    assert script.load() is cli_main.main
