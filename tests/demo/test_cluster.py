"""The embedded server: starts anywhere, survives a crash, leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster


def alive(pid: int) -> bool:
    """Where process 1 reaps nobody, an ended server stays in the table as a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_lifecycle() -> None:
    with EmbeddedCluster(settings={"max_prepared_transactions": 3, "application_name": "o'brien"}) as cluster:
        pid, directory, socket = cluster.pid, cluster.directory, cluster.socket
        assert pid is not None
        assert len(str(socket / ".s.PGSQL.5432")) < 107
        cluster.create_database("some db", owner="postgres")
        with cluster.connect("some db") as connection:
            connection.execute("CREATE TABLE t (id int)")
            connection.execute("INSERT INTO t VALUES (1)")
            assert connection.execute("SHOW max_prepared_transactions").fetchone() == ("3",)
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        cluster.kill()
        assert not cluster.running
        with pytest.raises(psycopg.OperationalError):
            cluster.connect()
        cluster.start()
        with cluster.connect("some db") as connection:
            assert connection.execute("SELECT id FROM t").fetchone() == (1,)
        cluster.stop()
        cluster.stop()
        cluster.start()
        cluster.drop_database("some db")
        pid = cluster.pid
    assert not directory.exists()
    assert not socket.exists()
    assert pid is not None
    assert not alive(pid)
    cluster.close()


def test_a_server_does_not_outlive_a_killed_owner() -> None:
    code = """
        import sys, time
        from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
        cluster = EmbeddedCluster()
        print(cluster.pid, cluster.directory.parent, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        owner.kill()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and (alive(int(pid)) or Path(directory).exists()):
        time.sleep(0.1)
    assert not alive(int(pid))
    assert not Path(directory).exists()


def test_a_failing_tool_says_why() -> None:
    with EmbeddedCluster() as cluster, pytest.raises(RuntimeError, match="vacuumdb failed"):
        cluster.tool("vacuumdb", ["-h", str(cluster.socket), "-U", "postgres", "nowhere"])


def test_a_server_that_cannot_start_is_cleaned_up() -> None:
    directory = Path(tempfile.mkdtemp(prefix="dpx"))
    with pytest.raises(RuntimeError, match="unrecognized configuration parameter"):
        EmbeddedCluster(directory, settings={"no_such_setting": 1})
    assert not directory.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the server's user")
def test_a_directory_that_the_server_cannot_reach(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(RuntimeError, match="choose another directory"):
        EmbeddedCluster(tmp_path / "c")
