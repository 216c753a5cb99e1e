"""``repair propose|approve|show|list``: one-shot approvals of exceptional runs. Imports what is light; the rest lazily."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import print_facts, print_table
from airflow_dpone_xmin.cli.progress import live_progress
from airflow_dpone_xmin.cli.route_cmd import ManifestArgument, MapIndexOption, TableOption, load_route
from airflow_dpone_xmin.contracts.errors import XminError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(help="Approve one exceptional run: a mass delete, a full repair, a transfer of ownership.", no_args_is_help=True)


@app.command("propose")
@command
def propose(
    context: CliContext,
    manifest: ManifestArgument,
    run_id: Annotated[str, typer.Option("--run-id", help="The run that was stopped.")],
    authority_id: Annotated[str, typer.Option("--id", help="Id of the approval; --repair-authority-ref will name it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why this is right; kept with the approval.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the document is written.")],
    table: TableOption = None,
    map_index: MapIndexOption = -1,
    valid_for: Annotated[str, typer.Option("--valid-for", help="Validity, for example 12h or 3d.")] = "24h",
    full_baseline: Annotated[bool, typer.Option("--full-baseline", help="Allow a full payload over an unknown target.")] = False,
    max_delete_rows: Annotated[int | None, typer.Option("--max-delete-rows", min=0, help="Default: what the run observed.")] = None,
    max_delete_ratio: Annotated[str | None, typer.Option("--max-delete-ratio", help="Decimal from 0 to 1. Default: observed.")] = None,
) -> None:
    """Write the approval that a stopped run would need, for review. Approves nothing.

    A run that was stopped before its extraction is rehearsed first, as a dry run: the deletes that would follow are part of the approval.
    """
    from airflow_dpone_xmin.cli.registry_cmd import as_yaml
    from airflow_dpone_xmin.contracts.state import Invocation
    from airflow_dpone_xmin.registry.keys import write_new
    from airflow_dpone_xmin.runtime.repair import propose as make

    route = load_route(context, manifest, table)
    allow = {"full_baseline": full_baseline, "max_delete_rows": max_delete_rows, "max_delete_ratio": _ratio(max_delete_ratio)}
    with live_progress(context.output) as call:
        authority = call(
            make,
            route,
            Invocation(process=route.process, run_id=run_id, map_index=map_index),
            endpoints=context.endpoints,
            authority_id=authority_id,
            reason=reason,
            valid_for=_duration(valid_for),
            **allow,
        )
    document = authority.model_dump(mode="json")
    write_new(output, as_yaml(document).encode("utf-8"))  # never over a document that somebody has reviewed

    def human(console: Console) -> None:
        console.print(as_yaml(document), markup=False, soft_wrap=True)
        command = shlex.join(["dpone-xmin", "repair", "approve", *route.command_words, str(output)])
        context.output.note(f"Review {output}, then: {command} --key … --owner …")

    context.output.result(document, human)


@app.command("approve")
@command
def approve(
    context: CliContext,
    manifest: ManifestArgument,
    document: Annotated[Path, typer.Argument(help="The reviewed document.", show_default=False)],
    owner: Annotated[str, typer.Option("--owner", help="Connection of the state's owner: DPONE_CONN_<OWNER> or an Airflow connection.")],
    table: TableOption = None,
    key: Annotated[str | None, typer.Option("--key", help="Private key that signs the approval (file or signer URI).")] = None,
    public_key: Annotated[str | None, typer.Option("--public-key", help="Public key file of a signer URI.")] = None,
) -> None:
    """Sign the document and insert it as an immutable row, with the owner's login."""
    from airflow_dpone_xmin.contracts.repair import PAYLOAD_TYPE
    from airflow_dpone_xmin.registry.keys import read_signer
    from airflow_dpone_xmin.registry.load import read_bytes
    from airflow_dpone_xmin.registry.sign import sign_document
    from airflow_dpone_xmin.runtime.repair import approve as insert
    from airflow_dpone_xmin.runtime.repair import parse_authority

    route = load_route(context, manifest, table)
    authority = parse_authority(read_bytes(document), yaml=True)
    if key is None and context.registry.document.repair_approvals.signed:
        raise XminError("repair_authority.unsigned", "The registry demands signed approvals; name a --key.")
    envelope = None
    if key is not None:
        payload = json.dumps(authority.model_dump(mode="json"), sort_keys=True).encode("utf-8")
        envelope = sign_document(payload, read_signer(key, public_key=public_key), payload_type=PAYLOAD_TYPE)
        # What no run could verify must not burn the id.
        selection = context.repair(authority.authority_id)
        if selection is not None and selection.open_envelope is not None:
            selection.open_envelope(envelope)
    insert(route, authority, endpoints=context.endpoints, owner=owner, envelope=envelope)
    facts = {"authority_id": authority.authority_id, "digest": authority.digest.hex(), "expires_at": authority.expires_at.isoformat()}

    def human(console: Console) -> None:
        print_facts(console, facts, title="Approved, once")
        context.output.note(f"Run with --repair-authority-ref {authority.authority_id}")

    context.output.result(facts, human)


@app.command("show")
@command
def show(
    context: CliContext,
    manifest: ManifestArgument,
    ref: Annotated[str, typer.Argument(help="Id of the approval.")],
    table: TableOption = None,
) -> None:
    """Show one approval and whether it can still be used."""
    from airflow_dpone_xmin.runtime.approvals import authority_status
    from airflow_dpone_xmin.runtime.repair import authority_documents

    route = load_route(context, manifest, table)
    document = authority_documents(route, endpoints=context.endpoints, ref=ref)[0]
    repair = context.repair(ref)
    if repair is not None:
        status = authority_status(route, endpoints=context.endpoints, repair=repair)
        document |= {"usable": status.ready, "verdict": status.reason, "message": status.message}
    context.output.result(document, lambda console: print_facts(console, document, title=ref))


@app.command("list")
@command
def listing(context: CliContext, manifest: ManifestArgument, table: TableOption = None) -> None:
    """List the newest approvals of the state database."""
    from airflow_dpone_xmin.runtime.repair import authority_documents

    documents = authority_documents(load_route(context, manifest, table), endpoints=context.endpoints, ref=None)

    def human(console: Console) -> None:
        columns = ("authority_id", "state", "expires_at", "receipt_id", "reason")
        print_table(console, columns, [[document.get(column) for column in columns] for document in documents])

    context.output.result({"authorities": documents}, human)


def _duration(text: str) -> timedelta:
    from pydantic import TypeAdapter, ValidationError

    units = {"m": "T{}M", "h": "T{}H", "d": "{}D"}
    spelled = f"P{units[text[-1]].format(text[:-1])}" if text[-1:] in units else text
    try:
        value: Any = TypeAdapter(timedelta).validate_python(spelled)
    except ValidationError:
        raise XminError("cli.usage", "--valid-for is a number with m, h or d, such as 12h.") from None
    if value <= timedelta(0):
        raise XminError("cli.usage", "--valid-for must be positive.")
    return value  # type: ignore[no-any-return]


def _ratio(text: str | None) -> Any:
    try:
        return None if text is None else Decimal(text)
    except InvalidOperation:
        raise XminError("cli.usage", "--max-delete-ratio is a decimal from 0 to 1.") from None
