"""The operator on real databases: identity of a run, retries, error mapping, cancellation."""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Context, RetryAction, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.hooks.mssql import MssqlDatabaseAuthorityHook
from airflow_dpone_xmin.hooks.postgres import PostgresSourceAuthorityHook
from airflow_dpone_xmin.operators.campaign import BackfillCampaignOperator, BackfillLaneOperator, BackfillOpenOperator
from airflow_dpone_xmin.operators.errors import XminFailError, XminRetryableError, coded, require_fenced_retries, to_airflow
from airflow_dpone_xmin.operators.inline import DEFAULTS
from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator
from airflow_dpone_xmin.runtime.repair import parse_authority
from airflow_dpone_xmin.runtime.worker import CancellableWork
from airflow_dpone_xmin.sensors.repair_authority import RepairAuthoritySensor
from airflow_dpone_xmin.target.postgres import PostgresEngine
from tests.airflow.conftest import COLUMNS, Operator, connection, context
from tests.approvals import Owner
from tests.world import World

WAIT_SECONDS = 20


def same(world: World) -> bool:
    """Whether both sides hold the same rows."""
    return world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


# ---- runs -----------------------------------------------------------------------------------------------------------------
def test_a_run_commits_and_its_retry_and_its_clearing_answer_from_the_receipt(
    deployment: World, operator: Operator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = operator().execute(context("run-1"))
    assert (first["status"], first["payload"], first["attempt"]) == ("committed", "full", 1)
    assert first["counts"]["inserted"] == 40
    assert same(deployment)
    assert json.loads(json.dumps(first)) == first
    assert "rows extracted · 40 rows" in caplog.text
    assert "Clearing this task keeps its run" in caplog.text

    # The source is gone: a replay must not need it.
    monkeypatch.setenv("AIRFLOW_CONN_SRC", json.dumps({"conn_type": "postgres", "host": "/nowhere", "login": "nobody"}))
    again = operator().execute(context("run-1", try_number=3))
    assert (again["status"], again["attempt"], again["receipt_id"]) == ("replayed", 2, first["receipt_id"])
    assert "had already committed" in caplog.text


def test_run_and_map_index_are_the_invocation(deployment: World, operator: Operator) -> None:
    seen = [operator().execute(context(run, map_index=index)) for run, index in (("run-1", -1), ("run-2", -1), ("run-2", 0))]
    assert [summary["status"] for summary in seen] == ["committed"] * 3
    assert len({summary["receipt_id"] for summary in seen}) == 3
    assert [summary["revision"] for summary in seen] == [1, 2, 3]


def test_inline_parameters_need_no_yaml(deployment: World, operator: Operator) -> None:
    inline: dict[str, Any] = {
        "manifest": None, "source_conn": "src", "target_conn": "dwh", "source_table": "orders", "unique_key": "id",
        "target_type": "embedded", "state_schema": "governance", "process": "orders",
    }  # fmt: skip
    assert operator(**inline).execute(context("run-1"))["process"] == "orders"
    deployment.source.run("DELETE FROM orders WHERE id = 1")
    summary = operator(**inline).execute(context("run-2"))
    assert summary["counts"]["soft_deleted"] == 1
    assert same(deployment)


def test_an_inline_process_is_named_after_dag_and_task() -> None:
    with DAG("shop", schedule=None):
        task = XminReconcileOperator(task_id="orders", source_conn="a", target_conn="b", source_table="s.t", unique_key=["x", "y"])
    assert task.manifest["name"] == "shop.orders"
    assert task.manifest["source"]["table"] == {"schema": "s", "name": "t"}


def test_a_relative_manifest_is_looked_for_beside_the_dag_file(deployment: World, operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text(json.dumps(deployment.manifest()))
    with DAG("shop", schedule=None) as dag:
        task = operator(manifest="orders.json", table="")
    dag.fileloc = str(tmp_path / "shop.py")
    assert task.execute(context("run-1"))["status"] == "committed"


# ---- refusals -------------------------------------------------------------------------------------------------------------
def refused(operator: Any, kind: type[XminFailError | XminRetryableError], code: str) -> str:
    """Run and expect exactly this exception class and code."""
    with pytest.raises(kind) as caught:
        operator.execute(context("run-x"))
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert str(caught.value).startswith(f"{code}: ")
    assert "Hint: " in str(caught.value)
    assert caught.value.__suppress_context__
    return str(caught.value)


def guarded(world: World, **guards: Any) -> dict[str, Any]:
    """The deployment's manifest with guards."""
    return {**world.manifest(), "reconciliation": {**world.manifest()["reconciliation"], "guards": guards}}


def test_a_guard_fails_the_task_at_once_and_its_log_tells_an_approver_everything_once(
    deployment: World, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = guarded(deployment, max_delete_rows=2)
    first = operator(manifest=manifest).execute(context("run-1"))
    deployment.source.run("DELETE FROM orders WHERE id <= 10")
    text = refused(operator(manifest=manifest), XminFailError, "guard.deletes_exceeded")
    whole = text + caplog.text
    assert whole.count("\ndpone-xmin repair propose orders_process.json --run-id run-x --id repair-") == 1
    assert whole.count("10 of 40 active rows missing, ratio 10/40") == 1
    assert f"checkpoint     revision 1, xmin {first['checkpoint_xmin']}" in caplog.text
    assert "full baseline  not needed" in caplog.text
    assert 'cat > orders_process.json <<\'MANIFEST\'\n{"name": "orders_process"' in caplog.text
    assert "Hint: Verify the deletes" in text


def test_the_proposed_command_names_manifest_table_and_map_index(
    deployment: World, operator: Operator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "my orders.json"
    path.write_text(json.dumps(guarded(deployment, max_delete_rows=2)))
    operator(manifest=str(path)).execute(context("run-1"))
    deployment.source.run("DELETE FROM orders WHERE id <= 10")
    with pytest.raises(AirflowFailException, match=r"guard\.deletes_exceeded"):
        operator(manifest=str(path), table="public.orders").execute(context("manual__2026", map_index=2))
    assert f"propose '{path}' --run-id manual__2026 --map-index 2 --id repair-" in caplog.text
    assert '"name"' not in caplog.text


def test_the_command_in_the_log_runs_as_it_is_printed(
    deployment: World, operator: Operator, approver: Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pasted into a shell: an inline manifest is saved first, and a stop before extraction is rehearsed."""
    operator().execute(context("run-1"))
    moved = {**guarded(deployment, max_delete_rows=2), "name": "shop/moved:it"}
    deployment.source.run("DELETE FROM orders WHERE id <= 10")
    with pytest.raises(AirflowFailException, match=r"^target_ownership\.conflict"):
        operator(manifest=moved).execute(context("run-2", map_index=3))
    assert "old owner" in caplog.text and "nothing yet: the command reads both sides once" in caplog.text
    command = caplog.text.partition("This writes it for review:\n")[2].partition(".yaml\n")[0] + ".yaml"
    source, target = deployment.source.endpoint(), deployment.target.endpoint()
    settings = {
        "DPONE_REGISTRY": os.environ["AIRFLOW__DPONE_XMIN__REGISTRY"],
        "DPONE_TRUSTED_KEYS": str(approver.public),
        "DPONE_CONN_SRC": f"postgresql://{source.user}@/{source.database}?host={source.host}",
        "DPONE_CONN_DWH": f"postgresql://{target.user}@/{target.database}?host={target.host}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (document,) = tmp_path.glob("repair-*.yaml")
    authority = parse_authority(document.read_bytes(), yaml=True)
    assert (authority.allow.full_baseline, authority.allow.max_delete_rows, authority.transfer is not None) == (True, 10, True)
    deployment.process = "shop/moved:it"
    approver.approve(deployment, authority)
    summary = operator(manifest=moved, repair_authority_ref=document.stem).execute(context("run-2", map_index=3))
    assert (summary["repair_authority"]["id"], summary["counts"]["soft_deleted"]) == (document.stem, 10)


# ---- exceptional runs -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("absent", [None, "", " ", "None"])
def test_an_absent_reference_means_an_ordinary_run(deployment: World, operator: Operator, absent: str | None) -> None:
    summary = operator(repair_authority_ref=absent).execute(context("run-1"))
    assert (summary["status"], summary["repair_authority"]) == ("committed", None)


def test_an_approved_run_says_so_in_log_and_xcom(
    deployment: World, operator: Operator, approver: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    manifest = guarded(deployment, max_delete_rows=2)
    operator(manifest=manifest).execute(context("run-1"))
    deployment.source.run("DELETE FROM orders WHERE id <= 10")
    with pytest.raises(AirflowFailException):
        operator(manifest=manifest).execute(context("run-2", map_index=3))
    refused(operator(manifest=manifest, repair_authority_ref="fix"), XminFailError, "repair_authority.not_found")
    authority = approver.propose(deployment, "run-2", map_index=3)
    approver.approve(deployment, authority)
    summary = operator(manifest=manifest, repair_authority_ref="fix").execute(context("run-3"))
    assert summary["counts"]["soft_deleted"] == 10
    assert summary["repair_authority"] == {"id": "fix", "digest": authority.digest.hex()}
    assert json.loads(json.dumps(summary)) == summary
    assert "repair authority fix is selected" in caplog.text and "Repair authority fix is consumed" in caplog.text
    refused(operator(manifest=manifest, repair_authority_ref="fix"), XminFailError, "repair_authority.consumed")


def test_an_unreachable_source_is_left_to_the_retries(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SRC", json.dumps({"conn_type": "postgres", "host": "/nowhere", "login": "s3cret-login"}))
    text = refused(operator(), XminRetryableError, "postgres_source.unreachable")
    assert "s3cret" not in text and "/nowhere" not in text


def test_a_missing_connection_and_manifest_fail_at_once(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(operator(manifest="/nowhere/orders.yaml"), XminFailError, "DPONE_MANIFEST_UNREADABLE")
    monkeypatch.delenv("AIRFLOW_CONN_DWH")
    refused(operator(), XminFailError, "DPONE_CONNECTION_UNRESOLVED")


def test_trust_comes_from_airflows_configuration_alone(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPONE_TRUSTED_KEYS", os.environ["AIRFLOW__DPONE_XMIN__TRUSTED_KEYS"])
    monkeypatch.delenv("AIRFLOW__DPONE_XMIN__TRUSTED_KEYS")
    refused(operator(), XminFailError, "registry.trust_missing")


def test_the_text_of_an_unexpected_fault_is_withheld(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(*_: Any, **__: Any) -> None:
        raise ValueError("password=hunter2")

    monkeypatch.setattr("airflow_dpone_xmin.runtime.reconcile.reconcile", burst)
    text = refused(operator(), XminRetryableError, "run.unexpected")
    assert "hunter2" not in text
    assert "ValueError at test_operator.py:" in text


def test_every_error_is_mapped_by_its_retryable_flag() -> None:
    assert type(to_airflow(XminError("mssql_transaction.commit_outcome_unknown", "."))) is XminRetryableError
    assert type(to_airflow(XminError("guard.empty_snapshot", "."))) is XminFailError
    assert type(to_airflow(XminError("DPONE_CONNECTION_UNRESOLVED", ".", retryable=True))) is XminRetryableError
    assert not issubclass(XminRetryableError, AirflowFailException) and issubclass(XminFailError, AirflowFailException)
    assert coded(KeyError("x")).code == "run.unexpected"


@pytest.mark.parametrize("code", ["mssql_transaction.commit_outcome_unknown", "guard.empty_snapshot"])
def test_an_exception_crosses_a_process_whole(code: str) -> None:
    raised = to_airflow(XminError(code, "seen", details={"rows": 1}))
    again = pickle.loads(pickle.dumps(raised))
    assert (type(again), again.code, str(again), again.error.details) == (type(raised), code, str(raised), {"rows": 1})


class PatientWithTheSource(RetryPolicy):
    """As the documentation shows it."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None) -> RetryDecision:
        if isinstance(exception, XminRetryableError) and exception.code == "postgres_source.unreachable":
            return RetryDecision.retry(timedelta(minutes=15), reason=exception.code)
        return RetryDecision.default()


def test_a_retry_policy_decides_by_code(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SRC", json.dumps({"conn_type": "postgres", "host": "/nowhere"}))
    task = operator(retries=3, retry_policy=PatientWithTheSource())
    with pytest.raises(XminRetryableError) as caught:
        task.execute(context("run-x"))
    decided = task.retry_policy.evaluate(caught.value, 1, 3)
    assert (decided.action, decided.retry_delay) == (RetryAction.RETRY, timedelta(minutes=15))


# ---- retries --------------------------------------------------------------------------------------------------------------
def test_more_than_three_retries_are_refused_while_the_dag_is_parsed(operator: Operator) -> None:
    operator(retries=3)
    with pytest.raises(XminError, match="DPONE_AIRFLOW_RETRIES_REQUIRE_TARGET_FENCE"):
        operator(retries=4)
    with DAG("shop", schedule=None, default_args={"retries": 5}), pytest.raises(XminError, match="this route allows 3"):
        operator()


@pytest.mark.parametrize("kind", [XminReconcileOperator, BackfillOpenOperator, BackfillLaneOperator, BackfillCampaignOperator])
@pytest.mark.filterwarnings("ignore:Task .* was never mapped")
def test_more_than_three_retries_of_a_mapped_task_are_refused_while_the_dag_is_parsed(kind: Any) -> None:
    """The worker's refusal would be retried as often as was asked for."""
    with DAG("shop", schedule=None):
        kind.partial(task_id="allowed", retries=3).expand(manifest=["a.yaml"])
        with pytest.raises(XminError, match="asks for 9 retries; this route allows 3"):
            kind.partial(task_id="refused", retries=9)
    with DAG("shop", schedule=None, default_args={"retries": 5}), pytest.raises(XminError, match="this route allows 3"):
        kind.partial(task_id="refused")


def test_retries_that_came_later_are_refused_when_the_task_runs(operator: Operator) -> None:
    task = operator()
    task.retries = 5  # as a mapped task or a policy may set them
    refused(task, XminFailError, "DPONE_AIRFLOW_RETRIES_REQUIRE_TARGET_FENCE")


def test_a_route_without_a_fence_allows_no_retry() -> None:
    require_fenced_retries(0, fenced=False)
    with pytest.raises(XminError, match="this route allows 0"):
        require_fenced_retries(1, fenced=False)


@pytest.mark.parametrize("parameters", [{}, {"source_table": "a.b.c", "source_conn": "s", "target_conn": "t", "unique_key": "id"}])
def test_incomplete_inline_parameters_are_refused_while_the_dag_is_parsed(parameters: dict[str, Any]) -> None:
    with pytest.raises(XminError, match="DPONE_MANIFEST_INVALID"):
        XminReconcileOperator(task_id="orders", **parameters)


INLINE: dict[str, Any] = {"source_table": "orders", "source_conn": "s", "target_conn": "t", "unique_key": "id"}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"delete_mode": "soft"}, "reconciliation.delete_mode"),
        ({"max_delete_ratio": 5}, "reconciliation.guards.max_delete_ratio"),
        ({"max_delete_rows": -1}, "reconciliation.guards.max_delete_rows"),
        ({"target_type": "oracle"}, "sink.type"),
    ],
)
def test_inline_values_are_judged_while_the_dag_is_parsed(given: dict[str, Any], path: str) -> None:
    """By the manifest's own model; what a template leaves open is judged when the task runs."""
    for kind, more in ((XminReconcileOperator, {}), (RepairAuthoritySensor, {"repair_authority_ref": "r", "process": "orders"})):
        with pytest.raises(XminError, match=f"DPONE_MANIFEST_INVALID: `{path}`"):
            kind(task_id="orders", **INLINE, **given, **more)
        kind(task_id="orders", **INLINE | {"source_table": "{{ params.table }}"}, **given, **more)


@pytest.mark.parametrize(
    "given", [{"source_table": "orders"}, {"delete_mode": None}, {"max_delete_rows": 0}, {"max_delete_ratio": 0}, {"state_conn": "s"}]
)
def test_manifest_and_inline_parameters_exclude_each_other(given: dict[str, Any]) -> None:
    """What would silently not hold, a guard above all, is refused by name."""
    for kind, more in ((XminReconcileOperator, {}), (RepairAuthoritySensor, {"repair_authority_ref": "r"})):
        with pytest.raises(XminError, match=f"exclude each other; given beside it: {next(iter(given))}"):
            kind(task_id="orders", manifest="orders.yaml", **given, **more)


def test_the_defaults_of_inline_parameters_are_those_of_the_signatures() -> None:
    for kind in (XminReconcileOperator, RepairAuthoritySensor):
        signature = inspect.signature(kind.__init__).parameters
        assert {name: signature[name].default for name in DEFAULTS} == dict(DEFAULTS)


def test_a_replay_is_no_answer_to_another_approval(deployment: World, operator: Operator) -> None:
    """An ordinary run of the same id has committed: a later exceptional one is not done by it."""
    operator().execute(context("run-1"))
    with pytest.raises(XminFailError, match=r"repair_authority\.unused.*had committed without 'archive'"):
        operator(repair_authority_ref="archive").execute(context("run-1"))
    assert operator().execute(context("run-1"))["status"] == "replayed"


# ---- cancellation ---------------------------------------------------------------------------------------------------------
def until(condition: Any) -> None:
    """Wait for something that must happen soon."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def waiting(world: World) -> bool:
    """Whether the operator's session waits for the lock on the source table."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.orders'::regclass"
    return bool(world.source.rows(query)[0][0])


def test_on_kill_interrupts_the_driver_and_execute_raises(deployment: World, operator: Operator) -> None:
    task, caught = operator(), []

    def run() -> None:
        try:
            task.execute(context("run-1"))
        except Exception as error:
            caught.append(error)

    with deployment.source.connect(autocommit=False) as blocker:
        blocker.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: waiting(deployment))
        started = time.monotonic()
        task.on_kill()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
        assert time.monotonic() - started < 10
        assert not waiting(deployment)
    assert [type(error) for error in caught] == [XminRetryableError]
    assert str(caught[0]).startswith("run.cancelled: ")
    assert deployment.target_rows(COLUMNS) == []
    assert operator().execute(context("run-1"))["attempt"] == 2
    assert same(deployment)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signal handlers belong to the main thread")
def test_sigterm_ends_the_task_although_airflows_handler_only_calls_on_kill(deployment: World, operator: Operator) -> None:
    task = operator()
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # what Airflow's task runner does, no more

    def shoot() -> None:
        until(lambda: waiting(deployment))
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        with deployment.source.connect(autocommit=False) as blocker:
            blocker.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
            thread = threading.Thread(target=shoot)
            thread.start()
            with pytest.raises(AirflowException, match=r"run\.cancelled"):
                task.execute(context("run-1"))
            thread.join()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cancelled_call_that_had_finished_still_fails_the_task() -> None:
    cancel = Cancellation()
    work = CancellableWork(lambda: cancel.cancel() or 1, cancel=cancel, grace=5)
    with pytest.raises(XminError, match="had already committed"):
        work.wait()


def test_a_driver_that_does_not_answer_is_left_behind_in_bounded_time() -> None:
    cancel, deaf = Cancellation(), threading.Event()
    work = CancellableWork(lambda: deaf.wait(WAIT_SECONDS), cancel=cancel, grace=0.5)
    threading.Timer(0.2, work.stop).start()
    started = time.monotonic()
    with pytest.raises(XminError, match="is left behind"):
        work.wait()
    assert time.monotonic() - started < 5
    deaf.set()


@pytest.mark.parametrize("during", ["resolve_endpoints", "evidence_summary"])
def test_a_stop_while_nothing_can_be_interrupted_is_heard(
    deployment: World, operator: Operator, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """Before the work begins nothing is done; after its commit the task fails all the same, and its retry answers from the receipt."""
    module = {"resolve_endpoints": "hooks.endpoints", "evidence_summary": "operators.publish"}[during]
    path = f"airflow_dpone_xmin.{module}.{during}"
    real, task = pkgutil.resolve_name(path), operator()

    def shot(*arguments: Any, **named: Any) -> Any:
        task.on_kill()
        return real(*arguments, **named)

    monkeypatch.setattr(path, shot)
    refused(task, XminRetryableError, "run.cancelled")
    monkeypatch.undo()
    committed = during == "evidence_summary"
    assert same(deployment) is committed


class Timeout(BaseException):
    """Stands for Airflow's task time-out, which a signal handler raises on top of whatever the main thread does."""


def test_a_time_out_of_the_task_stops_the_work() -> None:
    cancel = Cancellation()
    work = CancellableWork(lambda: cancel._event.wait(WAIT_SECONDS), cancel=cancel, grace=5)

    def expire(*_: Any) -> None:
        raise Timeout

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Timeout):
            work.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    until(lambda: cancel.cancelled)


# ---- hooks ----------------------------------------------------------------------------------------------------------------
def test_the_hooks_say_who_answers_and_which_pins_hold(deployment: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ok, text = PostgresSourceAuthorityHook("src").test_connection()
    assert ok and "role dpone_reader" in text and deployment.source.database in text
    assert "Registry entry src: every catalog_identity pin holds, for 1 relation." in text
    ok, text = MssqlDatabaseAuthorityHook("dwh", engine="embedded").test_connection()
    assert ok and "principal dpone_writer" in text
    assert f"Registry entry dwh: every pin of {deployment.target.database} holds." in text

    endpoint = deployment.source.endpoint()
    monkeypatch.setenv("AIRFLOW_CONN_SRC", connection(type(endpoint)("src", endpoint.host, None, "absent", endpoint.user)))
    ok, text = PostgresSourceAuthorityHook("src").test_connection()
    assert not ok and text.startswith("postgres_source.unreachable: ")
    assert PostgresSourceAuthorityHook("nothing").test_connection()[1].startswith("DPONE_CONNECTION_UNRESOLVED: ")


def test_the_hooks_report_a_pin_that_does_not_hold(deployment: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.source.run("ALTER TABLE orders RENAME TO gone", "CREATE TABLE orders (id bigint)")
    ok, text = PostgresSourceAuthorityHook("src").test_connection()
    assert not ok and text.startswith("postgres_source_authority.relation_mismatch: ")
    monkeypatch.setattr(PostgresEngine, "observe_database", lambda *_: None)
    ok, text = MssqlDatabaseAuthorityHook("dwh", engine="embedded").test_connection()
    assert not ok and "canonical name is no such database" in text


def test_a_connection_may_name_its_registry_entry_and_nothing_else(deployment: World, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads(connection(deployment.source.endpoint()))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({**facts, "extra": {"dpone_registry_entry": "src"}}))
    assert "Registry entry src" in PostgresSourceAuthorityHook("other").test_connection()[1]
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(facts))
    assert "no pin was verified" in PostgresSourceAuthorityHook("other").test_connection()[1]
    monkeypatch.delenv("AIRFLOW__DPONE_XMIN__REGISTRY")
    ok, text = PostgresSourceAuthorityHook("src").test_connection()
    assert ok and "no pin was verified" in text
