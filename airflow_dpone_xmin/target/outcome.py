"""A commit in doubt: lock, then look. Imports contracts and the target's own modules."""

from __future__ import annotations

from dataclasses import replace

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.state import Receipt
from airflow_dpone_xmin.target.engine import Engine
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.session import Session


def probe(engine: Engine, session: Session, ledger: Ledger, *, invocation_digest: bytes, resource: str, timeout: float) -> Receipt | None:
    """Decide a commit in doubt: a receipt found at any time means committed; absent under the lock means rolled back.

    :param session: a new session in the target's database; *ledger* is on it.
    :returns: the receipt, or None when the transaction rolled back.
    :raises XminError: ``mssql_transaction.commit_outcome_unknown`` when the lock is not to be had.
    """
    found = ledger.find_receipt(invocation_digest)
    if found is not None:
        return replace(found, replayed=False)
    try:
        engine.begin_exclusive(session, resource=resource, tables=[], timeout=timeout)
    except XminError as error:
        raise XminError(
            "mssql_transaction.commit_outcome_unknown",
            "The commit was sent, its answer was lost, and the target's lock is still held.",
            details={"cause": error.code},
        ) from None
    try:
        found = ledger.find_receipt(invocation_digest)
        engine.rollback(session)
    finally:
        engine.release(session, resource=resource)
    return None if found is None else replace(found, replayed=False)
