"""What a live table looks like, in the engine's own spelling. Imports the standard library only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One live column; ``type`` is spelled like ``policy/types.py`` spells it."""

    name: str
    type: str
    nullable: bool
    collation: str | None
    computed: bool
    identity: bool


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """One live index or key; ``filter`` is the engine's text of its predicate."""

    name: str
    unique: bool
    primary: bool
    columns: tuple[str, ...]
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One live table; missing tables have no facts.

    :param triggers: names; a disabled one ends in `` (disabled)``.
    :param trigger_texts: definition by name, as the engine's catalog holds it; None where it cannot be read.
    """

    columns: tuple[ColumnFacts, ...]
    indexes: tuple[IndexFacts, ...] = ()
    triggers: tuple[str, ...] = ()
    trigger_texts: Mapping[str, str | None] = field(default_factory=dict)
    foreign_keys: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def column(self, name: str) -> ColumnFacts | None:
        """The column of exactly that name."""
        return next((column for column in self.columns if column.name == name), None)


def plain_predicate(sql: str) -> str:
    """An index predicate without what engines add when they store it: case, space, quotes and parentheses."""
    return re.sub(r'[\s()"\[\]]', "", sql.lower())


def exactly_in(schema: str, rows: Iterable[Any]) -> list[Any]:
    """Catalog rows whose first column is *schema* to the letter, without it: a server may find by its collation, which folds."""
    return [tuple(row)[1:] for row in rows if row[0] == schema]


def assemble(
    tables: Iterable[tuple[str, int]],
    *,
    columns: Iterable[tuple[int, ColumnFacts]],
    indexes: Iterable[tuple[int, IndexFacts]],
    others: Iterable[tuple[int, str, str, str | None]],
) -> dict[str, TableFacts]:
    """Facts per table name from four catalog queries.

    :param tables: (name, object id).
    :param others: (object id, ``trigger`` | ``foreign_key`` | ``check``, name, definition of a trigger).
    """
    parts: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for oid, column in columns:
        parts[oid]["column"].append(column)
    for oid, index in indexes:
        parts[oid]["index"].append(index)
    for oid, kind, name, definition in others:
        parts[oid][kind].append(name)
        if kind == "trigger":
            parts[oid]["text"].append((name, definition))
    return {
        name: TableFacts(
            columns=tuple(parts[oid]["column"]),
            indexes=tuple(parts[oid]["index"]),
            triggers=tuple(parts[oid]["trigger"]),
            trigger_texts=dict(parts[oid]["text"]),
            foreign_keys=tuple(parts[oid]["foreign_key"]),
            checks=tuple(parts[oid]["check"]),
        )
        for name, oid in tables
    }


@dataclass(frozen=True, slots=True)
class ObservedDatabase:
    """A database as the live server describes it; compared with its signed pins, never learned."""

    name: str
    database_id: int
    create_token: str
    database_guid: UUID | None
    online: bool = True
    multi_user: bool = True
    has_access: bool = True
    metadata_visible: bool = True


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Where and as whom a session runs.

    :param topology: identity of the server instance.
    :param principal: effective principal.
    :param database: current database.
    :param session: identity of this very session, for continuity checks.
    """

    topology: str
    principal: str
    database: str
    session: str
    warnings: tuple[str, ...] = field(default=())
