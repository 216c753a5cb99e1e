"""The command line ``dpone-xmin``.

``--help`` must answer at once: at module level only what is light is imported; every command imports the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from airflow_dpone_xmin import __version__
from airflow_dpone_xmin.cli import campaign_cmd, ddl_cmd, demo_cmd, registry_cmd, repair_cmd, route_cmd, state_cmd
from airflow_dpone_xmin.cli.context import CommonOptions, DebugOption, EnvironmentOption, FormatOption, RegistryOption, TrustedKeyOption
from airflow_dpone_xmin.cli.output import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, Output, OutputFormat
from airflow_dpone_xmin.contracts.errors import XminError

EPILOG = (
    "Exit codes: 0 done · 1 refused or failed, a retry does not help · 2 the command line is wrong · "
    "75 failed, the same command may be run again · 130 interrupted."
)

app = typer.Typer(
    name="dpone-xmin",
    help="Keep a SQL Server table equal to a PostgreSQL table, deletes included, from xmin alone.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("plan")(route_cmd.plan)
app.command("check")(route_cmd.check)
app.command("run")(route_cmd.run)
app.command("types")(route_cmd.types)
app.command("demo")(demo_cmd.demo)
app.add_typer(campaign_cmd.app, name="campaign")
app.add_typer(ddl_cmd.app, name="ddl")
app.add_typer(state_cmd.state_app, name="state")
app.add_typer(state_cmd.evidence_app, name="evidence")
app.add_typer(repair_cmd.app, name="repair")
app.add_typer(registry_cmd.app, name="registry")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dpone-xmin {__version__}")
        raise typer.Exit()


@app.callback()
def common(
    context: typer.Context,
    registry: RegistryOption = None,
    trusted_key: TrustedKeyOption = None,
    environment: EnvironmentOption = None,
    format: FormatOption = None,
    debug: DebugOption = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Take the common options before the command, too."""
    context.obj = CommonOptions(
        registry=registry, trusted_key=tuple(trusted_key or ()), environment=environment, format=format, debug=debug
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    :param arguments: for tests; the process's arguments otherwise.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(argv))


def _run(argv: list[str]) -> int:
    try:
        result: Any = typer.main.get_command(app).main(args=argv, prog_name="dpone-xmin", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; say nothing more
        return EXIT_REFUSED
    except (typer.Abort, KeyboardInterrupt):
        _output(argv).error(XminError("run.cancelled", "The command was interrupted."))
        return EXIT_INTERRUPTED
    except Exception as error:  # the option parser's own classes differ between typer's versions; they share format_message
        if not hasattr(error, "format_message"):
            raise
        return _usage(argv, error)


def _usage(argv: list[str], error: Any) -> int:
    output = _output(argv)
    if output.is_json:
        output.error(XminError("cli.usage", error.format_message()))
    else:
        error.show()
    return EXIT_USAGE


def _output(argv: list[str]) -> Output:
    """The format as far as it can be told from a command line that could not be parsed."""
    pairs = zip(argv, [*argv[1:], ""], strict=False)
    asked = any(word == "--format=json" or (word == "--format" and following == "json") for word, following in pairs)
    return Output(OutputFormat.JSON if asked else OutputFormat.HUMAN)
