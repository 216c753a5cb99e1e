"""Catalog and control queries that only SQL Server understands. Imports SQLAlchemy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, String, TextClause, bindparam, column, func, select, text, values

TAKE_LOCK = text(
    "DECLARE @code int; EXEC @code = sys.sp_getapplock @Resource = :resource, @LockMode = 'Exclusive', @LockOwner = :owner,"
    " @LockTimeout = :timeout; SELECT @code"
)
LEASE_MODE = text("SELECT APPLOCK_MODE('public', :resource, 'Session')")
RELEASE_LEASE = text(
    "DECLARE @name nvarchar(255) = :resource; IF APPLOCK_MODE('public', @name, 'Session') <> 'NoLock'"
    " EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = 'Session'"
)
ASSERT_COMMIT = text("SELECT @@TRANCOUNT, XACT_STATE(), APPLOCK_MODE('public', :resource, 'Transaction')")
SESSION_FACTS = text(
    "SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ServerName')), CONVERT(nvarchar(128), SUSER_SNAME()) + N'/' +"
    " CONVERT(nvarchar(128), ORIGINAL_LOGIN()), DB_NAME(), CONVERT(nvarchar(20), @@SPID) + N'@' +"
    " CONVERT(nvarchar(33), (SELECT login_time FROM sys.dm_exec_sessions WHERE session_id = @@SPID), 126)"
)
METADATA_RIGHT = text("SELECT HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW ANY DATABASE')")
OBSERVE_DATABASE = text(
    "SELECT d.name, d.database_id, CONVERT(nvarchar(33), d.create_date, 126), CONVERT(nvarchar(36), r.database_guid), d.state_desc,"
    " d.user_access_desc, HAS_DBACCESS(d.name) FROM master.sys.databases AS d"
    " LEFT JOIN master.sys.database_recovery_status AS r ON r.database_id = d.database_id"
    " WHERE LOWER(d.name) = LOWER(:name)"
)
HADR_ENABLED = text("SELECT CONVERT(int, SERVERPROPERTY('IsHadrEnabled'))")
AVAILABILITY_GROUPS = text(
    "SELECT d.name, d.replica_id, r.group_id, g.dtc_support FROM master.sys.databases AS d"
    " LEFT JOIN master.sys.availability_replicas AS r ON r.replica_id = d.replica_id"
    " LEFT JOIN master.sys.availability_groups AS g ON g.group_id = r.group_id WHERE d.name IN :names"
).bindparams(bindparam("names", expanding=True))
READ_COMMITTED_SNAPSHOT = text("SELECT is_read_committed_snapshot_on FROM sys.databases WHERE name = DB_NAME()")
LIST_STAGES = text(
    "SELECT s.name, t.name FROM sys.tables AS t JOIN sys.schemas AS s ON s.schema_id = t.schema_id"
    " WHERE s.name = :schema AND t.name LIKE N'dpone[_]stg[_]%'"
)
SCHEMAS_LIKE = "SELECT s.name FROM {db}.sys.schemas AS s WHERE s.name = :schema OR LOWER(s.name) = LOWER(:schema) ORDER BY s.name"
TABLES = (
    "SELECT s.name, o.name, o.object_id FROM {db}.sys.objects AS o JOIN {db}.sys.schemas AS s ON s.schema_id = o.schema_id"
    " WHERE s.name = :schema AND o.name IN :names AND o.type = 'U'"
)
CASE_VARIANTS = (
    "SELECT s.name, o.name FROM {db}.sys.objects AS o JOIN {db}.sys.schemas AS s ON s.schema_id = o.schema_id WHERE s.name = :schema"
    " AND LOWER(o.name) = LOWER(:name) AND o.name COLLATE Latin1_General_100_BIN2 <> :name AND o.type IN ('U', 'V', 'SN') ORDER BY o.name"
)
COLUMNS = (
    "SELECT c.object_id, c.name, t.name, c.max_length, c.precision, c.scale, c.is_nullable, c.collation_name, c.is_computed, c.is_identity"
    " FROM {db}.sys.columns AS c JOIN {db}.sys.types AS t ON t.user_type_id = c.user_type_id"
    " WHERE c.object_id IN :oids ORDER BY c.object_id, c.column_id"
)
INDEXES = (
    "SELECT i.object_id, i.name, i.is_unique, i.is_primary_key, i.filter_definition, c.name"
    " FROM {db}.sys.indexes AS i"
    " JOIN {db}.sys.index_columns AS ic ON ic.object_id = i.object_id AND ic.index_id = i.index_id AND ic.is_included_column = 0"
    " JOIN {db}.sys.columns AS c ON c.object_id = ic.object_id AND c.column_id = ic.column_id"
    " WHERE i.object_id IN :oids AND i.name IS NOT NULL ORDER BY i.object_id, i.name, ic.key_ordinal"
)
OTHERS = (
    "SELECT x.parent_object_id, CASE RTRIM(x.type) WHEN 'TR' THEN 'trigger' WHEN 'F' THEN 'foreign_key' ELSE 'check' END,"
    " x.name + CASE WHEN t.is_disabled = 1 THEN N' (disabled)' ELSE N'' END, m.definition"
    " FROM {db}.sys.objects AS x LEFT JOIN {db}.sys.triggers AS t ON t.object_id = x.object_id"
    " LEFT JOIN {db}.sys.sql_modules AS m ON m.object_id = t.object_id"
    " WHERE x.parent_object_id IN :oids AND x.type IN ('TR', 'F', 'C')"
    " UNION ALL SELECT f.referenced_object_id, 'foreign_key', f.name, NULL FROM {db}.sys.foreign_keys AS f"
    " WHERE f.referenced_object_id IN :oids AND f.parent_object_id <> f.referenced_object_id"
)


def of_names(query: str, database: str) -> TextClause:
    """A catalog query of one database for a list of names."""
    return text(query.format(db=database)).bindparams(bindparam("names", expanding=True))


def of_objects(query: str, database: str) -> TextClause:
    """A catalog query of one database for a list of object ids."""
    return text(query.format(db=database)).bindparams(bindparam("oids", expanding=True))


def permissions(rights: Sequence[tuple[str, str, str]], *, held: bool) -> Select[Any]:
    """Those of (securable, class, permission) that the login has, or does not have."""
    columns = (column("securable", String), column("class", String), column("permission", String))
    wanted = values(*columns, name="wanted").data(list(rights))
    granted = func.HAS_PERMS_BY_NAME(wanted.c.securable, wanted.c["class"], wanted.c.permission)
    known = func.COALESCE(granted, 0)
    return select(wanted.c.securable, wanted.c.permission).where(known == 1 if held else known != 1)


def type_text(name: str, max_length: int, precision: int, scale: int) -> str:
    """A column's declaration as ``policy/types.py`` spells it, from the columns of ``sys.columns``."""
    if name in ("nvarchar", "nchar"):
        return f"{name}({'max' if max_length == -1 else max_length // 2})"
    if name in ("varchar", "char", "binary", "varbinary"):
        return f"{name}({'max' if max_length == -1 else max_length})"
    if name in ("decimal", "numeric"):
        return f"{name}({precision},{scale})"
    if name in ("datetime2", "datetimeoffset", "time"):
        return f"{name}({scale})"
    return name
