"""Every JSON document that a person or an auditor keeps: published as a schema, exported with checksums, refused when incomplete."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.world import READER

from .test_campaign_cmd import loading  # noqa: F401  (the fixture)
from .test_route_commands import SECRETS, Shell, shell  # noqa: F401

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def validate(name: str, document: Any) -> Any:
    """The document, after its published schema has accepted it."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)
    return document


def exported(shell: Shell, *arguments: str, to: str = "bundle") -> dict[str, Any]:  # noqa: F811
    """An exported bundle, file by file: checksums proven with coreutils, every file against the schema that the index names."""
    done = shell("evidence", "export", "m.yaml", "-o", to, *arguments, "--format", "json")
    assert done.code == 0, done
    directory = shell.directory / to
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=directory, check=True)
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    index = validate("bundle", json.loads(found["index.json"]))
    assert index == done.json
    assert {file["path"] for file in index["files"]} == set(found) - {"index.json", "SHA256SUMS"}
    assert len(found["SHA256SUMS"].splitlines()) == len(found) - 1
    for file in index["files"]:
        content = found[file["path"]]
        assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        validate(file["schema"].removesuffix(".schema.json"), json.loads(content))
    for secret in SECRETS:
        assert secret.encode() not in b"".join(found.values())
    return {name: json.loads(content) for name, content in found.items() if name != "SHA256SUMS"}


def refused(shell: Shell, gap: str) -> None:  # noqa: F811
    """The export names the gap and writes nothing."""
    done = shell("evidence", "export", "m.yaml", "-o", "none", "--format", "json")
    error = validate("error", done.json)["error"]
    assert (done.code, error["code"]) == (1, "evidence.incomplete"), error
    assert any(gap in told for told in error["details"]["gaps"]), error
    assert not (shell.directory / "none").exists()


def owner(shell: Shell, table: str, statement: str) -> None:  # noqa: F811
    """What only a superuser can do to an immutable table."""
    name = shell.world.state_name(table)
    shell.world.target.run(
        f"ALTER TABLE {name} DISABLE TRIGGER ALL", statement.format(table=name), f"ALTER TABLE {name} ENABLE TRIGGER ALL"
    )


def exceptional_day(shell: Shell) -> None:  # noqa: F811
    """A baseline, a run that a guard stops, and the same run again with its approval."""
    shell("run", "m.yaml", "--run-id", "r1")
    shell.world.source.run("DELETE FROM orders WHERE id <= 5")
    shell("run", "m.yaml", "--run-id", "r2")
    shell("repair", "propose", "m.yaml", "--run-id", "r2", "--id", "fix", "--reason", "archived", "-o", "fix.yaml")
    shell("repair", "approve", "m.yaml", "fix.yaml", "--owner", "owner", "--key", "k.key")
    assert shell("run", "m.yaml", "--run-id", "r2", "--repair-authority-ref", "fix").code == 0


# ---- schemas --------------------------------------------------------------------------------------------------------------
def test_what_commands_print_is_what_the_schemas_say(shell: Shell) -> None:  # noqa: F811
    def printed(*arguments: str) -> Any:
        return shell(*arguments, "--format", "json").json

    validate("plan", printed("plan", "m.yaml"))
    assert "sql" in validate("plan", printed("plan", "m.yaml", "--sql"))
    validate("check", printed("check", "m.yaml"))
    assert validate("check", printed("check", "m.yaml", "--connections"))["ok"]
    assert validate("state", printed("state", "show", "m.yaml"))["checkpoint"] is None
    assert validate("evidence", printed("run", "m.yaml", "--run-id", "r1"))["status"] == "committed"
    assert validate("evidence", printed("run", "m.yaml", "--run-id", "r1"))["status"] == "replayed"
    shell.world.source.run("DELETE FROM orders WHERE id <= 5", f"REVOKE SELECT ON orders FROM {READER}")
    assert not validate("check", printed("check", "m.yaml", "--connections"))["ok"]
    assert validate("plan", printed("plan", "m.yaml", "--connections"))["problems"]
    shell.world.source.run(f"GRANT SELECT ON orders TO {READER}")
    assert validate("evidence", printed("run", "m.yaml", "--run-id", "look", "--dry-run"))["refusal"] is not None
    validate("error", printed("run", "m.yaml", "--run-id", "r2"))
    proposed = printed("repair", "propose", "m.yaml", "--run-id", "r2", "--id", "fix", "--reason", "archived", "-o", "fix.yaml")
    validate("approval", proposed)
    validate("state", printed("state", "show", "m.yaml"))
    for receipt in printed("evidence", "show", "m.yaml")["receipts"]:
        validate("receipt", receipt)


