"""``campaign``: an initial load, planned, opened, filled by lanes, watched, published. Imports what is light; the rest lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import print_facts, print_table
from airflow_dpone_xmin.cli.progress import chunk_progress, live_progress, watch_campaign
from airflow_dpone_xmin.cli.route_cmd import ManifestArgument, TableOption, load_route, show_outcome

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_dpone_xmin.contracts.campaign import CampaignProgress
    from airflow_dpone_xmin.contracts.route import Route

app = typer.Typer(
    help="A resumable initial load: chunks with receipts, published at once, handed over to the incremental process.",
    epilog="One command for all: `campaign run`. By hand: open, then lane (as often and in as many places as you like), then publish.",
    no_args_is_help=True,
)

RunIdOption = Annotated[str | None, typer.Option("--run-id", help="Scheduler identity of this work; a new UUID by default.")]
RepairOption = Annotated[
    str | None,
    typer.Option(
        "--repair-authority-ref",
        envvar="DPONE_REPAIR_AUTHORITY_REF",
        help="One-shot approval of replacing a table that has an owner or tombstones.",
    ),
]
LanesOption = Annotated[int | None, typer.Option("--lanes", min=1, max=64, help="How many interpreters; `parallel_workers` by default.")]


@app.command("plan")
@command
def plan(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=2, help="How many ranges to print; --format json prints all.")] = 10,
) -> None:
    """Show the chunks that opening would write; asks the source, never the target."""
    from airflow_dpone_xmin.runtime.campaign import plan_campaign, spec_of

    route = load_route(context, manifest, table)
    opened, spec = plan_campaign(route, endpoints=context.endpoints), spec_of(route)
    horizons = opened.anchor.horizons
    document = {
        "process": route.process,
        "handoff_id": route.handoff_id,
        "column": spec.column,
        "kind": spec.kind,
        "publication": spec.publication,
        "lanes": spec.lanes,
        "anchor": {"safe": horizons.safe, "visible": horizons.visible, "snapshot": opened.anchor.snapshot},
        "chunks": [{"number": r.number, "lower": r.lower, "upper": r.upper} for r in opened.ranges],
    }

    def human(console: Console) -> None:
        facts = {name: value for name, value in document.items() if name not in ("anchor", "chunks")}
        print_facts(console, {**facts, "U": horizons.safe, "H": horizons.visible, "chunks": len(opened.ranges)}, title="Plan")
        some = opened.ranges if len(opened.ranges) <= limit else (*opened.ranges[: limit - 1], opened.ranges[-1])
        print_table(console, ("chunk", "from (inclusive)", "to (exclusive)"), [(r.number + 1, r.lower, r.upper) for r in some])

    context.output.result(document, human)


@app.command("open")
@command
def open_(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    run_id: RunIdOption = None,
    repair_authority_ref: RepairOption = None,
) -> None:
    """Capture the anchor, write the plan, create the shadow. Opening again changes nothing."""
    from airflow_dpone_xmin.runtime.campaign import open_campaign

    route = load_route(context, manifest, table)
    with live_progress(context.output) as call:
        found = call(open_campaign, route, context.named_run(run_id), **_shared(context, repair_authority_ref))
    _show(context, route, found)


@app.command("lane")
@command
def lane(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    run_id: RunIdOption = None,
    lanes: LanesOption = None,
    number: Annotated[
        int | None, typer.Option("--lane", min=0, help="Be this one lane, in this process: to spread lanes over several machines.")
    ] = None,
) -> None:
    """Fill chunks until all are committed. Stop and start lanes at will; the fence keeps a late one from writing."""
    from airflow_dpone_xmin.runtime.campaign import look_at_campaign, spec_of
    from airflow_dpone_xmin.runtime.lane import run_lane
    from airflow_dpone_xmin.runtime.lanes import run_lanes

    route, name = load_route(context, manifest, table), context.named_run(run_id)
    spec, before = spec_of(route), look_at_campaign(route, endpoints=context.endpoints)
    one = number is not None
    with chunk_progress(context.output, before) as call:
        result = call(run_lane if one else run_lanes, route, name, number if one else lanes or spec.lanes, endpoints=context.endpoints)
    facts = {"chunks": result.chunks, "rows": result.rows}
    context.output.result(facts, lambda console: print_facts(console, facts, title="Committed by these lanes"))


@app.command("status")
@command
def status(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every few seconds until every chunk is committed.")] = False,
) -> None:
    """Show chunks, rows, speed and living lanes; reads only."""
    from airflow_dpone_xmin.runtime.campaign import look_at_campaign

    route = load_route(context, manifest, table)

    def look() -> CampaignProgress:
        return look_at_campaign(route, endpoints=context.endpoints)

    _show(context, route, watch_campaign(context.output, look) if watch else look())


@app.command("publish")
@command
def publish(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    run_id: RunIdOption = None,
    repair_authority_ref: RepairOption = None,
) -> None:
    """Prove the filled table, exchange it for the live one, seed the incremental process: in one transaction."""
    from airflow_dpone_xmin.runtime.campaign import publish_campaign

    route = load_route(context, manifest, table)
    with live_progress(context.output) as call:
        outcome = call(publish_campaign, route, context.named_run(run_id), **_shared(context, repair_authority_ref))
    show_outcome(context, route, outcome)


@app.command("run")
@command
def run(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    run_id: RunIdOption = None,
    lanes: LanesOption = None,
    repair_authority_ref: RepairOption = None,
) -> None:
    """Open, fill and publish in one go; run it again after any failure, and it goes on where it stopped."""
    from airflow_dpone_xmin.runtime.lanes import run_campaign

    route = load_route(context, manifest, table)
    with chunk_progress(context.output, None) as call:
        outcome = call(run_campaign, route, context.named_run(run_id), lanes, **_shared(context, repair_authority_ref))
    show_outcome(context, route, outcome)


@app.command("abandon")
@command
def abandon(
    context: CliContext,
    manifest: ManifestArgument,
    table: TableOption = None,
    run_id: RunIdOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give an open campaign up: its lanes are fenced off, its shadow is dropped; another one needs another handoff_id.

    In place there is no shadow: the rows that were loaded stay, without an owner, until a run with an approved full baseline.
    """
    from airflow_dpone_xmin.runtime.campaign import abandon_campaign, spec_of

    route = load_route(context, manifest, table)
    if not yes:
        in_place = spec_of(route).publication == "in_place"
        fate = "The rows that it has loaded stay in it, without an owner." if in_place else "What it has loaded is dropped."
        typer.confirm(f"Give up campaign {route.handoff_id} of {route.layout.target.display}? {fate}", abort=True, err=True)
    campaign = abandon_campaign(route, context.named_run(run_id), endpoints=context.endpoints)
    facts = {"campaign": campaign.campaign_key.hex(), "handoff_id": campaign.handoff_id, "status": campaign.state.value}
    context.output.result(facts, lambda console: print_facts(console, facts, title=route.process))


def _shared(context: CliContext, ref: str | None) -> dict[str, Any]:
    return {"endpoints": context.endpoints, "repair": context.repair(ref)}


def _show(context: CliContext, route: Route, found: CampaignProgress) -> None:
    from airflow_dpone_xmin.runtime.evidence import campaign_document

    document = campaign_document(route, found)

    def human(console: Console) -> None:
        facts = {name: value for name, value in document.items() if name not in ("v", "lanes", "anchor", "progress")}
        print_facts(console, {**facts, **document["anchor"], "progress": found.sentence()}, title=f"{route.process} → {document['target']}")
        if document["lanes"]:
            rows = [(lane["owner"], lane["chunk"] + 1, lane["since"]) for lane in document["lanes"]]
            print_table(console, ("lane", "chunk", "lease renewed (UTC)"), rows)

    context.output.result(document, human)
