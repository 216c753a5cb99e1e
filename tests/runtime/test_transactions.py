"""Transactions at the source: late, nested, rolled back, prepared. Every committed row arrives, no uncommitted one does."""

from __future__ import annotations

import pytest

from tests.world import MODES, Setup, World

pytestmark = pytest.mark.certify("source_mutation")

COLUMNS = ("id", "qty")


@pytest.fixture
def world(worlds: Setup) -> World:
    """Five rows, past the baseline."""
    world = worlds(
        "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)",
        "INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g",
        reconciliation=MODES["timestamp_only"],
    )
    world.run()
    return world


def test_a_late_commit_is_found(world: World) -> None:
    """A inserts, B inserts and commits, run, A commits: the next run finds A's row, because U and not H was kept."""
    with world.source.connect(autocommit=False) as late:
        late.execute("INSERT INTO orders VALUES (10, 10)")
        world.source.run("INSERT INTO orders VALUES (11, 11)")
        receipt = world.run().receipt
        assert receipt.counts.inserted == 1
        assert receipt.replay_amplification > 0
        late.commit()
    receipt = world.run().receipt
    assert receipt.counts.inserted == 1
    assert receipt.counts.unchanged == 1, "the row between U and H is replayed"
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_a_late_update_and_delete_are_found(world: World) -> None:
    """The same for an update and a delete that commit after a run that saw newer transactions."""
    with world.source.connect(autocommit=False) as late:
        late.execute("UPDATE orders SET qty = -1 WHERE id = 1")
        late.execute("DELETE FROM orders WHERE id = 2")
        world.source.run("UPDATE orders SET qty = -3 WHERE id = 3")
        world.run()
        late.commit()
    receipt = world.run().receipt
    assert (receipt.counts.updated, receipt.counts.soft_deleted) == (1, 1)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_savepoints(world: World) -> None:
    """Rows of released savepoints arrive, rows of rolled back ones do not: each has its own transaction id."""
    world.source.run(
        "BEGIN; INSERT INTO orders VALUES (10, 10); SAVEPOINT a; INSERT INTO orders VALUES (11, 11); RELEASE a; SAVEPOINT b;"
        " INSERT INTO orders VALUES (12, 12); UPDATE orders SET qty = 0 WHERE id = 1; ROLLBACK TO b; SAVEPOINT c;"
        " UPDATE orders SET qty = 22 WHERE id = 2; COMMIT"
    )
    receipt = world.run().receipt
    assert (receipt.counts.inserted, receipt.counts.updated) == (2, 1)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_a_rolled_back_transaction_changes_nothing(world: World) -> None:
    """Rolled back inserts, updates and deletes leave the target and its lineage alone."""
    before = world.target_rows(("*",))
    world.source.run("BEGIN; INSERT INTO orders VALUES (10, 10); UPDATE orders SET qty = 0; DELETE FROM orders WHERE id = 1; ROLLBACK")
    assert world.run().receipt.counts.payload == 0
    assert world.target_rows(("*",)) == before


def test_a_prepared_transaction_pins_the_horizon(world: World) -> None:
    """A prepared transaction holds U down; what commits meanwhile is replayed as unchanged, and its own rows arrive after the commit."""
    world.source.run("BEGIN; INSERT INTO orders VALUES (20, 20); PREPARE TRANSACTION 'late'")
    try:
        first = world.run().receipt
        world.source.run("INSERT INTO orders VALUES (21, 21)")
        second = world.run().receipt
        third = world.run().receipt
    finally:
        world.source.run("COMMIT PREPARED 'late'")
    assert first.new_xmin == second.new_xmin == third.new_xmin, "equal xmin; revision alone tells the runs apart"
    assert [r.new_revision for r in (first, second, third)] == [2, 3, 4]
    assert (second.counts.inserted, third.counts.unchanged, third.counts.inserted) == (1, 1, 0)
    assert world.run().receipt.counts.inserted == 1
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_key_change_is_a_delete_and_an_insert(world: World) -> None:
    """An UPDATE of a key leaves a tombstone at the old key and a new row at the new one."""
    world.source.run("UPDATE orders SET id = 100 WHERE id = 1")
    receipt = world.run().receipt
    assert (receipt.counts.inserted, receipt.counts.soft_deleted, receipt.counts.updated) == (1, 1, 0)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_key_swap(world: World) -> None:
    """Two rows that exchange their keys are two updates."""
    world.source.run(
        "BEGIN; UPDATE orders SET id = -1 WHERE id = 1; UPDATE orders SET id = 1 WHERE id = 2;"
        " UPDATE orders SET id = 2 WHERE id = -1; COMMIT"
    )
    receipt = world.run().receipt
    assert (receipt.counts.updated, receipt.counts.deleted, receipt.counts.inserted) == (2, 0, 0)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


def test_changes_that_cancel_out(world: World) -> None:
    """Delete and insert again with the same values: the row is replayed and unchanged, no tombstone appears."""
    world.source.run(
        "DELETE FROM orders WHERE id = 1",
        "INSERT INTO orders VALUES (1, 1)",
        "UPDATE orders SET qty = 9 WHERE id = 2",
        "UPDATE orders SET qty = 2 WHERE id = 2",
    )
    receipt = world.run().receipt
    assert (receipt.counts.payload, receipt.counts.unchanged) == (2, 2)
