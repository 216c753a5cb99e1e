"""Staging proofs: what is staged is exactly what was extracted, by a session that held its lease, or the run stops."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Progress
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.target.engine import OBSERVERS, Event
from airflow_dpone_xmin.target.postgres import PostgresEngine
from tests.beside import before
from tests.children import Job, die, start
from tests.world import MODES, WRITER, Setup, World

COLUMNS = ("id", "qty", "note")


@pytest.fixture
def world(worlds: Setup) -> World:
    """A hundred rows, past the baseline, with changes pending."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer, note text, price numeric(10,2), at timestamptz, u uuid,"
        " ok boolean, d double precision, big numeric(38,4))",
        "INSERT INTO orders SELECT g, g, 'note ' || g, g, now(), gen_random_uuid(), true, g, g FROM generate_series(1, 100) g",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run("UPDATE orders SET qty = 0 WHERE id <= 10", "DELETE FROM orders WHERE id = 50")
    return world


def refused(world: World, code: str) -> XminError:
    """The run stops by *code*; the target is as before, staging is empty, and the next run is exact."""
    rows = world.target_rows(("*",), active=False)
    with pytest.raises(XminError) as caught:
        world.run("broken")
    assert caught.value.code == code, caught.value
    assert world.target_rows(("*",), active=False) == rows
    return caught.value


def recovers(world: World) -> None:
    assert world.run("broken").status == "committed"
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)
    assert world.staged() == []
    assert list(world.work_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["rows.arrow", "keys.arrow"])
@pytest.mark.parametrize("how", ["flip", "cut", "append", "remove"])
def test_an_artifact_altered_between_extraction_and_staging(world: World, name: str, how: str) -> None:
    """One flipped bit, a cut tail, an appended byte or a missing file is found before the target is touched."""

    def alter(_: Event) -> None:
        (path,) = world.work_dir.glob(f"*/{name}")
        data = path.read_bytes()
        if how == "remove":
            path.unlink()
        elif how == "flip":
            middle = len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        else:
            path.write_bytes(data[:-8] if how == "cut" else data + b"\0")

    with before("stage.list", alter):
        error = refused(world, "storage.artifact_altered")
    assert error.retryable is True
    recovers(world)


#: Every statement leaves the row count alone.
ALTERATIONS = {
    "integer": "UPDATE {t} SET qty = qty + 1 WHERE id = 1",
    "text length": "UPDATE {t} SET note = note || 'x' WHERE id = 2",
    "text to null": "UPDATE {t} SET note = NULL WHERE id = 2",
    "null to empty": "UPDATE {t} SET note = '' WHERE id = 2",
    "numeric": "UPDATE {t} SET price = price + 0.01 WHERE id = 3",
    "timestamp": "UPDATE {t} SET at = at + interval '1 microsecond' WHERE id = 4",
    "boolean": "UPDATE {t} SET ok = false WHERE id = 5",
    "uuid": "UPDATE {t} SET u = '00000000-0000-4000-8000-000000000001' WHERE id = 5",
    "upper half of a uuid": "UPDATE {t} SET u = '00000001-0000-4000-8000-000000000000' WHERE id = 5",
    "last digit of 38": "UPDATE {t} SET big = big + 0.0001 WHERE id = 5",
    "first digit of 38": "UPDATE {t} SET big = big + 1000000000000000000000000000000000 WHERE id = 5",
    "double": "UPDATE {t} SET d = d + 0.5 WHERE id = 6",
    "key": "UPDATE {t} SET id = 1000 WHERE id = 7",
    "lost row": "DELETE FROM {t} WHERE id = 8",
    "row twice": "INSERT INTO {t} SELECT * FROM {t} WHERE id = 9",
    "row replaced": "INSERT INTO {t} SELECT * FROM {t} WHERE id = 9;"
    " DELETE FROM {t} WHERE ctid = (SELECT min(ctid) FROM {t} WHERE id = 10)",
}


@pytest.mark.parametrize("case", ALTERATIONS)
def test_a_staged_row_altered_before_the_proof(world: World, embedded_only: None, case: str) -> None:
    """A staged row that is not the extracted one fails the proof."""

    def alter(_: Event) -> None:
        (name,) = [name for name in world.staged() if name.endswith("_rows")]
        world.target.run(*ALTERATIONS[case].format(t=f'staging."{name}"').split("; "))

    with before("stage.prove", alter):
        refused(world, "staging.proof_failed")
    recovers(world)


