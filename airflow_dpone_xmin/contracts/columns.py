"""Columns as the source declares them and as the route carries them.

:class:`SourceColumn` is what the catalog said; :class:`ColumnPlan` is what ``policy/types.py`` decided from it. Imports the standard
library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Family(str, Enum):
    """How a value behaves on its way: one guard, one comparison, one fingerprint per family."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    DECIMAL = "decimal"
    REAL = "real"
    DOUBLE = "double"
    TEXT = "text"
    UUID = "uuid"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One live column of the source relation, read inside the boundary.

    :param name: canonical column name.
    :param attnum: attribute number, 1-based, ascending with gaps after DROP COLUMN.
    :param type_name: ``format_type(atttypid, atttypmod)``, for example ``numeric(10,2)``.
    :param base_type: bare ``pg_type.typname`` of the column, for example ``numeric``.
    :param type_kind: ``pg_type.typtype``: b, e, d, c, r, m.
    :param type_schema: schema of a type of PostgreSQL's own, '' of any other, wherever an extension has put it.
    :param typmod: ``atttypmod``, -1 when absent.
    :param nullable: False only with a NOT NULL constraint.
    :param is_array: whether the type is an array.
    :param element: (schema, typname, typtype) of what the type is made of in the end, the worst of several parts; None for a plain type.
    :param deterministic: False when its collation calls different texts equal.
    """

    name: str
    attnum: int
    type_name: str
    base_type: str
    type_kind: str
    type_schema: str
    typmod: int
    nullable: bool
    is_array: bool = False
    element: tuple[str, str, str] | None = None
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one column is carried: decided once in ``policy/types.py``, used by both sides.

    :param name: column name, the same on both sides.
    :param family: behaviour on the way.
    :param source_type: the source's declaration, for messages and schema hash.
    :param nullable: whether NULL may occur.
    :param key: whether the column belongs to the unique key.
    :param cast_to_text: whether the extraction query reads the column as ``text``.
    :param built_in: whether the type is PostgreSQL's own. The text of another is what its output function gives: a cast may be anybody's.
    :param mssql_type: physical type on SQL Server, for example ``nvarchar(40)``.
    :param embedded_type: physical type on the embedded engine, for example ``character varying(20)``.
    :param precision: decimal digits, DECIMAL only.
    :param scale: decimal scale, DECIMAL only.
    :param max_units: greatest length that the target type holds: UTF-16 code units of TEXT, bytes of BINARY; None when unbounded.
    :param ordinal: position in the projection, 0-based.
    """

    name: str
    family: Family
    source_type: str
    nullable: bool
    key: bool
    cast_to_text: bool
    mssql_type: str
    embedded_type: str
    precision: int | None = None
    scale: int | None = None
    max_units: int | None = None
    ordinal: int = 0
    built_in: bool = True


@dataclass(frozen=True, slots=True)
class Projection:
    """The frozen columns of one route, key columns in the authored key order.

    :param columns: all carried columns in source order.
    :param key: names of the key columns in authored order.
    :param fingerprint: 32-byte projection fingerprint (design.md "Identities").
    :param volatile: whether content may change although neither ``xmin`` nor fingerprint does (``regclass`` …): every payload is full.
    """

    columns: tuple[ColumnPlan, ...]
    key: tuple[str, ...]
    fingerprint: bytes
    volatile: bool = False

    def __post_init__(self) -> None:
        names = {column.name for column in self.columns}
        if len(self.fingerprint) != 32 or not self.key or not set(self.key) <= names:
            raise ValueError("a projection has a 32-byte fingerprint and key columns among its columns")

    @property
    def key_columns(self) -> tuple[ColumnPlan, ...]:
        """Key columns in authored key order."""
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.key)

    @property
    def value_columns(self) -> tuple[ColumnPlan, ...]:
        """Columns outside the key, in source order."""
        return tuple(column for column in self.columns if not column.key)