def test_a_schema_refuses_a_missing_and_an_unknown_property(shell: Shell) -> None:  # noqa: F811
    (receipt,) = [shell("run", "m.yaml", "--format", "json").json["receipt"]]
    schema = Draft202012Validator(json.loads((SCHEMAS / "receipt.schema.json").read_text()))
    assert schema.is_valid(receipt)
    for name in receipt:
        assert not schema.is_valid({key: value for key, value in receipt.items() if key != name}), name
    assert not schema.is_valid({**receipt, "note": "x"})


# ---- bundles --------------------------------------------------------------------------------------------------------------
def test_the_bundle_of_a_route_and_of_a_run(shell: Shell) -> None:  # noqa: F811
    shell.refused("evidence.not_found", "evidence", "export", "m.yaml", "-o", "bundle")
    exceptional_day(shell)
    route = exported(shell)
    assert sorted(route) == [
        "approvals/fix.json",
        "attempts.json",
        "index.json",
        "receipts/00000001.json",
        "receipts/00000002.json",
        "state.json",
    ]
    assert [(a["run_id"], a["outcome"]) for a in route["attempts.json"]] == [("r1", "committed"), ("r2", "refused"), ("r2", "committed")]
    assert route["approvals/fix.json"]["receipt_id"] == route["receipts/00000002.json"]["receipt_id"]
    assert "signatures" in json.loads(route["approvals/fix.json"]["envelope"])
    assert route["state.json"]["checkpoint"]["revision"] == route["index.json"]["last_revision"] == 2
    assert route["index.json"]["unrecorded_revisions"] == []

    one = exported(shell, "--run-id", "r1", to="one")
    assert sorted(one) == ["attempts.json", "index.json", "receipts/00000001.json"]
    assert (one["index.json"]["run"], len(one["attempts.json"])) == ({"run_id": "r1", "map_index": -1}, 1)
    assert "SHA256SUMS" in shell("evidence", "export", "m.yaml", "-o", "human").err
    shell.refused("registry.output_exists", "evidence", "export", "m.yaml", "-o", "one")
    shell.refused("evidence.not_found", "evidence", "export", "m.yaml", "-o", "x", "--run-id", "r1", "--map-index", "3")
    shell.refused("registry.unwritable", "evidence", "export", "m.yaml", "-o", "k.key/below")


def test_a_commit_whose_process_died_is_named_as_unrecorded(shell: Shell) -> None:  # noqa: F811
    shell("run", "m.yaml", "--run-id", "r1")
    shell.world.target.run(f"DELETE FROM {shell.world.state_name('dpone_load_audit')}")
    assert exported(shell)["index.json"]["unrecorded_revisions"] == [1]
    assert "somebody deleted the record" in shell("evidence", "export", "m.yaml", "-o", "again").err


@pytest.mark.parametrize(
    ("table", "statement", "gap"),
    [
        ("dpone_commit_receipt", "DELETE FROM {table} WHERE new_revision = 1", "revision 1 has no receipt"),
        ("dpone_commit_receipt", "DELETE FROM {table} WHERE new_revision = 2", "revision 2 has no receipt"),
        ("dpone_commit_receipt", "UPDATE {table} SET run_id = 'other' WHERE new_revision = 1", "contradicts the receipt"),
        ("dpone_commit_receipt", "UPDATE {table} SET inserted_count = 19 WHERE new_revision = 1", "counters contradict"),
        ("dpone_repair_authority", "DELETE FROM {table}", "the approval that it consumed"),
        ("dpone_repair_authority", "UPDATE {table} SET reason = 'other'", "the approval that it consumed"),
        ("dpone_repair_authority_consumption", "DELETE FROM {table}", "the approval that it consumed"),
    ],
)
def test_an_incomplete_set_is_refused(shell: Shell, table: str, statement: str, gap: str) -> None:  # noqa: F811
    exceptional_day(shell)
    owner(shell, table, statement)
    refused(shell, gap)


def test_the_bundle_of_a_campaign(loading: Shell) -> None:  # noqa: F811
    """The seed with all its chunks, without their bounds: those are key values."""
    loading("campaign", "open", "m.yaml")
    validate("campaign", loading("campaign", "status", "m.yaml", "--format", "json").json)
    loading("campaign", "lane", "m.yaml", "--lane", "0")
    validate("campaign", loading("campaign", "status", "m.yaml", "--format", "json").json)
    validate("evidence", loading("campaign", "publish", "m.yaml", "--format", "json").json)
    bundle = exported(loading)
    assert [chunk["rows"] for chunk in bundle["campaign.json"]["chunks"]] == [5, 5, 5, 5]
    assert not any("bound" in name for name in bundle["campaign.json"]["chunks"][0])
    owner(loading, "dpone_load_receipt", "UPDATE {table} SET artifact_sha256 = sha256('x') WHERE kind = 'chunk'")
    refused(loading, "the chunks' receipts contradict the seed")
    owner(loading, "dpone_load_receipt", "DELETE FROM {table}")
    refused(loading, "receipts of its chunks are missing")
