"""How a catalog table is put together. Imports SQLAlchemy and ``target/sql.py`` only."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, Table, UniqueConstraint

from airflow_dpone_xmin.target.sql import STATE


def catalog_table(
    m: MetaData, name: str, *parts: Any, key: tuple[str, ...], schema: str = STATE, unique: tuple[tuple[str, ...], ...] = ()
) -> Table:
    """One catalog table with a named primary key and named unique constraints."""
    constraints: list[Any] = [PrimaryKeyConstraint(*key, name=f"pk_{name}")]
    constraints += [UniqueConstraint(*columns, name=f"uq_{name}_{columns[0]}") for columns in unique]
    return Table(name, m, *parts, *constraints, schema=schema)


def column(name: str, kind: Any, *, null: bool = False) -> Column[Any]:
    """One catalog column, NOT NULL unless it says so."""
    # Integer keys must not become identity or serial columns.
    return Column(name, kind, nullable=null, autoincrement=False)
