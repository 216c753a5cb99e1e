"""``ddl render|verify|upgrade``: what the owner runs once, whether it is still there, and the step from the version before.

Imports what is light; the rest lazily.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import EXIT_REFUSED
from airflow_dpone_xmin.cli.route_cmd import TableOption, load_route
from airflow_dpone_xmin.contracts.errors import XminError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Render, verify and upgrade the catalog, and render a route's target table. Rendering never connects to the target.",
    no_args_is_help=True,
)

ManifestOption = Annotated[str, typer.Option("--manifest", "-m", help="Manifest of the route; names engine, databases and schemas.")]


@app.command("render")
@command
def render(
    context: CliContext,
    manifest: ManifestOption,
    login: Annotated[str, typer.Option("--login", help="Runtime login (SQL Server) or role that receives the least privileges.")],
    table: TableOption = None,
    part: Annotated[str, typer.Option("--part", help="catalog: once per state database; route: per target table; all.")] = "route",
    binding_id: Annotated[str | None, typer.Option("--binding-id", help="UUID of the target's identity row; default: a new one.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the script to a file.")] = None,
) -> None:
    """Print the DDL and grants for the owner to review and run. The route part reads the source's columns."""
    from airflow_dpone_xmin.runtime.provision import render_scripts

    if part not in ("catalog", "route", "all"):
        raise XminError("cli.usage", "--part is catalog, route or all.")
    try:
        binding = uuid.UUID(binding_id) if binding_id else uuid.uuid4()
    except ValueError:
        raise XminError("cli.usage", "--binding-id is a UUID.") from None
    route = load_route(context, manifest, table)
    text = render_scripts(route, endpoints=context.endpoints, login=login, binding_id=binding, part=part)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise XminError("registry.unwritable", f"{output} cannot be written: {type(error).__name__}.") from None

    def human(console: Console) -> None:
        if output is None:
            console.print(text, markup=False, highlight=False, soft_wrap=True, end="")
        else:
            context.output.note(f"Review {output}, then run it as the owner.")

    context.output.result({"engine": route.layout.engine, "part": part, "script": text}, human)


@app.command("verify")
@command
def verify(context: CliContext, manifest: ManifestOption, table: TableOption = None) -> None:
    """Compare the live catalog with this version's, exactly."""
    from airflow_dpone_xmin.runtime.provision import catalog_differences

    route = load_route(context, manifest, table)
    differences = catalog_differences(route, endpoints=context.endpoints)

    def human(console: Console) -> None:
        for line in differences:
            console.print(line, markup=False, soft_wrap=True)
        console.print("different" if differences else "exact", style="red" if differences else "green")

    context.output.result({"exact": not differences, "differences": differences}, human)
    if differences:
        raise typer.Exit(EXIT_REFUSED)


@app.command("upgrade")
@command
def upgrade(
    context: CliContext,
    manifest: ManifestOption,
    table: TableOption = None,
    owner: Annotated[
        str | None, typer.Option("--owner", help="Connection of the state's owner: DPONE_CONN_<OWNER> or an Airflow connection.")
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the statements for review; connect to nothing.")] = False,
) -> None:
    """Migrate the catalog of the version before in one transaction, or prove that it is this version's already."""
    from airflow_dpone_xmin.runtime.provision import upgrade_catalog, upgrade_script
    from airflow_dpone_xmin.target.catalog import CATALOG_VERSION

    route = load_route(context, manifest, table)
    if only_print:
        script = upgrade_script(route)
        context.output.result(
            {"engine": route.layout.engine, "script": script},
            lambda console: console.print(script, markup=False, highlight=False, soft_wrap=True, end=""),
        )
        return
    if owner is None:
        raise XminError("cli.usage", "Name the owner's connection with --owner, or --print the statements.")
    done = upgrade_catalog(route, endpoints=context.endpoints, owner=owner)
    facts = {"installed": done.found, "version": CATALOG_VERSION, "changed": done.changed}

    def human(console: Console) -> None:
        step = f"upgraded from version {done.found} to {CATALOG_VERSION}" if done.changed else f"version {CATALOG_VERSION} already, exact"
        console.print(step, style="green")

    context.output.result(facts, human)
