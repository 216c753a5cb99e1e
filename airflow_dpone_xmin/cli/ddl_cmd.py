"""``ddl render|verify``: what the owner runs once, and whether it is still there. Imports typer; everything else lazily."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.route_cmd import TableOption, load_route

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Render and verify the catalog and a route's target table. Rendering never connects to the target.", no_args_is_help=True
)

ManifestOption = Annotated[str, typer.Option("--manifest", "-m", help="Manifest of the route; names engine, databases and schemas.")]


@app.command("render")
@command
def render(
    context: CliContext,
    manifest: ManifestOption,
    login: Annotated[str, typer.Option("--login", help="Runtime login (SQL Server) or role that receives the least privileges.")],
    table: TableOption = None,
    part: Annotated[str, typer.Option("--part", help="catalog: once per state database; route: per target table; all.")] = "all",
    binding_id: Annotated[str | None, typer.Option("--binding-id", help="UUID of the target's identity row; default: a new one.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the script to a file.")] = None,
) -> None:
    """Print the DDL and grants for the owner to review and run. The route part reads the source's columns."""
    import uuid

    from airflow_dpone_xmin.contracts.errors import XminError
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
    from airflow_dpone_xmin.cli.output import EXIT_REFUSED
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
