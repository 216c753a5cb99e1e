"""The environment's owner in tests: proposes, signs and approves exceptional runs through the functions that the CLI calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import PAYLOAD_TYPE, RepairAuthority
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.contracts.state import Invocation
from airflow_dpone_xmin.registry.keys import generate_keypair, read_signer
from airflow_dpone_xmin.registry.sign import sign_document
from airflow_dpone_xmin.runtime.repair import approve, propose, select_repair
from airflow_dpone_xmin.target.repair import RepairSelection
from tests.world import World


@dataclass
class Owner:
    """An owner with a key pair.

    :param name: of the key pair's files.
    """

    directory: Path
    name: str = "owner"

    def __post_init__(self) -> None:
        self.private, self.public, _ = generate_keypair(self.directory, name=self.name)

    def propose(self, world: World, run_id: str, authority_id: str = "fix", *, map_index: int = -1, **over: Any) -> RepairAuthority:
        """What ``repair propose`` writes for a stopped run."""
        options: dict[str, Any] = {
            "full_baseline": False,
            "max_delete_rows": None,
            "max_delete_ratio": None,
            "valid_for": timedelta(hours=1),
        }
        return propose(
            world.route(),
            Invocation(process=world.route().process, run_id=run_id, map_index=map_index),
            endpoints=world.endpoints,
            authority_id=authority_id,
            reason="archived at the source",
            **(options | over),
        )

    def sign(self, authority: RepairAuthority, *, payload_type: str = PAYLOAD_TYPE) -> bytes:
        payload = json.dumps(authority.model_dump(mode="json"), sort_keys=True).encode()
        return sign_document(payload, read_signer(self.private), payload_type=payload_type)

    def approve(self, world: World, authority: RepairAuthority, *, envelope: bytes | str | None = "sign") -> RepairSelection:
        """Insert the signed row; returns what ``--repair-authority-ref`` selects."""
        found = self.sign(authority) if isinstance(envelope, str) else envelope
        approve(world.route(), authority, endpoints=_with_owner(world), owner="owner", envelope=found)
        return self.select(world, authority.authority_id)

    def select(self, world: World, ref: str) -> RepairSelection:
        selection = select_repair(ref, registry=world.registry(), trusted_keys=[self.public])
        assert selection is not None
        return selection

    def admit(self, world: World, run_id: str, authority_id: str = "fix", **over: Any) -> RepairSelection:
        """Propose from a stopped run and approve as proposed."""
        return self.approve(world, self.propose(world, run_id, authority_id, **over))


def _with_owner(world: World) -> Callable[..., Endpoint]:
    def find(entry: str, *, conn_id: str) -> Endpoint:
        return world.target.endpoint(owner=True) if entry == "owner" else world.endpoints(entry, conn_id=conn_id)

    return find


def everything(world: World) -> tuple[Any, ...]:
    """All that a refused run must leave alone; audit and run state may move."""
    names = ("dpone_source_state", "dpone_commit_receipt", "dpone_repair_authority", "dpone_repair_authority_consumption")
    tables = [world.target_name, world.dbo_name("dpone_target_head"), *[world.state_name(name) for name in names]]
    return tuple(sorted((tuple(row) for row in world.target.rows(f"SELECT * FROM {table}")), key=repr) for table in tables)


def refused(world: World, code: str, run_id: str = "stopped", **kw: Any) -> XminError:
    """Run; it must be refused by *code*, once and for all, and change nothing."""
    before = everything(world)
    with pytest.raises(XminError) as caught:
        world.run(run_id, **kw)
    assert caught.value.code == code, caught.value
    assert caught.value.retryable is False
    assert everything(world) == before
    assert world.staged() == []
    return caught.value


def consumptions(world: World) -> list[tuple[Any, ...]]:
    """(authority id, receipt id) of every consumed approval."""
    rows = world.target.rows(f"SELECT authority_id, receipt_id FROM {world.state_name('dpone_repair_authority_consumption')} ORDER BY 1")
    return [(row[0], str(row[1]).lower()) for row in rows]
