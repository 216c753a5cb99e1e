"""How the embedded engine copies, indexes and exchanges a table. Imports contracts, ``target/shadow.py`` and psycopg's SQL composition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql
from sqlalchemy import text

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import DeleteMode, TableName
from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.facts import TableFacts
from airflow_dpone_xmin.target.shadow import IndexDefinition, IndexRename, equal_keys

_TABLE = "(SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relname = :name)"
# Whatever depends on the table or its row type stays with the old one. What is its own, is rebuilt or copied: indexes, keys, NOT NULL,
# defaults, generated columns, its row type. The rest is no dependency, but does not follow either.
_OBSTACLES = text(
    f"""WITH live AS (SELECT c.* FROM pg_class c WHERE c.oid = {_TABLE})
    SELECT DISTINCT pg_describe_object(d.classid, d.objid, 0) FROM live, pg_depend d
        LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
        LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
        LEFT JOIN pg_class i ON d.classid = 'pg_class'::regclass AND i.oid = d.objid
        WHERE (d.refclassid = 'pg_class'::regclass AND d.refobjid = live.oid OR t.typrelid = live.oid OR t.typelem = live.reltype)
        AND d.classid NOT IN ('pg_attrdef'::regclass, 'pg_type'::regclass) AND coalesce(k.contype NOT IN ('p', 'u', 'x', 'n'), true)
        AND coalesce(i.relkind NOT IN ('i', 't'), true) AND i.oid IS DISTINCT FROM live.oid
    UNION ALL SELECT 'foreign key ' || f.conname FROM live, pg_constraint f WHERE f.contype = 'f' AND f.conrelid = live.oid
    UNION ALL SELECT 'row security' FROM live WHERE relrowsecurity OR relforcerowsecurity
    UNION ALL SELECT 'inheritance' FROM live, pg_inherits i WHERE i.inhrelid = live.oid
    UNION ALL SELECT 'storage parameters' FROM live WHERE reloptions IS NOT NULL
    UNION ALL SELECT 'a tablespace' FROM live WHERE reltablespace <> 0
    UNION ALL SELECT 'a replica identity' FROM live WHERE relreplident <> 'd'
    UNION ALL SELECT 'a security label' FROM live, pg_seclabel l WHERE l.classoid = 'pg_class'::regclass AND l.objoid = live.oid
    UNION ALL SELECT 'comment on ' || i.indexrelid::regclass FROM live, pg_index i LEFT JOIN pg_constraint k
        ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid WHERE i.indrelid = live.oid
        AND (obj_description(i.indexrelid, 'pg_class') IS NOT NULL OR obj_description(k.oid, 'pg_constraint') IS NOT NULL)
    UNION ALL SELECT 'grants on column ' || a.attname FROM live, pg_attribute a WHERE a.attrelid = live.oid AND a.attacl IS NOT NULL
    UNION ALL SELECT 'statistics settings of column ' || a.attname FROM live, pg_attribute a WHERE a.attrelid = live.oid AND a.attnum > 0
        AND (a.attoptions IS NOT NULL OR coalesce(a.attstattarget, -1) >= 0)"""
)
_RIGHTS = text(
    "SELECT has_schema_privilege(n.oid, 'CREATE'), pg_has_role(c.relowner, 'USAGE'), has_schema_privilege(c.relowner, n.oid, 'CREATE')"
    " FROM pg_class c"
    f" JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {_TABLE}"
)
_MARK = text(f"SELECT obj_description({_TABLE}, 'pg_class')")
_INDEXES = text(
    "SELECT c.relname, i.indisunique, k.oid IS NOT NULL, CASE WHEN k.oid IS NOT NULL THEN pg_get_constraintdef(k.oid)"
    " ELSE substr(pg_get_indexdef(c.oid), 1 + length(format('CREATE %sINDEX %I ON %I.%I ',"
    " CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, c.relname, n.nspname, t.relname))) END"
    " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid"
    " JOIN pg_namespace n ON n.oid = t.relnamespace"
    " LEFT JOIN pg_constraint k ON k.conindid = c.oid AND k.conrelid = t.oid AND k.contype IN ('p', 'u', 'x')"
    f" WHERE t.oid = {_TABLE} ORDER BY i.indisprimary DESC, c.relname"
)
_OWNER = text(f"SELECT pg_get_userbyid(relowner), obj_description(oid, 'pg_class') FROM pg_class WHERE oid = {_TABLE}")
_COMMENTS = text(
    "SELECT a.attname, col_description(a.attrelid, a.attnum) FROM pg_attribute a"
    f" WHERE a.attrelid = {_TABLE} AND a.attnum > 0 AND NOT a.attisdropped"
)
_GRANTS = text(
    "SELECT CASE WHEN a.grantee <> 0 THEN pg_get_userbyid(a.grantee) END, a.privilege_type, a.is_grantable"
    f" FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = {_TABLE} AND a.grantee <> c.relowner"
)


class PostgresShadow:
    """The embedded engine's :class:`target.shadow.ShadowDialect`."""

    def obstacles(self, session: Session, live: TableName) -> list[str]:
        """Views keep pointing at the old table; triggers, keys, policies and the rest stay with it."""
        return sorted(row[0] for row in session.rows("shadow.obstacles", _OBSTACLES, _named(live)))

    def missing_rights(self, session: Session, live: TableName) -> list[str]:
        """CREATE on the schema, and the owner's role."""
        row = session.first("shadow.rights", _RIGHTS, _named(live))
        assert row is not None
        create = f"CREATE on schema {live.namespace.schema}"
        wanted = (create, f"ownership of {live.name} (or membership in its owner)", f"{create} for the table's owner")
        return [right for right, given in zip(wanted, row, strict=True) if not given]

    def create(self, session: Session, live: TableName, shadow: str, *, facts: TableFacts, mode: DeleteMode, mark: str) -> None:
        """LIKE copies columns with defaults, generated ones, storage and comments, but neither keys nor indexes."""
        copied = " ".join(f"INCLUDING {what}" for what in ("DEFAULTS", "GENERATED", "STORAGE", "COMPRESSION", "COMMENTS"))
        new = TableName(live.namespace, shadow)
        _run(session, "shadow.create", f"CREATE TABLE {{}} (LIKE {{}} {copied})", _table(new), _table(live))
        _run(session, "shadow.mark", "COMMENT ON TABLE {} IS {}", _table(new), sql.Literal(mark))

    def read_mark(self, session: Session, table: TableName) -> str | None:
        """The table's comment."""
        found = session.scalar("shadow.read_mark", _MARK, _named(table))
        return None if found is None else str(found)

    def indexes(self, session: Session, table: TableName) -> list[IndexDefinition]:
        """From the server's own definitions, the names cut off."""
        return [
            IndexDefinition(row[0], "UNIQUE " if row[1] and not row[2] else "", row[3], constraint=row[2], unique=row[1])
            for row in session.rows("shadow.indexes", _INDEXES, _named(table))
        ]

    def build(self, session: Session, table: TableName, definition: IndexDefinition, *, name: str) -> None:
        """One statement."""
        if definition.constraint:
            statement = f"ALTER TABLE {_spelled(_table(table))} ADD CONSTRAINT {_spelled(sql.Identifier(name))} {definition.body}"
        else:
            statement = f"CREATE {definition.head}INDEX {_spelled(sql.Identifier(name))} ON {_spelled(_table(table))} {definition.body}"
        try:
            session.command("shadow.index", statement)
        except XminError as error:
            if error.details.get("sqlstate") == "23505":
                raise equal_keys(f"Index {definition.name}") from None
            raise

    def drop_index(self, session: Session, table: TableName, definition: IndexDefinition) -> None:
        """A constraint takes its index along."""
        if definition.constraint:
            _run(session, "shadow.drop_index", "ALTER TABLE {} DROP CONSTRAINT {}", _table(table), sql.Identifier(definition.name))
        else:
            _run(session, "shadow.drop_index", "DROP INDEX {}", sql.Identifier(table.namespace.schema, definition.name))

    def seal(self, session: Session, live: TableName) -> None:
        """The lock of the rename itself, so that what is looked at next is what is renamed."""
        _run(session, "exchange.seal", "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", _table(live))

    def replay(self, session: Session, live: TableName, shadow: str) -> None:
        """Grants after the owner, because an owner's change drops his own."""
        shadowed = TableName(live.namespace, shadow)
        new = _table(shadowed)
        row = session.first("shadow.owner", _OWNER, _named(live))
        assert row is not None
        _run(session, "shadow.replay", "ALTER TABLE {} OWNER TO {}", new, sql.Identifier(row[0]))
        _run(session, "shadow.replay", "COMMENT ON TABLE {} IS {}", new, sql.Literal(row[1]))
        copied = dict(session.rows("shadow.comments", _COMMENTS, _named(shadowed)))
        for column, comment in session.rows("shadow.comments", _COMMENTS, _named(live)):
            if copied[column] != comment:
                name = sql.Identifier(live.namespace.schema, shadow, column)
                _run(session, "shadow.replay", "COMMENT ON COLUMN {} IS {}", name, sql.Literal(comment))
        # A new table begins with its creator's default privileges.
        for grantee in {row[0] for row in session.rows("shadow.grants", _GRANTS, _named(shadowed))}:
            _run(session, "shadow.replay", "REVOKE ALL ON {} FROM {}", new, _role(grantee))
        for grantee, privilege, grantable in session.rows("shadow.grants", _GRANTS, _named(live)):
            option = " WITH GRANT OPTION" if grantable else ""
            _run(session, "shadow.replay", f"GRANT {privilege} ON {{}} TO {{}}{option}", new, _role(grantee))

    def exchange(self, session: Session, live: TableName, *, shadow: str, backup: str, indexes: Sequence[IndexRename]) -> None:
        """An index's rename renames its constraint too."""
        schema = live.namespace.schema
        _run(session, "exchange.table", "ALTER TABLE {} RENAME TO {}", _table(live), sql.Identifier(backup))
        for index in indexes:
            _run(session, "exchange.index", "ALTER INDEX {} RENAME TO {}", sql.Identifier(schema, index.live), sql.Identifier(index.backup))
        _run(session, "exchange.table", "ALTER TABLE {} RENAME TO {}", sql.Identifier(schema, shadow), sql.Identifier(live.name))
        for index in indexes:
            _run(session, "exchange.index", "ALTER INDEX {} RENAME TO {}", sql.Identifier(schema, index.shadow), sql.Identifier(index.live))

    def drop(self, session: Session, table: TableName) -> None:
        """Nothing depends on it."""
        _run(session, "shadow.drop", "DROP TABLE {}", _table(table))


def _named(table: TableName) -> dict[str, Any]:
    return {"schema": table.namespace.schema, "name": table.name}


def _table(table: TableName) -> sql.Identifier:
    return sql.Identifier(table.namespace.schema, table.name)


def _role(name: str | None) -> sql.Composable:
    return sql.SQL("PUBLIC") if name is None else sql.Identifier(name)


def _spelled(part: sql.Composable) -> str:
    return part.as_string(None)


def _run(session: Session, label: str, template: str, *parts: sql.Composable) -> None:
    # A colon in a name or a text is no parameter.
    session.command(label, sql.SQL(template).format(*parts).as_string(None))  # type: ignore[arg-type]
