"""The work order of one commit: everything that is frozen before the transaction begins. Imports contracts and the target's own modules."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from airflow_dpone_xmin.contracts.envelope import Envelope
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import Checkpoint, Head, Invocation
from airflow_dpone_xmin.target.identity import TargetBinding
from airflow_dpone_xmin.target.repair import RepairSelection
from airflow_dpone_xmin.target.staging import Staged


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
