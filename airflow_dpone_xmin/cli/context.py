"""What every command shares: the common options, the registry, the endpoints, and one place where errors end.

A command is written as ``@app.command("name")`` over ``@command`` over a function whose first parameter is :class:`CliContext`;
:func:`command` adds the common options to its signature. Commands print through ``context.output`` only. Imports typer, the standard
library and contracts.errors; the rest lazily.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import traceback
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_dpone_xmin.cli.output import Output, OutputFormat, exit_code
from airflow_dpone_xmin.contracts.errors import XminError

if TYPE_CHECKING:
    from airflow_dpone_xmin.contracts.route import EndpointResolver
    from airflow_dpone_xmin.registry.load import VerifiedRegistry
    from airflow_dpone_xmin.runtime.settings import Settings
    from airflow_dpone_xmin.target.repair import RepairSelection

_PANEL = "Common options"

RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry", help="Signed registry: path or URL. Else DPONE_REGISTRY, else Airflow's configuration.", rich_help_panel=_PANEL
    ),
]
TrustedKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-key",
        help="Public key file; repeatable. Else DPONE_TRUSTED_KEYS (comma-separated), else Airflow's configuration.",
        rich_help_panel=_PANEL,
    ),
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option("--environment", help="Refuse a registry of another environment. Else DPONE_ENVIRONMENT.", rich_help_panel=_PANEL),
]
FormatOption = Annotated[OutputFormat | None, typer.Option("--format", help="How to print. Default: human.", rich_help_panel=_PANEL)]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Print the traceback of an unexpected fault; it may show secrets.", rich_help_panel=_PANEL)
]


@dataclass(frozen=True)
class CommonOptions:
    """The common options of one call; those after the command win over those before it."""

    registry: str | None = None
    trusted_key: tuple[str, ...] = ()
    environment: str | None = None
    format: OutputFormat | None = None
    debug: bool = False

    def over(self, earlier: CommonOptions) -> CommonOptions:
        """These options, filled with *earlier* ones."""
        return CommonOptions(
            registry=self.registry or earlier.registry,
            trusted_key=self.trusted_key or earlier.trusted_key,
            environment=self.environment or earlier.environment,
            format=self.format or earlier.format,
            debug=self.debug or earlier.debug,
        )

    def words(self) -> list[str]:
        """The options that another command needs to find the same registry."""
        registry = None if "@" in (self.registry or "") else self.registry  # a URL with a password is nothing to print
        given = [("--registry", registry), *(("--trusted-key", key) for key in self.trusted_key), ("--environment", self.environment)]
        return [word for name, value in given if value for word in (name, value)]


@dataclass
class CliContext:
    """What a command works with; everything is loaded at first use.

    :param options: the common options.
    :param output: where results go.
    """

    options: CommonOptions = field(default_factory=CommonOptions)

    @cached_property
    def output(self) -> Output:
        """Prints in the chosen format."""
        return Output(self.options.format or OutputFormat.HUMAN)

    @cached_property
    def settings(self) -> Settings:
        """Options, environment variables and Airflow's configuration, in this order."""
        from airflow_dpone_xmin.runtime.settings import resolve_settings

        return resolve_settings(registry=self.options.registry, trusted_keys=self.options.trusted_key, environment=self.options.environment)

    @cached_property
    def registry(self) -> VerifiedRegistry:
        """The verified registry that is valid now.

        :raises XminError: whatever :func:`~airflow_dpone_xmin.registry.load.load_registry` refuses.
        """
        from airflow_dpone_xmin.registry.load import load_registry

        settings = self.settings
        return load_registry(settings.require_registry(), trusted_keys=settings.trusted_keys, environment=settings.environment)

    def named_run(self, run_id: str | None) -> str:
        """The scheduler identity of a run, a new UUID unless it is given; told, so that the same run can be named again."""
        if run_id is not None and not run_id.strip():
            raise typer.BadParameter("a run id is not empty; leave the option out for a new run.", param_hint="--run-id")
        name = run_id or str(uuid.uuid4())
        self.output.note(f"run id {name}")
        return name

    def repair(self, ref: str | None) -> RepairSelection | None:
        """The approval of a reference; None when none is named."""
        from airflow_dpone_xmin.runtime.repair import select_repair

        return select_repair(ref, registry=self.registry.document, trusted_keys=self.settings.trusted_keys)

    @cached_property
    def endpoints(self) -> EndpointResolver:
        """Finds credentials of registry entries."""
        from airflow_dpone_xmin.runtime.endpoints import EnvironmentEndpoints

        return EnvironmentEndpoints()


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options and the one error handling.

    :param function: its first parameter is the :class:`CliContext`; the others are its own typer parameters.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    own = [parameter.replace(annotation=hints[parameter.name]) for parameter in list(inspect.signature(function).parameters.values())[1:]]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in (
            ("registry_", RegistryOption, None),
            ("trusted_key_", TrustedKeyOption, None),
            ("environment_", EnvironmentOption, None),
            ("format_", FormatOption, None),
            ("debug_", DebugOption, False),
        )
    ]
    context = inspect.Parameter("typer_context_", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own), *added]

    @functools.wraps(function)
    def wrapper(**values: Any) -> None:
        before = values.pop("typer_context_").find_object(CommonOptions) or CommonOptions()
        options = CommonOptions(
            registry=values.pop("registry_"),
            trusted_key=tuple(values.pop("trusted_key_") or ()),
            environment=values.pop("environment_"),
            format=values.pop("format_"),
            debug=values.pop("debug_"),
        ).over(before)
        _guarded(function, CliContext(options), values)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _guarded(function: Callable[..., None], context: CliContext, values: dict[str, Any]) -> None:
    output = context.output  # before the redirection: it keeps the real stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Airflow logs to stdout, which belongs to the result
            function(context, **values)
    except XminError as error:
        output.error(error)
        raise typer.Exit(exit_code(error)) from None
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except Exception as fault:
        if hasattr(fault, "format_message"):  # a usage error of the option parser, which main() prints
            raise
        if context.options.debug:
            traceback.print_exc()
        unexpected = XminError("run.unexpected", f"An unexpected {type(fault).__name__}; its text is withheld, it may hold secrets.")
        output.error(unexpected)
        raise typer.Exit(exit_code(unexpected)) from None
