"""Signed source authority on real servers: least privilege, every substitution refused, a real standby and its promotion."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from airflow_dpone_xmin.contracts.envelope import Prior
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.contracts.registry import SourceAuthority
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.source.authority import observe, verify
from airflow_dpone_xmin.source.describe import describe
from airflow_dpone_xmin.source.session import Session
from tests.source.support import SourceDb, after, ids, rows_of

CONTROL = ("pg_control_system()", "pg_control_checkpoint()", "pg_current_wal_lsn()", "pg_walfile_name(pg_lsn)")


@pytest.fixture
def db(source_db: SourceDb) -> SourceDb:
    source_db.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source_db.grant()
    return source_db


def changed(authority: SourceAuthority, path: str, value: Any) -> SourceAuthority:
    document = authority.model_dump(by_alias=True, exclude_none=True)
    *parents, last = path.split("/")
    node = document
    for parent in parents:
        node = node[parent]
    node[last] = value
    return SourceAuthority.model_validate(document)


def refusal(db: SourceDb, authority: SourceAuthority) -> XminError:
    with pytest.raises(XminError) as caught:
        db.extract(db.request(authority=authority))
    described = describe(db.endpoint, db.request(authority=authority))
    assert [error.code for error in described.findings] == [caught.value.code]
    return caught.value


def test_version_2_needs_no_control_function(db: SourceDb) -> None:
    db.run(*[f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC" for name in CONTROL])
    authority = db.authority(version=2)
    assert ids(rows_of(db.extract(db.request(authority=authority)))) == [1]


def test_version_1_names_the_function_it_lacks(db: SourceDb) -> None:
    authority = db.authority(version=1)
    db.run("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    error = refusal(db, authority)
    assert error.code == "postgres_source_authority.metadata_permission_denied"
    assert error.details["functions"] == ["pg_catalog.pg_control_system()"]
    described = describe(db.endpoint, db.request(authority=authority))
    assert described.missing_grants == ("EXECUTE on function pg_catalog.pg_control_system()",)
    assert {row.code for row in described.pins if not row.ok} == {error.code}, "a pin that cannot be read is not another cluster's"
    db.run(f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {db.reader}")
    assert ids(rows_of(db.extract(db.request(authority=authority)))) == [1]


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("system_identifier", "42", "system_identifier_mismatch"),
        ("timeline_id", 99, "timeline_mismatch"),
        ("topology_role", "standby", "topology_role_mismatch"),
        ("database/canonical_name", "other", "database_mismatch"),
        ("database/oid", 1, "database_mismatch"),
        ("principals/effective/canonical_name", "other", "principal_mismatch"),
        ("principals/session/oid", 1, "principal_mismatch"),
        ("relations/public.t/relation_oid", 1, "relation_mismatch"),
        ("relations/public.t/namespace_oid", 1, "relation_mismatch"),
    ],
)
def test_every_pin_counts(db: SourceDb, path: str, value: Any, code: str) -> None:
    authority = db.authority(version=1)
    assert ids(rows_of(db.extract(db.request(authority=authority)))) == [1]
    error = refusal(db, changed(authority, path, value))
    assert error.code == f"postgres_source_authority.{code}"
    assert error.details["expected"] == str(value)


def test_catalogs_that_are_shadowed(db: SourceDb) -> None:
    """A role's search path may name a schema before ``pg_catalog``: what is observed comes from the real catalog, with or without pins."""
    authority = db.authority(version=1)
    (key,) = authority.relations
    db.run(
        "CREATE SCHEMA evil",
        f'GRANT USAGE ON SCHEMA evil TO "{db.reader}"',
        "CREATE VIEW evil.pg_database AS SELECT datname, 1::oid AS oid FROM pg_catalog.pg_database",
        "CREATE VIEW evil.pg_roles AS SELECT rolname, 2::oid AS oid FROM pg_catalog.pg_roles",
        "CREATE VIEW evil.pg_namespace AS SELECT 3::oid AS oid, nspname FROM pg_catalog.pg_namespace",
        "CREATE VIEW evil.pg_class AS SELECT 4::oid AS oid, 3::oid AS relnamespace, relname FROM pg_catalog.pg_class",
        "CREATE FUNCTION evil.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        "CREATE FUNCTION evil.pg_control_system(OUT system_identifier bigint) LANGUAGE sql AS 'SELECT 5::bigint'",
        "CREATE FUNCTION evil.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$ SELECT '00000009' || repeat('0', 16) $$",
        "CREATE FUNCTION evil.has_function_privilege(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
        "CREATE FUNCTION evil.has_schema_privilege(oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
        "CREATE FUNCTION evil.has_column_privilege(oid, smallint, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
        "CREATE FUNCTION evil.translate(text, text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$",
        "CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT '0' $$",
        f'GRANT SELECT ON ALL TABLES IN SCHEMA evil TO "{db.reader}"',
        *[f'GRANT EXECUTE ON FUNCTION {name} TO "{db.reader}"' for name in CONTROL],
        f'ALTER ROLE "{db.reader}" SET search_path = evil, pg_catalog',
    )
    pin = authority.relations[key]
    with Session(db.endpoint) as session:
        assert session.one(sql.SQL("SELECT count(*) FROM pg_database WHERE oid = 1"))[0] > 0, "the shadow is there"
        verify(authority, key, observe(session, [(pin.schema_name, pin.relation)], version=1))
    assert ids(rows_of(db.extract(db.request(authority=authority)))) == [1]


