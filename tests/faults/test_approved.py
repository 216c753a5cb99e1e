"""Faults in an approved run: the approval is unconsumed, or its consumption and the receipt are there together; a retry is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import pytest

from airflow_dpone_xmin.target.repair import RepairSelection
from tests.approvals import Owner, consumptions, refused
from tests.certification.record import Record
from tests.faults.matrix import COLUMNS, LIMIT, NIGHTLY_LIMIT, Kind, Matrix, Position, every, from_the_last_lock, its_turn, sample
from tests.world import MODES, Setup, World

pytestmark = pytest.mark.certify("fault_matrix")


@dataclass
class ApprovedMatrix(Matrix):
    """Each run under test was stopped and then approved. The position includes the consumptions.

    :param code: of the stop.
    """

    owner: Owner = field(kw_only=True)
    code: str = "guard.deletes_exceeded"

    @property
    def scenario(self) -> str:
        return "approved run"

    def pend(self) -> None:
        super().pend()
        refused(self.world, self.code, self.run_id)
        selected = self.owner.admit(self.world, self.run_id, f"fix-{self.generation}")
        self.repair = RepairSelection(selected.ref, None)  # plain data, so that it crosses into a child; signatures have tests of their own

    def position(self, name: str = "") -> Position:
        return replace(super().position(name), consumptions=tuple(consumptions(self.world)))

    def is_new(self, position: Position) -> bool:
        return self.is_consumed(position) and super().is_new(position)

    def is_consumed(self, position: Position) -> bool:
        """The approval, and no other one, was consumed by the one receipt of its run."""
        assert self.old is not None and self.repair is not None
        receipts = [str(receipt[3]) for receipt in position.receipts if receipt[4] == self.run_id]
        used = set(position.consumptions) - set(self.old.consumptions)
        return (
            len(receipts) == 1
            and used == {(self.repair.ref, receipts[0])}
            and len(position.consumptions) == len(self.old.consumptions) + 1
            and len(position.receipts) == len(self.old.receipts) + 1
        )


@dataclass
class TransferMatrix(ApprovedMatrix):
    """Each time, another process takes the target over. The position includes who owns the target, and who did."""

    reason: str = "baseline"
    code: str = "target_ownership.conflict"
    previous: str = ""

    @property
    def scenario(self) -> str:
        return "approved transfer"

    def pend(self) -> None:
        self.previous, self.world.process = self.world.process, f"moved-{self.generation}"
        super().pend()

    def position(self, name: str = "") -> Position:
        found = super().position(name)
        free = "superseded_by_state_key IS NULL AND superseded_at_utc IS NULL"
        gone = "superseded_by_state_key IS NOT NULL AND superseded_at_utc IS NOT NULL"
        states = self.world.target.rows(
            f"SELECT process, revision, load_id, receipt_id, CASE WHEN {free} THEN 'owner' WHEN {gone} THEN 'superseded' ELSE 'half' END"
            f" FROM {self.world.state_name('dpone_source_state')} ORDER BY 1"
        )
        return replace(found, checkpoint=tuple(states))

    def is_new(self, position: Position) -> bool:
        assert self.old is not None
        before, now = ({row[0]: row[1:] for row in found.checkpoint} for found in (self.old, position))
        taken, (head,) = now.pop(self.world.process, None), position.head
        before[self.previous] = (*before[self.previous][:3], "superseded")
        new = [receipt for receipt in position.receipts if receipt[4] == self.run_id]
        return (
            self.is_consumed(position)
            and now == before
            and taken == (1, *new[0][2:4], "owner")
            and (new[0][0], new[0][2]) == head[:2]
            and self.world.target_rows(COLUMNS) == self.world.source_rows(COLUMNS)
        )


@pytest.fixture
def guarded(worlds: Setup) -> World:
    """A row is deleted already, and no more may be."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, code varchar(10) NOT NULL, qty integer, note text)",
        "INSERT INTO orders SELECT g, 'c' || g, g, 'note ' || g FROM generate_series(1, 8) g",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run("DELETE FROM orders WHERE id = 1")
    world.run()
    world.reconciliation = {"guards": {"max_delete_ratio": 0.05}}
    return world


@pytest.fixture
def matrix(guarded: World, tmp_path: Path) -> Iterator[ApprovedMatrix]:
    """A guard stopped the deletes."""
    matrix = ApprovedMatrix(guarded, owner=Owner(tmp_path))
    matrix.prepare()
    yield matrix
    matrix.drop()


@pytest.fixture
def transfer(guarded: World, tmp_path: Path) -> Iterator[ApprovedMatrix]:
    """Another process takes the target over, with a full baseline and the deletes."""
    matrix = TransferMatrix(guarded, owner=Owner(tmp_path))
    matrix.prepare()
    yield matrix
    matrix.drop()


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("kind", ["raised", "session", "process", "lost_ack"])
def test_approved_run(matrix: ApprovedMatrix, kind: Kind, record_property: Record) -> None:
    """Errors, ended sessions, killed processes and lost acknowledgements around the approved commit."""
    inside = from_the_last_lock(matrix.boundaries)
    assert {"repair.consume", "receipt.insert", "transaction.commit"} <= {b.label for b in inside}
    chosen = [b for b in sample(matrix.boundaries, kind) if b in inside]
    if kind != "lost_ack":
        own = [b for b in inside if b.label in ("repair.find", "repair.consume", "repair.consumed", "receipt.insert", "transaction.commit")]
        chosen = own + its_turn([b for b in chosen if b not in own], 4)
    matrix.attempt_all(kind, matrix.few(chosen), record_property)


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("kind", ["raised", "session", "process", "lost_ack"])
def test_approved_transfer(transfer: ApprovedMatrix, kind: Kind, record_property: Record) -> None:
    """Old owner superseded, new owner, baseline, receipt and consumption: together, or not at all."""
    inside = from_the_last_lock(transfer.boundaries)
    assert {"owner.supersede", "checkpoint.insert", "repair.consume"} <= {b.label for b in inside}
    if kind == "lost_ack":
        chosen = [b for b in sample(transfer.boundaries, kind) if b in inside]
    else:
        chosen = [b for b in inside if b.label in ("owner.supersede", "checkpoint.insert", "repair.consume", "transaction.commit")]
    transfer.attempt_all(kind, transfer.few(chosen), record_property)


@pytest.mark.nightly
@pytest.mark.timeout(NIGHTLY_LIMIT)
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("scenario", ["matrix", "transfer"])
@pytest.mark.usefixtures("engine_name")  # what is asked for by name below has the engine as its parameter
def test_every_boundary_of_an_approved_run(request: pytest.FixtureRequest, scenario: str, kind: Kind, record_property: Record) -> None:
    found: ApprovedMatrix = request.getfixturevalue(scenario)
    found.attempt_all(kind, every(found.boundaries, kind), record_property)
