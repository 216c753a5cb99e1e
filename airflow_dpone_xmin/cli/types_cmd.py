"""``types``: what becomes of every PostgreSQL type. Imports typer; everything else lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from airflow_dpone_xmin.cli.context import CliContext, command

if TYPE_CHECKING:
    from rich.console import Console

_HUMAN = {
    "type": "type",
    "verdict": "verdict",
    "mssql": "SQL Server",
    "embedded": "embedded",
    "key": "key",
    "guard": "values must be",
    "note": "note",
}


@command
def types(
    context: CliContext,
    name: Annotated[str | None, typer.Argument(help="Only types whose name holds this text.", show_default=False)] = None,
) -> None:
    """Print the type table: carried natively, landed as text under a contract, or refused."""
    from airflow_dpone_xmin.cli.output import print_table
    from airflow_dpone_xmin.policy.types import table

    rows = [row for row in table() if name is None or name.lower() in row["type"]]

    def human(console: Console) -> None:
        print_table(console, tuple(_HUMAN.values()), [[row[field] for field in _HUMAN] for row in rows])
        context.output.note("text contract: `schema_contract.columns.<name>.type: string` lands the type's canonical text.")

    context.output.result({"types": rows}, human)
