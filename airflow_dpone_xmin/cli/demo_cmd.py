"""``demo``: the whole product on this machine, on real data, in about a minute. Imports what is light; the rest lazily."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import EXIT_INTERRUPTED, exit_code
from airflow_dpone_xmin.contracts.errors import XminError

if TYPE_CHECKING:
    from rich.text import Text

    from airflow_dpone_xmin.demo.parity import Parity
    from airflow_dpone_xmin.demo.scenario import Report


@command
def demo(
    context: CliContext,
    rows: Annotated[int | None, typer.Option("--rows", min=2_000, help="About so many flights; all 336,776 by default.")] = None,
    plant_wrong_row: Annotated[bool, typer.Option("--plant-wrong-row", hidden=True)] = False,
) -> None:
    """Two embedded servers, real flights, Airflow: baseline, changes, deletes, two kills, a replay, and an independent comparison."""
    from airflow_dpone_xmin.demo.scenario import run_demo
    from airflow_dpone_xmin.demo.show import Show

    output = context.output
    show = Show(None if output.is_json else output.console)
    show.heading("dpone-xmin demo", "One PostgreSQL table kept equal in a target, deletes included, from xmin alone.")
    try:
        report = run_demo(show, rows=rows, plant_wrong_row=plant_wrong_row, on_failure=lambda lines: output.note("\n".join(lines)))
    except KeyboardInterrupt:  # typer would end without a word
        output.error(XminError("run.cancelled", "The demo was interrupted; everything that it started is gone.", hint="Run it again."))
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show.table(report.rows)
    assert report.parity is not None
    if output.is_json:
        output.result(_document(report), lambda _: None)
    show.lines("", _verdict(report.parity))
    if not report.exact:
        raise typer.Exit(_failed(context, report.parity))
    show.lines("", *_where_next(), "", f"{report.seconds:.0f} s. Both servers, Airflow and their files are gone.")


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
        seen = f"\n{parity.source_rows:,} rows on both sides, read whole and compared without the product's own checks"
        return Text("parity: exact", style="bold green").append(seen, style="not bold dim default")
    verdict = Text("parity: different", style="bold red")
    differing = "".join(f"; {name} differs in {count:,}" for name, count in parity.differing.items())
    return verdict.append(f"\nsource {parity.source_rows:,} rows, target {parity.target_rows:,} rows{differing}", style="not bold default")


def _failed(context: CliContext, parity: Parity) -> int:
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
    return [
        Text("Where to look next", style="bold"),
        f"  the DAG and its manifest  {folder.relative_to(here) if folder.is_relative_to(here) else folder}",
        "  the same without Airflow  dpone-xmin --help",
        "  your own tables           README.md",
    ]
