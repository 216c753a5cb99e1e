"""What reaches the ODBC driver: encryption, certificates, authentication and fail-over, without a server."""

from __future__ import annotations

import copy
import itertools
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mssql_python
import pytest
from mssql_python.pooling import PoolingManager
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc

from airflow_dpone_xmin.contracts.codes import CODES
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.manifest import parse_manifest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Endpoint, Layout, Namespace, TableName
from airflow_dpone_xmin.target import mssql_driver
from airflow_dpone_xmin.target.authority import verify_one_commit
from airflow_dpone_xmin.target.mssql import MssqlEngine
from airflow_dpone_xmin.target.mssql_driver import driver_options, odbc_url

LAYOUT = Layout(
    engine="mssql",
    target=TableName(Namespace("DWH", "landing"), "orders"),
    staging=Namespace("DWH", "staging"),
    state=Namespace("GOV", "dbo"),
)


def endpoint(user: str | None = "app", password: str | None = "p;w}d", **extra: Any) -> Endpoint:
    return Endpoint("dwh", "listener", 1433, "other", user, password, {"driver": "ODBC Driver 18 for SQL Server", **extra})


def connected(found: Endpoint) -> list[str]:
    """The keywords of the ODBC connection string, as SQLAlchemy writes it."""
    url = odbc_url(found, database="DWH")
    (text,), options = MSDialect_pyodbc().create_connect_args(url)
    assert options == {}
    return str(text).split(";")


def test_address_login_and_lease_rules_are_always_set() -> None:
    parts = connected(endpoint(password="secret"))
    assert parts == [
        "DRIVER={ODBC Driver 18 for SQL Server}", "Server=listener,1433", "Database=DWH", "UID=app", "PWD=secret", "ConnectRetryCount=0",
    ]  # fmt: skip


def test_a_password_cannot_add_a_keyword() -> None:
    assert "PWD={p;w}}d}" in ";".join(connected(endpoint()))


@pytest.mark.parametrize(
    ("extra", "keyword"),
    [
        ({"Encrypt": "strict"}, "Encrypt=strict"),
        ({"Encrypt": True}, "Encrypt=Yes"),
        ({"TrustServerCertificate": False}, "TrustServerCertificate=No"),
        ({"HostNameInCertificate": "sql.example"}, "HostNameInCertificate=sql.example"),
        ({"ServerCertificate": "/etc/ssl/sql.pem"}, "ServerCertificate=/etc/ssl/sql.pem"),
        ({"ApplicationIntent": "ReadWrite"}, "ApplicationIntent=ReadWrite"),
        ({"Authentication": "ActiveDirectoryServicePrincipal"}, "authentication=ActiveDirectoryServicePrincipal"),
        ({"MultiSubnetFailover": "Yes"}, "MultiSubnetFailover=Yes"),
        ({"multi_subnet_failover": True}, "MultiSubnetFailover=Yes"),
    ],
)
def test_options_of_the_connection_are_passed_through(extra: dict[str, Any], keyword: str) -> None:
    assert keyword in connected(endpoint(**extra))


@pytest.mark.parametrize("spelling", ["Authentication", "authentication", "AUTHENTICATION"])
def test_a_managed_identity_needs_no_trusted_connection(spelling: str) -> None:
    parts = connected(endpoint(None, None, **{spelling: "ActiveDirectoryMsi"}))
    assert "Authentication=ActiveDirectoryMsi" in parts
    assert not [part for part in parts if part.lower().startswith(("trusted_connection", "uid", "pwd"))]


def test_without_a_login_the_system_account_is_used() -> None:
    assert "Trusted_Connection=Yes" in connected(endpoint(None, None))


def test_the_registry_may_ask_for_multi_subnet_failover() -> None:
    for extra in ({}, {"MultiSubnetFailover": "No"}, {"multisubnetfailover": False}):
        parts = connected(replace(endpoint(**extra), multi_subnet_failover=True))
        assert [part for part in parts if part.lower().startswith("multisubnet")] == ["MultiSubnetFailover=Yes"]


@pytest.mark.parametrize(
    "name",
    ["connectretrycount", "ConnectRetryCount", "SERVER", "addr", "database", "UID", "pwd", "odbc_connect", "DSN", "autocommit", "timeout"],
)
def test_an_extra_cannot_redirect_the_login_or_bring_silent_reconnects_back(name: str) -> None:
    assert connected(endpoint(**{name: "5"})) == connected(endpoint())


