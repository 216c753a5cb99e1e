"""What every read and write of the catalog shares: the server's clock, existence reads that hold their range, NULL without a parameter.

Imports SQLAlchemy and the target's own session.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Table, null, select

from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.sql import Now

MAX_PARAMETERS = 1000
"""SQL Server takes 2,100 parameters in one statement."""

LOCKED_READ = "WITH (UPDLOCK, HOLDLOCK)"
"""Existence reads keep the range that they found empty (SQL Server, "Table hints")."""


def server_time(session: Session) -> datetime:
    """The server's UTC clock, naive."""
    value = session.scalar("clock", select(Now()))
    assert isinstance(value, datetime)
    return value


def no_parameter_for_null(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with NULL as a keyword."""
    # A driver must ask the server for the type of an untyped NULL parameter: a round trip, and a way to fail, inside the transaction.
    return {name: null() if value is None else value for name, value in values.items()}


def locked(table: Table, condition: Any) -> Select[Any]:
    """An existence read on a small catalog table: inside a serializable transaction what it did not find stays absent."""
    return select(table).where(condition).with_hint(table, LOCKED_READ, "mssql")
