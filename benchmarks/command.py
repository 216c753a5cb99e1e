"""The command: run the legs, judge the budgets, write JSON, print tables, publish to the docs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import tables
from benchmarks.budgets import judge
from benchmarks.child import processors
from benchmarks.legs import LEGS, Bench, NotRun
from benchmarks.measure import Findings
from benchmarks.model import Document, Leg, Machine, Peers
from benchmarks.place import ROOT, SETTINGS, Place, opened
from benchmarks.scale import SCALES, Scale

RESULTS = ROOT / "benchmarks" / "results.json"
"""What the docs page shows."""

app = typer.Typer(add_completion=False)
console = Console(stderr=True)


@app.command()
def run(
    scale: Annotated[str, typer.Option(help=f"one of {', '.join(SCALES)}")] = "small",
    only: Annotated[list[str] | None, typer.Option(help=f"a leg, repeatable: {', '.join(LEGS)}")] = None,
    output: Annotated[Path | None, typer.Option(help="the JSON document; by default build/benchmarks/<scale>.json")] = None,
    publish: Annotated[bool, typer.Option(help="also write benchmarks/results.json, the plots and the docs page")] = False,
) -> None:
    """Measure; the exit code is 1 when a leg failed or a budget was missed."""
    with _steps() as say:
        document = measure(SCALES[scale], only or list(LEGS), say)
    show(document)
    write(document, output or ROOT / "build" / "benchmarks" / f"{scale}.json")
    if publish:
        publish_document(document)
    wrong = any(leg.status == "failed" for leg in document.legs) or any(budget.verdict == "missed" for budget in document.budgets)
    raise typer.Exit(1 if wrong else 0)


def measure(scale: Scale, chosen: Sequence[str], say: Callable[[str], None]) -> Document:
    """Run the chosen legs on fresh servers."""
    date, started, found, where = datetime.now(UTC), time.monotonic(), Findings(), machine()
    with opened() as place:
        legs = [_leg(name, Bench(place, scale, found, say), chosen) for name in LEGS]
        return Document(
            scale=scale.name,
            date=date.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - started, 1),
            commit=commit(),
            machine=where,
            engine=place.engine,
            versions=versions(place),
            settings={**SETTINGS, "fsync": "off"},
            legs=legs,
            ratios=found.ratios,
            runs=found.runs,
            costs=found.costs,
            lanes=found.lanes,
            budgets=judge(found, scale),
        )


def _leg(name: str, bench: Bench, chosen: Sequence[str]) -> Leg:
    if name not in chosen:
        return Leg(name=name, status="not_run", reason="not asked for", seconds=0)
    started = time.monotonic()
    try:
        LEGS[name](bench)
    except NotRun as reason:
        return Leg(name=name, status="not_run", reason=str(reason), seconds=0)
    except Exception as error:
        console.print_exception()
        return Leg(name=name, status="failed", reason=f"{type(error).__name__}: {error}", seconds=round(time.monotonic() - started, 1))
    return Leg(name=name, status="run", reason="", seconds=round(time.monotonic() - started, 1))


# ---- where it ran ---------------------------------------------------------------------------------------------------------
def commit() -> str:
    """The commit that is checked out, with a plus when tracked files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> Machine:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        processor=processor,
        cpus=processors(),
        memory_gib=round(memory, 1),
        system=f"{platform.system()} {platform.machine()}",
        load=round(os.getloadavg()[0], 1),
    )


def versions(place: Place) -> dict[str, str]:
    packages = ("airflow-dpone-xmin", "adbc-driver-postgresql", "pyarrow", "SQLAlchemy")
    return {"PostgreSQL": place.postgres_version(), "Python": platform.python_version(), **{name: version(name) for name in packages}}


# ---- what becomes of it ---------------------------------------------------------------------------------------------------
@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    with Progress(SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("starting the servers", total=None)

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(f"{datetime.now():%H:%M:%S} {text}")

        yield say


def terminal() -> Console:
    """The terminal; a file or pipe gets lines long enough for the widest table."""
    out = Console()
    return out if out.is_terminal else Console(width=240)


def show(document: Document) -> None:
    """Every table that has rows."""
    out = terminal()
    for title, build in tables.TABLES.items():
        heads, rows = build(document)
        if rows:
            table = Table(*heads, title=title, title_justify="left")
            for row in rows:
                table.add_row(*row)
            out.print(table)


def write(document: Document | Peers, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console.print(f"written: {path}")


def publish_document(document: Document) -> None:
    """The committed JSON, the plots, and the page that shows both."""
    from benchmarks.plots import write_plots

    write(document, RESULTS)
    write_plots(document, ROOT / "docs" / "images")
    regenerate()


def regenerate() -> None:
    """The generated pages, this one among them."""
    subprocess.run([sys.executable, "docs/generate.py"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
