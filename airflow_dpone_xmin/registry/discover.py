"""Candidate pins for a human to review: the read-only queries that find them, and the fragment they make.

Nothing in a run imports this module: runtime never learns authority. It opens no connection; the caller runs the queries as the very
principal that a run uses. Imports psycopg's SQL composition and contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import sql

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import SourceAuthority
from airflow_dpone_xmin.registry.parse import validate

Rows = Callable[[sql.Composable], list[tuple[Any, ...]]]

_TOPOLOGY = sql.SQL("SELECT pg_catalog.pg_is_in_recovery()")
_DATABASE = sql.SQL(
    "SELECT d.datname::text, d.oid::bigint FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()"
)
_PRINCIPALS = sql.SQL(
    "SELECT effective.rolname::text, effective.oid::bigint, session_role.rolname::text, session_role.oid::bigint\n"
    "FROM pg_catalog.pg_roles AS effective\n"
    "JOIN pg_catalog.pg_roles AS session_role ON session_role.rolname = session_user\n"
    "WHERE effective.rolname = current_user"
)
_RELATION = (
    "SELECT n.nspname::text, n.oid::bigint, c.relname::text, c.oid::bigint\n"
    "FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid\n"
    "WHERE n.nspname = {schema} AND c.relname = {relation}"
)
_SYSTEM = sql.SQL("SELECT system_identifier::text FROM pg_catalog.pg_control_system()")
_TIMELINE_PRIMARY = sql.SQL(
    "SELECT ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint"
)
_TIMELINE_STANDBY = sql.SQL("SELECT timeline_id::bigint FROM pg_catalog.pg_control_checkpoint()")


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found, and how.

    :param fragment: value of ``postgres_source_authority``, by the names of the document.
    :param queries: the queries that were run, in order.
    """

    fragment: dict[str, Any]
    queries: tuple[str, ...]


def source_queries(relations: Sequence[str], *, physical_cluster: bool) -> tuple[str, ...]:
    """The queries that :func:`discover_source` would run; both timeline queries, since which one applies is not known yet.

    :param relations: ``schema.relation`` names.
    :raises XminError: ``DPONE_POSTGRES_SOURCE_AUTHORITY_INVALID`` for a name without a dot.
    """
    queries = [_TOPOLOGY, _DATABASE, _PRINCIPALS, *(_relation_query(name) for name in relations)]
    if physical_cluster:
        queries += [_SYSTEM, _TIMELINE_PRIMARY, _TIMELINE_STANDBY]
    return tuple(query.as_string(None) for query in queries)


def discover_source(rows: Rows, relations: Sequence[str], *, physical_cluster: bool) -> Discovery:
    """Observe a source as the session's own principal.

    :param rows: runs a query on a read-only session of the runtime principal.
    :param relations: ``schema.relation`` names, exact spelling.
    :param physical_cluster: make a version 1 document; otherwise version 2, which asks no control-data function.
    :raises XminError: ``postgres_source.relation_missing``, ``postgres_source_authority.metadata_permission_denied``,
        ``postgres_source_authority.timeline_unavailable``, and what *rows* raises.
    """
    asked: list[str] = []

    def ask(query: sql.Composable) -> list[tuple[Any, ...]]:
        asked.append(query.as_string(None))
        return rows(query)

    standby = bool(ask(_TOPOLOGY)[0][0])
    database, database_oid = ask(_DATABASE)[0]
    effective, effective_oid, session, session_oid = ask(_PRINCIPALS)[0]
    fragment: dict[str, Any] = {
        "version": 1 if physical_cluster else 2,
        "verification_profile": "physical_cluster" if physical_cluster else "catalog_identity",
        "topology_role": "standby" if standby else "primary",
        "database": {"canonical_name": database, "oid": database_oid},
        "principals": {
            "effective": {"canonical_name": effective, "oid": effective_oid},
            "session": {"canonical_name": session, "oid": session_oid},
        },
        "relations": dict(_pin(ask, name) for name in relations),
    }
    if physical_cluster:
        fragment |= _cluster(ask, standby=standby)
    if relations:
        validate(SourceAuthority, fragment)
    return Discovery(fragment=fragment, queries=tuple(asked))


def database_fragment(*, database_id: int, create_token: str, database_guid: UUID) -> dict[str, Any]:
    """Value of one database's entry in ``database_authorities``."""
    return {"database_id": database_id, "create_token": create_token, "database_guid": str(database_guid)}


def _relation_query(name: str) -> sql.Composed:
    schema, dot, relation = name.partition(".")
    if not (schema and dot and relation):
        raise XminError("DPONE_POSTGRES_SOURCE_AUTHORITY_INVALID", "A relation to pin is named schema.relation.")
    return sql.SQL(_RELATION).format(schema=sql.Literal(schema), relation=sql.Literal(relation))


def _pin(ask: Rows, name: str) -> tuple[str, dict[str, Any]]:
    found = ask(_relation_query(name))
    if not found:
        raise XminError("postgres_source.relation_missing", f"There is no relation {name} that this role can see, in this exact spelling.")
    schema, namespace_oid, relation, relation_oid = found[0]
    pin = {"schema": schema, "relation": relation, "namespace_oid": namespace_oid, "relation_oid": relation_oid}
    return f"{schema}.{relation}", pin


def _cluster(ask: Rows, *, standby: bool) -> dict[str, Any]:
    try:
        system = ask(_SYSTEM)[0][0]
        timeline = ask(_TIMELINE_STANDBY if standby else _TIMELINE_PRIMARY)[0][0]
    except XminError as error:
        if error.code != "postgres_source.permission_denied":
            raise
        raise XminError("postgres_source_authority.metadata_permission_denied", "This role may not read the cluster's identity.") from None
    if not timeline:
        raise XminError("postgres_source_authority.timeline_unavailable", "The server reports no timeline.")
    return {"system_identifier": system, "timeline_id": timeline}
