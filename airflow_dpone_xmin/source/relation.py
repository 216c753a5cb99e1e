"""What the source relation is and where its rows are stored: facts, and the rules that admit or refuse them.

Rows are provable only in permanent heap tables: views, foreign and columnar tables have no true ``xmin``, unlogged ones lose rows.
Imports contracts, ``source/session.py`` and psycopg's SQL composition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.source.session import Session

_KINDS = {
    "r": "an ordinary table",
    "p": "a partitioned table",
    "v": "a view",
    "m": "a materialised view",
    "f": "a foreign table",
    "S": "a sequence",
    "t": "a TOAST table",
    "i": "an index",
    "I": "a partitioned index",
    "c": "a composite type",
}
_PERSISTENCE = {"p": "permanent", "u": "unlogged", "t": "temporary"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One storage of the relation: the table itself, or a leaf partition.

    :param in_snapshot: whether the transaction's snapshot has it in the partition tree.
    :param in_tree: whether the live partition tree has it now.
    :param file_node: ``relfilenode`` through the snapshot.
    :param live_file_node: ``pg_relation_filenode()`` now.
    """

    oid: int
    in_snapshot: bool
    in_tree: bool
    file_node: int
    live_file_node: int
    kind: str
    persistence: str
    access_method: str

    @property
    def stable(self) -> bool:
        """Whether a query of this transaction reads the rows that its snapshot promises."""
        return self.in_snapshot and self.in_tree and self.file_node == self.live_file_node != 0


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """Catalog facts of the relation, read through the transaction's snapshot."""

    oid: int
    name: str
    kind: str
    persistence: str
    access_method: str
    is_partition: bool
    has_children: bool
    has_parents: bool
    row_security_active: bool
    server_encoding: str

    @property
    def partitioned(self) -> bool:
        """Whether it is the root of a partition tree."""
        return self.kind == "p"


_FACTS = sql.SQL("""
    SELECT c.oid::bigint, n.nspname::text || '.' || c.relname::text, c.relkind::text, c.relpersistence::text,
           coalesce(am.amname::text, ''), c.relispartition,
           EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid), EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid),
           row_security_active(c.oid), current_setting('server_encoding')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am am ON am.oid = c.relam
    WHERE c.oid = {oid}""")

# pg_inherits is read through the snapshot, pg_partition_tree() and pg_relation_filenode() look at the live catalog. A partition whose
# concurrent detach is pending (PostgreSQL 14+) is left out by the planner as well.
_PARTITIONED_LEAVES = sql.SQL("""
    WITH RECURSIVE tree(oid) AS (
        SELECT {oid}::oid
        UNION ALL
        SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON t.oid = i.inhparent
        WHERE to_jsonb(i) ->> 'inhdetachpending' IS DISTINCT FROM 'true'
    ), leaves AS (
        SELECT c.oid, c.relfilenode, c.relkind, c.relpersistence, c.relam
        FROM tree JOIN pg_class c ON c.oid = tree.oid WHERE c.relkind <> 'p'
    ), live AS (
        SELECT p.relid::oid AS oid FROM pg_partition_tree({oid}) p WHERE p.isleaf
    )
    SELECT coalesce(s.oid, l.oid)::bigint, s.oid IS NOT NULL, l.oid IS NOT NULL, coalesce(s.relfilenode, 0)::bigint,
           coalesce(pg_relation_filenode(coalesce(s.oid, l.oid)), 0)::bigint, coalesce(s.relkind, 'r')::text,
           coalesce(s.relpersistence, 'p')::text, coalesce(am.amname::text, '')
    FROM leaves s FULL JOIN live l ON l.oid = s.oid LEFT JOIN pg_am am ON am.oid = s.relam
    ORDER BY 1""")

_PLAIN_LEAF = sql.SQL("""
    SELECT c.oid::bigint, true, true, c.relfilenode::bigint, coalesce(pg_relation_filenode(c.oid), 0)::bigint, c.relkind::text,
           c.relpersistence::text, coalesce(am.amname::text, '')
    FROM pg_class c LEFT JOIN pg_am am ON am.oid = c.relam WHERE c.oid = {oid}""")

# xmin is attribute -2; without a grant on the table it needs one of its own.
_UNREADABLE = sql.SQL("""
    SELECT a.attname::text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = {oid} AND (a.attnum > 0 OR a.attnum = -2) AND NOT a.attisdropped
      AND NOT pg_catalog.has_column_privilege({oid}::pg_catalog.oid, a.attnum, 'SELECT')
    ORDER BY a.attnum""")


def relation_facts(session: Session, oid: int) -> RelationFacts | None:
    """Facts of the relation with *oid*; None when the snapshot does not have it."""
    rows = session.rows(_FACTS.format(oid=sql.Literal(oid)))
    return RelationFacts(*rows[0]) if rows else None


def leaves_of(session: Session, facts: RelationFacts) -> tuple[Leaf, ...]:
    """Every storage of the relation, ordered by OID: snapshot and live catalog side by side."""
    query = _PARTITIONED_LEAVES if facts.partitioned else _PLAIN_LEAF
    return tuple(Leaf(*row) for row in session.rows(query.format(oid=sql.Literal(facts.oid))))


def unreadable_columns(session: Session, oid: int) -> tuple[str, ...]:
    """Columns, ``xmin`` among them, that the role may not select."""
    return tuple(row[0] for row in session.rows(_UNREADABLE.format(oid=sql.Literal(oid))))


def kind_refusals(name: str, kind: str) -> Iterator[XminError]:
    """Whether ``relkind`` rules the relation out; LOCK TABLE would refuse some of these kinds with a message of its own."""
    if kind not in ("r", "p"):
        yield _unsupported(name, f"it is {_KINDS.get(kind, 'of another kind')}", kind=kind)


def relation_refusals(facts: RelationFacts, leaves: tuple[Leaf, ...]) -> Iterator[XminError]:
    """Every reason why this relation cannot be replicated; none for an admissible one."""
    yield from kind_refusals(facts.name, facts.kind)
    if facts.kind not in ("r", "p"):
        return
    if facts.persistence != "p":
        yield _unsupported(facts.name, f"it is {_PERSISTENCE.get(facts.persistence, 'not permanent')}", persistence=facts.persistence)
    if facts.access_method != "heap" and not facts.partitioned:
        yield _unsupported(facts.name, f"its access method is {facts.access_method!r}, not heap", access_method=facts.access_method)
    if facts.has_children and not facts.partitioned:
        yield _unsupported(facts.name, "other tables inherit from it")
    if facts.has_parents and not facts.is_partition:
        yield _unsupported(facts.name, "it inherits from another table")
    for leaf in leaves if facts.partitioned else ():
        if (leaf.kind, leaf.persistence) != ("r", "p") or (leaf.in_snapshot and leaf.access_method != "heap"):
            what = _KINDS.get(leaf.kind, "of another kind") if leaf.kind != "r" else _PERSISTENCE.get(leaf.persistence, "")
            yield _unsupported(facts.name, f"its partition with OID {leaf.oid} is {what} with access method {leaf.access_method!r}")
    if facts.row_security_active:
        yield XminError(
            "postgres_source.row_security",
            f"Row-level security of {facts.name} applies to this role.",
            details={"relation": facts.name},
        )


def _unsupported(name: str, why: str, **details: str) -> XminError:
    return XminError("DPONE_RELATION_UNSUPPORTED", f"{name} cannot be a source: {why}.", details={"relation": name, **details})
