"""The plots of the docs page, from the document that the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.model import Document, Run
from benchmarks.tables import PHASES

mpl.rcParams.update({"svg.hashsalt": "dpone", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
_SIZE = (6.4, 3.2)


def changes(document: Document, axes: Axes) -> None:
    """What an incremental run costs, by how much changed."""
    baseline = next(run for run in document.runs if run.leg == "whole" and run.kind == "baseline")
    runs = [run for run in document.runs if run.leg == "whole" and run.kind == "incremental"]
    _stacked(axes, [baseline, *runs], ["baseline", *[f"{run.changed:.1%}" for run in runs]])
    axes.set_xlabel(f"share of {baseline.rows:,} wide rows that changed")


def growth(document: Document, axes: Axes) -> None:
    """Seconds of a whole run by rows of lineitem."""
    for kind, marker in (("baseline", "o"), ("incremental", "s")):
        runs = _lineitem(document, kind)
        axes.loglog([run.rows for run in runs], [run.seconds.median for run in runs], marker=marker, label=kind)
    axes.set_xlabel("rows of lineitem")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False)


def memory(document: Document, axes: Axes) -> None:
    """Memory above idle by rows of lineitem."""
    for kind, marker in (("baseline", "o"), ("incremental", "s")):
        runs = _lineitem(document, kind)
        axes.semilogx([run.rows for run in runs], [run.peak_mib.high for run in runs], marker=marker, label=kind)
    axes.axhline(300, linestyle="--", linewidth=1, color="grey")
    axes.text(0.99, 303, "budget", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color="grey")
    axes.set_ylim(0, 340)
    axes.set_xlabel("rows of lineitem")
    axes.set_ylabel("MiB above idle")
    axes.legend(frameon=False)


def lanes(document: Document, axes: Axes) -> None:
    """Throughput and memory of a campaign by its lanes."""
    names = [str(part.lanes) for part in document.lanes]
    axes.bar(names, [part.rows_per_second / 1000 for part in document.lanes], width=0.5, label="thousand rows/s")
    axes.set_xlabel("lanes")
    axes.set_ylabel("thousand rows/s")
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    right.plot(names, [part.parent_peak_mib + sum(part.lane_peak_mib) for part in document.lanes], color="C1", marker="o")
    right.set_ylim(bottom=0)
    right.set_ylabel("peak MiB of all processes", color="C1")


PLOTS: Mapping[str, tuple[str, Callable[[Document, Axes], None]]] = {
    "changes": ("whole", changes),
    "growth": ("growth", growth),
    "memory": ("growth", memory),
    "lanes": ("lanes", lanes),
}
"""Plot → the leg that it needs, and what draws it."""


def write_plots(document: Document, directory: Path) -> list[Path]:
    """One SVG per plot whose leg ran; each names the run that it shows."""
    ran = {leg.name for leg in document.legs if leg.status == "run"}
    written = []
    for name, (leg, draw) in PLOTS.items():
        if leg in ran:
            figure = Figure(figsize=_SIZE, layout="constrained")
            draw(document, figure.subplots())
            path = directory / f"benchmark-{name}.svg"
            figure.savefig(path, format="svg", metadata={"Date": None, "Identifier": f"{document.scale} {document.date}"})
            written.append(path)
    return written


def _lineitem(document: Document, kind: str) -> list[Run]:
    return [run for run in document.runs if (run.leg, run.table, run.kind) == ("growth", "lineitem", kind)]


def _stacked(axes: Axes, runs: list[Run], names: list[str]) -> None:
    bottom = [0.0] * len(runs)
    for event, label in PHASES.items():
        seconds = [run.phases[event].median if event in run.phases else 0.0 for run in runs]
        axes.bar(names, seconds, bottom=bottom, width=0.6, label=label)
        bottom = [low + more for low, more in zip(bottom, seconds, strict=True)]
    rest = [max(0.0, run.seconds.median - low) for run, low in zip(runs, bottom, strict=True)]
    axes.bar(names, rest, bottom=bottom, width=0.6, color="lightgrey", label="everything else")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
