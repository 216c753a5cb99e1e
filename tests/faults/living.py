"""The fault matrix on a T-SQL server, whose databases no test can copy back under their own identity.

Each state is the next run of one long life: a row is deleted, one comes back, one changes and one is new, so that every run takes the
same steps as the recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.target.engine import Event
from tests.faults.matrix import Matrix, Position
from tests.world import MSSQL_DATABASES, World


@dataclass
class LivingMatrix(Matrix):
    """One route that goes on living.

    :param gone: the row that is deleted now and comes back with the next changes.
    :param there: the row that goes with them.
    """

    generation: int = 0
    gone: int = 2
    there: int = 1

    def keep(self) -> None:
        """Nothing can be kept: what is pending becomes the beginning."""
        self.world.run()

    def drop(self) -> None:
        """Nothing was kept."""

    def reset(self) -> None:
        """The next changes of the source; what the target holds now is old."""
        self.generation += 1
        self.run_id = f"fault-{self.generation}"
        self.world.source.run(
            f"DELETE FROM orders WHERE id = {self.there}",
            f"INSERT INTO orders VALUES ({self.gone}, 'back', 1, NULL), ({100 + self.generation}, 'new', 9, '')",
            f"UPDATE orders SET qty = {self.generation} WHERE id = 3",
        )
        self.gone, self.there = self.there, self.gone
        self.old = self.position()

    def position(self, name: str = "") -> Position:
        return self.read_position()

    def end_session(self, what: Event | Progress) -> None:
        kill_sessions(self.world, what)


def kill_sessions(world: World, what: Event | Progress) -> None:
    """End the session that is about to act; around a bulk load, which has a connection of its own, all of them in the three databases."""
    session = what.session if isinstance(what, Event) else None
    if session is not None:
        cursor = session.connection.connection.cursor()
        (number,) = cursor.execute("SELECT @@SPID").fetchone()
        cursor.close()
        numbers = [number]
    else:
        names = ", ".join(f"'{name}'" for name in MSSQL_DATABASES.values())
        query = f"SELECT session_id FROM sys.dm_exec_sessions WHERE session_id <> @@SPID AND DB_NAME(database_id) IN ({names})"
        numbers = [row[0] for row in world.target.rows(query)]
    world.target.run(*[f"KILL {number}" for number in numbers])
