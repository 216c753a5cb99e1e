"""Admission: everything that is decided before the source is opened (design.md "One incremental run", step 1).

Authorities first, then catalog, identity and invocation; a receipt found here ends the run. Imports everything below runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from uuid6 import uuid7

from airflow_dpone_xmin.contracts.envelope import Prior
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import combined_digest, invocation_digest, schema_hash, scope_hash, state_key
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import Checkpoint, Invocation, Receipt
from airflow_dpone_xmin.policy.repair import RepairBinding, admit_baseline, admit_transfer
from airflow_dpone_xmin.target.authority import VerifiedDatabases, verify_databases, verify_one_commit, verify_session_pair
from airflow_dpone_xmin.target.campaign_ledger import require_unfenced
from airflow_dpone_xmin.target.catalog import Catalog, build_catalog, server_time
from airflow_dpone_xmin.target.ddl import privileges, target_privileges
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import TableFacts
from airflow_dpone_xmin.target.finalize import owner_position
from airflow_dpone_xmin.target.gate import ownership_conflict, repair_binding
from airflow_dpone_xmin.target.ledger import Ledger
from airflow_dpone_xmin.target.proof import require_catalog
from airflow_dpone_xmin.target.repair import RepairSelection, admitted_authority
from airflow_dpone_xmin.target.shape import has_rows, key_types, live_table
from airflow_dpone_xmin.target.sql import STAGING, TARGET
from airflow_dpone_xmin.target.transaction import exclusive
from airflow_dpone_xmin.target.work import Position, TargetBinding, resolve_binding


@dataclass(frozen=True, slots=True)
class RouteIdentity:
    """The digests that name a route's state, resolved against the live target.

    :param facts: the live target table.
    """

    binding: TargetBinding
    facts: TableFacts
    state_key: bytes
    scope_hash: bytes
    schema_hash: bytes
    target_authority_digest: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted attempt.

    :param receipt: the invocation's receipt when an earlier attempt committed; then the source stays closed.
    """

    catalog: Catalog
    identity: RouteIdentity
    position: Position
    invocation_digest: bytes
    load_id: UUID
    attempt: int
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class VerifiedTarget:
    """The target side after its authorities, catalog and grants were proven."""

    catalog: Catalog
    authority: VerifiedDatabases


def verify_target(engine: Engine, session: Session, state_session: Session, route: Route) -> VerifiedTarget:
    """Authorities, topology, principal, catalog, grants, the registry's serial.

    :param session: session in the target's database.
    :param state_session: session in the state's database.
    """
    authority = verify_databases(engine, session, route)
    verify_session_pair(engine.session_facts(session), engine.session_facts(state_session))
    verify_one_commit(engine, session)
    catalog = build_catalog(route.layout.names)
    require_catalog(engine, session, catalog)
    missing = missing_target_grants(engine, session, catalog, route)
    if missing:
        raise XminError("mssql_transaction.permission_denied", f"The runtime login lacks {missing[0]}.", details={"missing": missing})
    surplus = surplus_grants(engine, session, catalog)
    if surplus:
        raise XminError("mssql_transaction.permission_surplus", f"The runtime login has {surplus[0]}.", details={"surplus": surplus})
    Ledger(session, catalog, authority).require_serial(environment=route.environment, serial=route.registry_serial)
    return VerifiedTarget(catalog, authority)


def missing_target_grants(engine: Engine, session: Session, catalog: Catalog, route: Route) -> list[str]:
    """Missing privileges by name, on catalog, target and staging; of a target that is not there :func:`resolve_identity` tells."""
    target = route.layout.target
    name = f"{TARGET}.{target.name}"
    wanted = {f"{table.schema}.{table.name}": granted for table, granted in privileges(catalog).items()}
    wanted |= {name: target_privileges(route.delete_mode), STAGING: ("USAGE", "CREATE")}
    missing = engine.missing_grants(session, wanted, role="target")
    if missing and target.name not in engine.describe(session, target.namespace, [target.name]):
        del wanted[name]
        missing = engine.missing_grants(session, wanted, role="target")
    return missing


def surplus_grants(engine: Engine, session: Session, catalog: Catalog) -> list[str]:
    """Rights by which the runtime login could change what must never change: receipts, approvals, consumptions, identities."""
    granted = privileges(catalog)
    return engine.surplus_grants(session, {f"{table.schema}.{table.name}": granted[table] for table in catalog.immutable})


def resolve_identity(engine: Engine, session: Session, catalog: Catalog, route: Route) -> RouteIdentity:
    """The target's binding and the digests derived from it.

    :raises XminError: ``target_identity.*``, ``DPONE_TARGET_UNSUPPORTED``.
    """
    target = route.layout.target
    facts = live_table(engine, session, target)
    decoys = engine.case_variants(session, target)
    if decoys:
        raise XminError(
            "target_identity.ambiguous",
            f"{target.display} has {len(decoys)} neighbours whose names differ only by case.",
            details={"target": target.display, "decoys": decoys},
        )
    binding = resolve_binding(session, catalog, target, environment=route.environment)
    scope = scope_hash()
    contracts = {**dict.fromkeys(route.string_columns, "string"), **route.type_overrides}
    key = [(name, kind, contracts.get(name, "")) for name, kind in key_types(facts, route)]
    schema = schema_hash(key=key, delete_mode=route.delete_mode.value)
    digests = route.authorities.digests
    return RouteIdentity(
        binding=binding,
        facts=facts,
        scope_hash=scope,
        schema_hash=schema,
        state_key=state_key(
            environment=route.environment,
            process=route.process,
            handoff_id=route.handoff_id,
            source=route.source,
            target=binding.identity,
            key=route.key,
            scope=scope,
            schema=schema,
        ),
        target_authority_digest=combined_digest({role: digests[role] for role in ("target", "staging", "state")}),
    )


