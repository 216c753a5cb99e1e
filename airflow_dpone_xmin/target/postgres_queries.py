"""Catalog queries that only the embedded engine understands. Imports SQLAlchemy's ``text`` only."""

from __future__ import annotations

from sqlalchemy import text

SCHEMAS_LIKE = text("SELECT nspname FROM pg_namespace WHERE lower(nspname) = lower(:schema) ORDER BY nspname")
TABLES = text(
    "SELECT n.nspname, c.relname, c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = :schema AND c.relname = ANY(:names) AND c.relkind = 'r'"
)
CASE_VARIANTS = text(
    "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relname <> :name"
    " AND lower(c.relname) = lower(:name) AND c.relkind IN ('r', 'v', 'm', 'f', 'p') ORDER BY c.relname"
)
COLUMNS = text(
    "SELECT a.attrelid::bigint, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,"
    " CASE WHEN a.attcollation <> t.typcollation THEN co.collname END, a.attgenerated <> '', a.attidentity <> ''"
    " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation co ON co.oid = a.attcollation"
    " WHERE a.attrelid = ANY(CAST(:oids AS oid[])) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum"
)
INDEXES = text(
    "SELECT i.indrelid::bigint, c.relname, i.indisunique, i.indisprimary,"
    " ARRAY(SELECT coalesce(a.attname::text, pg_get_indexdef(i.indexrelid, k, true)) FROM generate_series(1, i.indnkeyatts) k"
    " LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k - 1] ORDER BY k), pg_get_expr(i.indpred, i.indrelid)"
    " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = ANY(CAST(:oids AS oid[])) ORDER BY c.relname"
)
OTHERS = text(
    "SELECT tgrelid::bigint, 'trigger', tgname || CASE WHEN tgenabled IN ('D', 'R') THEN ' (disabled)' ELSE '' END,"
    " pg_get_triggerdef(t.oid) || ' ' || l.lanname || ' ' || p.prosrc FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
    " JOIN pg_language l ON l.oid = p.prolang WHERE tgrelid = ANY(CAST(:oids AS oid[])) AND NOT tgisinternal"
    " UNION ALL SELECT conrelid::bigint, CASE contype WHEN 'f' THEN 'foreign_key' ELSE 'check' END, conname, NULL FROM pg_constraint"
    " WHERE conrelid = ANY(CAST(:oids AS oid[])) AND contype IN ('f', 'c')"
    " UNION ALL SELECT confrelid::bigint, 'foreign_key', conname, NULL FROM pg_constraint"
    " WHERE confrelid = ANY(CAST(:oids AS oid[])) AND contype = 'f' AND conrelid <> confrelid"
)
TABLE_GRANTS = text(
    "SELECT s, t, p FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]), CAST(:privileges AS text[])) AS w(s, t, p)"
    " WHERE NOT coalesce(has_table_privilege(to_regclass(quote_ident(s) || '.' || quote_ident(t))::oid, p), false)"
)
SCHEMA_GRANTS = text(
    "SELECT 'schema ' || s, t, p FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]), CAST(:privileges AS text[])) AS w(s, t, p)"
    " WHERE NOT coalesce(has_schema_privilege((SELECT oid FROM pg_namespace WHERE nspname = s), p), false) UNION ALL"
    " SELECT 'database ' || db, '', 'TEMPORARY' FROM current_database() db WHERE NOT has_database_privilege(db, 'TEMPORARY')"
)
SURPLUS_GRANTS = text(
    "SELECT s, t, p FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]), CAST(:privileges AS text[])) AS w(s, t, p)"
    " JOIN pg_class c ON c.oid = to_regclass(quote_ident(s) || '.' || quote_ident(t)) WHERE CASE WHEN p = 'OWNERSHIP'"
    " THEN pg_has_role(c.relowner, 'MEMBER') WHEN p IN ('INSERT', 'UPDATE') THEN has_any_column_privilege(c.oid, p)"
    " ELSE has_table_privilege(c.oid, p) END ORDER BY s, t, p"
)
MAY_ALTER = text(
    "SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = :schema AND c.relname = :name"
)
SESSION_FACTS = (
    "SELECT (SELECT system_identifier::text FROM pg_control_system()), current_user || '/' || session_user, current_database()::text,"
    " pg_backend_pid()::text"
)
OBSERVE_DATABASE = (
    "SELECT d.datname, d.oid::bigint, {token}, d.datallowconn, has_database_privilege(d.oid, 'CONNECT'),"
    " (SELECT system_identifier::text FROM pg_control_system())"
    " FROM pg_database d WHERE lower(d.datname) = lower(:name) ORDER BY d.datname = :name DESC LIMIT 1"
)
