"""The repair authority: an immutable, expiring, one-shot approval of one exceptional run (security.md "Approvals").

The environment's owner provisions it; a manifest cannot grant it and runtime never writes one. Imports the standard library, pydantic and
contracts only.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from airflow_dpone_xmin.contracts.canonical import Canonical, digest
from airflow_dpone_xmin.contracts.registry import UtcTime

PAYLOAD_TYPE = "application/vnd.dpone.repair-authority.v1+json"

AUTHORITY_ID = r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$"
UNNAMED = ("", "None")
"""What a template makes of an absent reference: neither can be the id of an approval."""

HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**63, strict=True)]


class Closed(BaseModel):
    """Refuses unknown fields, never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CheckpointBinding(Closed):
    """The exact checkpoint that the approver saw."""

    xmin: Count
    revision: Count


class TransferBinding(Closed):
    """The exact old owner whose ownership ends: all or none of it."""

    state_key: HexDigest
    xmin: Count
    revision: Count


class Allow(Closed):
    """Independent permissions; what is absent is not allowed."""

    full_baseline: bool = False
    max_delete_rows: Count | None = None
    max_delete_ratio: Annotated[Decimal, Field(ge=0, le=1, max_digits=18, decimal_places=15)] | None = None

    @field_validator("max_delete_ratio", mode="before")
    @classmethod
    def _exact(cls, value: Any) -> Any:
        # A binary float is not what the approver wrote; its shortest decimal spelling is.
        return str(value) if isinstance(value, float) else value


class RepairAuthority(Closed):
    """One approval.

    :param authority_id: what ``--repair-authority-ref`` names.
    :param checkpoint: the checkpoint that must still be current, or None when there must be none.
    :param transfer: ends the ownership of exactly one old state key; needs ``allow.full_baseline`` and an absent checkpoint.
    """

    kind: Literal["dpone.repair_authority.v1"] = "dpone.repair_authority.v1"
    authority_id: Annotated[str, Field(min_length=1, max_length=128, pattern=AUTHORITY_ID)]
    environment: Annotated[str, Field(min_length=1, max_length=128)]
    state_key: HexDigest
    scope_hash: HexDigest
    checkpoint: CheckpointBinding | None = None
    allow: Allow
    transfer: TransferBinding | None = None
    reason: Annotated[str, Field(min_length=1, max_length=2000)]
    created_at: UtcTime
    expires_at: UtcTime

    @field_validator("authority_id")
    @classmethod
    def _selectable(cls, value: str) -> str:
        if value in UNNAMED:
            raise ValueError(f"{value} is what an absent reference renders as")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RepairAuthority:
        if self.created_at >= self.expires_at:
            raise ValueError("created_at must lie before expires_at")
        if not (self.allow.full_baseline or self.allow.max_delete_rows is not None or self.allow.max_delete_ratio is not None):
            raise ValueError("allow grants nothing")
        if self.transfer is not None and (not self.allow.full_baseline or self.checkpoint is not None):
            raise ValueError("transfer needs allow.full_baseline and an absent checkpoint")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 over every field; stored beside the row, recomputed from it, and covered by the signature."""
        return digest({"v": 1, **self.canonical()})

    def canonical(self) -> dict[str, Canonical]:
        """Every field as canonical values; absence is an empty list."""
        allow, checkpoint, transfer = self.allow, self.checkpoint, self.transfer
        return {
            "kind": self.kind,
            "authority_id": self.authority_id,
            "environment": self.environment,
            "state_key": self.state_key,
            "scope_hash": self.scope_hash,
            "checkpoint": [] if checkpoint is None else [checkpoint.xmin, checkpoint.revision],
            "full_baseline": int(allow.full_baseline),
            "max_delete_rows": [] if allow.max_delete_rows is None else [allow.max_delete_rows],
            "max_delete_ratio": [] if allow.max_delete_ratio is None else [format(allow.max_delete_ratio.normalize(), "f")],
            "transfer": [] if transfer is None else [transfer.state_key, transfer.xmin, transfer.revision],
            "reason": self.reason,
            "created_at": self.created_at.isoformat(timespec="microseconds"),
            "expires_at": self.expires_at.isoformat(timespec="microseconds"),
        }
