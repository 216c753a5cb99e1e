"""The evidence bundle on every engine: what one engine stores reads back the same on the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.runtime.inspect import export_bundle
from tests.approvals import Owner
from tests.world import Setup

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def test_a_bundle_of_receipts_attempts_and_an_approval(worlds: Setup, tmp_path: Path) -> None:
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)",
        "INSERT INTO orders SELECT g, g FROM generate_series(1, 20) g",
        reconciliation={"guards": {"max_delete_rows": 2}},
    )
    world.run("first")
    world.source.run("DELETE FROM orders WHERE id <= 5")
    with pytest.raises(XminError, match=r"guard\.deletes_exceeded"):
        world.run("second")
    world.run("second", repair=Owner(tmp_path).admit(world, "second"))
    index = export_bundle(world.route(), endpoints=world.endpoints, output=tmp_path / "bundle")
    assert (index["receipts"], index["unrecorded_revisions"]) == (2, [])
    assert len(index["files"]) == 5
    for file in index["files"]:
        schema = json.loads((SCHEMAS / file["schema"]).read_text(encoding="utf-8"))
        Draft202012Validator(schema).validate(json.loads((tmp_path / "bundle" / file["path"]).read_text(encoding="utf-8")))
