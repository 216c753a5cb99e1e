"""How SQL Server copies, indexes and exchanges a table. Imports contracts, ``target/shadow.py`` and SQLAlchemy.

Catalog views are read in the session's database, the target's. Written per the documentation of ``sys.indexes``, ``sp_rename``,
``sys.database_permissions``, ``sys.extended_properties`` and ``sys.sql_expression_dependencies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import text

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import IS_DELETED, DeleteMode, TableName
from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.facts import TableFacts
from airflow_dpone_xmin.target.mssql_ddl import MssqlDdl, quoted
from airflow_dpone_xmin.target.shadow import IndexDefinition, IndexRename, equal_keys

MARK = "dpone_campaign"
CLUSTERED, NONCLUSTERED, COLUMNSTORE = 1, 2, 5
"""``sys.indexes.type``; the other kinds are refused."""

OBSTACLES: dict[str, str] = {
    "schema-bound object": "SELECT OBJECT_NAME(d.referencing_id) FROM sys.sql_expression_dependencies AS d WHERE d.referenced_id ="
    " OBJECT_ID(:name) AND d.is_schema_bound_reference = 1 AND d.referencing_class = 1 AND d.referencing_id <> OBJECT_ID(:name)",
    "security policy": "SELECT p.name FROM sys.security_predicates AS x JOIN sys.security_policies AS p ON p.object_id = x.object_id"
    " WHERE x.target_object_id = OBJECT_ID(:name)",
    "foreign key": "SELECT name FROM sys.foreign_keys WHERE parent_object_id = OBJECT_ID(:name) OR referenced_object_id = OBJECT_ID(:name)",
    "trigger": "SELECT name FROM sys.triggers WHERE parent_id = OBJECT_ID(:name)",
    "default constraint": "SELECT name FROM sys.default_constraints WHERE parent_object_id = OBJECT_ID(:name)",
    "check constraint": "SELECT name FROM sys.check_constraints WHERE parent_object_id = OBJECT_ID(:name)",
    "change tracking": "SELECT N'of the table' FROM sys.change_tracking_tables WHERE object_id = OBJECT_ID(:name)",
    "extended property of an index or constraint": "SELECT name FROM sys.extended_properties"
    " WHERE (class = 7 AND major_id = OBJECT_ID(:name))"
    " OR (class = 1 AND major_id IN (SELECT object_id FROM sys.objects WHERE parent_object_id = OBJECT_ID(:name)))",
    "full-text index": "SELECT N'of the table' FROM sys.fulltext_indexes WHERE object_id = OBJECT_ID(:name)",
    "grants on column": "SELECT COL_NAME(p.major_id, p.minor_id) FROM sys.database_permissions AS p WHERE p.class = 1"
    " AND p.major_id = OBJECT_ID(:name) AND p.minor_id <> 0",
    "index of another kind": "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(:name) AND type NOT IN (0, 1, 2, 5)",
    "index that ignores duplicates": "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(:name) AND ignore_dup_key = 1",
    "disabled index": "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(:name) AND is_disabled = 1",
    "index with a fill factor": "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(:name) AND (fill_factor NOT IN (0, 100)"
    " OR is_padded = 1)",
    "index with lock options": "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(:name) AND (allow_row_locks = 0"
    " OR allow_page_locks = 0)",
    "index in a filegroup of its own": "SELECT COALESCE(i.name, N'of the heap') FROM sys.indexes AS i JOIN sys.filegroups AS f"
    " ON f.data_space_id = i.data_space_id WHERE i.object_id = OBJECT_ID(:name) AND f.is_default = 0",
    "compression": "SELECT data_compression_desc FROM sys.partitions WHERE object_id = OBJECT_ID(:name)"
    " AND (data_compression = 4 OR (index_id = 0 AND data_compression <> 0))",
    "sensitivity classification": "SELECT COL_NAME(major_id, minor_id) FROM sys.sensitivity_classifications WHERE class = 1"
    " AND major_id = OBJECT_ID(:name)",
    "audit specification": "SELECT s.name FROM sys.database_audit_specification_details AS d JOIN sys.database_audit_specifications AS s"
    " ON s.database_specification_id = d.database_specification_id WHERE d.class = 1 AND d.major_id = OBJECT_ID(:name)",
    "statistics": "SELECT name FROM sys.stats WHERE object_id = OBJECT_ID(:name) AND user_created = 1",
    "partitioned index": "SELECT COALESCE(i.name, N'of the heap') FROM sys.indexes AS i JOIN sys.partition_schemes AS s"
    " ON s.data_space_id = i.data_space_id WHERE i.object_id = OBJECT_ID(:name)",
    "special column": "SELECT name FROM sys.columns WHERE object_id = OBJECT_ID(:name) AND (is_sparse = 1 OR is_masked = 1"
    " OR is_rowguidcol = 1 OR is_filestream = 1 OR is_hidden = 1 OR is_xml_document = 1 OR encryption_type IS NOT NULL)",
    "special table": "SELECT name FROM sys.tables WHERE object_id = OBJECT_ID(:name) AND (is_tracked_by_cdc = 1 OR temporal_type <> 0"
    " OR is_memory_optimized = 1 OR is_replicated = 1 OR is_filetable = 1 OR is_external = 1 OR principal_id IS NOT NULL"
    " OR lock_escalation <> 0)",
}
"""What does not follow a rename: kind → query for its names. ``principal_id`` is an owner other than the schema's.

