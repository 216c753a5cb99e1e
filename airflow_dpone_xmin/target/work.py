"""The work order of one commit, everything that is frozen before the transaction begins, and the identity of the target that it binds.

An immutable row that its owner wrote beside a target says which table it is: ``dbo.dpone_target_identity`` follows the target database's
own rules of name equality, and the digest of its UUID is what locks and owns the target. Runtime never writes the row. Imports contracts
and the target's own modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import and_, func, select

from airflow_dpone_xmin.contracts.envelope import Envelope
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import target_identity
from airflow_dpone_xmin.contracts.route import Route, TableName
from airflow_dpone_xmin.contracts.state import Checkpoint, Head, Invocation
from airflow_dpone_xmin.target.catalog import Catalog
from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.repair import RepairSelection
from airflow_dpone_xmin.target.staging import Staged


@dataclass(frozen=True, slots=True)
class TargetBinding:
    """The resolved identity.

    :param identity: 32-byte digest over environment, binding UUID and canonical database name.
    """

    table: TableName
    binding_id: UUID
    identity: bytes


def require_binding(session: Session, catalog: Catalog, binding: TargetBinding, *, environment: str) -> None:
    """The identity row is still the one that the attempt was admitted with.

    :raises XminError: ``target_identity.mismatch``, and as :func:`resolve_binding`.
    """
    if resolve_binding(session, catalog, binding.table, environment=environment) != binding:
        raise XminError("target_identity.mismatch", "The target's identity row changed while the run was working.")


def resolve_binding(session: Session, catalog: Catalog, table: TableName, *, environment: str) -> TargetBinding:
    """Find the one identity row of the target and require its exact spelling; a row that differs by case only is a decoy.

    :raises XminError: ``target_identity.missing``, ``target_identity.ambiguous``.
    """
    registry = catalog.identity
    rows = session.rows(
        "identity.resolve",
        select(registry.c.binding_id, registry.c.schema_name, registry.c.table_name).where(
            and_(
                func.lower(registry.c.schema_name) == func.lower(table.namespace.schema),
                func.lower(registry.c.table_name) == func.lower(table.name),
            )
        ),
    )
    if not rows:
        raise XminError("target_identity.missing", f"{table.display} has no identity row.", details={"target": table.display})
    exact = [row for row in rows if (row[1], row[2]) == (table.namespace.schema, table.name)]
    if len(rows) > 1 or not exact:
        raise XminError(
            "target_identity.ambiguous",
            f"{len(rows)} identity rows answer to {table.display}, {len(exact)} of them spelled exactly so.",
            details={"target": table.display},
        )
    binding = UUID(str(exact[0][0]))
    digest = target_identity(environment=environment, binding_id=binding, database=table.namespace.database)
    return TargetBinding(table=table, binding_id=binding, identity=digest)


@dataclass(frozen=True, slots=True)
class Position:
    """What admission saw: compared again under the lock."""

    checkpoint: Checkpoint | None
    head: Head | None

    def agrees(self, state_key: bytes) -> bool:
        """Whether head and checkpoint name the same commit; False means that target or state was restored or failed over."""
        if self.checkpoint is None:
            return self.head is None or self.head.state_key != state_key
        return self.head == Head(state_key=state_key, revision=self.checkpoint.revision, load_id=self.checkpoint.load_id)


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that one commit needs.

    :param repair: the approval that the run selected, admitted again inside the transaction.
    """

    route: Route
    invocation: Invocation
    invocation_digest: bytes
    load_id: UUID
    binding: TargetBinding
    state_key: bytes
    scope_hash: bytes
    schema_hash: bytes
    position: Position
    envelope: Envelope
    staged: Staged
    target_authority_digest: bytes
    repair: RepairSelection | None = None

    @property
    def resource(self) -> str:
        """The application lock of the target."""
        return lock_resource(self.binding.identity)


def lock_resource(target_identity: bytes) -> str:
    """Name of the application lock that serialises all writers of one target."""
    return f"dpone:target:{target_identity.hex()}"
