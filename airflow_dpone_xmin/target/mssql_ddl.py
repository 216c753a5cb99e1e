"""DDL that only SQL Server spells. Imports contracts, ``target/facts.py`` and SQLAlchemy's identifier rules."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc

from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, Namespace, TableName
from airflow_dpone_xmin.target.facts import ColumnFacts

_PREPARER = MSDialect_pyodbc().identifier_preparer


def quoted(name: str) -> str:
    """The name in brackets."""
    return str(_PREPARER.quote_identifier(name))


class MssqlDdl:
    """SQL Server's :class:`target.ddl.DdlDialect`. One batch per statement: scripts are written with ``GO`` between them."""

    separator = "\nGO\n"

    def enter(self, namespace: Namespace) -> list[str]:
        """Filtered indexes and computed columns need the two SET options in the session that creates them (Msg 1934)."""
        create = self.literal_text(f"CREATE SCHEMA {quoted(namespace.schema)}")
        return [
            *self.use(namespace),
            "SET QUOTED_IDENTIFIER ON",
            "SET ANSI_NULLS ON",
            f"IF SCHEMA_ID({self.literal_text(namespace.schema)}) IS NULL EXEC({create})",
        ]

    def use(self, namespace: Namespace) -> list[str]:
        """DDL belongs to the current database."""
        return [f"USE {quoted(namespace.database)}"]

    def add_column(self, namespace: Namespace, table: str, column: ColumnFacts) -> list[str]:
        """NULL is said: the session's default may be otherwise."""
        return [f"ALTER TABLE {self.qualified(namespace, table)} ADD {quoted(column.name)} {column.type} NULL"]

    def alter_column(self, namespace: Namespace, table: str, live: ColumnFacts, wanted: ColumnFacts) -> list[str]:
        """Without its collation the column would get the database's."""
        collation = f" COLLATE {live.collation}" if live.collation else ""
        null = "NULL" if wanted.nullable else "NOT NULL"
        return [f"ALTER TABLE {self.qualified(namespace, table)} ALTER COLUMN {quoted(wanted.name)} {wanted.type}{collation} {null}"]

    def immutable(self, namespace: Namespace, table: str) -> list[str]:
        """An INSTEAD OF trigger that throws; TRUNCATE bypasses triggers and is not granted."""
        return [self.immutable_text(namespace, table)]

    def immutable_text(self, namespace: Namespace, table: str) -> str:
        """``sys.sql_modules`` keeps the statement itself."""
        return (
            f"CREATE TRIGGER {quoted(namespace.schema)}.{quoted(f'tr_{table}_immutable')} ON {self.qualified(namespace, table)}"
            " INSTEAD OF UPDATE, DELETE AS BEGIN THROW 50001, N'Rows of this table never change.', 1; END"
        )

    def computed_flag(self, namespace: Namespace, table: str) -> list[str]:
        """A persisted computed column."""
        return [
            f"ALTER TABLE {self.qualified(namespace, table)} ADD {quoted(IS_DELETED)} AS"
            f" CONVERT(bit, CASE WHEN {quoted(DELETED_AT)} IS NULL THEN 0 ELSE 1 END) PERSISTED NOT NULL"
        ]

    def narrow_index(self, namespace: Namespace, table: str, *, key: Sequence[str], marker: str | None) -> list[str]:
        """A covering index, so that a pass does not read whole rows."""
        columns = ", ".join(quoted(name) for name in key)
        include = "" if marker is None else f" INCLUDE ({quoted(marker)})"
        return [f"CREATE INDEX {quoted(f'ix_{table}_dpone_key')} ON {self.qualified(namespace, table)} ({columns}){include}"]

    def grant(self, namespace: Namespace, table: str, privileges: Sequence[str], login: str) -> list[str]:
        """In the table's own database."""
        return [
            f"USE {quoted(namespace.database)}",
            f"GRANT {', '.join(privileges)} ON {self.qualified(namespace, table)} TO {quoted(login)}",
        ]

    def admit_login(self, login: str, namespaces: Sequence[Namespace], *, staging: Namespace) -> list[str]:
        """A user in every database with VIEW DEFINITION (without it definitions read as NULL), staging DDL, and VIEW ANY DATABASE."""
        name = self.literal_text(login)
        out = []
        for database in sorted({namespace.database for namespace in namespaces}):
            out += [
                f"USE {quoted(database)}",
                f"IF USER_ID({name}) IS NULL CREATE USER {quoted(login)} FOR LOGIN {quoted(login)}",
                f"GRANT CONNECT, VIEW DEFINITION TO {quoted(login)}",
            ]
        out += [
            f"USE {quoted(staging.database)}",
            f"GRANT CREATE TABLE TO {quoted(login)}",
            f"GRANT ALTER, SELECT, INSERT ON SCHEMA::{quoted(staging.schema)} TO {quoted(login)}",
            "USE [master]",
            f"GRANT VIEW ANY DATABASE TO {quoted(login)}",
        ]
        return out

    def admit_campaign(self, login: str, target: TableName) -> list[str]:
        """CONTROL, because the live table's grants are replayed on the new one."""
        return [
            f"USE {quoted(target.namespace.database)}",
            f"GRANT CREATE TABLE TO {quoted(login)}",
            f"GRANT CONTROL ON SCHEMA::{quoted(target.namespace.schema)} TO {quoted(login)}",
        ]

    def database_token(self, namespace: Namespace) -> list[str]:
        """SQL Server has creation dates and GUIDs."""
        return []

    def clock(self) -> str:
        """UTC."""
        return "SYSUTCDATETIME()"

    def literal_guid(self, value: UUID) -> str:
        """A typed literal."""
        return f"CONVERT(uniqueidentifier, '{value}')"

    def literal_text(self, value: str) -> str:
        """A Unicode literal."""
        return "N'" + value.replace("'", "''") + "'"

    def qualified(self, namespace: Namespace, table: str) -> str:
        """``[schema].[table]``: the script has entered the database."""
        return f"{quoted(namespace.schema)}.{quoted(table)}"
