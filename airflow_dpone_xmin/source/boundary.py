"""The source boundary: one REPEATABLE READ transaction whose snapshot is proven to see the relation that was signed, whole.

Order is everything here (design.md "One incremental run", step 2). The lock comes before the snapshot, because a snapshot older than the
lock reads a table that was truncated or rewritten in between as empty. ATTACH PARTITION is not stopped by the lock, so the partition tree
is compared with the snapshot after the first statement and again after the last. Imports contracts, policy and its sibling modules.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from psycopg import sql

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.envelope import Horizons, SourceRequest
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress, silent
from airflow_dpone_xmin.contracts.registry import RelationPin
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.source.authority import ObservedAuthority, observe, verify
from airflow_dpone_xmin.source.projection import Definitions, read_projection, read_types
from airflow_dpone_xmin.source.relation import (
    Leaf,
    RelationFacts,
    kind_refusals,
    leaves_of,
    relation_facts,
    relation_refusals,
    unreadable_columns,
)
from airflow_dpone_xmin.source.session import Session

MAX_ATTEMPTS = 5
_PAUSE_SECONDS, _FLUSH_PAUSE_SECONDS = 0.2, 0.02

_BEGIN = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
#: Everything that could change how a value reads as text, or end a transaction whose stream is busy elsewhere. SET takes no snapshot.
#: ``lc_monetary`` stays as the source has it, and is part of the fingerprint.
_PINS = (
    ("row_security", "off"),
    ("search_path", "pg_catalog"),
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("quote_all_identifiers", "off"),
    ("idle_in_transaction_session_timeout", "0"),
)
_VERSION = sql.SQL("SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4")
_UPPER, _LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
# Through no snapshot that matters: this query is over before the boundary begins and pins the search path:
# functions are named whole.
_RESOLVE = sql.SQL("""
    SELECT n.nspname::text, c.relname::text, c.oid::bigint, c.relkind::text, pg_catalog.has_schema_privilege(n.oid, 'USAGE')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE pg_catalog.translate(n.nspname::text, {upper}, {lower}) = pg_catalog.translate({schema}, {upper}, {lower})
      AND pg_catalog.translate(c.relname::text, {upper}, {lower}) = pg_catalog.translate({relation}, {upper}, {lower})
      AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')""")
_LIVE_OID = sql.SQL("SELECT to_regclass({})::oid::bigint")
_SNAPSHOT = sql.SQL("SELECT pg_current_snapshot()::text")
_SNAPSHOT_12 = sql.SQL("SELECT txid_current_snapshot()::text")
#: Seconds in which the log writer puts what has ended on disk, and whether the role may ask for less. The right is checked before a
#: statement runs, in a branch that is never taken, too: hence two statements.
_DELAY = sql.SQL("""
    SELECT 3 * extract(epoch FROM current_setting('wal_writer_delay')::interval)::float8,
           has_function_privilege('pg_current_wal_insert_lsn()', 'EXECUTE')
           AND has_function_privilege('pg_current_wal_flush_lsn()', 'EXECUTE')""")
_WRITTEN = sql.SQL("SELECT pg_current_wal_insert_lsn()::text")
_FLUSHED = sql.SQL("SELECT pg_current_wal_flush_lsn() >= {}::pg_lsn")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Boundary:
    """An open, verified transaction on the source.

    :param version: ``server_version_num``.
    :param snapshot: token of the transaction's snapshot.
    :param leaves: storages of the relation when the snapshot was taken.
    :param types: what the columns' values are made of, as the snapshot has it.
    :param written: where the server's log ended when the snapshot was taken; None on a standby, and where the role may not ask.
    :param settled: :func:`time.monotonic` after which everything that the snapshot saw as ended is on disk anyway. A standby's log is on
        disk before it is seen.
    :param attempt: how many boundaries were opened until this one was stable, 1-based.
    """

    session: Session
    request: SourceRequest
    version: int
    observed: ObservedAuthority
    facts: RelationFacts
    leaves: tuple[Leaf, ...]
    types: Definitions
    projection: Projection
    snapshot: str
    horizons: Horizons
    written: str | None
    settled: float
    attempt: int = 1

    @property
    def table(self) -> sql.Composed:
        """The relation as a FROM item. ONLY shuts out a child table that begins to inherit while the boundary is open."""
        name = qualified(self.request.authority.relations[self.request.relation_key])
        return sql.SQL("{}").format(name) if self.facts.partitioned else sql.SQL("ONLY {}").format(name)

    def extend(self) -> None:
        """Let the next statement run until the boundary's deadline."""
        pin_deadline(self.session)

    def require_unchanged(self) -> None:
        """Compare the live partition tree and file nodes with the snapshot once more.

        :raises Unstable: when an extraction may have read two different states.
        """
        _require_stable(self.session, self.facts, expected=self.leaves)

    def require_same_types(self) -> None:
        """End the transaction and compare the types' definitions with the live ones.

        Rows are as old as the snapshot, but their text is written by the live catalog: labels of enums, fields of rows, output functions.
        No lock on the table stops them from changing, and only a later snapshot sees that they did.

        :raises Unstable: when the text of a value may be one that the snapshot never had.
        """
        if self.types:
            _rollback(self.session)
            _begin(self.session, self.request, self.version)
            if read_types(self.session, self.facts.oid) != self.types:
                raise Unstable

    def wait_until_durable(self) -> None:
        """Wait until a crash of the server cannot undo what the snapshot saw as ended.

        A rollback, a commit of temporary tables or an asynchronous commit returns before its record is on disk; the server's log writer
        follows within three ``wal_writer_delay``. After a crash in between, new transactions get the same ids again, below the
        checkpoint, and no later delta would hold their rows.

        :raises XminError: ``postgres_source.deadline``, ``run.cancelled``.
        """
        # Records of open transactions may lie behind: nobody hurries them to disk, and nothing here needs them.
        flushed = _FLUSHED.format(sql.Literal(self.written)) if self.written else sql.SQL("SELECT false")
        while time.monotonic() < self.settled and not self.session.one(flushed)[0]:
            time.sleep(_FLUSH_PAUSE_SECONDS)


