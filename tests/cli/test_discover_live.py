"""``registry discover`` against a real server, as the role that a run uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone_xmin.contracts.registry import SourceAuthority
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster

from .conftest import Cli


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    server = EmbeddedCluster()
    try:
        with server.connect("postgres") as connection:
            connection.execute("CREATE ROLE reader LOGIN")
            connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
            connection.execute('CREATE TABLE public."Orders" (id bigint PRIMARY KEY)')
            connection.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY)")
        yield server
    finally:
        server.close()


@pytest.fixture
def as_reader(cluster: EmbeddedCluster, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> EmbeddedCluster:
    monkeypatch.setenv("DPONE_CONN_OLTP", f"postgresql://reader:s3cret@/postgres?host={cluster.socket}")
    return cluster


def test_version_2_needs_no_grant(as_reader: EmbeddedCluster, cli: Cli) -> None:
    done = cli("registry", "discover", "oltp", "--relation", "public.orders", "--format", "json")
    assert done.code == 0, done.out
    fragment = done.json["fragment"]["connections"]["oltp"]["connection"]
    authority = SourceAuthority.model_validate(fragment["postgres_source_authority"])
    with as_reader.connect("postgres") as connection:
        (oid,) = connection.execute("SELECT 'public.orders'::regclass::oid").fetchall()[0]
        (database,) = connection.execute("SELECT oid FROM pg_database WHERE datname = 'postgres'").fetchall()[0]
    assert authority.version == 2
    assert authority.relations["public.orders"].relation_oid == oid
    assert (authority.database.oid, authority.principals.effective.canonical_name) == (database, "reader")
    assert "pg_control" not in json.dumps(done.json["queries"])


def test_version_1_is_never_downgraded(as_reader: EmbeddedCluster, cli: Cli) -> None:
    arguments = ("registry", "discover", "oltp", "--relation", "public.orders", "--physical-cluster", "--format", "json")
    assert cli(*arguments).json["error"]["code"] == "postgres_source_authority.metadata_permission_denied"
    with as_reader.connect("postgres") as connection:
        for function in ("pg_control_system()", "pg_current_wal_lsn()", "pg_walfile_name(pg_lsn)"):
            connection.execute(f"GRANT EXECUTE ON FUNCTION {function} TO reader")  # type: ignore[call-overload]
    authority = cli(*arguments).json["fragment"]["connections"]["oltp"]["connection"]["postgres_source_authority"]
    assert (authority["version"], authority["timeline_id"]) == (1, 1)
    assert authority["system_identifier"].isdigit()


def test_a_fragment_can_be_pasted_and_signed(as_reader: EmbeddedCluster, cli: Cli, tmp_path: Path) -> None:
    done = cli("registry", "discover", "oltp", "--relation", "public.Orders")
    assert done.code == 0
    head = "kind: dpone.registry.v1\nenvironment: test\nserial: 1\nnot_before: 2020-01-01T00:00:00Z\nnot_after: 2120-01-01T00:00:00Z\n"
    (tmp_path / "d.yaml").write_text(head + done.out)
    cli("registry", "keygen", "--name", "k")
    signed = cli("registry", "sign", "d.yaml", "-o", "r.json", "--key", "k.key")
    assert signed.code == 0, signed.err
    assert "Candidates only" in done.err
    assert "s3cret" not in done.out + done.err


def test_a_relation_that_is_not_there(as_reader: EmbeddedCluster, cli: Cli) -> None:
    done = cli("registry", "discover", "oltp", "--relation", "public.ORDERS", "--format", "json")
    assert (done.code, done.json["error"]["code"]) == (1, "postgres_source.relation_missing")
