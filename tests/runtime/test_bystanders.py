"""What others do around a run: locks in their hands, leftovers in staging, a changed table. A run ends, says so, and loses nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from tests.world import Setup, World

TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, note text)", "INSERT INTO orders SELECT g, 'n' FROM generate_series(1, 5) g")


class At:
    """Does something at one step of a run, once.

    :param nth: which occurrence of the step, 1-based.
    """

    def __init__(self, label: str, phase: str, act: Any, *, nth: int = 1) -> None:
        self.label, self.phase, self.act, self.left = label, phase, act, nth

    def __enter__(self) -> At:
        OBSERVERS.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        OBSERVERS.remove(self)

    def __call__(self, event: Event) -> None:
        if (event.label, event.phase) != (self.label, self.phase):
            return
        self.left -= 1
        if self.left == 0:
            self.act()


def test_a_trigger_added_while_rows_were_extracted_is_noticed_under_the_lock(worlds: Setup, embedded_only: None) -> None:
    """The shape was right at admission; what is written is decided by the table under the lock."""
    world: World = worlds(*TABLE)
    function = (
        "CREATE FUNCTION landing.spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.note := 'spoiled'; RETURN NEW; END $$",
        "CREATE TRIGGER spoil BEFORE INSERT OR UPDATE ON landing.orders FOR EACH ROW EXECUTE FUNCTION landing.spoil()",
    )
    with At("stage.index", "after", lambda: world.target.run(*function)), pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "DPONE_TARGET_UNSUPPORTED"
    assert world.target_rows(("id",)) == []


def test_leftovers_of_another_login_do_not_stop_a_run(worlds: Setup, embedded_only: None) -> None:
    """Clean-up that fails is told and tried again later."""
    world: World = worlds(*TABLE)
    name = f"dpone_stg_{'0' * 31}1_rows"
    world.target.run(f'CREATE TABLE staging."{name}" (id bigint)')
    told: list[Progress] = []
    assert world.run(progress=told.append).status == "committed"
    assert "CLEANUP_FAILED" in [event.event for event in told]
    assert world.target.rows(f"SELECT to_regclass('staging.{name}') IS NOT NULL") == [(True,)]


def test_a_table_emptied_with_approval_stays_empty_without_another_one(worlds: Setup) -> None:
    """Nothing on both sides and a checkpoint: there is nothing to guard."""
    world: World = worlds(*TABLE, reconciliation={"guards": {}})
    world.run()
    world.target.run(*_delete_all(world))
    world.source.run("DELETE FROM orders")
    outcome = world.run()
    assert (outcome.receipt.counts.keys, outcome.receipt.counts.active_after, outcome.receipt.counts.total_after) == (0, 0, 0)


def _delete_all(world: World) -> list[str]:
    schema = world.target.layout(world.table).target.namespace.schema
    return [f"DELETE FROM {world.target.name(schema, world.table)}"]


def test_an_outcome_in_doubt_is_told_in_bounded_time(worlds: Setup, embedded_only: None) -> None:
    """The acknowledgement is lost while the server still holds every lock of the transaction: the run says `unknown`, and ends."""
    world: World = worlds(*TABLE, manifest_over={"sink": {"options": {"lock_timeout_seconds": 1}}})
    blocker = world.target.cluster.connect(world.target.database, autocommit=False)
    release = threading.Event()

    def in_doubt() -> None:
        # Another backend takes what the finalizer's would hold if it were frozen in its COMMIT.
        blocker.execute("LOCK TABLE governance.dpone_run_state, governance.dpone_commit_receipt IN ACCESS EXCLUSIVE MODE")
        release.set()
        raise ConnectionError("the acknowledgement is lost")

    started = time.monotonic()
    try:
        # The first commit is the admission's.
        with At("transaction.commit", "after", in_doubt, nth=2), pytest.raises(XminError) as caught:
            world.run()
        assert release.is_set()
        assert (caught.value.code, caught.value.retryable) == ("mssql_transaction.commit_outcome_unknown", True)
        assert time.monotonic() - started < 60
    finally:
        blocker.rollback()
        blocker.close()
    assert world.target_rows(("id",)) == [(i,) for i in range(1, 6)]  # it had committed


def test_the_bare_command_prints_help_and_no_traceback() -> None:
    """The first thing that a user types."""
    code = "from airflow_dpone_xmin.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Usage" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2)
