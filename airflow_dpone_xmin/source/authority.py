"""The signed source authority: what the server says about itself, compared with what the environment's owner signed.

Version 2 (``catalog_identity``) uses ordinary catalog reads and ``pg_is_in_recovery()`` only; version 1 (``physical_cluster``) adds the
system identifier and the timeline. Nothing observed here is ever stored. Imports contracts, ``source/session.py`` and psycopg's SQL
composition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg import sql

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import SourceAuthority
from airflow_dpone_xmin.source.session import Session

_IDENTITY = sql.SQL("""
    SELECT d.datname::text, d.oid::bigint, e.rolname::text, e.oid::bigint, s.rolname::text, s.oid::bigint, pg_catalog.pg_is_in_recovery()
    FROM pg_catalog.pg_database d, pg_catalog.pg_roles e, pg_catalog.pg_roles s
    WHERE d.datname = current_database() AND e.rolname = current_user AND s.rolname = session_user""")
_RELATION = sql.SQL("""
    SELECT n.oid::bigint, c.oid::bigint
    FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = {relation}
    WHERE n.nspname = {schema}""")
_SYSTEM = sql.SQL("SELECT system_identifier::text FROM pg_catalog.pg_control_system()")
_WAL_FILE = sql.SQL("SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn())")
_CHECKPOINT = sql.SQL("SELECT timeline_id::bigint FROM pg_catalog.pg_control_checkpoint()")
_EXECUTABLE = sql.SQL("SELECT pg_catalog.has_function_privilege({}::text, 'EXECUTE')")
_FUNCTIONS_PRIMARY = ("pg_catalog.pg_control_system()", "pg_catalog.pg_current_wal_lsn()", "pg_catalog.pg_walfile_name(pg_lsn)")
_FUNCTIONS_STANDBY = ("pg_catalog.pg_control_system()", "pg_catalog.pg_control_checkpoint()")


@dataclass(frozen=True, slots=True)
class ObservedRelation:
    """OIDs behind one name; None where nothing has it."""

    schema: str
    relation: str
    namespace_oid: int | None
    relation_oid: int | None


@dataclass(frozen=True, slots=True)
class ObservedAuthority:
    """What one session sees of the server; never a source of trust.

    :param missing_functions: functions of the physical profile that the role may not execute; their facts are None then.
    """

    database: str
    database_oid: int
    effective: str
    effective_oid: int
    session: str
    session_oid: int
    standby: bool
    relations: tuple[ObservedRelation, ...]
    system_identifier: str | None = None
    timeline_id: int | None = None
    missing_functions: tuple[str, ...] = field(default=())

    @property
    def topology_role(self) -> str:
        """``primary`` or ``standby``."""
        return "standby" if self.standby else "primary"


@dataclass(frozen=True, slots=True)
class PinRow:
    """One signed field beside its observation.

    :param code: error code when they differ.
    """

    pin: str
    expected: str
    observed: str
    ok: bool
    code: str


def observe(session: Session, relations: Sequence[tuple[str, str]], *, version: int) -> ObservedAuthority:
    """Observe the server through *session*.

    :param relations: canonical (schema, relation) names to look up.
    :param version: 2 never calls a control-data, WAL or statistics function.
    """
    database, database_oid, effective, effective_oid, login, login_oid, standby = session.one(_IDENTITY)
    system, timeline, missing = _observe_cluster(session, standby=standby) if version == 1 else (None, None, ())
    return ObservedAuthority(
        database=database,
        database_oid=database_oid,
        effective=effective,
        effective_oid=effective_oid,
        session=login,
        session_oid=login_oid,
        standby=standby,
        relations=tuple(_observe_relation(session, schema, relation) for schema, relation in relations),
        system_identifier=system,
        timeline_id=timeline,
        missing_functions=missing,
    )


def compare(authority: SourceAuthority, relation_key: str, observed: ObservedAuthority) -> tuple[PinRow, ...]:
    """Every field that the selected profile signs, in the order of verification."""
    pin = authority.relations[relation_key]
    names = (pin.schema_name, pin.relation)
    seen = next((r for r in observed.relations if (r.schema, r.relation) == names), ObservedRelation(*names, None, None))
    prefix = "postgres_source_authority."
    rows: list[tuple[str, object, object, str]] = []
    if authority.version == 1:
        # What could not be read is not another cluster: a run refuses it by its own code.
        unread = "metadata_permission_denied" if observed.missing_functions else None
        timeline = "timeline_mismatch" if observed.timeline_id is not None else "timeline_unavailable"
        rows += [
            ("system_identifier", authority.system_identifier, observed.system_identifier, unread or "system_identifier_mismatch"),
            ("timeline_id", authority.timeline_id, observed.timeline_id, unread or timeline),
        ]
    principals = authority.principals
    rows += [
        ("topology_role", authority.topology_role, observed.topology_role, "topology_role_mismatch"),
        ("database.canonical_name", authority.database.canonical_name, observed.database, "database_mismatch"),
        ("database.oid", authority.database.oid, observed.database_oid, "database_mismatch"),
        ("principals.effective.canonical_name", principals.effective.canonical_name, observed.effective, "principal_mismatch"),
        ("principals.effective.oid", principals.effective.oid, observed.effective_oid, "principal_mismatch"),
        ("principals.session.canonical_name", principals.session.canonical_name, observed.session, "principal_mismatch"),
        ("principals.session.oid", principals.session.oid, observed.session_oid, "principal_mismatch"),
        ("relation.namespace_oid", pin.namespace_oid, seen.namespace_oid, "relation_mismatch"),
        ("relation.relation_oid", pin.relation_oid, seen.relation_oid, "relation_mismatch"),
    ]
    return tuple(
        PinRow(pin=name, expected=_text(expected), observed=_text(value), ok=expected == value, code=prefix + code)
        for name, expected, value, code in rows
    )


def authority_refusals(authority: SourceAuthority, relation_key: str, observed: ObservedAuthority) -> list[XminError]:
    """Every difference between *observed* and the signed authority, in the order of verification; empty when it holds."""
    if observed.missing_functions:
        return [
            XminError(
                "postgres_source_authority.metadata_permission_denied",
                f"The physical_cluster profile needs EXECUTE on {', '.join(observed.missing_functions)}.",
                details={"functions": list(observed.missing_functions)},
            )
        ]
    if authority.version == 1 and observed.timeline_id is None:
        return [XminError("postgres_source_authority.timeline_unavailable", "The server reports no valid timeline.")]
    return [
        XminError(
            row.code,
            f"Signed {row.pin} is {row.expected}; the server shows {row.observed}.",
            details={"pin": row.pin, "expected": row.expected, "observed": row.observed},
        )
        for row in compare(authority, relation_key, observed)
        if not row.ok
    ]


def verify(authority: SourceAuthority, relation_key: str, observed: ObservedAuthority) -> None:
    """:raises XminError: ``postgres_source_authority.*`` for the first signed field that does not hold."""
    for refusal in authority_refusals(authority, relation_key, observed):
        raise refusal


def _observe_relation(session: Session, schema: str, relation: str) -> ObservedRelation:
    rows = session.rows(_RELATION.format(schema=sql.Literal(schema), relation=sql.Literal(relation)))
    namespace_oid, relation_oid = rows[0] if rows else (None, None)
    return ObservedRelation(schema, relation, namespace_oid, relation_oid)


def _observe_cluster(session: Session, *, standby: bool) -> tuple[str | None, int | None, tuple[str, ...]]:
    """System identifier and timeline; a grant that is missing is asked for first, because a refused call ends the transaction."""
    functions = _FUNCTIONS_STANDBY if standby else _FUNCTIONS_PRIMARY
    missing = tuple(name for name in functions if not session.one(_EXECUTABLE.format(sql.Literal(name)))[0])
    if missing:
        return None, None, missing
    system = session.one(_SYSTEM)[0]
    if standby:
        timeline = session.one(_CHECKPOINT)[0]
    else:
        # The first eight hexadecimal digits of a WAL file name are the timeline.
        match = re.match(r"^([0-9A-F]{8})[0-9A-F]{16}$", session.one(_WAL_FILE)[0] or "")
        timeline = int(match[1], 16) if match else None
    return system, timeline if timeline and timeline > 0 else None, ()


def _text(value: object) -> str:
    return "(none)" if value is None else str(value)