class Unstable(Exception):
    """The relation changed under the snapshot; the boundary is opened again."""


def within_boundary(
    endpoint: Endpoint,
    request: SourceRequest,
    work: Callable[[Boundary], T],
    *,
    progress: Listener = silent,
    cancel: Cancellation | None = None,
) -> T:
    """Run *work* inside a verified boundary and prove afterwards that it read one state of the relation.

    :param work: extraction; called again with a new boundary when the relation changed under it, so it must start over cleanly.
    :returns: its result, after the transaction was closed.
    :raises XminError: ``postgres_source.*``, ``postgres_source_authority.*``, ``DPONE_*``; ``postgres_source.boundary_unstable`` after
        :data:`MAX_ATTEMPTS` attempts.
    """
    with Session(endpoint, cancel=cancel) as session:
        return within_session(session, request, work, progress=progress)


def within_session(session: Session, request: SourceRequest, work: Callable[[Boundary], T], *, progress: Listener = silent) -> T:
    """As :func:`within_boundary`, on a session that the caller keeps; its deadline begins anew."""
    session.limit(request.deadline_seconds)
    version = server_version(session)
    lock_table = True
    attempt = 1
    while attempt <= MAX_ATTEMPTS:
        started = time.monotonic()
        resolve(session, request)
        try:
            _begin(session, request, version)
            if not _lock(session, request, lock_table=lock_table):
                lock_table = False
                continue
            boundary = _verified(session, request, version, attempt)
            progress(Progress("POSTGRES_SNAPSHOT_OPEN", seconds=time.monotonic() - started, note=f"attempt {attempt}"))
            result = work(boundary)
            boundary.require_unchanged()
            boundary.wait_until_durable()
            boundary.require_same_types()
        except Unstable:
            attempt += 1
            time.sleep(_PAUSE_SECONDS)
            continue
        finally:
            _rollback(session)
        return result
    raise XminError(
        "postgres_source.boundary_unstable",
        f"{request.relation_key} changed under the snapshot in {MAX_ATTEMPTS} attempts.",
        details={"relation": request.relation_key, "attempts": MAX_ATTEMPTS},
    )


def server_version(session: Session) -> int:
    """``server_version_num``, for example 180006."""
    return int(session.one(_VERSION)[0])


def resolve(session: Session, request: SourceRequest) -> None:
    """Find the canonical relation in a query of its own, before the boundary begins.

    :raises XminError: the first of :func:`resolve_refusals`.
    """
    for refusal in resolve_refusals(session, request):
        raise refusal


def resolve_refusals(session: Session, request: SourceRequest) -> Iterator[XminError]:
    """Why the relation cannot even be locked: ``postgres_source.relation_missing``, ``.permission_denied`` with every missing grant,
    ``postgres_source_authority.relation_ambiguous``, ``DPONE_RELATION_UNSUPPORTED``.
    """
    pin = request.authority.relations[request.relation_key]
    literals = {"upper": _UPPER, "lower": _LOWER, "schema": pin.schema_name, "relation": pin.relation}
    rows = session.rows(_RESOLVE.format(**{name: sql.Literal(value) for name, value in literals.items()}))
    exact = [row for row in rows if row[:2] == (pin.schema_name, pin.relation)]
    if not exact:
        yield XminError(
            "postgres_source.relation_missing", f"{request.relation_key} does not exist.", details={"relation": request.relation_key}
        )
        return
    if request.alias and len(rows) > 1:
        yield XminError(
            "postgres_source_authority.relation_ambiguous",
            f"The authored alias of {request.relation_key} folds onto {len(rows)} live relations.",
            details={"relation": request.relation_key, "candidates": len(rows)},
        )
    _, _, oid, kind, usage = exact[0]
    grants = [] if usage else [f"USAGE on schema {pin.schema_name}"]
    columns = unreadable_columns(session, oid)
    if columns:
        grants.append(f"SELECT ({', '.join(columns)}) on {request.relation_key}")
    if grants:
        yield XminError("postgres_source.permission_denied", f"The source role lacks {'; '.join(grants)}.", details={"grants": grants})
    yield from kind_refusals(request.relation_key, kind)


