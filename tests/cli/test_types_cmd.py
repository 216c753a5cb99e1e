"""``types`` prints the whole table for people and for programs."""

from __future__ import annotations

from airflow_dpone_xmin.cli.route_cmd import _TYPE_COLUMNS
from airflow_dpone_xmin.policy.types import KINDS, TYPES

from .conftest import Cli


def test_the_whole_table(cli: Cli) -> None:
    shown = cli("types", "--format", "json")
    assert shown.code == 0
    assert {row["type"] for row in shown.json["types"]} == {*TYPES, *KINDS}


def test_a_log_keeps_every_word(cli: Cli) -> None:
    """No terminal, no end of a line: nothing is cut, and a type is one line."""
    lines, rows = cli("types").out.splitlines(), cli("types", "--format", "json").json["types"]
    for row in rows:
        assert any(all(row[field] in line for field in _TYPE_COLUMNS) for line in lines), row


def test_one_type(cli: Cli) -> None:
    shown = cli("types", "timestamptz")
    assert "datetimeoffset(6)" in shown.out
    assert "uuid" not in shown.out
    assert "schema_contract" in shown.err
