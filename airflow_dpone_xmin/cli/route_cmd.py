"""``plan``, ``check`` and ``run``: one route, looked at, predicted, executed; ``types``: what becomes of every PostgreSQL type.

Imports what is light; the rest lazily.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import EXIT_REFUSED, print_error, print_facts, print_table
from airflow_dpone_xmin.cli.progress import live_progress

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_dpone_xmin.contracts.route import Route
    from airflow_dpone_xmin.runtime.check import Report
    from airflow_dpone_xmin.runtime.evidence import Outcome
    from airflow_dpone_xmin.target.finalize import Preview

ManifestArgument = Annotated[str, typer.Argument(help="Manifest file (YAML or JSON).", show_default=False)]
TableOption = Annotated[str | None, typer.Option("--table", help="schema.table, when the manifest names several.")]

MapIndexOption = Annotated[int, typer.Option("--map-index", min=-1, help="Index of a mapped task of a scheduler.")]


def load_routes(context: CliContext, manifest: str) -> list[Route]:
    """All routes of a manifest under the verified registry."""
    from airflow_dpone_xmin.runtime import manifests

    return manifests.load_routes(manifest, context.registry.document, options=context.options.words())


def load_route(context: CliContext, manifest: str, table: str | None) -> Route:
    """The selected route of a manifest."""
    from airflow_dpone_xmin.policy.route import select_route

    return select_route(load_routes(context, manifest), table)


@command
def plan(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    connections: Annotated[bool, typer.Option("--connections", help="Look at both servers: columns and payload become known.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Print the extraction statements; implies --connections.")] = False,
) -> None:
    """Show what a run would do, without doing it."""
    from airflow_dpone_xmin.runtime.plan import plan_document

    route = load_route(context, manifest, table)
    document = plan_document(route, endpoints=context.endpoints if connections or sql else None, with_sql=sql)

    def human(console: Console) -> None:
        facts = {name: document[name] for name in ("process", "engine", "source", "target", "staging", "state", "delete_mode")}
        facts["unique_key"] = ", ".join(document["unique_key"])
        if "payload" in document:
            facts["payload"] = f"{document['payload']['kind']} ({document['payload']['reason']})"
        print_facts(console, facts, title="Route")
        console.print()
        for number, phase in enumerate(document["phases"], start=1):
            console.print(f"{number}. {phase}", markup=False, soft_wrap=True)
        if "columns" in document:
            rows = [
                (c["name"], c["source_type"], c["target_type"], "key" if c["key"] else "", "" if c["nullable"] else "NOT NULL")
                for c in document["columns"]
            ]
            print_table(console, ("column", "source type", "target type", "", ""), rows)
        for name, statement in document.get("sql", {}).items():
            console.print(f"\n-- {name}\n{statement};", markup=False, soft_wrap=True)
        for problem in document["problems"]:
            context.output.note(f"{problem['code']}: {problem['subject']}")

    context.output.result(document, human)


@command
def check(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    connections: Annotated[bool, typer.Option("--connections", help="Also look at both servers; writes nothing to them.")] = False,
) -> None:
    """Predict a run: every fact that would refuse it, with code and hint."""
    from airflow_dpone_xmin.policy.route import select_route
    from airflow_dpone_xmin.runtime.check import check_connections, check_static

    routes = load_routes(context, manifest)
    if table is not None:
        routes = [select_route(routes, table)]
    reports: list[Report] = []
    for route in routes:
        reports.append(check_connections(route, endpoints=context.endpoints) if connections else check_static(route))
    ok = all(report.ok for report in reports)
    document = {"ok": ok, "connections": connections, "routes": [_report(report) for report in reports]}

    def human(console: Console) -> None:
        for report in reports:
            rows = [(_MARKS[f.ok], f.area, f.subject, _seen(f), f.code) for f in report.findings]
            print_table(console, ("", "area", "fact", "observed", "code"), rows, title=report.route.process)
            for hint in dict.fromkeys(f"{f.code}: {f.hint}" for f in report.findings if f.ok is False):
                console.print(hint, markup=False, soft_wrap=True)
        if not connections:
            context.output.note("Static checks only; add --connections to look at both servers.")
        console.print("ready" if ok else "not ready", style="green" if ok else "red")

    context.output.result(document, human)
    if not ok:
        raise typer.Exit(EXIT_REFUSED)


_MARKS = {True: "ok", False: "FAIL", None: "note"}


def _seen(finding: Any) -> str:
    if finding.ok is False and finding.expected:
        return f"{finding.observed} (signed: {finding.expected})"
    return str(finding.observed)


def _report(report: Report) -> dict[str, Any]:
    return {"process": report.route.process, "ok": report.ok, "findings": [asdict(finding) for finding in report.findings]}


@command
def run(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Scheduler identity of the run; the same id again answers from its receipt.")
    ] = None,
    repair_authority_ref: Annotated[
        str | None,
        typer.Option("--repair-authority-ref", envvar="DPONE_REPAIR_AUTHORITY_REF", help="One-shot approval of an exceptional run."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Extract, stage and classify; change nothing in the target.")] = False,
) -> None:
    """Run one route once: all of it commits, or none of it does."""
    from airflow_dpone_xmin.contracts.state import Invocation
    from airflow_dpone_xmin.runtime import reconcile as runtime

    route, repair = load_route(context, manifest, table), context.repair(repair_authority_ref)
    invocation = Invocation(process=route.process, run_id=context.named_run(run_id))
    with live_progress(context.output) as call:
        outcome = call(runtime.dry_run if dry_run else runtime.reconcile, route, invocation, endpoints=context.endpoints, repair=repair)
    if dry_run:
        _show_preview(context, route, outcome)
    else:
        show_outcome(context, route, outcome)


def payload_text(kind: str, reason: str) -> str:
    """``delta``, or ``full`` with its reason."""
    return kind if kind == reason else f"{kind} ({reason})"


def show_outcome(context: CliContext, route: Route, outcome: Outcome) -> None:
    """Print what a commit proved."""
    from airflow_dpone_xmin.runtime.evidence import evidence_document

    def human(console: Console) -> None:
        receipt = outcome.receipt
        facts: dict[str, object] = {
            "status": outcome.status,
            "receipt": receipt.receipt_id,
            "kind": payload_text(receipt.payload.value, receipt.payload_reason),
            "checkpoint": f"revision {receipt.new_revision}, xmin {receipt.new_xmin}, replay amplification {receipt.replay_amplification}",
        }
        if receipt.repair_authority_id is not None:
            facts["repair authority"] = receipt.repair_authority_id
        facts |= receipt.counts.to_dict()
        print_facts(console, facts, title=f"{route.process} → {route.layout.target.display}")
        if outcome.cleanup_error is not None:
            context.output.note(f"committed, but: {outcome.cleanup_error}")

    context.output.result(evidence_document(route, outcome), human)


def _show_preview(context: CliContext, route: Route, preview: Preview) -> None:
    from airflow_dpone_xmin.runtime.evidence import preview_document

    document = preview_document(route, preview)

    def human(console: Console) -> None:
        facts: dict[str, object] = {"kind": payload_text(document["payload"], document["payload_reason"])}
        if preview.repair is not None:
            facts["repair authority"] = f"{preview.repair.authority_id} would be consumed"
        facts |= document["classification"]
        print_facts(console, facts, title=f"{route.process} → {route.layout.target.display}: nothing was changed")
        if preview.refusal is not None:
            print_error(context.output.err, preview.refusal)

    context.output.result(document, human)
    if preview.refusal is not None:
        raise typer.Exit(1)


_TYPE_COLUMNS = {
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
    from airflow_dpone_xmin.policy.types import table

    rows = [row for row in table() if name is None or name.lower() in row["type"]]

    def human(console: Console) -> None:
        print_table(console, tuple(_TYPE_COLUMNS.values()), [[row[field] for field in _TYPE_COLUMNS] for row in rows])
        context.output.note("text contract: `schema_contract.columns.<name>.type: string` lands the type's canonical text.")

    context.output.result({"types": rows}, human)