def test_a_lost_key_is_found_by_the_subset_proof(world: World, embedded_only: None) -> None:
    """A delta row whose key vanished from the key snapshot after its own proof stops the run."""

    def alter(_: Event) -> None:
        (name,) = [name for name in world.staged() if name.endswith("_keys")]
        world.target.run(f'DELETE FROM staging."{name}" WHERE id = 1')

    with before("stage.subset", alter):
        refused(world, "staging.proof_failed")
    recovers(world)


@pytest.mark.parametrize("declared", ["int", "numeric(38,4)", "text"])
def test_as_many_columns_as_sql_server_holds(worlds: Setup, embedded_only: None, declared: str) -> None:
    """Every statement is as wide as the table; the last column is proven like the first."""
    count = 460 if declared.startswith("numeric") else 1019  # 8,060 bytes of a row, 1,024 columns with the lineage
    names = [f"c{n}" for n in range(count)]
    world = worlds(
        f"CREATE TABLE orders (id bigint PRIMARY KEY, {', '.join(f'{name} {declared}' for name in names)})",
        f"INSERT INTO orders SELECT g, {', '.join(['g'] * count)} FROM generate_series(1, 3) g",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run(f"UPDATE orders SET {names[-1]} = '7' WHERE id = 1", "DELETE FROM orders WHERE id = 2")

    def alter(_: Event) -> None:
        (name,) = [name for name in world.staged() if name.endswith("_rows")]
        world.target.run(f"UPDATE staging.\"{name}\" SET {names[-1]} = '42'")

    with before("stage.prove", alter):
        refused(world, "staging.proof_failed")
    world.run()
    for some in (names[:9], names[-9:]):
        assert world.source_rows(("id", *some)) == world.target_rows(("id", *some))


def test_a_key_twice_in_the_stage(world: World, embedded_only: None) -> None:
    """What the source cannot deliver twice is not taken twice either: the stage's index is unique."""

    def alter(_: Event) -> None:
        (name,) = [name for name in world.staged() if name.endswith("_rows")]
        world.target.run(f'INSERT INTO staging."{name}" SELECT * FROM staging."{name}" WHERE id = 1')

    with before("stage.index", alter):
        refused(world, "staging.key_invalid")
    recovers(world)


def test_an_identity_that_changes_while_the_run_works(world: World, embedded_only: None) -> None:
    """The target that the transaction finds is the one that the attempt was admitted with, or nothing is written."""
    identity = world.dbo_name("dpone_target_identity")
    ((genuine,),) = world.target.rows(f"SELECT binding_id FROM {identity}")

    def rebind(binding: object) -> None:
        rewrite = f"UPDATE {identity} SET binding_id = '{binding}'"
        world.target.run(f"ALTER TABLE {identity} DISABLE TRIGGER ALL", rewrite, f"ALTER TABLE {identity} ENABLE TRIGGER ALL")

    with before("lock.application", lambda _: rebind("00000000-0000-4000-8000-000000000001"), nth=2):
        refused(world, "target_identity.mismatch")
    rebind(genuine)
    recovers(world)


@pytest.mark.parametrize("nth", [1, 2], ids=["admission", "finalizer"])
def test_a_session_that_lost_its_transaction_commits_nothing(world: World, nth: int) -> None:
    """Transaction and lock are asserted right before COMMIT is sent; the lock may outlive the transaction."""

    def lose(event: Event) -> None:
        assert event.session is not None
        with contextlib.closing(event.session.connection.connection.driver_connection.cursor()) as cursor:
            cursor.execute("ROLLBACK")

    with before("transaction.assert", lose, nth=nth):
        refused(world, "mssql_transaction.session_invalid")
    recovers(world)


def test_a_key_that_vanishes_after_all_proofs_is_found_in_the_transaction(world: World, embedded_only: None) -> None:
    """Keys are counted again inside the transaction: a key stage that shrank is never taken for a delete."""

    def alter(_: Event) -> None:
        (name,) = [name for name in world.staged() if name.endswith("_keys")]
        world.target.run(f'DELETE FROM staging."{name}" WHERE id = 60')

    with before("lock.table", alter):
        refused(world, "reconcile.invariant")
    recovers(world)


def test_a_payload_row_that_vanishes_after_all_proofs(world: World, embedded_only: None) -> None:
    """The delta's rows are only trusted as counted: one that vanished is not silently "unchanged"."""

    def alter(_: Event) -> None:
        (name,) = [name for name in world.staged() if name.endswith("_rows")]
        world.target.run(f'DELETE FROM staging."{name}" WHERE id = 1')

    rows = world.target_rows(COLUMNS)
    with before("lock.table", alter), pytest.raises(XminError) as caught:
        world.run("broken")
    assert caught.value.code == "reconcile.invariant"
    assert world.target_rows(COLUMNS) == rows


def test_an_evicted_lease_session(world: World, embedded_only: None) -> None:
    """When the session that holds the lease is ended, the run stops with that reason."""
    session = []

    def evict(_: Event) -> None:
        (lease,) = session
        world.target.rows(f"SELECT pg_terminate_backend({lease}, 5000)")

    def remember(event: Event) -> None:
        assert event.session is not None
        session.append(event.session.connection.connection.driver_connection.info.backend_pid)

    with before("lease.take", remember), before("stage.prove", evict):
        error = refused(world, "mssql_transaction.staging_database_lease_lost")
    assert error.retryable is True
    recovers(world)


def test_leftovers_of_a_killed_attempt_are_swept(world: World, embedded_only: None) -> None:
    """A SIGKILL while staging leaves tables and a work directory; the next run of the route removes both."""
    child = start(_die_at, Job.of(world, "killed"), "stage.subset")
    child.join(60)
    assert child.exitcode == -9
    assert len(world.staged()) == 2
    assert len(list(world.work_dir.iterdir())) == 1
    assert world.run().status == "committed"
    assert world.staged() == []
    assert list(world.work_dir.iterdir()) == []


def _die_at(job: Job, label: str) -> None:
    OBSERVERS.append(lambda event: die() if event.label == label else None)
    job.run()


def test_the_sweep_leaves_living_loads_and_foreign_things_alone(world: World, embedded_only: None) -> None:
    """Another run's stages and directory, a foreign table and a foreign directory with a lock file survive the sweep."""
    foreign = world.work_dir / "somebody"
    foreign.mkdir()
    (foreign / ".lock").touch()
    (foreign / "data").write_text("precious")
    world.target.run("CREATE TABLE staging.dpone_stg_mine (id int)", "CREATE TABLE staging.other (id int)")

    def inner(_: Event) -> None:
        ours = set(world.staged())
        with pytest.raises(XminError):
            world.run("inner", cancel=_CancelsAtFirstBatch())
        assert ours <= set(world.staged()), "a living load's stages were swept"

    with before("stage.subset", inner):
        assert world.run("outer").status == "committed"
    assert (foreign / "data").read_text() == "precious"
    assert world.staged() == ["dpone_stg_mine"]


class _CancelsAtFirstBatch(Cancellation):
    """Cancelled once the first step after the sweep begins."""

    def check(self) -> None:
        if len(OBSERVERS) and _steps(self) > 40:
            self.cancel()
        super().check()


def _steps(cancel: Cancellation) -> int:
    count = getattr(_steps, "count", 0) + 1
    _steps.count = count  # type: ignore[attr-defined]
    return count


def test_a_connection_killed_while_rows_are_loaded(worlds: Setup, embedded_only: None) -> None:
    """The bulk loader's own connection ends between two batches: typed and retryable, and the retry is exact."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer, note text)",
        "INSERT INTO orders SELECT g, g, repeat('x', 200) FROM generate_series(1, 200000) g",
        reconciliation=MODES["timestamp_only"],
    )

    class Kills(Cancellation):
        """Ends every COPY of the product once, when the loader asks for the second batch."""

        calls = 0
        loading = False

        def check(self) -> None:
            if self.loading:
                self.calls += 1
                if self.calls == 3:
                    world.target.rows(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
                        f" AND usename = '{WRITER}' AND query ILIKE 'COPY%'"
                    )
            super().check()

    cancel = Kills()
    with before("stage.load", lambda _: setattr(cancel, "loading", True)), pytest.raises(XminError) as caught:
        world.run("r", cancel=cancel)
    assert caught.value.code == "mssql_transaction.connection_lost"
    assert caught.value.retryable is True
    assert world.run("r").status == "committed"
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_cancel_while_staging(world: World) -> None:
    """A cancelled run ends with its own code and leaves nothing."""
    cancel = Cancellation()

    def listener(progress: Progress) -> None:
        if progress.event == "STAGE_ROWS_COMPLETE":
            cancel.cancel()

    rows = world.target_rows(COLUMNS)
    with pytest.raises(XminError) as caught:
        world.run("broken", progress=listener, cancel=cancel)
    assert caught.value.code == "run.cancelled"
    assert world.target_rows(COLUMNS) == rows
    recovers(world)


def test_work_directory_is_private(world: World) -> None:
    """Artifacts are the user's own business: mode 0700, gone afterwards."""
    modes = []

    def look(_: Event) -> None:
        (path,) = world.work_dir.iterdir()
        modes.append(path.stat().st_mode & 0o777)
        modes.extend(file.stat().st_mode & 0o777 for file in Path(path).glob("*.arrow"))

    with before("stage.list", look):
        world.run()
    assert modes == [0o700, 0o600, 0o600]
    assert os.listdir(world.work_dir) == []


def test_free_space_floor(world: World) -> None:
    """Below the floor nothing is written and the refusal says so."""
    world.manifest_over = {"runtime": {"storage": {"min_free_bytes": 2**62}}}
    error = refused(world, "storage.floor")
    assert error.retryable is True


# ---- the loader's own session ---------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("embedded_only")
@pytest.mark.parametrize(
    ("elsewhere", "code"),
    [
        ("server", "mssql_transaction.topology_mismatch"),
        ("principal", "mssql_transaction.principal_mismatch"),
        ("database", "mssql_transaction.staging_database_authority_mismatch"),
    ],
)
def test_a_loader_that_lands_elsewhere(
    world: World, source_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, elsewhere: str, code: str
) -> None:
    """An address may lead the loader's login to another place than the lease: no row goes in there, though a table of the name waits."""
    cluster = source_cluster if elsewhere == "server" else world.target.cluster
    user = "decoy_writer" if elsewhere == "principal" else WRITER
    database = world.target.database if elsewhere == "principal" else "decoy"
    tables: list[str] = []
    if database == "decoy":
        cluster.create_database(database)
    with cluster.connect(database) as owner:
        owner.execute(f"DO $$ BEGIN CREATE ROLE {user} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")  # type: ignore[call-overload]
        owner.execute("CREATE SCHEMA IF NOT EXISTS staging")
        owner.execute(f"GRANT USAGE ON SCHEMA staging TO {user}")  # type: ignore[call-overload]

        def twin(event: Event) -> None:
            """The stage as it would be there: owned by the loader, ready for its rows."""
            stage = event.statement.element  # type: ignore[union-attr]
            columns = ", ".join(f'"{column.name}" text' for column in stage.columns)
            if database == "decoy":
                tables.append(stage.name)
                owner.execute(f"CREATE TABLE staging.{stage.name} ({columns})")  # type: ignore[call-overload]
                owner.execute(f"GRANT ALL ON staging.{stage.name} TO {user}")  # type: ignore[call-overload]

        real = PostgresEngine.bulk_load

        def redirected(self: PostgresEngine, *arguments: Any, **named: Any) -> int:
            self.url = self.url.set(database=database, username=user, query={**self.url.query, "host": str(cluster.socket)})
            return real(self, *arguments, **named)

        with before("stage.create", twin), monkeypatch.context() as patch:
            patch.setattr(PostgresEngine, "bulk_load", redirected)
            assert refused(world, code).retryable is False
        assert [owner.execute(f"SELECT count(*) FROM staging.{name}").fetchall() for name in tables] == [[(0,)] for _ in tables]  # type: ignore[call-overload]
        if user == "decoy_writer":
            owner.execute("REVOKE ALL ON SCHEMA staging FROM decoy_writer")
            owner.execute("DROP ROLE decoy_writer")
    if database == "decoy":
        cluster.drop_database(database)
    recovers(world)


def test_a_bulk_copy_as_another_principal(world: World, engine_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very session that copies is asked, not one beside it."""
    if engine_name != "mssql":
        pytest.skip("not provable on this flavour: the native bulk loader")
    from airflow_dpone_xmin.target import mssql

    layout, login = world.target.layout(world.table), "dpone_other_loader"
    world.target.run(
        f"IF SUSER_ID('{login}') IS NULL CREATE LOGIN {login} WITH PASSWORD = '{world.target.password}'",
        f"USE [{layout.staging.database}]",
        f"IF USER_ID('{login}') IS NULL CREATE USER {login} FOR LOGIN {login}",
    )
    real = mssql.bulk_session

    def other(endpoint: Endpoint, **named: Any) -> Any:
        return real(replace(endpoint, user=login, password=world.target.password), **named)

    with monkeypatch.context() as patch:
        patch.setattr(mssql, "bulk_session", other)
        refused(world, "mssql_transaction.principal_mismatch")
    recovers(world)
