"""The document as tables of text, for the terminal and for the docs page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.model import Document, Peers, Spread

Table = tuple[Sequence[str], list[list[str]]]

PHASES = {
    "POSTGRES_COPY_COMPLETE": "rows extracted",
    "POSTGRES_KEYS_COMPLETE": "keys extracted",
    "STAGE_ROWS_COMPLETE": "rows staged",
    "STAGE_KEYS_COMPLETE": "keys staged",
    "FINALIZE_COMPLETE": "finalized",
}


def spread(value: Spread, digits: int = 2) -> str:
    """Median, and least to greatest where they differ."""
    text = f"{value.median:,.{digits}f}"
    low, high = f"{value.low:,.{digits}f}", f"{value.high:,.{digits}f}"
    return text if low == high else f"{text} ({low}–{high})"


def budgets(document: Document) -> Table:
    rows = [
        [
            budget.work,
            f"≤ {budget.limit:g} {budget.unit}",
            "" if budget.measured is None else f"{budget.measured:g} {budget.unit}",
            budget.verdict,
            budget.reason,
        ]
        for budget in document.budgets
    ]
    return ("budget", "limit", "measured", "verdict", "why"), rows


def ratios(document: Document, leg: str | None = None) -> Table:
    rows = [
        [
            ratio.work,
            ratio.against,
            f"{ratio.rows:,}",
            spread(ratio.ratio),
            f"{ratio.work_seconds.median:,.2f} / {ratio.against_seconds.median:,.2f}",
            str(ratio.repetitions),
        ]
        for ratio in document.ratios
        if leg in (None, ratio.leg)
    ]
    return ("work", "against", "rows", "ratio", "seconds", "repetitions"), rows


def runs(document: Document, leg: str | None = None) -> Table:
    chosen = [run for run in document.runs if leg in (None, run.leg)]
    heads = ("table", "run", "rows", "changed", "payload", "seconds", *PHASES.values(), "CPU s", "MiB above idle")
    rows = [
        [
            run.table,
            run.kind,
            f"{run.rows:,}",
            f"{run.changed:.2%}" if run.kind == "incremental" else "",
            f"{run.payload:,}",
            spread(run.seconds),
            *[_phase(run.phases, name) for name in PHASES],
            f"{run.cpu_seconds.median:.2f}",
            f"{run.peak_mib.high:.0f}",
        ]
        for run in chosen
    ]
    return heads, rows


def _phase(phases: Mapping[str, Spread], name: str) -> str:
    return f"{phases[name].median:.2f}" if name in phases else ""


def statements(document: Document) -> Table:
    """Of the baseline and of the run after 1 % of changes: the target side's statements that took longest."""
    chosen = [run for run in document.runs if run.leg == "whole" and (run.kind == "baseline" or run.changed == 0.01)]
    rows = [
        [run.kind, f"{run.rows:,}", f"`{label}`", f"{took.median:.2f}", f"{took.median / run.seconds.median:.0%}"]
        for run in chosen
        for label, took in run.statements.items()
    ]
    return ("run", "rows", "statement or load", "seconds", "of the run"), rows


def costs(document: Document) -> Table:
    rows = [[cost.table, f"{cost.rows:,}", spread(cost.cpu_seconds_per_million), str(cost.repetitions)] for cost in document.costs]
    return ("staged", "rows", "client CPU s per million rows", "repetitions"), rows


def lanes(document: Document) -> Table:
    rows = [
        [
            str(part.lanes),
            f"{part.rows:,}",
            str(part.chunks),
            f"{part.rows_per_second:,.0f}",
            f"{part.open_seconds:.2f}",
            f"{part.start_seconds:.2f}",
            spread(part.fill_seconds),
            f"{part.publish_seconds:.2f}",
            f"{part.parent_peak_mib:.0f}",
            ", ".join(f"{size:.0f}" for size in part.lane_peak_mib),
        ]
        for part in document.lanes
    ]
    heads = ("lanes", "rows", "chunks", "rows/s", "open s", "start s", "fill s", "publish s", "parent, peak MiB", "each lane, peak MiB")
    return heads, rows


def legs(document: Document) -> Table:
    return ("leg", "status", "seconds", "why"), [[leg.name, leg.status, f"{leg.seconds:.0f}", leg.reason] for leg in document.legs]


def peers(document: Peers) -> Table:
    rows = [
        [
            f"{peer.name} {peer.version}",
            peer.work,
            spread(peer.ratio) if peer.ratio else peer.status,
            spread(peer.seconds) if peer.seconds else "",
            spread(peer.cpu_seconds) if peer.cpu_seconds else "",
            f"{peer.peak_mib.high:,.0f}" if peer.peak_mib else "",
            peer.reason,
        ]
        for peer in document.peers
    ]
    return ("tool", "work", "ratio to the product", "seconds", "CPU s", "peak MiB", "why"), rows


TABLES = {
    "Budgets": budgets,
    "Ratios": ratios,
    "Whole runs": runs,
    "Statements of the target side": statements,
    "Client CPU of staging": costs,
    "Lanes": lanes,
    "Legs": legs,
}
