"""The part of the manifest that speaks about columns, and what all of its models share.

Imports the standard library and pydantic only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _sysname(name: str) -> str:
    """SQL Server counts the 128 characters of a name in UTF-16 units."""
    if len(name.encode("utf-16-le", "surrogatepass")) > 2 * 128:
        raise ValueError("more than 128 UTF-16 units")
    return name


Identifier = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_sysname)]
TableIdentifier = Annotated[Identifier, Field(max_length=100)]
"""A table's name: its keys, indexes and triggers are named after it."""
PgIdentifier = Annotated[str, Field(min_length=1, max_length=63)]


class Closed(BaseModel):
    """Refuses unknown fields, never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ContractColumn(Closed):
    """Authorises canonical text for a column."""

    type: Literal["string"]


class SchemaContract(Closed):
    """Explicit logical column types."""

    columns: dict[PgIdentifier, ContractColumn] = {}


class SchemaEvolution(Closed):
    """What happens when the source's columns change: safe changes are made in the target, everything else stops.

    :param enabled: whether a run may change the target itself when its login has the right; else the DDL is only rendered.
    :param on_dropped_column: ``keep`` leaves a column that the source no longer has, nullable and no longer maintained. A renamed
        column is a dropped and a new one.
    """

    enabled: bool = True
    on_dropped_column: Literal["stop", "keep"] = "stop"


class TargetType(Closed):
    """A physical override."""

    mssql: Identifier


class PhysicalColumn(Closed):
    """Physical design of one column."""

    target_type: TargetType


class PhysicalDesign(Closed):
    """Physical target types that differ from the default; they must be lossless."""

    columns: dict[PgIdentifier, PhysicalColumn] = {}
