"""How SQL Server is reached: the ODBC URL, the driver's place, the bulk loader's connection. The drivers are imported lazily.

Driver: the connection's ``driver`` extra, else an installed "ODBC Driver 18 for SQL Server", else the one in the ``mssql-python-odbc``
wheel. ``ConnectRetryCount=0`` and no pooling: a silent reconnect defeats every lease. Imports contracts only.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Endpoint

ODBC_DRIVER = "ODBC Driver 18 for SQL Server"
LOGIN_TIMEOUT_SECONDS = 10
_LOGIN_TIMEOUT_ATTRIBUTE = 103
"""``SQL_ATTR_LOGIN_TIMEOUT``."""
_NOT_ODBC = frozenset({"driver", "login_timeout", "connect_timeout", "query_timeout", "timeout", "dpone_registry_entry"})
_DECIDED = frozenset(
    {"addr", "address", "ansi", "autocommit", "connectretrycount", "database", "dsn", "host", "odbc_connect", "password", "port", "pwd",
     "server", "uid", "unicode_results", "user", "username"}
)  # fmt: skip
"""Keywords that an extra cannot set, in any case: of a repeated keyword ODBC takes the first, and it would win over what is set here."""


def require_pyodbc() -> Any:
    """The pyodbc module with its own pooling off.

    :raises XminError: ``mssql_transaction.driver_missing``; pyodbc's wheel needs the system's libodbc.
    """
    try:
        import pyodbc
    except ImportError as error:
        raise XminError(
            "mssql_transaction.driver_missing",
            f"pyodbc cannot be loaded: {type(error).__name__}.",
            hint="Run `apt install unixodbc` and `pip install 'airflow-dpone-xmin[mssql]'`.",
        ) from None
    pyodbc.pooling = False
    return pyodbc


def odbc_url(endpoint: Endpoint, *, database: str) -> URL:
    """The SQLAlchemy URL of one database; SQLAlchemy escapes every value."""
    options = driver_options(endpoint)
    if "Authentication" in options:
        # SQLAlchemy knows the lower-case spelling only, and adds Trusted_Connection to any other.
        options["authentication"] = options.pop("Authentication")
    return URL.create(
        "mssql+pyodbc",
        username=endpoint.user,
        password=endpoint.password,
        host=endpoint.host,
        port=endpoint.port,
        database=database,
        query={**options, "driver": driver_name(endpoint), "ConnectRetryCount": "0"},
    )


def driver_options(endpoint: Endpoint) -> dict[str, str]:
    """The ODBC keywords of a connection's extra, passed through: encryption, certificates, authentication, application intent …

    Address and login are fields of the connection, never of its extra. A JSON boolean is spelled as ODBC does. The signed entry's
    ``multi_subnet_failover`` wins over an extra that denies it.
    """
    options: dict[str, str] = {}
    for name, value in endpoint.extra.items():
        folded = str(name).lower()
        if folded not in _NOT_ODBC | _DECIDED and value is not None:
            options[_SPELLED.get(folded, str(name))] = ("Yes" if value else "No") if isinstance(value, bool) else str(value)
    if endpoint.multi_subnet_failover:
        options["MultiSubnetFailover"] = "Yes"
    return options


_SPELLED = {
    "authentication": "Authentication",
    "multisubnetfailover": "MultiSubnetFailover",
    "multi_subnet_failover": "MultiSubnetFailover",
}


def login_timeout(endpoint: Endpoint) -> int:
    """Seconds to wait for a login: never more than :data:`LOGIN_TIMEOUT_SECONDS`, less when the connection asks for less."""
    return _lowest(endpoint, ("login_timeout", "connect_timeout", "timeout"), limit=LOGIN_TIMEOUT_SECONDS)


def limit_statements(driver: Any, endpoint: Endpoint, *, seconds: float) -> None:
    """Bound every statement of a pyodbc connection; a lower ``query_timeout`` of the connection is not widened."""
    driver.timeout = _lowest(endpoint, ("query_timeout",), limit=int(seconds))


def _lowest(endpoint: Endpoint, names: tuple[str, ...], *, limit: int) -> int:
    # 0 would wait for ever: it counts as not set.
    asked = [str(value) for name, value in endpoint.extra.items() if str(name).lower() in names]
    return min([limit, *(int(value) for value in asked if value.isdecimal() and int(value) > 0)])


def driver_name(endpoint: Endpoint) -> str:
    """Name or path of the ODBC driver.

    :raises XminError: ``mssql_transaction.driver_missing``.
    """
    asked = next((value for name, value in endpoint.extra.items() if str(name).lower() == "driver"), None)
    if asked:
        return str(asked)
    if ODBC_DRIVER in require_pyodbc().drivers():
        return ODBC_DRIVER
    found = importlib.util.find_spec("mssql_python_odbc")
    if found is None or found.origin is None:
        raise XminError("mssql_transaction.driver_missing", "No ODBC driver for SQL Server is installed.")
    libraries = sorted((Path(found.origin).parent / "libs").rglob("libmsodbcsql-18*.so*"), key=_platform_rank)
    if not libraries:
        raise XminError("mssql_transaction.driver_missing", "The mssql-python-odbc wheel holds no driver for this platform.")
    return str(libraries[0])


@contextmanager
def bulk_session(endpoint: Endpoint, *, database: str, translate: Callable[[BaseException, str], XminError]) -> Iterator[Any]:
    """The session that the bulk loader copies over: ``execute``, ``fetchone`` and ``bulkcopy_arrow`` of its cursors are on it.

    ``mssql_python`` opens one per bulk copy by itself, where nobody could ask it who and where it is; so it is opened here, from the
    parameters that the driver makes of a connection of its own.
    """
    import mssql_py_core
    import mssql_python

    mssql_python.pooling(enabled=False)  # it would keep the session of the first connection open
    options = driver_options(endpoint)
    server = f"{endpoint.host},{endpoint.port}" if endpoint.port else str(endpoint.host)
    identity = {"uid": endpoint.user, "pwd": endpoint.password} if endpoint.user else {}
    limit = {_LOGIN_TIMEOUT_ATTRIBUTE: login_timeout(endpoint)}
    try:
        connect = mssql_python.connect("", autocommit=True, server=server, database=database, attrs_before=limit, **identity, **options)
        with contextlib.closing(connect) as made:
            parameters = made.cursor()._build_pycore_context()
        session = mssql_py_core.PyCoreConnection({**parameters, "connect_timeout": login_timeout(endpoint)})
    except AttributeError as error:
        raise XminError("mssql_transaction.driver_missing", f"This mssql-python cannot be asked for its session: {error.name}.") from None
    except Exception as error:
        raise translate(error, "connect") from None
    try:
        yield session
    finally:
        session.close()


def _platform_rank(path: Path) -> tuple[bool, str]:
    import platform

    machine = {"x86_64": "x86_64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return (machine not in path.parts or "debian_ubuntu" not in path.parts, str(path))


_CODES: dict[int, str] = {
    1205: "conflict",
    3960: "conflict",
    3961: "conflict",
    1222: "lock_timeout",
    596: "connection_lost",  # the session is in the kill state
    229: "permission_denied",
    230: "permission_denied",
    262: "permission_denied",
    297: "permission_denied",
    300: "permission_denied",
    2627: "constraint_violation",
    2601: "constraint_violation",
    547: "constraint_violation",
    515: "constraint_violation",
    511: "row_too_wide",  # a value that leaves its page still takes 24 bytes there
    18456: "authentication_failed",
    4060: "authentication_failed",
}
_STATES: dict[str, str] = {
    "40001": "conflict",
    "23000": "constraint_violation",
    "HYT00": "lock_timeout",
    **dict.fromkeys(("", "08001", "08003", "08004", "08007", "08S01", "HYT01", "01002"), "connection_lost"),
}


def code_of(state: str, native: int, label: str) -> str:
    """The code of a driver error, by SQLSTATE and native number."""
    if native in _CODES:
        return f"mssql_transaction.{_CODES[native]}"
    if state.startswith("28"):
        return "mssql_transaction.authentication_failed"
    if label == "connect":
        return "mssql_transaction.unreachable"
    return f"mssql_transaction.{_STATES.get(state, 'statement_failed')}"