Compression 4 is COLUMNSTORE_ARCHIVE; that of a heap has no index to be replayed with.
"""

_RIGHTS = text("SELECT HAS_PERMS_BY_NAME(DB_NAME(), 'DATABASE', 'CREATE TABLE'), HAS_PERMS_BY_NAME(:schema, 'SCHEMA', 'CONTROL')")
_READ_MARK = text(
    "SELECT CONVERT(nvarchar(200), p.value) FROM sys.extended_properties AS p"
    " WHERE p.class = 1 AND p.minor_id = 0 AND p.name = :mark AND p.major_id = OBJECT_ID(:name)"
)
_INDEXES = text(
    "SELECT i.name, i.type, i.is_unique, i.is_primary_key, i.is_unique_constraint, i.filter_definition, c.name, ic.key_ordinal,"
    " ic.is_descending_key, ic.is_included_column, (SELECT MAX(p.data_compression_desc) FROM sys.partitions AS p"
    " WHERE p.object_id = i.object_id AND p.index_id = i.index_id)"
    " FROM sys.indexes AS i"
    " LEFT JOIN sys.index_columns AS ic ON ic.object_id = i.object_id AND ic.index_id = i.index_id"
    " LEFT JOIN sys.columns AS c ON c.object_id = ic.object_id AND c.column_id = ic.column_id"
    " WHERE i.object_id = OBJECT_ID(:name) AND i.type IN (1, 2, 5) AND i.is_hypothetical = 0"
    " ORDER BY i.type, i.name, ic.is_included_column, ic.key_ordinal, ic.index_column_id"
)
_PERMISSIONS = text(
    "SELECT p.state, p.permission_name, USER_NAME(p.grantee_principal_id) FROM sys.database_permissions AS p"
    " WHERE p.class = 1 AND p.major_id = OBJECT_ID(:name) AND p.minor_id = 0"
)
_PROPERTIES = text(
    "SELECT p.name, CONVERT(nvarchar(3750), p.value), c.name FROM sys.extended_properties AS p"
    " LEFT JOIN sys.columns AS c ON c.object_id = p.major_id AND c.column_id = p.minor_id"
    " WHERE p.class = 1 AND p.major_id = OBJECT_ID(:name)"
)
_ADD_PROPERTY = (
    "EXEC sys.sp_addextendedproperty @name = :property, @value = :value, @level0type = N'SCHEMA', @level0name = :schema,"
    " @level1type = N'TABLE', @level1name = :table"
)
_DROP_PROPERTY = (
    "EXEC sys.sp_dropextendedproperty @name = :property, @level0type = N'SCHEMA', @level0name = :schema,"
    " @level1type = N'TABLE', @level1name = :table"
)
_RENAME = "EXEC sys.sp_rename @objname = :old, @newname = :new, @objtype = :kind"


class MssqlShadow:
    """SQL Server's :class:`target.shadow.ShadowDialect`."""

    def obstacles(self, session: Session, live: TableName) -> list[str]:
        """One query per kind; the names say what to remove."""
        found = []
        for kind, query in OBSTACLES.items():
            found += [f"{kind} {row[0]}" for row in session.rows("shadow.obstacles", text(query), {"name": _name(live)})]
        return sorted(found)

    def missing_rights(self, session: Session, live: TableName) -> list[str]:
        """CREATE TABLE, and CONTROL of the schema: grants of the live table are replayed."""
        row = session.first("shadow.rights", _RIGHTS, {"schema": quoted(live.namespace.schema)})
        assert row is not None
        wanted = ("CREATE TABLE in the target database", f"CONTROL on schema {live.namespace.schema}")
        return [right for right, given in zip(wanted, row, strict=True) if given != 1]

    def create(self, session: Session, live: TableName, shadow: str, *, facts: TableFacts, mode: DeleteMode, mark: str) -> None:
        """Columns as they are, the computed flag as this product renders it, and a clustered columnstore before the first row."""
        new = TableName(live.namespace, shadow)
        columns = [
            f"{quoted(column.name)} {column.type}"
            + (f" COLLATE {column.collation}" if column.collation else "")
            + (" NULL" if column.nullable else " NOT NULL")
            for column in facts.columns
            if not column.computed
        ]
        _run(session, "shadow.create", f"CREATE TABLE {_name(new)} ({', '.join(columns)})")
        if any(column.name == IS_DELETED and column.computed for column in facts.columns):
            for statement in MssqlDdl().computed_flag(live.namespace, shadow):
                _run(session, "shadow.create", statement)
        names = {"property": MARK, "value": mark, "schema": live.namespace.schema, "table": shadow}
        session.command("shadow.mark", _ADD_PROPERTY, names)

    def read_mark(self, session: Session, table: TableName) -> str | None:
        """An extended property of the table."""
        found = session.scalar("shadow.read_mark", _READ_MARK, {"mark": MARK, "name": _name(table)})
        return None if found is None else str(found)

    def indexes(self, session: Session, table: TableName) -> list[IndexDefinition]:
        """Clustered ones first; a columnstore must stand before the rows."""
        rows = session.rows("shadow.indexes", _INDEXES, {"name": _name(table)})
        return [_definition(name, list(parts)) for name, parts in groupby(rows, key=lambda row: str(row[0]))]

    def build(self, session: Session, table: TableName, definition: IndexDefinition, *, name: str) -> None:
        """One statement."""
        if definition.constraint:
            statement = f"ALTER TABLE {_name(table)} ADD CONSTRAINT {quoted(name)} {definition.body}"
        else:
            statement = f"CREATE {definition.head}INDEX {quoted(name)} ON {_name(table)}{definition.body}"
        try:
            _run(session, "shadow.index", statement)
        except XminError as error:
            if error.details.get("native") == 1505 or error.details.get("sqlstate") == "23000":
                raise equal_keys(f"Index {definition.name}") from None
            raise

    def drop_index(self, session: Session, table: TableName, definition: IndexDefinition) -> None:
        """A constraint takes its index along."""
        if definition.constraint:
            _run(session, "shadow.drop_index", f"ALTER TABLE {_name(table)} DROP CONSTRAINT {quoted(definition.name)}")
        else:
            _run(session, "shadow.drop_index", f"DROP INDEX {quoted(definition.name)} ON {_name(table)}")

    def seal(self, session: Session, live: TableName) -> None:
        """An exclusive table lock: DDL needs Sch-M, which no lock of another session tolerates."""
        session.scalar("exchange.seal", text(f"SELECT TOP (1) 1 FROM {_name(live)} WITH (TABLOCKX, HOLDLOCK)".replace(":", "\\:")))

    def replay(self, session: Session, live: TableName, shadow: str) -> None:
        """GRANT, GRANT WITH GRANT OPTION and DENY; extended properties of the table and its columns."""
        new = TableName(live.namespace, shadow)
        for state, permission, grantee in session.rows("shadow.grants", _PERMISSIONS, {"name": _name(live)}):
            verb = "DENY" if str(state).strip() == "D" else "GRANT"
            option = " WITH GRANT OPTION" if str(state).strip() == "W" else ""
            _run(session, "shadow.replay", f"{verb} {permission} ON OBJECT::{_name(new)} TO {quoted(str(grantee))}{option}")
        place = {"schema": live.namespace.schema, "table": shadow}
        for name, value, column in session.rows("shadow.properties", _PROPERTIES, {"name": _name(live)}):
            level = "" if column is None else ", @level2type = N'COLUMN', @level2name = :column"
            extra = {} if column is None else {"column": column}
            session.command("shadow.replay", _ADD_PROPERTY + level, {"property": name, "value": value, **place, **extra})
        session.command("shadow.replay", _DROP_PROPERTY, {"property": MARK, **place})

    def exchange(self, session: Session, live: TableName, *, shadow: str, backup: str, indexes: Sequence[IndexRename]) -> None:
        """Constraint names are unique per schema, index names per table."""
        schema = live.namespace.schema
        for index in indexes:
            if index.constraint:
                _rename(session, f"{quoted(schema)}.{quoted(index.live)}", index.backup, "OBJECT")
        _rename(session, _name(live), backup, "OBJECT")
        for index in indexes:
            if index.constraint:
                _rename(session, f"{quoted(schema)}.{quoted(index.shadow)}", index.live, "OBJECT")
            else:
                _rename(session, f"{quoted(schema)}.{quoted(shadow)}.{quoted(index.shadow)}", index.live, "INDEX")
        _rename(session, f"{quoted(schema)}.{quoted(shadow)}", live.name, "OBJECT")

    def drop(self, session: Session, table: TableName) -> None:
        """Nothing depends on it."""
        _run(session, "shadow.drop", f"DROP TABLE {_name(table)}")


