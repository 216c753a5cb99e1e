"""One history: a real source and a real target, the oracle beside them, and the life of the source, which both follow."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import psycopg

from airflow_dpone_xmin.policy.window import EPOCH
from tests.model.oracle import Change, Guards, Source, Target, Transaction
from tests.model.servers import Servers, burn
from tests.world import MODES, READER, WRITER, World

TABLE = "orders"
TEXTS = (None, "", "a", "A", "a ", "a  ", "\t", "é", "e\u0301", "ß", "𝄞", "x" * 40)
FLOATS = (None, 0.0, -0.0, 1.5, -1.5, 2.2250738585072014e-308, 1.7976931348623157e308)
NUMBERS = (None, Decimal("0.000"), Decimal("1.000"), Decimal("-5.125"), Decimal("99999999.999"))
#: Key columns as DDL, and the keys that a history uses: few, so that they are deleted, come back and change places.
KEYS: dict[str, tuple[dict[str, str], tuple[tuple[Any, ...], ...]]] = {
    "number": ({"id": "bigint"}, ((0,), (1,), (2,), (3,), (-4,), (2**40,))),
    "text": ({"code": "varchar(20)"}, (("a",), ("A",), ("é",), ("e\u0301",), ("𝄞",), ("",))),
    "pair": ({"a": "integer", "b": "varchar(10)"}, ((1, "x"), (1, "X"), (2, "x"), (2, ""), (3, "é"), (-1, "x"))),
}
VALUES = {"v": ("text", TEXTS), "f": ("double precision", FLOATS), "n": ("numeric(12,3)", NUMBERS)}
#: What a new column may be: DDL, the value of existing rows, values of later ones.
NEW_COLUMNS = (
    ("text", None, TEXTS),
    ("text DEFAULT 'd'", "d", TEXTS),
    ("integer NOT NULL DEFAULT 7", 7, (7, 8)),
    ("boolean DEFAULT true", True, (True, False, None)),
)
#: Statements that give a table a new file, or its rows a new xmin; and whether every lock on it must be free.
REWRITES = (
    ("VACUUM FULL orders", True),
    ("CLUSTER orders USING orders_pkey", True),
    ("VACUUM (FREEZE) orders", False),
    ("ALTER TABLE orders ALTER COLUMN v TYPE text USING v || ''", True),
    ("ALTER TABLE orders ALTER COLUMN v TYPE text USING v || '!'", True),
    ("ALTER TABLE orders SET UNLOGGED; ALTER TABLE orders SET LOGGED", True),
)


class History:
    """A source, a target, and what both must hold.

    :param kind: of key, one of :data:`KEYS`.
    :param mode: of deletes, one of ``tests.world.MODES``.
    :param may_alter: whether the runtime login may follow the source's new columns.
    """

    def __init__(self, servers: Servers, *, kind: str, mode: str, guards: Guards, may_alter: bool) -> None:
        self._servers, self.may_alter = servers, may_alter
        keys, self.keys = KEYS[kind]
        self.pools: list[Sequence[Any]] = [pool for _, pool in VALUES.values()]
        reconciliation = None if mode == "never" else {**MODES[mode], "guards": guards.document()}
        source, target, work = servers.fresh()
        self.world = World(source, target, work, table=TABLE, key=tuple(keys), reconciliation=reconciliation)
        self.source = Source(len(keys), [*keys, *VALUES])
        self.target = Target(mode, guards)
        self.target_columns = list(self.source.columns)
        self._sessions: dict[int, psycopg.Connection[Any]] = {}
        self.shape = 0
        """Counts what changes the projection's fingerprint."""
        self._defaults_missing = False
        columns = ", ".join(f"{name} {ddl}" for name, ddl in [*keys.items(), *((name, ddl) for name, (ddl, _) in VALUES.items())])
        source.run(f"CREATE TABLE orders ({columns}, PRIMARY KEY ({', '.join(keys)}))", f"GRANT SELECT ON orders TO {READER}")
        self.owner = self._connect()
        self.world.provision_target()
        self.reader = target.connect()
        if may_alter:
            self.reader.execute(f"ALTER TABLE {self.world.target_name} OWNER TO {WRITER}")  # type: ignore[call-overload]

    def close(self) -> None:
        for session in [self.owner, self.reader, *self._sessions.values()]:
            session.close()
        self._servers.forget(self.world.source, self.world.target)

    # ---- the source's life ------------------------------------------------------------------------------------------------
    def write(self, changes: Sequence[Change], number: int | None = None) -> None:
        """Change rows in open transaction *number*, or in one of its own."""
        own = None if number is None else self.source.open[number]
        session = self.owner if number is None else self._sessions[number]
        with session.transaction() if number is None else nullcontext():
            for change in changes:
                self._execute(session, change)
        self.source.change(changes, own)

    def begin(self, number: int, *, with_id: bool) -> None:
        session = self._sessions[number] = self._connect()
        session.execute("BEGIN")
        if with_id:
            session.execute("SELECT pg_current_xact_id()")
        self.source.open[number] = Transaction()

    def savepoint(self, number: int, action: str, depth: int) -> None:
        """*action* is SAVEPOINT, ROLLBACK TO or RELEASE."""
        self._sessions[number].execute(f"{action} s{depth}")  # type: ignore[call-overload]
        own = self.source.open[number]
        {"SAVEPOINT": lambda _: own.savepoint(), "ROLLBACK TO": own.rollback_to, "RELEASE": own.release}[action](depth)

    def end(self, number: int, action: str) -> None:
        """*action* is COMMIT, ROLLBACK or PREPARE TRANSACTION."""
        name = f"{self.world.source.database}_{uuid.uuid4().hex[:8]}"
        prepare = action.startswith("PREPARE")
        session, own = self._sessions.pop(number), self.source.open.pop(number)
        session.execute(f"{action} '{name}'" if prepare else action)  # type: ignore[call-overload]
        session.close()
        if prepare:
            self.source.prepared[name] = own
        elif action == "COMMIT":
            self.source.commit(own)

    def end_prepared(self, name: str, action: str) -> None:
        self.owner.execute(f"{action} PREPARED '{name}'")  # type: ignore[call-overload]
        own = self.source.prepared.pop(name)
        if action == "COMMIT":
            self.source.commit(own)

    def settle(self) -> None:
        """End every transaction."""
        for number in list(self.source.open):
            self.end(number, "COMMIT")
        for name in list(self.source.prepared):
            self.end_prepared(name, "COMMIT")

    def rewrite(self, statement: str) -> None:
        for part in statement.split("; "):
            self.owner.execute(part)  # type: ignore[call-overload]
        if "'!'" in statement:
            at = self.source.columns.index("v")
            self.source.rewrite(lambda row: tuple(f"{v}!" if i == at and v is not None else v for i, v in enumerate(row)))
        if "FREEZE" not in statement and self._defaults_missing:
            # Values that ADD COLUMN kept in the catalog are in the rows now; the projection's fingerprint tells the two apart.
            self._defaults_missing = False
            self.shape += 1

    def truncate(self, changes: Sequence[Change]) -> None:
        """Empty the table and write new rows, in one transaction."""
        with self.owner.transaction():
            self.owner.execute("TRUNCATE orders")
            for change in changes:
                self._execute(self.owner, change)
        self.source.committed = {}
        self.source.change(changes)

    def add_column(self, ddl: str, default: Any, pool: Sequence[Any]) -> None:
        name = f"c{len(self.source.columns)}"
        self.owner.execute(f"ALTER TABLE orders ADD COLUMN {name} {ddl}")  # type: ignore[call-overload]
        self.source.add_column(name, default)
        self.pools.append(pool)
        self.shape += 1
        self._defaults_missing |= default is not None

    def burn(self, count: int) -> None:
        burn(self.owner, count)

    def anything(self) -> Change:
        """A change of the first key, which nobody else is changing; it differs from the last one."""
        (key, *_), values = self.keys, [pool[-1] for pool in self.pools]
        seen = self.source.view()
        if key not in seen:
            return Change(None, (*key, *values))
        return Change(key, None if seen[key][self.source.width :] == tuple(values) else (*key, *values))

    def before_wrap(self) -> int:
        """Transaction ids that are left until the 32-bit counter wraps."""
        (row,) = self.owner.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchall()
        return EPOCH - int(row[0])

    def restart(self, *, crash: bool) -> None:
        cluster = self.world.source.cluster
        (cluster.kill if crash else cluster.stop)()
        cluster.start()
        for session in [self.owner, *self._sessions.values()]:
            session.close()
        self._sessions.clear()
        self.source.lose_sessions()
        self.owner = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        session = self.world.source.connect()
        session.execute("SET lock_timeout = '5s'")  # nothing here ever waits: the oracle knows who holds which key
        return session

    def _execute(self, session: psycopg.Connection[Any], change: Change) -> None:
        width, columns = self.source.width, self.source.columns
        match = " AND ".join(f"{name} = %s" for name in columns[:width])
        marks = ", ".join(["%s"] * len(columns))
        if change.before is None:
            assert change.after is not None
            cursor = session.execute(f"INSERT INTO orders ({', '.join(columns)}) VALUES ({marks})", change.after)  # type: ignore[call-overload]
        elif change.after is None:
            cursor = session.execute(f"DELETE FROM orders WHERE {match}", change.before)  # type: ignore[call-overload]
        else:
            statement = f"UPDATE orders SET {', '.join(f'{name} = %s' for name in columns)} WHERE {match}"
            cursor = session.execute(statement, [*change.after, *change.before])  # type: ignore[call-overload]
        assert cursor.rowcount == 1, f"the oracle knows the source: {change}"
