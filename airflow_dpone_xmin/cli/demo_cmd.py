"""``demo``: the whole product on this machine, on real data, in about a minute. Imports typer; everything else lazily."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_dpone_xmin.cli.context import CliContext, command

if TYPE_CHECKING:
    from rich.text import Text

    from airflow_dpone_xmin.demo.parity import Parity
    from airflow_dpone_xmin.demo.scenario import Report


@command
def demo(
    context: CliContext,
    plant_wrong_row: Annotated[bool, typer.Option("--plant-wrong-row", hidden=True)] = False,
) -> None:
    """Two embedded servers, real flights, Airflow: baseline, changes, deletes, two kills, a replay, and an independent comparison."""
    from airflow_dpone_xmin.demo.scenario import run_demo
    from airflow_dpone_xmin.demo.show import Show

    output = context.output
    show = Show(None if output.is_json else output.console)
    show.heading("dpone-xmin demo", "One PostgreSQL table kept equal in a target, deletes included, from xmin alone.")
    report = run_demo(show, plant_wrong_row=plant_wrong_row, on_failure=lambda lines: output.note("\n".join(lines)))
    show.table(report.rows)
    assert report.parity is not None
    if output.is_json:
        output.result(_document(report), lambda _: None)
    show.lines("", _verdict(report.parity))
    if not report.exact:
        raise typer.Exit(_failed(context, report.parity))
    show.lines("", *_where_next(), "", f"{report.seconds:.0f} s; both servers, Airflow and their files are gone.")


def _document(report: Report) -> dict[str, Any]:
    parity = report.parity
    assert parity is not None
    return {
        "parity": "exact" if parity.exact else "different",
        "source_rows": parity.source_rows,
        "target_rows": parity.target_rows,
        "differing": parity.differing,
        "runs": [row.to_dict() for row in report.rows],
        "seconds": round(report.seconds, 1),
    }


def _verdict(parity: Parity) -> Text:
    from rich.text import Text

    if parity.exact:
        return Text("parity: exact", style="bold green").append(
            f"  {parity.source_rows:,} rows on both sides, read and compared without the product's own checks", style="dim not bold"
        )
    verdict = Text("parity: different", style="bold red")
    verdict.append(f"  source {parity.source_rows:,} rows, target {parity.target_rows:,} rows", style="not bold")
    for name, count in parity.differing.items():
        verdict.append(f"; {name} differs in {count:,}", style="not bold")
    return verdict


def _failed(context: CliContext, parity: Parity) -> int:
    from airflow_dpone_xmin.cli.output import exit_code
    from airflow_dpone_xmin.contracts.errors import XminError

    details = {"source_rows": parity.source_rows, "target_rows": parity.target_rows, "differing": parity.differing}
    error = XminError("demo.parity_failed", "The tables differ after the last run.", details=details)
    if not context.output.is_json:
        context.output.error(error)
    return exit_code(error)


def _where_next() -> list[Text | str]:
    from rich.text import Text

    import airflow_dpone_xmin.demo as package

    folder = Path(str(package.__file__)).with_name("dags")
    here = Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return [
        Text("Where to look next", style="bold"),
        f"  {shown}/flights.py and flights.yaml are the DAG and the manifest that just ran.",
        "  dpone-xmin plan, check and run do the same without Airflow: dpone-xmin --help",
        "  README.md: your own tables, the signed registry, SQL Server.",
    ]
