"""The shadow: an empty copy of the live table that a campaign fills, and the exchange of the two (DESIGN "Campaign").

A rename follows the object, not the name: indexes are built anew, grants and descriptions are replayed, and what cannot be replayed is
refused by name before the first chunk. Spelling is the engine's: ``target/mssql_shadow.py``, ``target/postgres_shadow.py``. Imports
contracts and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_dpone_xmin.contracts.campaign import Campaign
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import DeleteMode, Layout, TableName
from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.facts import TableFacts
from airflow_dpone_xmin.target.session import Session
from airflow_dpone_xmin.target.shape import live_table

MAX_NAME_BYTES = 63
"""The embedded engine cuts longer names; SQL Server allows 128 characters."""


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index or key, so that it can be built on another table under another name.

    :param head: what stands before ``INDEX``, for example ``UNIQUE CLUSTERED``; empty for a constraint.
    :param body: what follows the table's name, or the constraint's definition.
    :param constraint: whether it backs a PRIMARY KEY or UNIQUE constraint.
    :param first: whether it must exist before the first row: a clustered columnstore.
    """

    name: str
    head: str
    body: str
    constraint: bool
    unique: bool
    first: bool = False


@dataclass(frozen=True, slots=True)
class IndexRename:
    """Names of one index through the exchange.

    :param shadow: its name on the shadow, until the exchange.
    :param live: the name that readers know.
    :param backup: what the old table's own becomes.
    """

    shadow: str
    live: str
    backup: str
    constraint: bool


class ShadowDialect(Protocol):
    """What an engine spells by itself. Sessions are in the target's database."""

    def obstacles(self, session: Session, live: TableName) -> list[str]:
        """What of the live table neither follows a rename nor can be replayed, as readable names."""
        ...

    def missing_rights(self, session: Session, live: TableName) -> list[str]:
        """Rights that the login lacks to create, index and exchange tables beside the live one."""
        ...

    def create(self, session: Session, live: TableName, shadow: str, *, facts: TableFacts, mode: DeleteMode, mark: str) -> None:
        """An empty table with the live one's columns, and the campaign's mark."""
        ...

    def read_mark(self, session: Session, table: TableName) -> str | None:
        """The campaign's mark of a table."""
        ...

    def indexes(self, session: Session, table: TableName) -> list[IndexDefinition]:
        """Indexes and keys of a table, in the order in which they are best built."""
        ...

    def build(self, session: Session, table: TableName, definition: IndexDefinition, *, name: str) -> None:
        """Build one index.

        :raises XminError: ``campaign.key_not_unique``.
        """
        ...

    def replay(self, session: Session, live: TableName, shadow: str) -> None:
        """Owner, grants and descriptions of the live table, onto the shadow; the mark goes."""
        ...

    def exchange(self, session: Session, live: TableName, *, shadow: str, backup: str, indexes: Sequence[IndexRename]) -> None:
        """Rename live to backup and shadow to live, with their indexes, inside the caller's transaction."""
        ...

    def drop(self, session: Session, table: TableName) -> None:
        """Drop a table."""
        ...


def shadow_dialect(layout: Layout) -> ShadowDialect:
    """The spelling of a layout's engine."""
    if layout.engine == "embedded":
        from airflow_dpone_xmin.target.postgres_shadow import PostgresShadow

        return PostgresShadow()
    from airflow_dpone_xmin.target.mssql_shadow import MssqlShadow

    return MssqlShadow()


def shadow_name(live: str, campaign_key: bytes) -> str:
    """Name of a campaign's shadow table."""
    return _derived(live, f"__dpone_shadow_{campaign_key.hex()[:12]}")


def backup_name(campaign: Campaign, live: str) -> str:
    """Name under which the old table is retained."""
    return _derived(live, f"__dpone_backup_{campaign.campaign_key.hex()[:12]}")


def filled_table(campaign: Campaign, live: TableName) -> TableName:
    """The table that the chunks fill: the shadow, or the live table in place."""
    return TableName(live.namespace, campaign.shadow or live.name)


def renames(campaign: Campaign, definitions: Sequence[IndexDefinition]) -> list[IndexRename]:
    """Names of the live table's indexes through the exchange; the same ones at every resume."""
    prefix = f"dpone_{campaign.campaign_key.hex()[:12]}"
    ordered = sorted(definitions, key=lambda definition: definition.name)
    return [IndexRename(f"{prefix}_{n}", index.name, f"{prefix}_{n}_old", index.constraint) for n, index in enumerate(ordered)]


def require_shadow(engine: Engine, dialect: ShadowDialect, session: Session, campaign: Campaign, live: TableName) -> TableFacts:
    """The shadow exists, carries this campaign's mark, and has the live table's columns.

    :raises XminError: ``campaign.shadow_changed``.
    """
    shadow = filled_table(campaign, live)
    facts = engine.describe(session, live.namespace, [shadow.name]).get(shadow.name)
    if facts is None:
        raise XminError("campaign.shadow_changed", f"{shadow.display} is missing or invisible.")
    if dialect.read_mark(session, shadow) != campaign.mark:
        raise XminError("campaign.shadow_changed", f"{shadow.display} does not carry this campaign's mark.")
    if set(facts.columns) != set(live_table(engine, session, live).columns):
        raise XminError("campaign.shadow_changed", f"{shadow.display} and {live.display} differ in their columns.")
    return facts


def build_deferred_indexes(dialect: ShadowDialect, session: Session, campaign: Campaign, live: TableName) -> int:
    """Build on the shadow what the live table has and the shadow lacks: once, and after the rows. Returns how many were built.

    :raises XminError: ``campaign.key_not_unique``.
    """
    shadow = filled_table(campaign, live)
    wanted = dialect.indexes(session, live)
    present = {definition.name for definition in dialect.indexes(session, shadow)}
    names = {rename.live: rename.shadow for rename in renames(campaign, wanted)}
    missing = [definition for definition in wanted if names[definition.name] not in present]
    for definition in missing:
        dialect.build(session, shadow, definition, name=names[definition.name])
    return len(missing)


def require_indexes(dialect: ShadowDialect, session: Session, campaign: Campaign, live: TableName) -> list[IndexRename]:
    """Every index of the live table stands on the shadow, defined the same.

    :returns: the names for the exchange.
    :raises XminError: ``campaign.shadow_changed``.
    """
    wanted = {definition.name: definition for definition in dialect.indexes(session, live)}
    present = {definition.name: definition for definition in dialect.indexes(session, filled_table(campaign, live))}
    names = renames(campaign, tuple(wanted.values()))
    for rename in names:
        found, asked = present.get(rename.shadow), wanted[rename.live]
        if found is None or (found.head, found.body, found.constraint) != (asked.head, asked.body, asked.constraint):
            raise XminError("campaign.shadow_changed", f"The shadow lacks the live table's index {rename.live}.")
    return names


def _derived(base: str, suffix: str) -> str:
    room = MAX_NAME_BYTES - len(suffix)
    return base.encode("utf-8")[:room].decode("utf-8", "ignore") + suffix
