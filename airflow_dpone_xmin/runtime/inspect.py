"""Looking at a route's state and receipts, read-only. Imports everything below runtime."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import invocation_digest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.contracts.state import Invocation, Receipt
from airflow_dpone_xmin.runtime.admission import RouteIdentity, read_position, resolve_identity
from airflow_dpone_xmin.runtime.evidence import receipt_document
from airflow_dpone_xmin.target.authority import VerifiedDatabases, verify_databases
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.connect import engine_of
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.proof import require_schemas


def state_document(route: Route, *, endpoints: EndpointResolver) -> dict[str, Any]:
    """Checkpoint, head and owner of a route.

    :raises XminError: ``target_identity.*``, ``DPONE_TARGET_UNSUPPORTED``, connection codes.
    """
    with opened(route, endpoints) as (ledger, identity):
        position = read_position(ledger, identity)
        owner = ledger.active_owner(identity.binding.identity)
    checkpoint, head = position.checkpoint, position.head
    return {
        "process": route.process,
        "target": route.layout.target.display,
        "state_key": identity.state_key.hex(),
        "scope_hash": identity.scope_hash.hex(),
        "target_identity": identity.binding.identity.hex(),
        "active_owner": None if owner is None else owner.hex(),
        "head_agrees": position.agrees(identity.state_key),
        "checkpoint": None
        if checkpoint is None
        else {"xmin": checkpoint.xmin, "revision": checkpoint.revision, "load_id": str(checkpoint.load_id)},
        "head": None if head is None else {"state_key": head.state_key.hex(), "revision": head.revision, "load_id": str(head.load_id)},
    }


def receipt_documents(
    route: Route, *, endpoints: EndpointResolver, run_id: str | None, limit: int, map_index: int = -1
) -> list[dict[str, Any]]:
    """Receipts of a route, newest first, or the one of a run.

    :param map_index: index of a mapped task.
    :raises XminError: ``evidence.not_found``.
    """
    with opened(route, endpoints) as (ledger, identity):
        return [
            receipt_document(receipt) for receipt in find_receipts(ledger, identity, route, run_id=run_id, map_index=map_index, limit=limit)
        ]


def find_receipts(
    ledger: Ledger, identity: RouteIdentity, route: Route, *, run_id: str | None, map_index: int = -1, limit: int | None
) -> list[Receipt]:
    """Receipts of a route, newest first, or the one of a run.

    :param limit: how many; None for all.
    :raises XminError: ``evidence.not_found``.
    """
    if run_id is None:
        found = ledger.last_receipts(identity.state_key, limit=limit)
    else:
        digest = invocation_digest(Invocation(process=route.process, run_id=run_id, map_index=map_index))
        one = ledger.find_receipt(digest)
        found = [] if one is None else [one]
        stopped = None if one else ledger.last_audit(digest)
        if stopped is not None:
            raise XminError(
                "evidence.not_found",
                f"This run has no receipt: it ended as {stopped['outcome']} with {stopped['error_code']}.",
                hint="See the details for what stopped it.",
                details={"run_id": run_id, "evidence": json.loads(stopped["evidence"])},
            )
    if not found:
        raise XminError("evidence.not_found", "No receipt exists for this route and run.", details={"process": route.process})
    return found


@dataclass(frozen=True, slots=True)
class View:
    """One read-only look at a route's state."""

    engine: Engine
    session: Session
    authority: VerifiedDatabases
    ledger: Ledger
    identity: RouteIdentity


@contextmanager
def looking(
    route: Route, endpoints: EndpointResolver, *, owner: str | None = None, statement_timeout: float | None = None
) -> Iterator[View]:
    """Session, ledger and identity of a route, read-only by use: databases, schemas and serial are verified, the catalog is not.

    :param owner: look with the owner's login, by the name under which the endpoint resolver finds it.
    :param statement_timeout: seconds that one statement may take.
    :raises XminError: ``mssql_transaction.<role>_database_*``, ``.schema_ambiguous``, ``registry.rollback``, ``target_identity.*``.
    """
    with (
        contextlib.closing(engine_of(route, endpoints, owner=owner)) as engine,
        contextlib.closing(engine.connect("target", cancel=Cancellation(), statement_timeout=statement_timeout)) as session,
    ):
        catalog, authority = build_catalog(route.layout.names), verify_databases(engine, session, route)
        ledger = Ledger(session, catalog, authority)
        require_schemas(engine, session)
        ledger.require_serial(environment=route.environment, serial=route.registry_serial)
        yield View(engine, session, authority, ledger, resolve_identity(engine, session, catalog, route))


@contextmanager
def opened(route: Route, endpoints: EndpointResolver) -> Iterator[tuple[Ledger, RouteIdentity]]:
    """Ledger and identity alone."""
    with looking(route, endpoints) as view:
        yield view.ledger, view.identity
