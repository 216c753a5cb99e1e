"""The source is changed while a run reads it: the commit is exactly its snapshot, and the next run has the rest."""

from __future__ import annotations

import pytest

from airflow_dpone_xmin.contracts.progress import Progress
from tests.world import MODES, Setup, World

pytestmark = pytest.mark.certify("source_mutation")

COLUMNS = ("id", "qty")
MOMENTS = ("POSTGRES_SNAPSHOT_OPEN", "POSTGRES_COPY_COMPLETE", "POSTGRES_KEYS_COMPLETE")
CHANGES = (
    "INSERT INTO orders VALUES (100, 100)",
    "UPDATE orders SET qty = -1 WHERE id IN (2, 6)",
    "DELETE FROM orders WHERE id IN (3, 7)",
    "UPDATE orders SET id = 108 WHERE id = 8",
)


class Meddling:
    """Runs *statements* at the source at one moment of a run, once, and keeps what was there before them."""

    def __init__(self, world: World, moment: str, *statements: str) -> None:
        self.world, self.moment, self.statements = world, moment, statements
        self.before: list[tuple[object, ...]] | None = None

    def __call__(self, event: Progress) -> None:
        if event.event == self.moment and self.before is None:
            self.before = self.world.source_rows(COLUMNS)
            self.world.source.run(*self.statements)


@pytest.mark.parametrize("baseline", [True, False], ids=["baseline", "delta"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_rows_changed_during_a_run(worlds: Setup, moment: str, baseline: bool) -> None:
    """Rows and keys are of one snapshot: nothing that was committed after it is applied, deleted or lost."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)",
        "INSERT INTO orders SELECT g, g FROM generate_series(1, 10) g",
        reconciliation=MODES["timestamp_only"],
    )
    if not baseline:
        world.run()
        world.source.run("UPDATE orders SET qty = 0 WHERE id <= 5", "DELETE FROM orders WHERE id = 9", "INSERT INTO orders VALUES (11, 11)")
    # A baseline takes the keys out of its rows and has no query for them.
    if baseline and moment == "POSTGRES_KEYS_COMPLETE":
        moment = "POSTGRES_COPY_COMPLETE"
    meddling = Meddling(world, moment, *CHANGES)
    receipt = world.run(progress=meddling).receipt
    assert meddling.before is not None, "the moment did not come"
    assert world.target_rows(COLUMNS) == meddling.before
    assert receipt.counts.deleted == (0 if baseline else 1)
    assert world.run().receipt.payload_reason == "delta"
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS) != meddling.before


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_partition_attached_during_a_run(worlds: Setup, moment: str) -> None:
    """No lock stops it; delta and keys of two partition sets would delete rows or lose them. The boundary is taken again."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE spare (id bigint PRIMARY KEY, qty integer)",
        "INSERT INTO orders SELECT g, g FROM generate_series(1, 10) g",
        "INSERT INTO spare SELECT g, g FROM generate_series(100, 105) g",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    world.source.run("UPDATE orders SET qty = 0 WHERE id = 1")
    meddling = Meddling(world, moment, "ALTER TABLE orders ATTACH PARTITION spare FOR VALUES FROM (100) TO (200)")
    receipt = world.run(progress=meddling).receipt
    assert (receipt.payload_reason, receipt.counts.inserted, receipt.counts.deleted) == ("projection_changed", 6, 0)
    assert world.target_rows(COLUMNS) == world.source_rows(COLUMNS)
