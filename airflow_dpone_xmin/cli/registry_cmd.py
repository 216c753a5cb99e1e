"""``dpone-xmin registry``: what an environment's owner does with the signed registry. Nothing in a run calls these.

Imports what is light; the rest lazily.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_dpone_xmin.cli.context import CliContext, command
from airflow_dpone_xmin.cli.output import print_facts, print_table
from airflow_dpone_xmin.contracts.errors import XminError

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_dpone_xmin.registry.load import VerifiedRegistry

app = typer.Typer(help="Make keys; discover, sign, verify, compare and show the signed registry.", no_args_is_help=True)


@app.command("keygen")
@command
def keygen(
    context: CliContext,
    directory: Annotated[Path, typer.Argument(help="Directory for the two files.")] = Path("."),
    name: Annotated[str, typer.Option("--name", help="Name of the files without suffix.")] = "dpone-registry",
) -> None:
    """Make an Ed25519 key pair: NAME.key signs, NAME.pub is what deployments trust."""
    from airflow_dpone_xmin.registry.keys import generate_keypair

    private, public, key_id = generate_keypair(directory, name=name)
    facts = {"private_key": private, "public_key": public, "key_id": key_id}

    def human(console: Console) -> None:
        print_facts(console, facts)
        context.output.note("Keep the private key with the environment's owner; deployments need the public one only.")

    context.output.result(facts, human)


@app.command("sign")
@command
def sign(
    context: CliContext,
    document: Annotated[Path, typer.Argument(help="Unsigned registry document, YAML or JSON.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the signed registry is written.")],
    key: Annotated[str, typer.Option("--key", help="Private key file (PEM), or a securesystemslib signer URI.")],
    public_key: Annotated[str | None, typer.Option("--public-key", help="Public key file of a signer URI.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file.")] = False,
) -> None:
    """Validate a document and sign it."""
    from airflow_dpone_xmin.contracts.registry import PAYLOAD_TYPE
    from airflow_dpone_xmin.registry.keys import read_signer, replace_file, write_new
    from airflow_dpone_xmin.registry.load import read_bytes
    from airflow_dpone_xmin.registry.sign import canonical_payload, read_draft, sign_document

    draft = read_draft(read_bytes(document))
    envelope = sign_document(canonical_payload(draft), read_signer(key, public_key=public_key), payload_type=PAYLOAD_TYPE)
    if force:
        replace_file(output, envelope)
    else:
        write_new(output, envelope)
    facts = {"output": output, "environment": draft.environment, "serial": draft.serial, "not_after": draft.not_after}
    context.output.result(facts, lambda console: print_facts(console, facts))


@app.command("verify")
@command
def verify(
    context: CliContext,
    location: Annotated[str | None, typer.Argument(help="Signed registry; by default the configured one.")] = None,
) -> None:
    """Check signature, form, environment and validity, exactly as a run does."""
    from airflow_dpone_xmin.registry.load import load_registry

    settings = context.settings
    registry = load_registry(location or settings.require_registry(), trusted_keys=settings.trusted_keys, environment=settings.environment)
    facts = _summary(registry)
    context.output.result(facts, lambda console: print_facts(console, facts))


@app.command("show")
@command
def show(
    context: CliContext,
    location: Annotated[str | None, typer.Argument(help="Signed registry; by default the configured one.")] = None,
    entry: Annotated[str | None, typer.Option("--entry", help="Only this connection.")] = None,
) -> None:
    """Print the signed facts. The signature is checked; an expired registry is shown, too."""
    from airflow_dpone_xmin.registry.load import read_registry

    settings = context.settings
    registry = read_registry(location or settings.require_registry(), trusted_keys=settings.trusted_keys)
    document = registry.document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if entry is not None:
        if entry not in document["connections"]:
            raise XminError("DPONE_REGISTRY_CONNECTION_UNKNOWN", f"The registry has no connection {entry!r}.")
        document["connections"] = {entry: document["connections"][entry]}

    def human(console: Console) -> None:
        print_facts(console, _summary(registry))
        console.print()
        console.print(as_yaml({"connections": document["connections"]}), markup=False, soft_wrap=True)

    context.output.result({**_summary(registry), "document": document}, human)


@app.command("diff")
@command
def diff(
    context: CliContext,
    old: Annotated[str, typer.Argument(help="Signed registry in use.")],
    new: Annotated[str, typer.Argument(help="Signed registry that shall replace it.")],
) -> None:
    """Print every pin and fact that a new registry changes. Both signatures are checked."""
    from airflow_dpone_xmin.registry.diff import diff_registries
    from airflow_dpone_xmin.registry.load import read_registry

    keys = context.settings.trusted_keys
    before, after = read_registry(old, trusted_keys=keys), read_registry(new, trusted_keys=keys)
    changes = diff_registries(before.document, after.document)
    data = {
        "old": _summary(before),
        "new": _summary(after),
        "serial_rises": after.serial > before.serial,
        "changes": changes,
    }

    def human(console: Console) -> None:
        rows = [(change.kind, " › ".join(change.path), change.before, change.after) for change in changes]
        print_table(console, ("change", "path", "old", "new"), rows) if rows else console.print("The documents are equal.")
        if changes and not data["serial_rises"]:
            context.output.note("The new serial is not higher: a deployment that accepted the old one refuses or ignores the new one.")

    context.output.result(data, human)


@app.command("discover")
@command
def discover(
    context: CliContext,
    entry: Annotated[str, typer.Argument(help="Name of the connection; its credentials are looked up as in a run.")],
    relation: Annotated[list[str] | None, typer.Option("--relation", help="schema.relation to pin; repeatable.")] = None,
    physical_cluster: Annotated[bool, typer.Option("--physical-cluster", help="Version 1: also system identifier and timeline.")] = False,
    conn_id: Annotated[str | None, typer.Option("--conn-id", help="Airflow connection id, when it is not the entry's name.")] = None,
    database: Annotated[list[str] | None, typer.Option("--database", help="Target database to pin; repeatable.")] = None,
    queries: Annotated[bool, typer.Option("--queries", help="Only print the read-only queries; connect to nothing.")] = False,
    type: Annotated[str, typer.Option("--type", help="postgres (a source), mssql or embedded (a target).")] = "postgres",
) -> None:
    """Print candidate pins for a human to review, with the queries that found them. Nothing is written."""
    from airflow_dpone_xmin.cli.discover import discover_entry

    discover_entry(
        context,
        entry,
        type=type,
        relations=tuple(relation or ()),
        databases=tuple(database or ()),
        physical_cluster=physical_cluster,
        conn_id=conn_id,
        queries_only=queries,
    )


def as_yaml(value: Any) -> str:
    """A fragment as YAML that can be pasted into an unsigned document."""
    from ruamel.yaml import YAML

    stream, yaml = StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(value, stream)
    return stream.getvalue().rstrip()


def _summary(registry: VerifiedRegistry) -> dict[str, Any]:
    document = registry.document
    return {
        "environment": document.environment,
        "serial": registry.serial,
        "not_before": document.not_before,
        "not_after": document.not_after,
        "key_ids": list(registry.key_ids),
        "digest": registry.digest,
        "connections": list(document.connections),
    }
