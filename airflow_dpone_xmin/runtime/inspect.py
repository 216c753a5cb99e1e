"""Looking at a route's state and receipts, read-only. Imports everything below runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_dpone_xmin.contracts.endpoint import EndpointResolver
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import invocation_digest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.runtime.admission import RouteIdentity, read_position, resolve_identity
from airflow_dpone_xmin.runtime.engines import engine_of
from airflow_dpone_xmin.runtime.evidence import receipt_document
from airflow_dpone_xmin.target.catalog import Catalog, build_catalog
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.session import Session


def state_document(route: Route, *, endpoints: EndpointResolver) -> dict[str, Any]:
    """Checkpoint, head and owner of a route.

    :raises XminError: ``target_identity.*``, ``DPONE_TARGET_UNSUPPORTED``, connection codes.
    """
    with _opened(route, endpoints) as (session, catalog, identity):
        position = read_position(session, catalog, identity)
        owner = Ledger(session, catalog).active_owner(identity.binding.identity)
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


def receipt_documents(route: Route, *, endpoints: EndpointResolver, run_id: str | None, limit: int) -> list[dict[str, Any]]:
    """Receipts of a route, newest first, or the one of a run.

    :raises XminError: ``evidence.not_found``.
    """
    with _opened(route, endpoints) as (session, catalog, identity):
        ledger = Ledger(session, catalog)
        if run_id is None:
            found = ledger.last_receipts(identity.state_key, limit=limit)
        else:
            one = ledger.find_receipt(invocation_digest(Invocation(process=route.process, run_id=run_id)))
            found = [] if one is None else [one]
    if not found:
        raise XminError("evidence.not_found", "No receipt exists for this route and run.", details={"process": route.process})
    return [receipt_document(receipt) for receipt in found]


@contextmanager
def _opened(route: Route, endpoints: EndpointResolver) -> Iterator[tuple[Session, Catalog, RouteIdentity]]:
    engine = engine_of(route, endpoints)
    session = engine.connect("target", cancel=Cancellation())
    try:
        catalog = build_catalog(route.layout.names)
        yield session, catalog, resolve_identity(engine, session, catalog, route)
    finally:
        session.close()
        engine.close()
