"""Connections and driver errors: one code each, never the server's words."""

from __future__ import annotations

import dataclasses

import psycopg
import pytest
from psycopg import sql

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.source.session import Session, conninfo_of
from tests.source.support import SourceDb, rows_of

SECRET = "s3cr3t pass'word\\"


def test_conninfo_survives_every_character() -> None:
    endpoint = Endpoint("e", "/tmp/a b", 6543, "d'b", "u\\ser", SECRET, {"sslmode": "require", "keepalives": True, "driver": "x"})
    parsed = psycopg.conninfo.conninfo_to_dict(conninfo_of(endpoint))
    assert parsed["host"] == "/tmp/a b"
    assert (parsed["dbname"], parsed["user"], parsed["password"]) == ("d'b", "u\\ser", SECRET)
    assert (parsed["port"], parsed["sslmode"], parsed["client_encoding"]) == ("6543", "require", "UTF8")
    assert parsed["keepalives"] == "1"
    assert "driver" not in parsed
    assert SECRET not in repr(endpoint)


def refusal(endpoint: Endpoint) -> XminError:
    with pytest.raises(XminError) as caught:
        Session(endpoint)
    shown = str(caught.value.to_dict())
    for private in (SECRET, endpoint.host or "-", "FATAL", "libpq"):
        assert private not in shown
    return caught.value


def test_unreachable() -> None:
    for host, port in (("127.0.0.1", 1), ("/nonexistent", None), ("/no/password/authentication", None)):
        error = refusal(Endpoint("e", host, port, "db", "user", SECRET, {"connect_timeout": 2}))
        assert (error.code, error.retryable) == ("postgres_source.unreachable", True)


def test_refused_logins(source_db: SourceDb) -> None:
    cluster = source_db.cluster
    hba = cluster.data / "pg_hba.conf"
    rules = hba.read_text()
    source_db.run("CREATE ROLE locked LOGIN PASSWORD 'right'")
    hba.write_text(f"local {source_db.name} locked scram-sha-256\n{rules}")
    try:
        source_db.run("SELECT pg_reload_conf()")
        endpoint = dataclasses.replace(source_db.endpoint, user="locked", password="right")
        Session(endpoint).close()
        for password in (SECRET, None):
            assert refusal(dataclasses.replace(endpoint, password=password)).code == "postgres_source.authentication_failed"
    finally:
        hba.write_text(rules)
        source_db.run("SELECT pg_reload_conf()", "DROP ROLE locked")
    assert refusal(dataclasses.replace(source_db.endpoint, user="nobody_here")).code == "postgres_source.authentication_failed"
    missing = refusal(dataclasses.replace(source_db.endpoint, database="nowhere"))
    assert (missing.code, missing.retryable) == ("postgres_source.unreachable", False)
    source_db.run(f"REVOKE CONNECT ON DATABASE {source_db.name} FROM PUBLIC")
    assert refusal(source_db.endpoint).code == "postgres_source.permission_denied"


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT * FROM nowhere", "postgres_source.relation_missing"),
        ("SELECT * FROM nowhere.at_all", "postgres_source.relation_missing"),
        ("SELECT nothing FROM pg_class", "postgres_source.projection_invalid"),
        ("SELECT rolpassword FROM pg_authid", "postgres_source.permission_denied"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "postgres_source.lost"),
        ("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(1)", "postgres_source.lost"),
        ("SELECT 'secret value'::int", "postgres_source.value_unreadable"),
    ],
)
def test_statement_errors(source_db: SourceDb, statement: str, code: str) -> None:
    with Session(source_db.endpoint) as session:
        with pytest.raises(XminError) as caught:
            session.rows(sql.SQL(statement))  # type: ignore[arg-type]
        assert caught.value.code == code
        assert "secret value" not in str(caught.value.to_dict())
        assert "secret value" not in repr(caught.value.__cause__)


def test_an_error_in_mid_stream_keeps_its_code(source_db: SourceDb) -> None:
    with Session(source_db.endpoint) as session:
        late = sql.SQL("SELECT repeat('x', 1000) || (1000000 / (1000000 - i)) FROM generate_series(1, 2000000) i")
        with pytest.raises(XminError) as caught, session.stream(late) as (_, batches):
            for _ in batches:
                pass
        assert caught.value.details["sqlstate"] == "22012"


def test_a_server_that_quotes_every_name_is_read_too(source_db: SourceDb) -> None:
    """The driver looks types up as it connects; under that setting it would know none of them."""
    source_db.run(f'ALTER DATABASE "{source_db.name}" SET quote_all_identifiers = on')
    with Session(source_db.endpoint) as session:
        assert session.one(sql.SQL("SELECT 7::bigint, 'x'::text")) == (7, "x")
    with Session(dataclasses.replace(source_db.endpoint, extra={"options": "-c statement_timeout=4321"})) as session:
        assert session.one(sql.SQL("SELECT current_setting('statement_timeout')")) == ("4321ms",)


def test_an_early_end_of_a_stream_leaves_the_session_usable(source_db: SourceDb) -> None:
    with Session(source_db.endpoint) as session:
        with session.stream(sql.SQL("SELECT repeat('x', 1000) FROM generate_series(1, 200000)")) as (_, batches):
            next(iter(batches))
        assert session.one(sql.SQL("SELECT 1")) == (1,)


def test_a_consumers_own_error_is_not_the_servers(source_db: SourceDb) -> None:
    with Session(source_db.endpoint) as session, pytest.raises(OSError, match="mine"), session.stream(sql.SQL("SELECT 1")):
        raise OSError("mine")


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252"])
def test_other_encodings_arrive_as_unicode(source_cluster: EmbeddedCluster, source_db: SourceDb, encoding: str) -> None:
    name = f"{source_db.name}_{encoding.lower()}"
    source_cluster.create_database(name, options=f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        with source_cluster.connect(name) as owner:
            other = dataclasses.replace(source_db, name=name, owner=owner)
            other.run("CREATE TABLE t (id varchar(5) PRIMARY KEY)", "INSERT INTO t VALUES ('äöß')")
            other.grant()
            assert rows_of(other.extract()) == [{"id": "äöß"}]
    finally:
        source_cluster.drop_database(name)


def test_a_database_without_encoding_is_refused(source_cluster: EmbeddedCluster, source_db: SourceDb) -> None:
    name = f"{source_db.name}_ascii"
    source_cluster.create_database(name, options="ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    try:
        with source_cluster.connect(name) as owner:
            other = dataclasses.replace(source_db, name=name, owner=owner)
            other.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE n (id int PRIMARY KEY)")
            other.grant()
            other.grant("public.n")
            with pytest.raises(XminError) as caught:
                other.extract()
            assert caught.value.code == "postgres_source.projection_invalid"
            assert rows_of(other.extract(other.request("public.n"))) == []
    finally:
        source_cluster.drop_database(name)
