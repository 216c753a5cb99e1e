"""The carried columns of the relation and the fingerprint of everything that can change their content without changing ``xmin``.

Read inside the boundary, through its snapshot. A different fingerprint makes the next payload full (design.md "Identities").
Imports contracts, policy, ``source/session.py`` and psycopg's SQL composition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from airflow_dpone_xmin.contracts.canonical import Canonical, digest
from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, Projection, SourceColumn
from airflow_dpone_xmin.contracts.envelope import SourceRequest
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.policy.planning import plan_columns
from airflow_dpone_xmin.policy.types import admitted_types, volatile_types
from airflow_dpone_xmin.source.relation import Leaf, RelationFacts
from airflow_dpone_xmin.source.session import Session

#: Rows of catalogs, as wide as the query that reads them.
Definitions = list[list[Canonical]]

#: The first OID that is not PostgreSQL's own; an extension may put its types into ``pg_catalog`` (access/transam.h, FirstNormalObjectId).
_FIRST_OF_USERS = 16384

# Since PostgreSQL 18 a NOT NULL constraint may be NOT VALID: older rows can still hold NULL then.
# Of all that a type is made of, made_of is a part that no contract admits, if there is one.
_COLUMNS = sql.SQL("""
    SELECT a.attname::text, a.attnum::int, format_type(a.atttypid, a.atttypmod), t.typname::text, t.typtype::text,
           CASE WHEN t.oid < {own} THEN n.nspname::text ELSE '' END, a.atttypmod::int,
           NOT a.attnotnull OR EXISTS (
               SELECT FROM pg_constraint k
               WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND NOT k.convalidated AND k.conkey = ARRAY[a.attnum]),
           EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid), made_of.schema, made_of.typname, made_of.typtype,
           coalesce((to_jsonb(l) ->> 'collisdeterministic')::boolean, true)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    LEFT JOIN LATERAL (
        WITH RECURSIVE inside(oid) AS (
            SELECT a.atttypid
            UNION
            SELECT p.oid FROM inside JOIN pg_type s ON s.oid = inside.oid
            CROSS JOIN LATERAL (
                SELECT s.typbasetype WHERE s.typtype = 'd'
                UNION ALL SELECT s.typelem WHERE EXISTS (SELECT FROM pg_type e WHERE e.typarray = s.oid)
                UNION ALL SELECT f.atttypid FROM pg_attribute f
                    WHERE s.typtype = 'c' AND s.oid >= {own}
                      AND f.attrelid = s.typrelid AND f.attnum > 0 AND NOT f.attisdropped
                UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = s.oid
                UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE (to_jsonb(r) ->> 'rngmultitypid')::oid = s.oid
            ) p(oid))
        SELECT CASE WHEN e.oid < {own} THEN en.nspname::text ELSE '' END AS schema, e.typname::text, e.typtype::text
        FROM inside JOIN pg_type e ON e.oid = inside.oid JOIN pg_namespace en ON en.oid = e.typnamespace
        WHERE e.oid <> a.atttypid AND e.typtype NOT IN ('d', 'r', 'm') AND NOT EXISTS (SELECT FROM pg_type b WHERE b.typarray = e.oid)
        ORDER BY e.oid < {own} AND NOT (en.nspname = 'pg_catalog' AND e.typname = ANY ({admitted}::text[])) DESC
        LIMIT 1
    ) made_of ON true
    WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum""")

# The version of the database's own collation lives in pg_database, from PostgreSQL 15 on: to_jsonb() forgives its absence before.
_CONTENT = sql.SQL("""
    SELECT a.attrelid::bigint, a.attnum::int, a.attname::text, format_type(a.atttypid, a.atttypmod), a.atttypmod::int, a.attnotnull::int,
           coalesce(CASE WHEN a.atthasmissing THEN a.attmissingval::text END, ''),
           a.attgenerated::text, coalesce(CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END, ''),
           coalesce(l.collname::text || '/' || l.collprovider::text || '/' || l.collencoding::text, ''),
           coalesce(CASE WHEN l.collprovider = 'd' THEN to_jsonb(b) ->> 'datcollversion' ELSE l.collversion END, ''),
           coalesce(pg_collation_actual_version(l.oid), '')
    FROM pg_attribute a
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    JOIN pg_database b ON b.datname = current_database()
    WHERE a.attnum > 0 AND NOT a.attisdropped
      AND (a.attrelid = {oid} OR (a.attrelid = ANY ({leaves}::oid[]) AND (a.atthasmissing OR a.attgenerated <> '')))
    ORDER BY 1, 2""")

# A leaf may have been detached, its columns renamed or dropped and added, and attached again: the number behind a name is the leaf's own.
_NUMBERS = sql.SQL("""
    SELECT a.attrelid::bigint, string_agg(a.attnum::text || ' ' || a.attname::text, ', ' ORDER BY a.attnum)
    FROM pg_attribute a LEFT JOIN pg_attribute root ON root.attrelid = {oid} AND root.attname = a.attname
    WHERE a.attrelid = ANY ({leaves}::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attnum IS DISTINCT FROM root.attnum
    GROUP BY 1 ORDER BY 1""")

# Every type that a value may be made of: elements of arrays, bases of domains, fields of composites, bounds of ranges and multiranges.
# A field that was dropped and added again has lost its values: only its number tells. A label may be renamed, and renamed back, while
# rows are read: the row's own xmin tells. What an extension's type looks like as text is its output function's affair.
_TYPES = sql.SQL("""
    WITH RECURSIVE parts(oid) AS (
        SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped
        UNION
        SELECT p.oid FROM parts CROSS JOIN LATERAL (
            SELECT t.typelem FROM pg_type t WHERE t.oid = parts.oid AND t.typelem <> 0
            UNION ALL SELECT t.typbasetype FROM pg_type t WHERE t.oid = parts.oid AND t.typbasetype <> 0
            UNION ALL SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
                WHERE t.oid = parts.oid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = parts.oid
            UNION ALL SELECT r.rngtypid FROM pg_range r WHERE (to_jsonb(r) ->> 'rngmultitypid')::oid = parts.oid
        ) p(oid)
    )
    SELECT t.oid::bigint, n.nspname::text, t.typname::text, t.typtype::text, t.typnotnull::int,
           coalesce((SELECT array_agg(e.xmin::text || ' ' || e.enumlabel::text ORDER BY e.enumsortorder)::text
                     FROM pg_enum e WHERE e.enumtypid = t.oid), ''),
           coalesce((SELECT array_agg(pg_get_constraintdef(k.oid) ORDER BY k.conname)::text
                     FROM pg_constraint k WHERE k.contypid = t.oid), ''),
           coalesce((SELECT array_agg(a.xmin::text || ' ' || a.attnum::text || ' ' || a.attname::text ORDER BY a.attnum)::text
                     FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0), ''),
           coalesce((SELECT p.xmin::text FROM pg_proc p WHERE t.typtype = 'b' AND p.oid = t.typoutput), ''),
           CASE WHEN t.oid = 'money'::regtype THEN current_setting('lc_monetary') ELSE '' END,
           coalesce((SELECT e.extname::text || ' ' || e.extversion FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                     WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'), '')
    FROM parts JOIN pg_type t ON t.oid = parts.oid JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE t.typtype <> 'b' OR n.nspname <> 'pg_catalog' OR t.typname = ANY ({volatile}::text[]) OR t.oid = 'money'::regtype
    ORDER BY 1""")

# Among PostgreSQL's own types. Other types are read by their output functions, which no cast replaces.
_FOREIGN_CASTS = sql.SQL("""
    SELECT a.attname::text, format_type(a.atttypid, a.atttypmod)
    FROM pg_attribute a JOIN pg_cast c ON c.castsource = a.atttypid AND c.casttarget = 'text'::regtype
    WHERE a.attrelid = {oid} AND a.attname = ANY ({names}::text[]) AND c.oid >= {own}
    ORDER BY a.attnum""")

# Unique indexes without predicate or expression, by the names of their key columns; INCLUDE columns do not count.
_KEYS = sql.SQL("""
    SELECT i.indisprimary::int, i.indimmediate::int,
           (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")::text
            FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, position)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
            WHERE k.position <= i.indnkeyatts)
    FROM pg_index i
    WHERE i.indrelid = {oid} AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
      AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")
           FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, position)
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
           WHERE k.position <= i.indnkeyatts) = {key}::text[]
    ORDER BY 1, 2""")


def read_columns(session: Session, oid: int) -> tuple[SourceColumn, ...]:
    """The live columns of the relation in attribute order."""
    query = _COLUMNS.format(oid=sql.Literal(oid), own=sql.Literal(_FIRST_OF_USERS), admitted=_text_array(admitted_types()))
    return tuple(_column(*row) for row in session.rows(query))


def _column(*row: Any) -> SourceColumn:
    *plain, schema, name, kind, deterministic = row
    return SourceColumn(*[*plain, None if name is None else (schema, name, kind), deterministic])


def read_projection(
    session: Session,
    facts: RelationFacts,
    leaves: Sequence[Leaf],
    request: SourceRequest,
    *,
    types: Definitions,
) -> Projection:
    """Columns of the relation, planned, with their fingerprint.

    :param request: its key, contracts and overrides decide what becomes of the columns.
    :param types: as of :func:`read_types`, through the same snapshot.
    :raises XminError: as :func:`airflow_dpone_xmin.policy.planning.plan_columns`; ``postgres_source.projection_invalid`` for a relation
        without columns, or with text columns in a database that does not know its own encoding.
    """
    columns = read_columns(session, facts.oid)
    if not columns:
        raise XminError("postgres_source.projection_invalid", f"{facts.name} has no columns.")
    plans = plan_columns(columns, key=request.key, string_columns=request.string_columns, overrides=request.type_overrides)
    _require_encoding(facts, plans)
    _refuse_foreign_casts(session, facts, plans)
    content = _content(session, facts.oid, leaves)
    return Projection(
        columns=plans,
        key=request.key,
        fingerprint=_fingerprint(session, facts.oid, leaves, plans, content=content, types=types, key=request.key),
        # A virtual column is computed while it is read, from rules that nothing here sees: time zones, dictionaries, collations.
        volatile=any(row[7] == "v" for row in content) or any(row[1] == "pg_catalog" and row[2] in volatile_types() for row in types),
    )


def _refuse_foreign_casts(session: Session, facts: RelationFacts, plans: Sequence[ColumnPlan]) -> None:
    """``::text`` must be PostgreSQL's own: a cast that somebody made may map two values to one text, and change."""
    cast = [plan.name for plan in plans if plan.cast_to_text and plan.built_in]
    rows = (
        session.rows(_FOREIGN_CASTS.format(oid=sql.Literal(facts.oid), own=sql.Literal(_FIRST_OF_USERS), names=_text_array(cast)))
        if cast
        else []
    )
    for name, kind in rows:
        raise XminError(
            "DPONE_TYPE_UNSUPPORTED",
            f"Column {name!r} has type {kind}, whose cast to text is somebody's own, not PostgreSQL's.",
            hint="Carry the value in a column of type text, and drop this one.",
            details={"column": name, "type": kind},
        )


