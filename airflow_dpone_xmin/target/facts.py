"""What a live table looks like, in the engine's own spelling. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """One live table; missing tables have no facts."""

    columns: tuple[ColumnFacts, ...]
    indexes: tuple[IndexFacts, ...] = ()
    triggers: tuple[str, ...] = ()
    foreign_keys: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def column(self, name: str) -> ColumnFacts | None:
        """The column of exactly that name."""
        return next((column for column in self.columns if column.name == name), None)


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
