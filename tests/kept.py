"""What a process builds anew for every run though it is always the same: the tests keep it, so that a run costs half.

A run still opens every session and sends every statement. Only what says how to is kept: the driver's list of the server's types, the
engine with its compiled statements, and the catalog's tables that these name. A certification keeps nothing, and neither do processes that
a test starts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql
import adbc_driver_postgresql.dbapi as adbc
import pytest
from adbc_driver_manager.dbapi import Connection, _SharedDatabase

from airflow_dpone_xmin.runtime import admission
from airflow_dpone_xmin.target import postgres


@contextmanager
def cheap_runs() -> Iterator[None]:
    """Runs of this process share what never changes."""
    databases = functools.lru_cache(maxsize=16)(_database)

    def connect(uri: str, *, autocommit: bool = False) -> Connection:
        database = databases(uri)
        return Connection(database, adbc_driver_manager.AdbcConnection(database._db), autocommit=autocommit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adbc, "connect", connect)
        patch.setattr(postgres, "create_engine", functools.lru_cache(maxsize=16)(postgres.create_engine))
        patch.setattr(admission, "build_catalog", functools.lru_cache(admission.build_catalog))
        yield


def _database(uri: str) -> Any:
    """A database of the driver, which has read the server's types; connections are opened from it."""
    return _SharedDatabase(adbc_driver_postgresql.connect(uri))