def read_types(session: Session, oid: int) -> Definitions:
    """Definitions of everything that the relation's values are made of, but for PostgreSQL's own types: they do not change."""
    return [list(row) for row in session.rows(_TYPES.format(oid=sql.Literal(oid), volatile=_text_array(volatile_types())))]


def _content(session: Session, oid: int, leaves: Sequence[Leaf]) -> Definitions:
    return [list(row) for row in session.rows(_CONTENT.format(oid=sql.Literal(oid), leaves=_oids(leaves)))]


def _fingerprint(
    session: Session,
    oid: int,
    leaves: Sequence[Leaf],
    plans: Sequence[ColumnPlan],
    *,
    content: Definitions,
    types: Definitions,
    key: Sequence[str],
) -> bytes:
    """SHA-256 over leaves and their numbering, columns, missing values, generation, collations, types, key, and how each column lands."""
    relation = sql.Literal(oid)
    numbers = session.rows(_NUMBERS.format(oid=relation, leaves=_oids(leaves)))
    keys = session.rows(_KEYS.format(oid=relation, key=_text_array(sorted(key))))
    return digest(
        {
            "v": 4,
            "leaves": [*sorted(leaf.oid for leaf in leaves)],
            "columns": [*content],
            "numbers": [list(row) for row in numbers],
            "types": [*types],
            "key": [list(row) for row in keys],
            "landing": [[plan.name, plan.family.value, plan.mssql_type] for plan in plans],
        }
    )


def _oids(leaves: Sequence[Leaf]) -> sql.Composable:
    return sql.Literal("{" + ",".join(str(leaf.oid) for leaf in leaves) + "}")


def _text_array(names: Sequence[str]) -> sql.Composable:
    return sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(sql.Literal(name) for name in names))


def _require_encoding(facts: RelationFacts, plans: Sequence[ColumnPlan]) -> None:
    text = [plan.name for plan in plans if plan.family is Family.TEXT]
    if facts.server_encoding == "SQL_ASCII" and text:
        raise XminError(
            "postgres_source.projection_invalid",
            f"The database declares no encoding (SQL_ASCII), so the text of column {text[0]!r} has no certain meaning.",
            hint="Convert the database to UTF8.",
            details={"column": text[0]},
        )
