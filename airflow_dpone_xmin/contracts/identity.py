"""Every digest of the system in one place (design.md "Identities").

Test vectors are committed under ``tests/contracts/``; a change of an input is a change of contract. Imports the standard library and
contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from airflow_dpone_xmin.contracts.canonical import Canonical, digest
from airflow_dpone_xmin.contracts.envelope import SourceIdentity
from airflow_dpone_xmin.contracts.state import Invocation

CONTRACT_VERSION = 1

WHOLE_RELATION: Mapping[str, Canonical] = {"v": 1, "kind": "whole_relation"}


def invocation_digest(invocation: Invocation) -> bytes:
    """One scheduler run of one partition of a process; unique on run state and on receipts."""
    return digest({"v": 1, "process": invocation.process, "run_id": invocation.run_id, "map_index": invocation.map_index})


def scope_hash(scope: Mapping[str, Canonical] = WHOLE_RELATION) -> bytes:
    """The whole relation or a typed predicate."""
    return digest(scope)


def schema_hash(*, key: Sequence[tuple[str, str, str]], delete_mode: str) -> bytes:
    """What of the schema identifies a checkpoint. Value columns do not: their contract is in the projection fingerprint.

    :param key: (column, physical target type, authored contract or "") in key order.
    """
    return digest({"v": 2, "key": [list(part) for part in key], "delete_mode": delete_mode})


def target_identity(*, environment: str, binding_id: UUID, database: str) -> bytes:
    """Lock and ownership: survives whatever a failover survives; copies are told apart by pins and head."""
    return digest({"v": 1, "environment": environment, "binding": str(binding_id), "database": database})


def state_key(
    *,
    environment: str,
    process: str,
    handoff_id: str | None,
    source: SourceIdentity,
    target: bytes,
    key: Sequence[str],
    scope: bytes,
    schema: bytes,
) -> bytes:
    """Whose checkpoint. OIDs and principals are authority, not identity.

    :param handoff_id: replaces the process when an initial campaign and an incremental process share one state.
    """
    return digest(
        {
            "v": 1,
            "contract": CONTRACT_VERSION,
            "environment": environment,
            "owner": ["handoff", handoff_id] if handoff_id is not None else ["process", process],
            "source": [source.entry, source.database, source.schema, source.relation],
            "target_identity": target.hex(),
            "key": list(key),
            "scope_hash": scope.hex(),
            "schema_hash": schema.hex(),
        }
    )


def route_fingerprint(*, contract: Mapping[str, Canonical], authorities: Mapping[str, bytes]) -> bytes:
    """What an invocation may not change between its attempts.

    :param contract: the manifest's contract part.
    :param authorities: role → authority digest.
    """
    return digest({"v": 1, "contract": dict(contract), "authorities": {role: value.hex() for role, value in authorities.items()}})


def combined_digest(parts: Mapping[str, bytes]) -> bytes:
    """One digest over named digests, for a column that holds several authorities."""
    return digest({"v": 1, "parts": {name: value.hex() for name, value in parts.items()}})


def campaign_key(*, environment: str, handoff_id: str, target: bytes) -> bytes:
    """Which campaign: one per handoff and target, whatever run works on it."""
    return digest({"v": 1, "environment": environment, "handoff": handoff_id, "target_identity": target.hex()})


def plan_digest(*, route: bytes, state: bytes, plan: Mapping[str, Canonical]) -> bytes:
    """What a resumed campaign may not change.

    :param route: route fingerprint, with the authorities.
    :param state: state key that the campaign will seed.
    :param plan: the authored cut and publication; computed boundaries are kept in the ledger, not here.
    """
    return digest({"v": 1, "route": route.hex(), "state_key": state.hex(), "plan": dict(plan)})


def operation_key(*, campaign: bytes, operation: str) -> bytes:
    """One operation of a campaign, ``chunk:<number>`` or ``publication``; unique on load receipts."""
    return digest({"v": 1, "campaign": campaign.hex(), "operation": operation})


def rows_digest(parts: Sequence[bytes]) -> bytes:
    """One digest over the artifacts of all chunks, in chunk order."""
    return digest({"v": 1, "chunks": [part.hex() for part in parts]})
