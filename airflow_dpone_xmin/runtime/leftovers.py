"""Staging tables of killed attempts: every run and every lane of a route drops those of its target whose lease nobody holds.

Imports contracts and the target's modules.
"""

from __future__ import annotations

import contextlib
from uuid import UUID

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.target.authority import verify_databases, verify_place
from airflow_dpone_xmin.target.catalog import MAX_PARAMETERS, Catalog
from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.facts import SessionFacts
from airflow_dpone_xmin.target.lease import sweep
from airflow_dpone_xmin.target.ledger import Ledger

AFTERWARDS_SECONDS, SWEEP_SECONDS = 5.0, 1.0
"""Longest waits for a lock once a run's outcome is decided or in doubt, and of a sweep."""


def sweep_stages(
    engine: Engine,
    route: Route,
    catalog: Catalog,
    target_identity: bytes,
    *,
    keep: UUID,
    place: SessionFacts,
    progress: Listener,
    cancel: Cancellation,
) -> None:
    """Best effort: what stays is told as ``CLEANUP_FAILED`` and left to the next one. Other targets' loads are theirs to sweep.

    :param target_identity: 32 bytes; loads that the ledger knows for another target are left alone.
    :param keep: the caller's own load.
    :param place: of the caller's leased session; nothing is dropped anywhere else.
    :raises XminError: ``run.cancelled``.
    """
    try:
        with (
            contextlib.closing(engine.connect("target", cancel=cancel, lock_timeout=AFTERWARDS_SECONDS)) as session,
            contextlib.closing(engine.connect("staging", cancel=cancel, lock_timeout=SWEEP_SECONDS)) as staging,
        ):
            authority = verify_databases(engine, session, route)
            verify_place(place, engine.session_facts(staging))
            found = set(sorted(set(engine.list_stages(staging)) - {keep})[:MAX_PARAMETERS])
            ledger = Ledger(session, catalog, authority)
            for load_id, error in sweep(engine, staging, sorted(found - ledger.loads_of_others(found, target_identity))):
                progress(Progress("CLEANUP_FAILED", note=f"load {load_id}: {error.code}"))
    except XminError as error:
        cancel.check()
        progress(Progress("CLEANUP_FAILED", note=error.code))