def test_recreated_relation_and_role(db: SourceDb) -> None:
    authority = db.authority()
    db.run("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")
    db.grant()
    assert refusal(db, authority).code == "postgres_source_authority.relation_mismatch"
    db.run(f"DROP OWNED BY {db.reader}", f"DROP ROLE {db.reader}", f"CREATE ROLE {db.reader} LOGIN")
    db.grant()
    with pytest.raises(XminError) as caught:
        db.extract(db.request(authority=authority))
    assert caught.value.code == "postgres_source_authority.principal_mismatch"


def test_pins_side_by_side(db: SourceDb) -> None:
    authority = changed(db.authority(), "database/oid", 7)
    rows = {row.pin: row for row in describe(db.endpoint, db.request(authority=authority)).pins}
    assert (rows["database.oid"].expected, rows["database.oid"].ok) == ("7", False)
    assert rows["relation.relation_oid"].ok
    assert "system_identifier" not in rows


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[EmbeddedCluster, EmbeddedCluster]]:
    """A primary and its streaming standby."""
    directory = Path(tempfile.mkdtemp(prefix="dpx"))
    directory.chmod(0o777)
    try:
        with EmbeddedCluster(settings={"synchronous_commit": "remote_apply", "max_standby_streaming_delay": "0"}) as primary:
            with primary.connect() as owner:
                owner.execute("CREATE ROLE reader LOGIN")
                owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
                owner.execute("INSERT INTO t VALUES (1)")
                owner.execute("GRANT SELECT ON t TO reader")
            copy = ["-D", str(directory / "data"), "-h", str(primary.socket), "-U", "postgres", "-R", "-X", "stream", "-c", "fast"]
            primary.tool("pg_basebackup", copy)
            with EmbeddedCluster(directory) as standby:
                with primary.connect() as owner:
                    owner.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                    owner.execute("SELECT pg_reload_conf()")
                yield primary, standby
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def on(cluster: EmbeddedCluster, work: Path, owner: Any) -> SourceDb:
    return SourceDb(cluster, "postgres", "reader", work, owner)


def test_a_recovery_conflict_is_retryable(pair: tuple[EmbeddedCluster, EmbeddedCluster], tmp_path: Path) -> None:
    primary, standby = pair
    with primary.connect() as owner, standby.connect() as replica:
        db = on(standby, tmp_path, replica)

        def conflict(event: Progress) -> None:
            if event.event == "POSTGRES_SNAPSHOT_OPEN":
                owner.execute("DELETE FROM t")
                owner.execute("VACUUM t")

        request = db.request()
        with pytest.raises(XminError) as caught:
            db.extract(request, progress=conflict)
        assert (caught.value.code, caught.value.retryable) == ("postgres_source.lost", True)
        assert list(request.work_dir.iterdir()) == []


def test_a_standby_and_its_promotion(pair: tuple[EmbeddedCluster, EmbeddedCluster], tmp_path: Path) -> None:
    primary, standby = pair
    with primary.connect() as owner, standby.connect() as replica:
        first, second = on(primary, tmp_path / "p", owner), on(standby, tmp_path / "s", replica)
        first.work.mkdir()
        second.work.mkdir()
        signed = second.authority(version=1)
        assert (signed.topology_role, first.authority(version=1).topology_role) == ("standby", "primary")
        baseline = second.extract(second.request(authority=signed))
        first.run("INSERT INTO t VALUES (2)")
        delta = second.extract(second.request(authority=signed), after(baseline))
        assert ids(rows_of(delta)) == [2]
        ahead = after(delta, xmin=delta.horizons.safe + 1000)
        with pytest.raises(XminError) as caught:
            second.extract(second.request(authority=signed), ahead)
        assert (caught.value.code, caught.value.retryable) == ("xmin_window.standby_lags", True)
        assert refusal(first, signed).code == "postgres_source_authority.topology_role_mismatch"
    primary.stop()
    with standby.connect() as promoted:
        promoted.execute("SELECT pg_promote()")
        promoted.execute("CHECKPOINT")
        db = on(standby, tmp_path / "promoted", promoted)
        db.work.mkdir()
        # The physical profile looks at the timeline first; the catalog profile sees the recovery role only.
        assert "timeline_mismatch" in str(refuse_code(db, signed))
        rotated = db.authority(version=1)
        full = db.extract(db.request(authority=rotated), after(delta, authority_rotated=True))
        assert (full.reason, ids(rows_of(full))) == ("authority_rotated", [1, 2])


def refuse_code(db: SourceDb, authority: SourceAuthority) -> str:
    with pytest.raises(XminError) as caught:
        db.extract(db.request(authority=authority))
    return caught.value.code


def test_a_lagging_standby_under_a_long_transaction(pair: tuple[EmbeddedCluster, EmbeddedCluster], tmp_path: Path) -> None:
    """U does not move while a long transaction is open: the visible horizon still tells that this standby has seen less."""
    primary, standby = pair
    with primary.connect() as owner, primary.connect(autocommit=False) as long, standby.connect() as replica:
        db = on(standby, tmp_path, replica)
        long.execute("SELECT pg_current_xact_id()")
        owner.execute("INSERT INTO t VALUES (2)")
        replica.execute("SELECT pg_wal_replay_pause()")
        owner.execute("SET synchronous_commit = local")
        owner.execute("INSERT INTO t VALUES (3)")
        seen = owner.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert seen is not None
        request = db.request()
        lagging = replica.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
        assert lagging is not None
        prior = Prior(xmin=int(seen[0].split(":")[0]), snapshot=seen[0], projection_fingerprint=b"f" * 32)
        assert lagging[0] >= prior.xmin  # U alone would let it pass
        with pytest.raises(XminError) as caught:
            db.extract(request, prior)
        assert (caught.value.code, caught.value.retryable) == ("xmin_window.standby_lags", True)
        replica.execute("SELECT pg_wal_replay_resume()")
