"""The shadow: an empty copy of the live table that a campaign fills, and the exchange of the two (design.md "Campaign").

A rename follows the object, not the name: indexes are built anew, grants and descriptions are replayed, and what cannot be replayed is
refused by name before the first chunk. Spelling is the engine's: ``target/mssql_shadow.py``, ``target/postgres_shadow.py``. Imports
contracts and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from airflow_dpone_xmin.contracts.campaign import Campaign
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import DeleteMode, Layout, TableName
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import TableFacts
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

    def same_as(self, other: IndexDefinition) -> bool:
        """Whether both do the same, whatever their names."""
        return (self.head, self.body, self.constraint) == (other.head, other.body, other.constraint)


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

    def drop_index(self, session: Session, table: TableName, definition: IndexDefinition) -> None:
        """Drop an index or key of the shadow."""
        ...

    def seal(self, session: Session, live: TableName) -> None:
        """From here to the end of the transaction nobody changes the live table or hangs anything on it."""
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
    """Names of the live table's indexes through the exchange: the same ones at every resume, whatever index is added beside them."""
    return [
        IndexRename(name := _index_name(campaign, index.name), index.name, f"{name}_old", index.constraint)
        for index in sorted(definitions, key=lambda definition: definition.name)
    ]


def _index_name(campaign: Campaign, live_name: str) -> str:
    return f"dpone_{campaign.campaign_key.hex()[:12]}_{sha256(live_name.encode()).hexdigest()[:12]}"


def require_shadow(engine: Engine, dialect: ShadowDialect, session: Session, campaign: Campaign, live: TableName) -> TableFacts:
    """The shadow exists, carries this campaign's mark, and has the live table's columns.

    :returns: the live table.
    :raises XminError: ``campaign.shadow_changed``, ``DPONE_TARGET_UNSUPPORTED`` without a live table.
    """
    shadow = filled_table(campaign, live)
    found = engine.describe(session, live.namespace, [live.name, shadow.name])
    facts = live_table(engine, session, live) if live.name not in found else found[live.name]
    if shadow.name not in found:
        raise XminError("campaign.shadow_changed", f"{shadow.display} is missing or invisible.")
    if dialect.read_mark(session, shadow) != campaign.mark:
        raise XminError("campaign.shadow_changed", f"{shadow.display} does not carry this campaign's mark.")
    if set(found[shadow.name].columns) != set(facts.columns):
        raise XminError("campaign.shadow_changed", f"{shadow.display} and {live.display} differ in their columns.")
    return facts


def equal_keys(index: str) -> XminError:
    """The refusal of rows that an index finds equal; the key's own and any other unique one have different causes."""
    hint = (
        "If it is the key's, correct the keys at the source, abandon the campaign and start one with a new handoff_id. If it is another "
        "one, the source moved a value between rows while chunks were read: drop it from the live table, go on, let the incremental "
        "process run once, and create it again."
    )
    return XminError("campaign.key_not_unique", f"{index} found equal values in the filled table.", hint=hint)


def build_first_indexes(dialect: ShadowDialect, session: Session, campaign: Campaign, live: TableName) -> None:
    """Build on the empty shadow what must stand before the first row."""
    for definition in dialect.indexes(session, live):
        if definition.first:
            dialect.build(session, filled_table(campaign, live), definition, name=_index_name(campaign, definition.name))


def build_deferred_indexes(dialect: ShadowDialect, session: Session, campaign: Campaign, live: TableName) -> int:
    """Build on the shadow what the live table has and the shadow lacks: once, and after the rows. Returns how many were built.

    An index that the live table no longer has, or has otherwise than when it was built, is dropped first.

    :raises XminError: ``campaign.key_not_unique``.
    """
    shadow = filled_table(campaign, live)
    wanted = {_index_name(campaign, definition.name): definition for definition in dialect.indexes(session, live)}
    present = set()
    for definition in dialect.indexes(session, shadow):
        if definition.name in wanted and definition.same_as(wanted[definition.name]):
            present.add(definition.name)
        else:
            dialect.drop_index(session, shadow, definition)
    missing = [(name, definition) for name, definition in wanted.items() if name not in present]
    for name, definition in missing:
        dialect.build(session, shadow, definition, name=name)
    return len(missing)


def require_indexes(dialect: ShadowDialect, session: Session, campaign: Campaign, live: TableName) -> list[IndexRename]:
    """Exactly the indexes of the live table stand on the shadow, defined the same.

    :returns: the names for the exchange.
    :raises XminError: ``campaign.shadow_changed``, retryable: the next publication builds or drops what differs.
    """
    wanted = {_index_name(campaign, definition.name): definition for definition in dialect.indexes(session, live)}
    present = {definition.name: definition for definition in dialect.indexes(session, filled_table(campaign, live))}
    for name in sorted({*wanted, *present}):
        found, asked = present.get(name), wanted.get(name)
        if found is None or asked is None or not found.same_as(asked):
            message = f"The live table's index {asked.name if asked else name} changed while it was being built on the shadow."
            raise XminError("campaign.shadow_changed", message, hint="Publish again: the index is built anew.", retryable=True)
    return renames(campaign, tuple(wanted.values()))


def _derived(base: str, suffix: str) -> str:
    room = MAX_NAME_BYTES - len(suffix)
    return base.encode("utf-8")[:room].decode("utf-8", "ignore") + suffix
