"""The compose environment's set-up and the example DAGs, on embedded servers: provisioned twice, run twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.registry.load import load_registry
from tests.airflow.compose import EXAMPLES, Compose, example

FIRST, SECOND = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Servers of their own: the set-up creates databases and logins by fixed names."""
    with EmbeddedCluster() as source, EmbeddedCluster() as target:
        environment = Compose(source, target, tmp_path_factory.mktemp("compose"))
        environment.init()
        yield environment


@pytest.fixture
def dags(compose: Compose, metadata: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Loads an example into an Airflow that is configured as the compose file does."""
    for name, value in compose.airflow().items():
        monkeypatch.setenv(name, value)
    for name, connection in compose.connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))

    bundle = {"name": "examples", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))

    def load(name: str) -> Any:
        (tmp_path / f"{name}.py").write_text(example(name))
        bag = DagBag(dag_folder=str(tmp_path / f"{name}.py"), safe_mode=False)
        assert bag.import_errors == {}
        (dag,) = bag.dags.values()
        return dag

    return load


def run(dag: Any, when: datetime, **conf: Any) -> dict[Any, str]:
    """Run the DAG in this process; state by task and map index."""
    for task in dag.tasks:
        task.retries = 0  # `dag.test` would wait for them
    done = dag.test(run_after=when, logical_date=when, run_conf=conf or None)
    return {(one.task_id, one.map_index): str(one.state) for one in done.get_task_instances()}


def test_the_setup_may_run_again(compose: Compose) -> None:
    config = compose.directory / "config"

    def everything() -> Any:
        catalog = compose.target_rows("SELECT table_schema, table_name FROM information_schema.tables ORDER BY 1, 2")
        bindings = compose.target_rows("SELECT binding_id FROM dbo.dpone_target_identity ORDER BY 1")
        return catalog, bindings, (config / "registry.json").read_bytes(), (config / "dpone-registry.pub").read_bytes()

    before = everything()
    compose.init()
    assert everything() == before
    registry = load_registry(config / "registry.json", trusted_keys=[config / "dpone-registry.pub"], environment="compose").document
    assert sorted(registry.connections) == ["dwh", "dwh_state", "oltp"]
    assert not [path for path in config.iterdir() if path.suffix == ".key"], "Airflow may not see the private key"


def test_a_killed_setup_is_finished_by_the_next(compose: Compose) -> None:
    with compose.target.connect("dwh") as owner:
        owner.execute("DROP TABLE landing.products")
        owner.execute("ALTER TABLE dbo.dpone_target_identity DISABLE TRIGGER USER")
        owner.execute("DELETE FROM dbo.dpone_target_identity WHERE table_name = 'products'")
        owner.execute("ALTER TABLE dbo.dpone_target_identity ENABLE TRIGGER USER")
    compose.init()
    assert compose.target_rows("SELECT count(*) FROM landing.products") == [(0,)]


def test_runtime_logins_may_not_change_what_they_are_judged_by(compose: Compose) -> None:
    rights = "has_table_privilege('dpone_runtime', 'dpone.dpone_commit_receipt', %s)"
    with compose.target.connect("dwh") as owner:
        held = {right: owner.execute(f"SELECT {rights}", [right]).fetchone()[0] for right in ("INSERT", "UPDATE", "DELETE")}  # type: ignore[index, arg-type]
    assert held == {"INSERT": True, "UPDATE": False, "DELETE": False}
    with compose.source.connect("shop") as owner:
        query = "SELECT bool_or(has_table_privilege('dpone_reader', c.oid, 'INSERT, UPDATE, DELETE')) FROM pg_class c WHERE relkind = 'r'"
        assert owner.execute(query).fetchone() == (False,)


def test_every_example_has_a_test_that_runs_it() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.stem}"' in text, f"{path.name} is never run"


def test_scheduled_incremental_runs(compose: Compose, dags: Any) -> None:
    dag = dags("scheduled_incremental")
    assert run(dag, FIRST) == {("orders", -1): "success"}
    compose.source_run("DELETE FROM orders WHERE id <= 3", "UPDATE orders SET status = 'sent' WHERE id = 4")
    assert run(dag, SECOND) == {("orders", -1): "success"}
    assert compose.target_rows("SELECT count(*) FILTER (WHERE __dpone__deleted_at IS NULL), count(*) FROM landing.orders") == [(297, 300)]
    assert compose.target_rows("SELECT status FROM landing.orders WHERE id = 4") == [("sent",)]


def test_many_tables_runs_one_mapped_task_for_each(compose: Compose, dags: Any) -> None:
    assert run(dags("many_tables"), FIRST) == {("reconcile", index): "success" for index in range(3)}
    for table in ("customers", "products", "order_lines"):
        assert compose.target_rows(f"SELECT count(*) FROM landing.{table}") == [(300,)]
    rows = compose.target_rows("SELECT process, revision FROM dpone.dpone_source_state WHERE process LIKE 'shop:%' ORDER BY 1")
    assert rows == [("shop:public.customers", 1), ("shop:public.order_lines", 1), ("shop:public.products", 1)]


def test_an_exceptional_run_without_an_approval_is_an_ordinary_one(compose: Compose, dags: Any) -> None:
    assert run(dags("exceptional_run"), SECOND) == {("wait_for_approval", -1): "success", ("orders", -1): "success"}


def test_manual_backfill_fills_publishes_and_hands_over(compose: Compose, dags: Any) -> None:
    dag = dags("manual_backfill")
    # `dag.test` runs one task at a time, in any order: a coordinator that waits before its lanes have run waits for ever
    dag.get_task("campaign.lane") >> dag.get_task("campaign.publish")
    states = run(dag, FIRST)
    assert set(states.values()) == {"success"}
    assert compose.target_rows("SELECT count(*) FROM landing.payments") == [(300,)]
    assert compose.target_rows("SELECT status FROM dpone.dpone_campaign WHERE handoff_id = 'payments_v1'") == [("published",)]


def test_after_backfill_takes_the_table_over(compose: Compose, dags: Any) -> None:
    """After the test above: the first run replays what changed since the campaign's anchor, deletes included."""
    compose.source_run("DELETE FROM payments WHERE id <= 5", "UPDATE payments SET amount = 0 WHERE id = 6")
    assert run(dags("after_backfill"), SECOND) == {("payments", -1): "success"}
    assert compose.target_rows("SELECT count(*) FROM landing.payments WHERE __dpone__deleted_at IS NULL") == [(295,)]
    receipts = "SELECT payload_reason, new_revision FROM dpone.dpone_commit_receipt WHERE process LIKE 'payments%' ORDER BY 2"
    assert compose.target_rows(receipts) == [("campaign", 1), ("delta", 2)]
