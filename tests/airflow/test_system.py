"""The whole product in a live Airflow: real scheduler, LocalExecutor, triggerer, API server, supervisor and task processes.

Nightly: two cores need minutes for it. `test_supervisor.py` holds the sample of it that every change runs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from tests.airflow.compose import Compose, example
from tests.airflow.live import LiveAirflow
from tests.airflow.victims import VICTIMS

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
EXAMPLES = ("scheduled_incremental", "exceptional_run", "many_tables", "manual_backfill", "after_backfill")
KEYS = {"orders": "id", "payments": "id", "customers": "id", "products": "id", "order_lines": "order_id, line_no"}


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Source and target, provisioned by the compose environment's own set-up."""
    with EmbeddedCluster() as source, EmbeddedCluster(settings={"max_connections": 200}) as target:
        environment = Compose(source, target, tmp_path_factory.mktemp("system"))
        environment.init()
        yield environment


@pytest.fixture(scope="module")
def live(compose: Compose) -> Iterator[LiveAirflow]:
    """Airflow with the examples and the victims; connections in its metadata database, as a user would keep them."""
    home = compose.directory / "airflow"
    (home / "dags").mkdir(parents=True)
    (home / "marks").mkdir()
    for name in EXAMPLES:
        (home / "dags" / f"{name}.py").write_text(example(name))
    shutil.copy(Path(__file__).parent / "dags" / "victims.py", home / "dags")
    compose.target.create_database("airflow")
    metadata = f"postgresql+psycopg2://postgres@/airflow?host={compose.target.socket}"
    airflow = LiveAirflow(home, metadata=metadata, variables={**compose.airflow(), "VICTIM_MARKS": str(home / "marks")})
    try:
        airflow.wait_ready(*EXAMPLES, *VICTIMS)
        for name, connection in compose.connections.items():
            body = {"connection_id": name, **connection}
            airflow.send("POST", "/api/v2/connections", {key: value for key, value in body.items() if value is not None})
        yield airflow
    finally:
        airflow.close()


def same(compose: Compose, table: str) -> bool:
    """Whether the active target rows are the source's."""
    key = KEYS[table]
    with compose.source.connect("shop") as owner:
        source = owner.execute(f"SELECT {key} FROM {table} ORDER BY {key}").fetchall()  # type: ignore[call-overload]
    return bool(source == compose.target_rows(f"SELECT {key} FROM landing.{table} WHERE __dpone__deleted_at IS NULL ORDER BY {key}"))


def test_runs_survive_signals_deferral_and_clearing_and_the_page_shows_them(live: LiveAirflow, compose: Compose) -> None:
    for name in VICTIMS:
        live.trigger(name, "first")
    live.trigger("exceptional_run", "waits", repair_authority_ref="not-there")
    for name in VICTIMS:
        task = live.wait_task(name, "first", name, "success")
        summary = live.xcom(name, "first", name)
        # a loaded machine may cost a try before the product is even reached: its own count of attempts is exact
        assert (summary["status"], summary["attempt"]) == ("committed", 2) and task["try_number"] >= 2, name
        assert same(compose, summary["target"].split(".")[-1])
        told = "".join(live.log(name, "first", name, attempt=number) for number in range(1, task["try_number"]))
        assert ("run.cancelled" in told) is name.startswith("sigterm"), told
    assert compose.target_rows("SELECT count(*), count(DISTINCT invocation_digest) FROM dpone.dpone_commit_receipt") == [(4, 4)]

    # a cleared task answers from its receipt, and says so
    (cleared, *_) = VICTIMS
    before, tries = live.xcom(cleared, "first", cleared)["receipt_id"], live.task(cleared, "first", cleared)["try_number"]
    live.send("POST", f"/api/v2/dags/{cleared}/clearTaskInstances", {"dry_run": False, "only_failed": False, "dag_run_id": "first"})
    live.until(lambda: live.task(cleared, "first", cleared)["try_number"] > tries, "the cleared task runs again")
    live.wait_task(cleared, "first", cleared, "success")
    again = live.xcom(cleared, "first", cleared)
    assert (again["status"], again["receipt_id"]) == ("replayed", before)
    assert "had already committed; nothing was read or written" in live.log(cleared, "first", cleared)

    # the next runs are deltas; one mapped task for each table
    compose.source_run("DELETE FROM products WHERE id = 1")
    live.trigger("many_tables", "second")
    live.wait_run("many_tables", "second")
    summaries = [live.xcom("many_tables", "second", "reconcile", map_index=index) for index in range(3)]
    assert {summary["payload"] for summary in summaries} == {"delta"}
    # unpausing it may have started its hourly run, too: whichever came first marked the row
    marked = "SELECT sum(soft_deleted_count) FROM dpone.dpone_commit_receipt WHERE process = 'shop:public.products'"
    assert compose.target_rows(marked) == [(1,)] and same(compose, "products")

    # the wait for an approval holds no worker, and ends when a human says so
    waiting = live.wait_task("exceptional_run", "waits", "wait_for_approval", "deferred")
    assert waiting["trigger"]["classpath"].endswith("RepairAuthorityTrigger")
    path = "/api/v2/dags/exceptional_run/dagRuns/waits/taskInstances"
    live.send("PATCH", f"{path}/wait_for_approval", {"new_state": "failed"})
    live.until(lambda: live.task("exceptional_run", "waits", "orders")["state"] == "upstream_failed", "nothing follows")
    assert live.xcom("many_tables", "second", "reconcile", map_index=0)["receipt_id"]

    _page(live, cleared, before)


