"""``campaign`` on real databases, as a person and as a program sees it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.world import WRITER

from .test_route_commands import Shell, shell  # noqa: F401  (the fixture)

CHUNK = {"column": "id", "from": 1, "to": 20, "step": 5}


@pytest.fixture
def loading(shell: Shell) -> Shell:  # noqa: F811
    """The shell's route, as an initial load."""
    world = shell.world
    backfill: dict[str, Any] = {"inner_mode": "incremental_append", "publication": {"mode": "shadow_swap"}, "chunk": CHUNK}
    world.manifest_over = {
        "source": {"options": {"xmin_execution": {"mode": "initial", "handoff_id": "orders_v1"}}},
        "sink": {"strategy": {"mode": "backfill", "backfill": {**backfill, "parallel_workers": 2}}},
    }
    schema = world.target.layout(world.table).target.namespace.schema
    world.target.run(f"ALTER TABLE {world.target_name} OWNER TO {WRITER}", f'GRANT CREATE ON SCHEMA "{schema}" TO {WRITER}')
    shell.write()
    return shell


def test_by_hand(loading: Shell) -> None:
    """plan, open, one lane, status, publish; then the scheduled half."""
    plan = loading("campaign", "plan", "m.yaml", "--format", "json").json
    assert [(c["lower"], c["upper"]) for c in plan["chunks"]] == [("1", "6"), ("6", "11"), ("11", "16"), ("16", "21")]
    assert "chunks       4" in loading("campaign", "plan", "m.yaml").out
    assert "campaign.not_open" in loading("campaign", "status", "m.yaml").err
    assert "0/4 chunks" in loading("campaign", "open", "m.yaml", "--run-id", "r1").out
    assert "run id r1" in loading("campaign", "open", "m.yaml", "--run-id", "r1").err
    assert "campaign.incomplete" in loading("campaign", "publish", "m.yaml").err
    done = loading("campaign", "lane", "m.yaml", "--lane", "0", "--format", "json")
    assert done.json == {"chunks": 4, "rows": 20}
    status = loading("campaign", "status", "m.yaml", "--format", "json").json
    assert (status["status"], status["progress"]["committed"], status["progress"]["rows"]) == ("open", 4, 20)
    assert "4/4 chunks, 20 rows" in loading("campaign", "status", "m.yaml", "--watch").out
    published = loading("campaign", "publish", "m.yaml", "--format", "json").json
    assert (published["status"], published["receipt"]["kind"], published["receipt"]["checkpoint"]["revision"]) == ("committed", "seed", 1)
    assert "replayed" in loading("campaign", "publish", "m.yaml").out
    assert "campaign.not_open" in loading("campaign", "abandon", "m.yaml", "--yes").err


def test_in_one_go_with_interpreters_of_its_own(loading: Shell) -> None:
    done = loading("campaign", "run", "m.yaml", "--lanes", "2")
    assert done.code == 0, done
    assert "committed" in done.out and done.err.count("chunk committed") == 4
    assert loading.world.target_rows(("id", "qty")) == loading.world.source_rows(("id", "qty"))


def test_check_predicts_the_opening(loading: Shell) -> None:
    checked = loading("check", "m.yaml", "--connections")
    assert checked.code == 0 and "would open 4 chunks" in checked.out, checked
    loading.world.source.run("INSERT INTO orders VALUES (21, 1, 'outside')")
    assert "campaign.rows_outside_range" in loading("check", "m.yaml", "--connections").out
    assert "campaign.rows_outside_range" in loading("campaign", "open", "m.yaml").err
    loading.world.source.run("DELETE FROM orders WHERE id = 21")
    loading("campaign", "open", "m.yaml")
    assert "open: 0/4 chunks" in loading("check", "m.yaml", "--connections").out


@pytest.mark.parametrize("command", ["plan", "open", "lane", "publish", "abandon"])
def test_an_incremental_manifest_is_no_campaign(shell: Shell, command: str) -> None:  # noqa: F811
    """Refused before anybody is asked anything."""
    shell.write()
    shell.refused("DPONE_STRATEGY_UNSUPPORTED", "campaign", command, "m.yaml")


def test_abandoning_asks_first(loading: Shell) -> None:
    loading("campaign", "open", "m.yaml")
    loading.environ.setattr("sys.stdin", io.StringIO("n\n"))
    asked = loading("campaign", "abandon", "m.yaml")
    assert asked.code == 130
    assert "0/4 chunks" in loading("campaign", "status", "m.yaml").out
    assert loading("campaign", "abandon", "m.yaml", "--yes", "--format", "json").json["status"] == "abandoned"
    assert "campaign.not_open" in loading("campaign", "lane", "m.yaml").err


def test_an_incremental_manifest_is_told_so(shell: Shell) -> None:  # noqa: F811
    assert "DPONE_STRATEGY_UNSUPPORTED" in shell("campaign", "plan", "m.yaml").err


def test_rendered_rights_allow_the_exchange(loading: Shell) -> None:
    """``ddl render`` of an initial manifest holds what the campaign needs beside a run."""
    script = loading("ddl", "render", "-m", "m.yaml", "--login", WRITER, "--part", "route").out
    assert "OWNER TO" in script and "GRANT CREATE ON SCHEMA" in script
    loading.world.manifest_over = {}
    (loading.directory / "m.yaml").write_text(json.dumps(loading.world.manifest()))
    assert "OWNER TO" not in loading("ddl", "render", "-m", "m.yaml", "--login", WRITER, "--part", "route").out
