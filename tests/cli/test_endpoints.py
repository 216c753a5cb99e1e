"""Credentials: from a variable, from Airflow, and never in a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.runtime.endpoints import EnvironmentEndpoints, endpoint_from_url, from_airflow, registry_entry, variable_name


@dataclass
class Connection:
    """As much of Airflow's connection as is read."""

    conn_id: str = "c"
    host: str | None = None
    port: int | None = None
    schema: str | None = None
    login: str | None = None
    password: str | None = None
    extra_dejson: dict[str, Any] = field(default_factory=dict)


def test_a_variable_holds_a_url() -> None:
    assert variable_name("dwh-target.1ä") == "DPONE_CONN_DWH_TARGET_1_"
    endpoint = EnvironmentEndpoints({"DPONE_CONN_DWH": "mssql+pyodbc://sa:p%40ss%2F@h:1433/DWH?driver=X+Y&Encrypt=yes"})("dwh", conn_id="x")
    assert (endpoint.host, endpoint.port, endpoint.database, endpoint.user, endpoint.password) == ("h", 1433, "DWH", "sa", "p@ss/")
    assert endpoint.extra == {"driver": "X Y", "Encrypt": "yes"}
    assert "p@ss/" not in repr(endpoint)


def test_a_unix_socket() -> None:
    endpoint = endpoint_from_url("postgresql://u@/db?host=/run/pg&port=5433&sslmode=disable", entry="e", variable="V")
    assert (endpoint.host, endpoint.port, endpoint.database, endpoint.extra) == ("/run/pg", 5433, "db", {"sslmode": "disable"})


@pytest.mark.parametrize(
    "url", ["s3cret", "://s3cret", "postgresql://h:s3cret/db", "postgresql:///db?host=s3cret&host=b", "postgresql:///d?port=s3cret"]
)
def test_a_variable_that_holds_no_url(url: str) -> None:
    with pytest.raises(XminError) as caught:
        EnvironmentEndpoints({"DPONE_CONN_DWH": url})("dwh", conn_id="x")
    assert caught.value.code == "DPONE_CONNECTION_UNRESOLVED"
    assert "DPONE_CONN_DWH" in caught.value.hint
    assert "s3cret" not in str(caught.value) + str(caught.value.to_dict())


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.text(max_size=30).map(lambda rest: f"postgresql://{rest}"))
def test_any_text_is_an_endpoint_or_a_refusal(url: str) -> None:
    try:
        endpoint_from_url(url, entry="e", variable="V")
    except XminError as error:
        assert error.code == "DPONE_CONNECTION_UNRESOLVED"


def test_nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_dpone_xmin.runtime.endpoints.airflow_is_configured", lambda env=None: False)
    with pytest.raises(XminError) as caught:
        EnvironmentEndpoints({})("dwh", conn_id="dwh_conn")
    assert (caught.value.code, caught.value.retryable) == ("DPONE_CONNECTION_UNRESOLVED", False)


def test_an_airflow_connection() -> None:
    connection = Connection(
        host="h", port=5, schema="db", login="u", password="p", extra_dejson={"sslmode": "require", "dpone_registry_entry": "e"}
    )
    endpoint = from_airflow(connection, "e")
    assert (endpoint.host, endpoint.port, endpoint.database, endpoint.user, endpoint.password) == ("h", 5, "db", "u", "p")
    assert endpoint.extra == {"sslmode": "require"}
    assert (registry_entry(connection), registry_entry(Connection())) == ("e", "c")


def test_airflow_answers_for_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OLTP_CONN", "postgres://u:p%40ssword@h:5432/db?sslmode=require")
    endpoint = EnvironmentEndpoints()("oltp", conn_id="oltp_conn")
    assert (endpoint.entry, endpoint.host, endpoint.database, endpoint.password) == ("oltp", "h", "db", "p@ssword")
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    with pytest.raises(XminError) as caught:
        EnvironmentEndpoints()("absent", conn_id="absent_conn")
    assert caught.value.code == "DPONE_CONNECTION_UNRESOLVED"


def test_a_secrets_backend_that_fails_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import BaseHook

    def fail(conn_id: str) -> None:
        raise ConnectionError("vault at https://u:s3cret@vault is down")

    monkeypatch.setattr(BaseHook, "get_connection", fail)
    with pytest.raises(XminError) as caught:
        EnvironmentEndpoints({"AIRFLOW__CORE__X": "1"})("dwh", conn_id="dwh")
    assert (caught.value.code, caught.value.retryable) == ("DPONE_CONNECTION_UNRESOLVED", True)
    assert "s3cret" not in str(caught.value)