def admit(engine: Engine, session: Session, state_session: Session, route: Route, *, invocation: Invocation) -> Admitted:
    """Admit one attempt of an invocation.

    :raises XminError: whatever refuses the attempt; nothing but the invocation's own row was written.
    """
    if route.execution == "initial":
        raise XminError(
            "DPONE_STRATEGY_UNSUPPORTED",
            "This manifest describes an initial campaign, not an incremental run.",
            hint="Use the campaign commands for it.",
        )
    verified = verify_target(engine, session, state_session, route)
    identity = resolve_identity(engine, session, verified.catalog, route)
    ledger = Ledger(session, verified.catalog, verified.authority)
    digest, load_id = invocation_digest(invocation), UUID(int=uuid7().int)
    attempt, receipt = _allocate(engine, session, ledger, route, identity=identity, invocation=invocation, digest=digest, load_id=load_id)
    return Admitted(
        catalog=verified.catalog,
        identity=identity,
        position=read_position(ledger, identity),
        invocation_digest=digest,
        load_id=load_id,
        attempt=attempt,
        receipt=receipt,
    )


def _allocate(
    engine: Engine,
    session: Session,
    ledger: Ledger,
    route: Route,
    *,
    identity: RouteIdentity,
    invocation: Invocation,
    digest: bytes,
    load_id: UUID,
) -> tuple[int, Receipt | None]:
    """The invocation's row and receipt, under the invocation's own lock."""
    resource = f"dpone:invocation:{digest.hex()}"
    with exclusive(engine, session, resource=resource, timeout=route.target_lock_timeout):
        ledger.accept_registry(environment=route.environment, serial=route.registry_serial)
        attempt = ledger.admit_invocation(
            {
                "invocation_digest": digest,
                "process": invocation.process,
                "run_id": invocation.run_id,
                "map_index": invocation.map_index,
                "target_identity": identity.binding.identity,
                "state_key": identity.state_key,
                "route_fingerprint": route.route_fingerprint,
                "last_load_id": load_id,
            }
        )
        receipt = ledger.find_receipt(digest)
        engine.commit(session, resource=resource)
    return attempt, receipt


def read_position(ledger: Ledger, identity: RouteIdentity) -> Position:
    """Checkpoint and head of a route."""
    return Position(checkpoint=ledger.read_checkpoint(identity.state_key), head=ledger.read_head(identity.binding.identity))


def source_prior(
    session: Session,
    ledger: Ledger,
    route: Route,
    *,
    identity: RouteIdentity,
    position: Position,
    repair: RepairSelection | None = None,
    report: bool = False,
) -> Prior:
    """Refuse what the finalizer would refuse anyway, preview the approval, and say what the source side must know.

    :param report: leave to the finalizer what an approval could admit: a report wants the classification, too.
    :raises XminError: ``target_ownership.conflict``, ``checkpoint.missing``, ``checkpoint.seed_missing``, ``repair_authority.*``.
    """
    approval = None
    if repair is not None:
        binding = RepairBinding(route.environment, identity.state_key, identity.scope_hash, position.checkpoint)
        approval = admitted_authority(ledger, repair, binding, now=server_time(session))
    # Before the owner is asked: a transfer could not mend it. A seed that was superseded is no missing one; the owner took over.
    if route.handoff_id is not None and position.checkpoint is None and not ledger.highest_revision(identity.state_key):
        require_unfenced(session, ledger.catalog, identity.binding.identity)
        raise XminError(
            "checkpoint.seed_missing",
            f"No campaign of handoff {route.handoff_id!r} has seeded this target with this key and delete mode.",
            details={"handoff_id": route.handoff_id, "state_key": identity.state_key.hex()},
        )
    owner = ledger.active_owner(identity.binding.identity)
    if approval is not None and approval.transfer is not None:
        old = None if owner is None or owner == identity.state_key else ledger.read_checkpoint(owner)
        admit_transfer(approval, owner=owner, owner_checkpoint=old)
    elif owner is not None and owner != identity.state_key and not report:
        binding_now = approval_binding(route, identity, position)
        raise ownership_conflict(owner_position(ledger, owner), identity.state_key, binding=binding_now)
    require_unfenced(session, ledger.catalog, identity.binding.identity)
    if position.checkpoint is None and not report and not admit_baseline(approval) and has_rows(session, route.layout.target):
        raise XminError(
            "checkpoint.missing",
            f"{route.layout.target.display} has rows, but this state key has no checkpoint.",
            details={"binding": approval_binding(route, identity, position)},
        )
    return replace(prior_of(route, identity, position), approved_full=admit_baseline(approval), report=report)


def approval_binding(route: Route, identity: RouteIdentity, position: Position) -> dict[str, Any]:
    """What an approval of this run must be bound to, before its rows were looked at."""
    return repair_binding(route.environment, identity.state_key, identity.scope_hash, position.checkpoint)


def prior_of(route: Route, identity: RouteIdentity, position: Position) -> Prior:
    """What the source side must know of the last commit; any doubt about the target makes the payload full."""
    checkpoint: Checkpoint | None = position.checkpoint
    if checkpoint is None:
        return Prior()
    force = None
    if not position.agrees(identity.state_key):
        force = "target_state_diverged"
    elif checkpoint.target_authority_digest != identity.target_authority_digest:
        force = "target_authority_rotated"
    return Prior(
        xmin=checkpoint.xmin,
        snapshot=checkpoint.snapshot,
        projection_fingerprint=checkpoint.projection_fingerprint,
        force_full=force,
        authority_rotated=checkpoint.source_authority_digest != route.authorities.digests["source"],
    )
