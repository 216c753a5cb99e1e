"""DDL that only the embedded engine spells. Imports contracts, ``target/facts.py`` and psycopg's SQL composition."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from psycopg import sql

from airflow_dpone_xmin.contracts.route import DELETED_AT, IS_DELETED, Namespace, TableName
from airflow_dpone_xmin.target.facts import ColumnFacts

_REFUSE_CHANGE = " BEGIN RAISE EXCEPTION 'rows of this table never change' USING ERRCODE = 'restrict_violation'; END "


def _spell(template: str, **parts: sql.Composable) -> str:
    return sql.SQL(template).format(**parts).as_string(None)  # type: ignore[arg-type]


class PostgresDdl:
    """The embedded engine's :class:`target.ddl.DdlDialect`."""

    separator = ";\n\n"

    def enter(self, namespace: Namespace) -> list[str]:
        """The script runs in the one database; only the schema may be missing."""
        return [_spell("CREATE SCHEMA IF NOT EXISTS {schema}", schema=sql.Identifier(namespace.schema))]

    def use(self, namespace: Namespace) -> list[str]:
        """There is one database only."""
        return []

    def add_column(self, namespace: Namespace, table: str, column: ColumnFacts) -> list[str]:
        """Nullable, without default."""
        return [self._alter(namespace, table, f"ADD COLUMN {{column}} {column.type}", column)]

    def alter_column(self, namespace: Namespace, table: str, live: ColumnFacts, wanted: ColumnFacts) -> list[str]:
        """Type and nullability are two actions."""
        out = []
        if live.type != wanted.type:
            out.append(self._alter(namespace, table, f"ALTER COLUMN {{column}} TYPE {wanted.type}", wanted))
        if wanted.nullable and not live.nullable:
            out.append(self._alter(namespace, table, "ALTER COLUMN {column} DROP NOT NULL", wanted))
        return out

    def _alter(self, namespace: Namespace, table: str, action: str, column: ColumnFacts) -> str:
        return _spell("ALTER TABLE {table} " + action, table=self._table(namespace, table), column=sql.Identifier(column.name))

    def immutable(self, namespace: Namespace, table: str) -> list[str]:
        """A BEFORE trigger; TRUNCATE is covered too, and not granted anyway."""
        function = sql.Identifier(namespace.schema, "dpone_refuse_change")
        create = f"CREATE OR REPLACE FUNCTION {{function}}() RETURNS trigger LANGUAGE plpgsql AS $${_REFUSE_CHANGE}$$"
        trigger = "CREATE TRIGGER {name} BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
        return [
            _spell(create, function=function),
            _spell(trigger, name=sql.Identifier(f"tr_{table}_immutable"), table=self._table(namespace, table), function=function),
        ]

    def immutable_text(self, namespace: Namespace, table: str) -> str:
        """As ``pg_get_triggerdef`` spells it, with language and source of the function."""
        trigger = "CREATE TRIGGER {name} BEFORE DELETE OR UPDATE OR TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
        name, function = sql.Identifier(f"tr_{table}_immutable"[:63]), sql.Identifier(namespace.schema, "dpone_refuse_change")
        return f"{_spell(trigger, name=name, table=self._table(namespace, table), function=function)} plpgsql {_REFUSE_CHANGE}"

    def computed_flag(self, namespace: Namespace, table: str) -> list[str]:
        """A stored generated column."""
        return [
            _spell(
                "ALTER TABLE {table} ADD COLUMN {flag} boolean NOT NULL GENERATED ALWAYS AS ({marker} IS NOT NULL) STORED",
                table=self._table(namespace, table),
                flag=sql.Identifier(IS_DELETED),
                marker=sql.Identifier(DELETED_AT),
            )
        ]

    def narrow_index(self, namespace: Namespace, table: str, *, key: Sequence[str], marker: str | None) -> list[str]:
        """A covering index for index-only passes; without a marker the primary key's index is one already."""
        if marker is None:
            return []
        return [
            _spell(
                "CREATE INDEX {name} ON {table} ({key}) INCLUDE ({marker})",
                name=sql.Identifier(f"ix_{table}_dpone_key"),
                table=self._table(namespace, table),
                key=sql.SQL(", ").join(map(sql.Identifier, key)),
                marker=sql.Identifier(marker),
            )
        ]

    def grant(self, namespace: Namespace, table: str, privileges: Sequence[str], login: str) -> list[str]:
        """A plain GRANT."""
        return [
            _spell(
                "GRANT {privileges} ON {table} TO {login}",
                privileges=sql.SQL(", ").join(map(sql.SQL, privileges)),  # type: ignore[arg-type]
                table=self._table(namespace, table),
                login=sql.Identifier(login),
            )
        ]

    def admit_login(self, login: str, namespaces: Sequence[Namespace], *, staging: Namespace) -> list[str]:
        """USAGE everywhere, CREATE in staging, TEMPORARY for the difference table."""
        role = sql.Identifier(login)
        out = [
            _spell("GRANT USAGE ON SCHEMA {schema} TO {login}", schema=sql.Identifier(schema), login=role)
            for schema in sorted({namespace.schema for namespace in namespaces})
        ]
        out.append(_spell("GRANT CREATE ON SCHEMA {schema} TO {login}", schema=sql.Identifier(staging.schema), login=role))
        out.append(_spell("GRANT TEMPORARY ON DATABASE {db} TO {login}", db=sql.Identifier(staging.database), login=role))
        tokens = {namespace.schema for namespace in namespaces if namespace.schema == "dbo"}
        out += [self.grant(Namespace(staging.database, schema), "dpone_database_token", ("SELECT",), login)[0] for schema in sorted(tokens)]
        return out

    def admit_campaign(self, login: str, target: TableName) -> list[str]:
        """Only an owner may rename; the new table belongs to its creator, the old one is given to the same role."""
        role, schema = sql.Identifier(login), sql.Identifier(target.namespace.schema)
        return [
            _spell("GRANT CREATE ON SCHEMA {schema} TO {login}", schema=schema, login=role),
            _spell("ALTER TABLE {table} OWNER TO {login}", table=self._table(target.namespace, target.name), login=role),
        ]

    def database_token(self, namespace: Namespace) -> list[str]:
        """One row that says when, and which, this database is: ``pg_database`` has neither creation date nor GUID."""
        table = self._table(namespace, "dpone_database_token")
        return [
            _spell(
                "CREATE TABLE {table} (one boolean PRIMARY KEY DEFAULT true CHECK (one), token character varying(64) NOT NULL)", table=table
            ),
            _spell(
                "INSERT INTO {table} (token) VALUES (to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US'))",
                table=table,
            ),
        ]

    def clock(self) -> str:
        """UTC, without zone."""
        return "(clock_timestamp() AT TIME ZONE 'UTC')"

    def literal_guid(self, value: UUID) -> str:
        """A typed literal."""
        return f"'{value}'::uuid"

    def literal_text(self, value: str) -> str:
        """A quoted literal."""
        return sql.Literal(value).as_string(None)

    def qualified(self, namespace: Namespace, table: str) -> str:
        """``"schema"."table"``."""
        return self._table(namespace, table).as_string(None)

    @staticmethod
    def _table(namespace: Namespace, table: str) -> sql.Identifier:
        return sql.Identifier(namespace.schema, table)
