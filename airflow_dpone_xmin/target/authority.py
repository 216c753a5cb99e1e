"""Database authority: target, staging and state are the databases that their owner signed for, before any source I/O.

Observed facts are compared with signed pins and never learned (security.md "What is pinned"). Imports contracts and the target's own
modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import DatabaseAuthority
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import ObservedDatabase, SessionFacts

Role = Literal["target", "staging", "state"]
ROLES: tuple[Role, ...] = ("target", "staging", "state")


@dataclass(frozen=True, slots=True)
class PinVerdict:
    """One line of ``check --connections``: what was signed, what was seen."""

    role: str
    pin: str
    expected: str
    observed: str
    ok: bool

    @property
    def reason(self) -> str:
        """The last part of the error code ``mssql_transaction.<role>_database_<reason>``."""
        return _REASONS[self.pin]


def observe_pins(engine: Engine, session: Session, route: Route) -> list[PinVerdict]:
    """All pins of the three roles, in verification order; nothing is raised for a mismatch."""
    verdicts: list[PinVerdict] = []
    for role in ROLES:
        name, authority = _signed(route, role)
        verdicts += compare_pins(role, name, authority, engine.observe_database(session, name))
    return verdicts


class VerifiedDatabases:
    """Proof that target, staging and state are the signed databases, as one session saw them.

    Only :func:`verify_databases` makes one, and the ledger cannot be used without it.
    """

    def __init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("database authority is verified by verify_databases, never asserted")


_SEAL = object()


def verify_databases(engine: Engine, session: Session, route: Route) -> VerifiedDatabases:
    """Target, staging, then state.

    :raises XminError: ``mssql_transaction.<role>_database_<reason>`` for the first pin that does not hold.
    """
    for role in ROLES:
        verify_database(engine, session, route, role=role)
    return VerifiedDatabases(_SEAL)


def verify_database(engine: Engine, session: Session, route: Route, *, role: Role) -> None:
    """One role's pins: also for a lease that outlives the first proof.

    :raises XminError: as :func:`verify_databases`.
    """
    name, authority = _signed(route, role)
    for verdict in compare_pins(role, name, authority, engine.observe_database(session, name)):
        if not verdict.ok:
            raise XminError(
                f"mssql_transaction.{role}_database_{verdict.reason}",
                f"The {role} database's {verdict.pin} is {verdict.observed}; signed is {verdict.expected}.",
                details={"role": role, "pin": verdict.pin, "expected": verdict.expected, "observed": verdict.observed},
            )


def verify_one_commit(engine: Engine, session: Session) -> None:
    """:raises XminError: ``mssql_transaction.availability_group_unsupported``."""
    reason = engine.separate_commit(session)
    if reason is not None:
        raise XminError("mssql_transaction.availability_group_unsupported", f"Target and state could commit separately: {reason}.")


def verify_session_pair(one: SessionFacts, other: SessionFacts, *, who: str = "target and state") -> None:
    """Two sessions act on one server as one principal: so one transaction can hold target and state.

    :param who: the two of them, for the message.
    :raises XminError: ``mssql_transaction.topology_mismatch``, ``mssql_transaction.principal_mismatch``.
    """
    if one.topology != other.topology:
        raise XminError("mssql_transaction.topology_mismatch", f"The {who} sessions are on different servers.")
    if one.principal != other.principal:
        raise XminError("mssql_transaction.principal_mismatch", f"The {who} sessions act as different principals.")


def verify_place(lease: SessionFacts, other: SessionFacts) -> None:
    """A session that is not the leased one works in the same place: server, principal, database.

    :raises XminError: as :func:`verify_session_pair`, ``mssql_transaction.staging_database_authority_mismatch``.
    """
    verify_session_pair(lease, other, who="staging lease's and the working")
    if lease.database != other.database:
        raise XminError(
            "mssql_transaction.staging_database_authority_mismatch",
            f"A staging session is in database {other.database}; leased is {lease.database}.",
        )


_REASONS = {
    "metadata right": "metadata_permission_denied",
    "canonical name": "authority_mismatch",
    "database_id": "authority_mismatch",
    "create_token": "authority_mismatch",
    "database_guid": "authority_mismatch",
    "online": "unavailable",
    "multi_user": "unavailable",
    "access": "access_denied",
}


def _signed(route: Route, role: Role) -> tuple[str, DatabaseAuthority]:
    layout, authorities = route.layout, route.authorities
    return {
        "target": (layout.target.namespace.database, authorities.target),
        "staging": (layout.staging.database, authorities.staging),
        "state": (layout.state.database, authorities.state),
    }[role]


def compare_pins(role: Role, name: str, authority: DatabaseAuthority, seen: ObservedDatabase | None) -> list[PinVerdict]:
    """Every signed field of one database beside its observation, in verification order.

    :param seen: None when no database of that name is visible.
    """
    if seen is None:
        return [PinVerdict(role, "canonical name", name, "no such database", False)]
    # Any one signed set may match as a whole: one set per replica of an availability group.
    sets = authority.pin_sets
    live = (seen.database_id, seen.create_token, seen.database_guid)
    pins = next((p for p in sets if (p.database_id, p.create_token, p.database_guid) == live), sets[0])
    rows = [
        ("metadata right", "True", str(seen.metadata_visible)),
        ("canonical name", name, seen.name),
        ("database_id", str(pins.database_id), str(seen.database_id)),
        ("create_token", pins.create_token, seen.create_token),
        ("database_guid", str(pins.database_guid), str(seen.database_guid)),
        ("online", "True", str(seen.online)),
        ("multi_user", "True", str(seen.multi_user)),
        ("access", "True", str(seen.has_access)),
    ]
    return [PinVerdict(role, pin, expected, observed, expected == observed) for pin, expected, observed in rows]
