"""Chunks and the handoff read from replicas that lag: nothing older than what was already seen is accepted."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.runtime import lane as lanes_module
from tests.campaigns import COLUMNS, INTEGER, TABLE, incremental, initial, lane, opened, published, refusal
from tests.world import MODES, Setup, SourceSide, World


@contextmanager
def standby_of(primary: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    directory = Path(tempfile.mkdtemp(prefix="dpx"))
    directory.chmod(0o777)
    try:
        copy = ["-D", str(directory / "data"), "-h", str(primary.socket), "-U", "postgres", "-R", "-X", "stream", "-c", "fast"]
        primary.tool("pg_basebackup", copy)
        with EmbeddedCluster(directory) as standby:
            yield standby
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def replay(standby: EmbeddedCluster, primary: EmbeddedCluster) -> None:
    """Wait until the standby shows what the primary has now."""
    with primary.connect() as owner, standby.connect() as replica:
        (lsn,) = owner.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
        until = time.monotonic() + 60
        while replica.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [lsn]).fetchone() != (True,):
            assert time.monotonic() < until
            time.sleep(0.05)


def pause(standby: EmbeddedCluster) -> None:
    with standby.connect() as replica:
        replica.execute("SELECT pg_wal_replay_pause()")
        while replica.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
            time.sleep(0.02)


def resume(standby: EmbeddedCluster) -> None:
    with standby.connect() as replica:
        replica.execute("SELECT pg_wal_replay_resume()")


@pytest.mark.timeout(600)
def test_two_standbys_of_which_one_lags(
    worlds: Setup, embedded_only: None, source_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anchor from the one that is ahead: the other one's chunk is refused until it has caught up, and so is the run after the handoff."""
    monkeypatch.setattr(lanes_module, "WAITS_SECONDS", (0, 0))
    world: World = worlds(*TABLE, manifest_over=initial(INTEGER), reconciliation=MODES["timestamp_only"])
    primary, database = world.source, world.source.database
    with standby_of(source_cluster) as ahead, standby_of(source_cluster) as behind:
        fast, slow = SourceSide(ahead, database), SourceSide(behind, database)
        for standby in (ahead, behind):
            replay(standby, source_cluster)
        pause(behind)
        primary.run("UPDATE orders SET qty = 9 WHERE id = 3")
        replay(ahead, source_cluster)
        world.source = fast
        world.forget_pins()
        opened(world)
        world.source = slow
        error = refusal(lane, world)
        assert (error.code, error.retryable) == ("campaign.source_lags", True)
        resume(behind)
        primary.run("UPDATE orders SET qty = 8 WHERE id = 3")
        replay(behind, source_cluster)
        pause(behind)
        primary.run("DELETE FROM orders WHERE id = 9", "INSERT INTO orders VALUES (9, 1, 'seen by a chunk')")
        primary.run("INSERT INTO orders VALUES (5000, 1, 'seen by none')")
        replay(ahead, source_cluster)
        world.source = fast
        assert lane(world).chunks == 10
        published(world)
        incremental(world)
        world.source = slow
        late = refusal(world.run)  # it would delete rows that a chunk saw, and that it does not see yet
        assert (late.code, late.retryable) == ("xmin_window.standby_lags", True)
        assert len(world.target_rows(COLUMNS)) == 1000
        resume(behind)
        replay(behind, source_cluster)
        world.run()
        world.source = primary
        assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
