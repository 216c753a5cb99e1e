"""``state show`` and ``evidence show|export``: where a route stands, and what proves it. Imports what is light; the rest lazily."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import print_facts, print_table
from airflow_dpone_xmin.cli.route_cmd import ManifestArgument, MapIndexOption, TableOption, load_route, payload_text

if TYPE_CHECKING:
    from rich.console import Console

state_app = typer.Typer(help="Checkpoint, head and owner of a route.", no_args_is_help=True)
evidence_app = typer.Typer(help="Receipts: the immutable proofs of commits.", no_args_is_help=True)


@state_app.command("show")
@command
def state_show(context: CliContext, manifest: ManifestArgument, table: TableOption = None) -> None:
    """Show checkpoint and head, and whether they agree."""
    from airflow_dpone_xmin.runtime.inspect import state_document

    document = state_document(load_route(context, manifest, table), endpoints=context.endpoints)

    def human(console: Console) -> None:
        print_facts(console, {name: value for name, value in document.items() if not isinstance(value, dict)}, title=document["process"])
        for name in ("checkpoint", "head"):
            if document[name] is None:
                console.print(f"{name}: none")
            else:
                print_facts(console, document[name], title=name)

    context.output.result(document, human)


@evidence_app.command("show")
@command
def evidence_show(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Show the receipt of this run.")] = None,
    map_index: MapIndexOption = -1,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many receipts, newest first.")] = 5,
) -> None:
    """Show the receipt of a run, or the newest receipts of the route."""
    from airflow_dpone_xmin.runtime.inspect import receipt_documents

    route = load_route(context, manifest, table)
    receipts = receipt_documents(route, endpoints=context.endpoints, run_id=run_id, limit=limit, map_index=map_index)

    def human(console: Console) -> None:
        if run_id is not None:
            flat = {
                name: value for name, value in receipts[0].items() if name not in ("checkpoint", "counts", "digests", "payload", "kind")
            }
            flat["kind"] = payload_text(receipts[0]["payload"], receipts[0]["payload_reason"])
            print_facts(console, {**flat, **receipts[0]["checkpoint"], **receipts[0]["counts"], **receipts[0]["digests"]}, title="Receipt")
            return
        names = ("payload", "inserted", "updated", "reactivated", "unchanged", "soft_deleted", "hard_deleted", "active_after")
        rows = [
            (r["checkpoint"]["revision"], r["run_id"], r["payload"], *(r["counts"][name] for name in names), r["detected_at_utc"])
            for r in receipts
        ]
        print_table(console, ("revision", "run", "kind", *names, "detected (UTC)"), rows)

    context.output.result({"receipts": receipts}, human)


@evidence_app.command("export")
@command
def evidence_export(
    context: CliContext,
    manifest: ManifestArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write; it must be new or empty.")],
    table: TableOption = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Only this run; by default every commit of the route.")] = None,
    map_index: MapIndexOption = -1,
) -> None:
    """Write receipts, attempts, approvals and campaign with an index of SHA-256 checksums; an incomplete set is refused."""
    from airflow_dpone_xmin.runtime.inspect import export_bundle

    route = load_route(context, manifest, table)
    index = export_bundle(route, endpoints=context.endpoints, output=output, run_id=run_id, map_index=map_index)
    facts = {name: value for name, value in index.items() if name not in ("files", "source", "v")} | {"files": len(index["files"])}

    def human(console: Console) -> None:
        print_facts(console, facts, title=str(output))
        if index["unrecorded_revisions"]:
            context.output.note("Unrecorded revisions did commit; their process died before it said so, or somebody deleted the record.")
        context.output.note(f"Verify with: cd {output} && sha256sum --check --strict SHA256SUMS")

    context.output.result(index, human)