def begin_read_only(session: Session, *, version: int, lock_timeout_seconds: float) -> None:
    """Begin the transaction and pin its settings; takes no snapshot."""
    session.execute(_BEGIN)
    pins = [*_PINS, ("lock_timeout", str(max(1, int(lock_timeout_seconds * 1000))))]
    if version >= 170000:  # an unknown setting would abort the transaction
        pins.append(("transaction_timeout", "0"))
    for name, value in pins:
        session.execute(sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    pin_deadline(session)


def pin_deadline(session: Session) -> None:
    """Let the server cut off the next statement at the session's deadline."""
    remaining = session.remaining_seconds
    milliseconds = 0 if remaining is None else min(2**31 - 1, max(1, int(remaining * 1000)))
    session.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(milliseconds)))


def read_horizons(session: Session, *, version: int) -> tuple[str, Horizons]:
    """Token and 64-bit horizons of the current snapshot; works on a standby too."""
    token = str(session.one(_SNAPSHOT if version >= 130000 else _SNAPSHOT_12)[0])
    match = re.fullmatch(r"(\d+):(\d+):[\d,]*", token)
    if match is None:
        raise XminError("run.unexpected", "The snapshot token has an unknown form.")
    return token, Horizons(safe=int(match[1]), visible=int(match[2]))


def qualified(pin: RelationPin) -> sql.Identifier:
    """Quoted canonical name of a pinned relation."""
    return sql.Identifier(pin.schema_name, pin.relation)


# ---- details --------------------------------------------------------------------------------------------------------------
def _begin(session: Session, request: SourceRequest, version: int) -> None:
    begin_read_only(session, version=version, lock_timeout_seconds=request.lock_timeout_seconds)


def _lock(session: Session, request: SourceRequest, *, lock_table: bool) -> bool:
    """Take ACCESS SHARE on the relation and its partitions; False when LOCK TABLE is refused and the other way must be tried.

    LOCK TABLE needs SELECT on the whole table. With column grants only, a query that returns nothing takes the same lock, but its
    snapshot is older than the lock; :func:`_require_stable` then finds what happened in between.
    """
    name = qualified(request.authority.relations[request.relation_key])
    if not lock_table:
        session.execute(sql.SQL("SELECT 1 FROM {} LIMIT 0").format(name))
        return True
    try:
        session.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(name))
    except XminError as error:
        if error.code != "postgres_source.permission_denied":
            raise
        return False
    return True


def _verified(session: Session, request: SourceRequest, version: int, attempt: int) -> Boundary:
    pin = request.authority.relations[request.relation_key]
    observed = observe(session, [(pin.schema_name, pin.relation)], version=request.authority.version)
    # The name through the live catalog and through the snapshot: they differ when it was recreated before a late lock.
    live = session.one(_LIVE_OID.format(sql.Literal(qualified(pin).as_string(None))))[0]
    if live != observed.relations[0].relation_oid:
        raise Unstable
    verify(request.authority, request.relation_key, observed)
    facts = relation_facts(session, pin.relation_oid)
    if facts is None:
        raise Unstable
    leaves = leaves_of(session, facts)
    for refusal in relation_refusals(facts, leaves):
        raise refusal
    _require_stable(session, facts, expected=leaves, found=leaves)
    types = read_types(session, facts.oid)
    projection = read_projection(session, facts, leaves, request, types=types)
    snapshot, horizons = read_horizons(session, version=version)
    delay, may_ask = (0.0, False) if observed.standby else session.one(_DELAY)
    written = session.one(_WRITTEN)[0] if may_ask else None
    settled = time.monotonic() + delay
    return Boundary(session, request, version, observed, facts, leaves, types, projection, snapshot, horizons, written, settled, attempt)


def _require_stable(session: Session, facts: RelationFacts, *, expected: tuple[Leaf, ...], found: tuple[Leaf, ...] | None = None) -> None:
    leaves = leaves_of(session, facts) if found is None else found
    if leaves != expected or not all(leaf.stable for leaf in leaves):
        raise Unstable


def _rollback(session: Session) -> None:
    """End the transaction; it only read, so there is nothing to commit. A broken session is closed by its owner."""
    try:
        session.execute(sql.SQL("ROLLBACK"))
    except XminError:
        session.close()