def _definition(name: str, parts: list[Any]) -> IndexDefinition:
    _, kind, unique, primary, unique_constraint, filtered, *_ = parts[0]
    if kind == COLUMNSTORE:
        return IndexDefinition(name, "CLUSTERED COLUMNSTORE ", "", constraint=False, unique=False, first=True)
    keys = ", ".join(f"{quoted(row[6])}{' DESC' if row[8] else ''}" for row in parts if not row[9])
    order = "CLUSTERED" if kind == CLUSTERED else "NONCLUSTERED"
    compression = f" WITH (DATA_COMPRESSION = {parts[0][10]})" if parts[0][10] in ("ROW", "PAGE") else ""
    if primary or unique_constraint:
        what = "PRIMARY KEY" if primary else "UNIQUE"
        return IndexDefinition(name, "", f"{what} {order} ({keys}){compression}", constraint=True, unique=True)
    included = ", ".join(quoted(row[6]) for row in parts if row[9])
    body = f" ({keys})" + (f" INCLUDE ({included})" if included else "") + (f" WHERE {filtered}" if filtered else "") + compression
    return IndexDefinition(name, f"{'UNIQUE ' if unique else ''}{order} ", body, constraint=False, unique=bool(unique))


def _rename(session: Session, old: str, new: str, kind: str) -> None:
    session.command("exchange.rename", _RENAME, {"old": old, "new": new, "kind": kind})


def _name(table: TableName) -> str:
    return f"{quoted(table.namespace.schema)}.{quoted(table.name)}"


def _run(session: Session, label: str, statement: str) -> None:
    # A colon in a name is no parameter, and OBJECT:: is none either.
    session.command(label, statement)