def test_the_bulk_loader_gets_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(endpoint(Encrypt=True, login_timeout=3, dpone_registry_entry="dwh", Server="elsewhere"), multi_subnet_failover=True)
    assert driver_options(found) == {"Encrypt": "Yes", "MultiSubnetFailover": "Yes"}
    seen: dict[str, Any] = {}
    opened: list[dict[str, Any]] = []

    class Driver:
        def cursor(self) -> Driver:
            return self

        def _build_pycore_context(self) -> dict[str, Any]:
            return {"server": "as the driver has it", "connect_timeout": 99}

        def close(self) -> None: ...

    mssql_python.pooling()  # on, as it is unless somebody says otherwise
    monkeypatch.setattr("mssql_python.connect", lambda text, **options: seen.update(options) or Driver())
    monkeypatch.setattr("mssql_py_core.PyCoreConnection", lambda parameters: opened.append(parameters) or Driver())
    with mssql_driver.bulk_session(found, database="STAGE", translate=lambda *_: pytest.fail("translated")):
        pass
    assert seen == {
        "autocommit": True, "server": "listener,1433", "database": "STAGE", "uid": "app", "pwd": "p;w}d", "Encrypt": "Yes",
        "MultiSubnetFailover": "Yes", "attrs_before": {103: 3},
    }  # fmt: skip
    assert opened == [{"server": "as the driver has it", "connect_timeout": 3}]
    assert not PoolingManager.is_enabled(), "a pool keeps a session open after the run"


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyodbc's wheel needs the system's library; it is loaded when a session is opened, not before."""
    monkeypatch.setitem(sys.modules, "pyodbc", None)
    with pytest.raises(XminError) as caught:
        MssqlEngine(endpoint(), LAYOUT).connect("target", cancel=Cancellation())
    assert caught.value.code == "mssql_transaction.driver_missing"
    assert "apt install unixodbc" in str(caught.value.hint) and "airflow-dpone-xmin[mssql]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("groups", "separate"),
    [
        ([("DWH", None, None, None), ("GOV", None, None, None)], False),
        ([("DWH", 1, "g", True), ("GOV", 2, "g", True)], False),
        ([("DWH", 1, "g", False), ("GOV", 2, "g", False)], True),
        ([("DWH", 1, "g", True), ("GOV", 2, "h", True)], True),
        ([("DWH", 1, "g", True), ("GOV", None, None, None)], True),
    ],
)
def test_databases_of_availability_groups_must_commit_together(groups: list[tuple[Any, ...]], separate: bool) -> None:
    """One group with per-database DTC support, or none at all; what such a server answers is given, none can be run here."""
    session = SimpleNamespace(scalar=lambda *_: 1, rows=lambda *_: groups)
    found = None
    try:
        verify_one_commit(MssqlEngine(endpoint(), LAYOUT), session)  # type: ignore[arg-type]
    except XminError as error:
        found = error.code
    assert found == ("mssql_transaction.availability_group_unsupported" if separate else None)


def test_each_entry_has_its_own_options() -> None:
    """The state entry's ``multi_subnet_failover`` is its own, and so are its connection's options; staging belongs to the sink's."""
    from airflow_dpone_xmin.contracts.registry import RegistryDocument
    from airflow_dpone_xmin.policy.route import resolve_routes, select_route
    from airflow_dpone_xmin.target.connect import engine_of
    from tests.target.test_authority import signed_documents

    asked: list[tuple[str, str]] = []

    def endpoints(entry: str, *, conn_id: str) -> Endpoint:
        asked.append((entry, conn_id))
        extra = {"driver": "ODBC Driver 18 for SQL Server", "Encrypt": "No" if entry == "gov" else "Yes"}
        return Endpoint(entry, f"{entry}-host", 1433, None, "app", extra=extra)

    def options(*, sink: bool, state: bool, owner: str | None = None) -> dict[str, Any]:
        registry, manifest = signed_documents()
        for entry, wanted in (("dwh", sink), ("gov", state)):
            registry["connections"].setdefault(entry, copy.deepcopy(registry["connections"]["dwh"]))
            registry["connections"][entry]["connection"]["multi_subnet_failover"] = wanted
        manifest["state"]["connection_id"] = "gov"
        route = select_route(resolve_routes(parse_manifest(manifest), RegistryDocument.model_validate(registry)), None)
        engine = engine_of(route, endpoints, owner=owner)
        urls = {role: engine._url(role) for role in ("target", "staging", "state")}  # type: ignore[attr-defined]
        return {role: (url.host, url.query.get("MultiSubnetFailover", "No"), url.query["Encrypt"]) for role, url in urls.items()}

    for sink, state in itertools.product((False, True), repeat=2):
        ours, theirs = ("dwh-host", "Yes" if sink else "No", "Yes"), ("gov-host", "Yes" if state else "No", "No")
        assert options(sink=sink, state=state) == {"target": ours, "staging": ours, "state": theirs}
    owned = options(sink=False, state=True, owner="dba")
    assert owned == {"target": ("dba-host", "No", "Yes"), "staging": ("dba-host", "No", "Yes"), "state": ("dba-host", "Yes", "Yes")}
    assert asked[-2:] == [("dba", "dba")] * 2


def test_a_login_waits_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyodbc takes the limit as an argument; in the connection string the driver would ignore it."""
    from airflow_dpone_xmin.contracts.route import Layout, Namespace, TableName
    from airflow_dpone_xmin.target.mssql import MssqlEngine

    space = Namespace("DWH", "dbo")
    layout = Layout(engine="mssql", target=TableName(space, "t"), staging=space, state=space)
    for asked, given in (({}, 10), ({"login_timeout": 4}, 4), ({"login_timeout": 60}, 10)):
        seen: dict[str, Any] = {}
        monkeypatch.setattr("airflow_dpone_xmin.target.mssql.create_engine", lambda url, **options: seen.update(options))  # noqa: B023
        found = endpoint(**asked)
        MssqlEngine(found, layout, state=found)._pool("target")
        assert seen["connect_args"] == {"timeout": given}


@pytest.mark.parametrize(
    ("state", "native", "label", "code"),
    [
        ("42000", 1205, "finalize.update", "conflict"),
        ("42000", 511, "stage.load", "row_too_wide"),
        ("23000", 0, "finalize.insert", "constraint_violation"),
        ("08S01", 10054, "finalize.commit", "connection_lost"),
        ("HY000", 596, "finalize.update", "connection_lost"),
        ("42000", 8152, "finalize.insert", "statement_failed"),
        ("42000", 8152, "connect", "unreachable"),
    ],
)
def test_a_drivers_error_gets_the_code_of_what_can_be_done(state: str, native: int, label: str, code: str) -> None:
    assert mssql_driver.code_of(state, native, label) == f"mssql_transaction.{code}"
    assert f"mssql_transaction.{code}" in CODES