def _page(live: LiveAirflow, dag: str, receipt: str) -> None:
    """The page in the real API server, whose connections are in Airflow's metadata database; the link of a task leads to it."""
    links = live.get(f"/api/v2/dags/{dag}/dagRuns/first/taskInstances/{dag}/links")["extra_links"]
    assert links == {"Receipt": f"/dpone-xmin/receipts/dwh_state/{receipt}"}
    for path in ("/dpone-xmin/", links["Receipt"], "/dpone-xmin/static/page.css"):
        assert live.call("GET", path, user=None)[0] == 401
        assert live.call("GET", path, user="viewer")[0] == 200
    page = live.call("GET", "/dpone-xmin/", user="viewer")[1]
    assert page.count("dwh.landing.") == 4 and "a target whose name cannot be read" not in page
    for process in ("orders", "shop:public.customers", "shop:public.products", "shop:public.order_lines"):
        assert f"<b>{process}</b>" in page


def test_a_backfill_defers_publishes_and_starts_its_successor(live: LiveAirflow, compose: Compose) -> None:
    """Mapped lanes in processes of their own, the coordinator in the triggerer, and the event of the publication as the next DAG's cue."""
    live.send("PATCH", "/api/v2/dags/after_backfill", {"is_paused": False})
    live.trigger("manual_backfill", "first")
    live.wait_run("manual_backfill", "first")
    seeded = live.xcom("manual_backfill", "first", "campaign.publish")
    assert (seeded["status"], seeded["payload_reason"], seeded["revision"]) == ("committed", "campaign", 1)
    lanes = [live.xcom("manual_backfill", "first", "campaign.lane", map_index=number) for number in range(4)]
    assert sum(lane["rows"] for lane in lanes) == compose.rows == seeded["counts"]["inserted"]
    told = [line["event"] for line in json.loads(live.log("manual_backfill", "first", "campaign.publish", attempt=1))["content"]]
    assert [line for line in told if "60/60 chunks, 300 rows" in line] and [line for line in told if "DEFERRED" in line], "\n".join(told)

    def followed() -> list[str]:
        runs = live.get("/api/v2/dags/after_backfill/dagRuns")["dag_runs"]
        return [run["dag_run_id"] for run in runs if run["run_type"] == "asset_triggered"]

    live.until(lambda: bool(followed()), "the publication's event starts the successor")
    (run_id,) = followed()
    live.wait_run("after_backfill", run_id)
    summary = live.xcom("after_backfill", run_id, "payments")
    assert (summary["status"], summary["payload"], summary["revision"]) == ("committed", "delta", 2)
    assert same(compose, "payments")


# ---- rarer faults -----------------------------------------------------------------------------------------------------------
def blocked(compose: Compose) -> list[int]:
    """Server processes of the source that wait for the lock on orders."""
    with compose.source.connect("shop") as owner:
        rows = owner.execute("SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass").fetchall()
    return [row[0] for row in rows]


def task_process(live: LiveAirflow, pid: int) -> int:
    """The parent of a task's process: its supervisor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def test_a_task_marked_failed_stops_and_leaves_nothing(live: LiveAirflow, compose: Compose) -> None:
    name = "sigterm_in_extraction"
    (live.home / "marks" / name).touch()
    before = compose.target_rows("SELECT count(*) FROM dpone.dpone_commit_receipt")
    with compose.source.connect("shop", autocommit=False) as blocker:
        blocker.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        live.trigger(name, "marked")
        live.until(lambda: bool(blocked(compose)), "the task waits in the source")
        live.send("PATCH", f"/api/v2/dags/{name}/dagRuns/marked/taskInstances/{name}", {"new_state": "failed"})
        live.until(lambda: not blocked(compose), "the driver call is cancelled")
    time.sleep(3)  # long enough for what must not happen
    assert live.task(name, "marked", name)["state"] == "failed"
    assert compose.target_rows("SELECT count(*) FROM dpone.dpone_commit_receipt") == before


def test_an_attempt_without_a_heartbeat_and_its_retry_commit_once(live: LiveAirflow, compose: Compose) -> None:
    name = "sigterm_in_extraction"
    (live.home / "marks" / name).touch()
    stopped: list[int] = []
    with compose.source.connect("shop", autocommit=False) as blocker:
        blocker.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        live.trigger(name, "overlap")
        live.until(lambda: bool(blocked(compose)), "the first attempt waits in the source")
        first = int(live.task(name, "overlap", name)["pid"])
        os.kill(supervisor := task_process(live, first), signal.SIGSTOP)  # no heartbeat leaves this worker any more
        stopped.append(supervisor)
        try:
            live.until(lambda: live.task(name, "overlap", name)["try_number"] > 1, "Airflow gives the first attempt up")
            live.until(lambda: len(blocked(compose)) == 2, "both attempts are at work")
            blocker.rollback()
            live.until(lambda: not blocked(compose), "both go on")
            live.wait_task(name, "overlap", name, "success")
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
    assert same(compose, "orders")
    receipts = "SELECT count(*) FROM dpone.dpone_commit_receipt WHERE run_id = 'overlap'"
    assert compose.target_rows(receipts) == [(1,)]
