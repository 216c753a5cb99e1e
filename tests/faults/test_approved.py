"""Faults in an approved run: the approval is unconsumed, or its consumption and the receipt are there together; a retry is exact."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from airflow_dpone_xmin.runtime.evidence import Outcome
from airflow_dpone_xmin.target.repair import RepairSelection
from tests.approvals import Owner, refused
from tests.certification.record import Record
from tests.children import Job, start
from tests.faults.matrix import COLUMNS, RUN_ID, Boundary, Kind, Matrix, Position, every, run_and_die, sample
from tests.world import Setup, World

pytestmark = pytest.mark.certify("fault_matrix")

UNSIGNED = RepairSelection("fix", None)  # plain data, so that it crosses into a child; signatures have tests of their own


@dataclass
class ApprovedWorld(World):
    """A world whose run under test selects its approval."""

    def run(self, run_id: str | None = None, **kw: Any) -> Outcome:
        return super().run(run_id, **({"repair": UNSIGNED} if run_id == RUN_ID else {}), **kw)


@dataclass
class ApprovedMatrix(Matrix):
    """The position includes the consumption."""

    @property
    def scenario(self) -> str:
        return "approved run"

    def position(self, name: str = "") -> Position:
        found = super().position(name)
        rows = self.world.target.rows(f"SELECT authority_id, receipt_id FROM {self.world.state_name('dpone_repair_authority_consumption')}")
        return replace(found, head=(*found.head, *[tuple(row) for row in rows]))

    def is_new(self, position: Position) -> bool:
        if len(position.head) != 2 or position.head[1] != ("fix", position.receipts[-1][3]):
            return False
        return super().is_new(replace(position, head=position.head[:1]))

    def _in_child(self, boundary: Boundary) -> None:
        child = start(run_and_die, Job.of(self.world, RUN_ID, repair=UNSIGNED), boundary)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL, f"{boundary} was not hit: exit code {child.exitcode}"


class TransferMatrix(ApprovedMatrix):
    """The position includes who owns the target, and who did."""

    @property
    def scenario(self) -> str:
        return "approved transfer"

    def position(self, name: str = "") -> Position:
        found = super().position(name)
        states = self.world.target.rows(
            "SELECT process, revision, load_id, receipt_id, superseded_by_state_key IS NULL, superseded_at_utc IS NULL"
            f" FROM {self.world.state_name('dpone_source_state')} ORDER BY 1"
        )
        return replace(found, checkpoint=tuple(tuple(row) for row in states))

    def is_new(self, position: Position) -> bool:
        assert self.old is not None
        new = [receipt for receipt in position.receipts if receipt[4] == RUN_ID]
        if len(new) != 1 or len(position.receipts) != 2 or len(position.checkpoint) != 2:
            return False
        ((revision, _, load, receipt, _),), (head, *consumed) = new, position.head
        taken, (old, *_) = position.checkpoint, self.old.checkpoint
        return (
            taken == (("moved", 1, load, receipt, True, True), (*old[:4], False, False))
            and (revision, load) == head[:2]
            and consumed == [("fix", receipt)]
            and self.world.target_rows(COLUMNS) == self.world.source_rows(COLUMNS)
        )


@pytest.fixture
def stopped(worlds: Setup, embedded_only: None) -> World:
    """Three of eight rows are to go; one changed, one is new."""
    made = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, code varchar(10) NOT NULL, qty integer, note text)",
        "INSERT INTO orders SELECT g, 'c' || g, g, 'note ' || g FROM generate_series(1, 8) g",
        reconciliation={"guards": {"max_delete_ratio": 0.05}},
    )
    made.run()
    made.source.run(
        "DELETE FROM orders WHERE id <= 3", "UPDATE orders SET qty = 0 WHERE id = 4", "INSERT INTO orders VALUES (9, 'new', 9, '')"
    )
    return made


def prepared(kind: type[ApprovedMatrix], stopped: World, directory: Path, *, code: str, reason: str) -> Iterator[ApprovedMatrix]:
    """Run :data:`RUN_ID` was stopped by *code* and its approval is in place."""
    refused(stopped, code, RUN_ID)
    Owner(directory).admit(stopped, RUN_ID)
    world = ApprovedWorld(**{name: getattr(stopped, name) for name in World.__dataclass_fields__})
    matrix = kind(world, reason=reason)
    matrix.prepare()
    yield matrix
    matrix.drop()


@pytest.fixture
def matrix(stopped: World, tmp_path: Path) -> Iterator[ApprovedMatrix]:
    """A guard stopped the deletes."""
    yield from prepared(ApprovedMatrix, stopped, tmp_path, code="guard.deletes_exceeded", reason="delta")


@pytest.fixture
def transfer(stopped: World, tmp_path: Path) -> Iterator[ApprovedMatrix]:
    """Another process takes the target over, with a full baseline and the deletes."""
    stopped.process = "moved"
    yield from prepared(TransferMatrix, stopped, tmp_path, code="target_ownership.conflict", reason="baseline")


def from_the_lock_on(boundaries: list[Boundary]) -> list[Boundary]:
    """What an approval adds to a run happens in the finalizer: the boundaries from its second admission to the end, thinned as ever."""
    first = next(number for number, b in enumerate(boundaries) if b.label == "repair.find" and b.nth == 2)
    return boundaries[first:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["raised", "session", "process", "lost_ack"])
def test_approved_run(matrix: ApprovedMatrix, kind: Kind, record_property: Record) -> None:
    """Errors, ended sessions, killed processes and lost acknowledgements around the approved commit."""
    inside = from_the_lock_on(matrix.boundaries)
    assert {"repair.consume", "receipt.insert", "transaction.commit"} <= {b.label for b in inside}
    chosen = [b for b in sample(matrix.boundaries, kind) if b in inside]
    if kind in ("session", "process"):
        chosen += [b for b in inside if b.label in ("repair.consume", "repair.consumed") and b not in chosen]
    matrix.attempt_all(kind, chosen, record_property)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["raised", "session", "process", "lost_ack"])
def test_approved_transfer(transfer: ApprovedMatrix, kind: Kind, record_property: Record) -> None:
    """Old owner superseded, new owner, baseline, receipt and consumption: together, or not at all."""
    inside = from_the_lock_on(transfer.boundaries)
    assert {"owner.supersede", "checkpoint.insert", "repair.consume"} <= {b.label for b in inside}
    if kind == "lost_ack":
        chosen = [b for b in sample(transfer.boundaries, kind) if b in inside]
    else:
        chosen = [b for b in inside if b.label in ("owner.supersede", "checkpoint.insert", "repair.consume", "transaction.commit")]
    transfer.attempt_all(kind, chosen, record_property)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("scenario", ["matrix", "transfer"])
def test_every_boundary_of_an_approved_run(request: pytest.FixtureRequest, scenario: str, kind: Kind, record_property: Record) -> None:
    found: ApprovedMatrix = request.getfixturevalue(scenario)
    found.attempt_all(kind, every(found.boundaries, kind), record_property)
