"""Extraction: the rows and keys of one verified boundary, as immutable artifacts, and the description of a route for ``check``.

A delta and its key snapshot come from two queries of one snapshot; a full payload from one query without any xmin term, whose key columns
are its key snapshot. Imports contracts, policy, artifacts and its sibling modules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from airflow_dpone_xmin.artifacts.writer import ArtifactWriter
from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, Projection
from airflow_dpone_xmin.contracts.envelope import Artifact, Envelope, Payload, Prior, SourceIdentity, SourceRequest
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.policy.window import FROZEN_XIDS, DeltaWindow, Window, decide_window
from airflow_dpone_xmin.source.boundary import Boundary, qualified, within_boundary
from airflow_dpone_xmin.source.guards import Guards

_XMIN = sql.SQL("xmin")
_PROGRESS_SECONDS = 1.0
#: Carries whether a row came through the frozen-xid term only; counted and dropped before writing. The name is reserved.
_FROZEN = "__dpone__frozen"
#: A widened plan reads its column as the wider type, so that the artifact already has the target's width.
_WIDER: Mapping[Family, tuple[str, str]] = {
    Family.INTEGER: ("integer", "int4"),
    Family.BIGINT: ("bigint", "int8"),
    Family.DOUBLE: ("double precision", "float8"),
}


def extract(
    endpoint: Endpoint,
    request: SourceRequest,
    prior: Prior,
    *,
    accept: Callable[[Projection], None] | None = None,
    progress: Listener,
    cancel: Cancellation,
) -> Envelope:
    """Extract what changed since *prior*, or everything, and the keys of the same snapshot.

    :param endpoint: source database.
    :param request: the route's source half; artifacts are written below ``request.work_dir``.
    :param prior: what the last commit left.
    :param accept: is shown the projection before any row is read, and raises to refuse it.
    :param progress: hears ``POSTGRES_SNAPSHOT_OPEN``, ``POSTGRES_COPY_PROGRESS``, ``POSTGRES_COPY_COMPLETE``, ``POSTGRES_KEYS_COMPLETE``.
    :param cancel: stops the extraction between batches and interrupts a running statement.
    :raises XminError: ``postgres_source.*``, ``postgres_source_authority.*``, ``xmin_window.*``, ``storage.*``, ``DPONE_*``,
        ``run.cancelled``. No artifact is left then.
    """

    def work(boundary: Boundary) -> Envelope:
        discard_artifacts(request)  # what an attempt on another state of the relation wrote
        if accept is not None:
            accept(boundary.projection)
        window = decide_window(
            prior,
            boundary.horizons,
            fingerprint=boundary.projection.fingerprint,
            volatile=boundary.projection.volatile,
            standby=boundary.observed.standby,
            snapshot=boundary.snapshot,
            mode=request.window,
            max_replay_amplification=request.max_replay_amplification,
        )
        return extract_window(boundary, window, progress)

    try:
        return within_boundary(endpoint, request, work, progress=progress, cancel=cancel)
    except BaseException:
        discard_artifacts(request)
        raise


def discard_artifacts(request: SourceRequest) -> None:
    """Remove what an extraction of this request wrote."""
    for kind in ("rows", "keys"):
        _file(request, kind).unlink(missing_ok=True)


def extraction_sql(request: SourceRequest, projection: Projection, window: Window, *, partitioned: bool = False) -> dict[str, str]:
    """The extraction queries as text, for ``plan --sql``: ``rows`` and, beside a delta with reconciliation, ``keys``."""
    name = qualified(request.authority.relations[request.relation_key])
    table = sql.SQL("{}" if partitioned else "ONLY {}").format(name)
    queries = {"rows": rows_query(table, projection, window).as_string(None)}
    if window.payload is Payload.DELTA and request.with_keys:
        queries["keys"] = keys_query(table, projection).as_string(None)
    return queries


def rows_query(table: sql.Composable, projection: Projection, window: Window, *, within: sql.Composable | None = None) -> sql.Composed:
    """Payload query: every column, and the delta predicate of a delta.

    :param within: restricts a full payload, to a campaign's chunk.
    """
    columns = [_select(column) for column in projection.columns]
    if window.delta is None:
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(columns), table)
        return query if within is None else sql.SQL("{} WHERE {}").format(query, within)
    columns.append(sql.SQL("{} AS {}").format(_frozen(), sql.Identifier(_FROZEN)))
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(sql.SQL(", ").join(columns), table, delta_predicate(window.delta))


def keys_query(table: sql.Composable, projection: Projection) -> sql.Composed:
    """Key snapshot query. It never mentions xmin: an index-only scan would become an index scan."""
    return sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(_select(column) for column in projection.key_columns), table)


def delta_predicate(window: DeltaWindow, *, xmin: sql.Composable = _XMIN) -> sql.Composed:
    """Rows whose transaction id lies in *window*, exact across the 32-bit wrap.

    ``age()`` counts back from one id that is fixed per transaction, so a difference of two ages is the distance of their ids modulo 2³²
    (design.md "Window").

    :param xmin: the expression to compare, of type ``xid``.
    """
    return sql.SQL("(((age({base}::xid)::bigint - age({xmin})) & 4294967295) < {width} OR {frozen})").format(
        base=sql.Literal(str(window.base32)), xmin=xmin, width=sql.Literal(window.width), frozen=_frozen(xmin)
    )


def extract_window(boundary: Boundary, window: Window, progress: Listener, *, within: sql.Composable | None = None) -> Envelope:
    """Write the artifacts of one window.

    :param within: as of :func:`rows_query`.
    """
    projection, request = boundary.projection, boundary.request
    query = rows_query(boundary.table, projection, window, within=within)
    rows = _write(boundary, query, projection.columns, "rows", progress, frozen=window.delta is not None)
    keys = None
    if window.payload is Payload.DELTA and request.with_keys:
        keys = _write(boundary, keys_query(boundary.table, projection), projection.key_columns, "keys", progress)
    pin = request.authority.relations[request.relation_key]
    return Envelope(
        source=SourceIdentity(request.identity.entry, boundary.observed.database, pin.schema_name, pin.relation),
        snapshot=boundary.snapshot,
        horizons=boundary.horizons,
        payload=window.payload,
        reason=window.reason,
        projection=projection,
        rows_artifact=rows,
        keys_artifact=keys,
        attempts=boundary.attempt,
    )


# ---- details --------------------------------------------------------------------------------------------------------------
def _write(
    boundary: Boundary,
    query: sql.Composable,
    columns: Sequence[ColumnPlan],
    kind: Literal["rows", "keys"],
    progress: Listener,
    *,
    frozen: bool = False,
) -> Artifact:
    """Stream one query into one artifact, guarding every batch; the file is removed on any error."""
    boundary.extend()
    replayed = 0
    ticker = _Ticker(progress)
    # Keys compress to a fraction at no measurable cost; whole rows do not.
    compression: Literal["zstd"] | None = "zstd" if kind == "keys" else None
    path = _file(boundary.request, kind)
    with boundary.session.stream(query) as (schema, batches):
        plain = pa.schema([pa.field(column.name, schema.field(index).type) for index, column in enumerate(columns)])
        floor = boundary.request.min_free_bytes
        with ArtifactWriter(path, plain, compression=compression, min_free_bytes=floor, check=Guards(columns).check) as writer:
            for batch in batches:
                if frozen:
                    replayed += pc.sum(batch.column(len(columns))).as_py() or 0
                clean = pa.RecordBatch.from_arrays(batch.columns[: len(columns)], schema=plain)
                writer.write(clean)
                ticker.tick(writer.rows, writer.size)
    artifact = writer.artifact(replayed_frozen=replayed)
    event = "POSTGRES_COPY_COMPLETE" if kind == "rows" else "POSTGRES_KEYS_COMPLETE"
    progress(Progress(event, rows=artifact.rows, bytes=artifact.size, seconds=ticker.seconds))
    return artifact


def _file(request: SourceRequest, kind: str) -> Path:
    return request.work_dir / f"{kind}.arrow"


@dataclass(slots=True)
class _Ticker:
    """Throttles progress events."""

    progress: Listener
    started: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.last = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def tick(self, rows: int, size: int) -> None:
        now = time.monotonic()
        if now - self.last >= _PROGRESS_SECONDS:
            self.last = now
            self.progress(Progress("POSTGRES_COPY_PROGRESS", rows=rows, bytes=size, seconds=now - self.started))


def _select(column: ColumnPlan) -> sql.Composed:
    name = sql.Identifier(column.name)
    if column.cast_to_text and not column.built_in:
        return sql.SQL("CASE WHEN num_nulls({name}) = 0 THEN format('%s', {name}) END AS {name}").format(name=name)
    if column.cast_to_text:
        return sql.SQL("{name}::text AS {name}").format(name=name)
    wide = _WIDER.get(column.family)
    if wide is not None and column.source_type != wide[0]:
        return sql.SQL("{name}::{type} AS {name}").format(name=name, type=sql.Identifier("pg_catalog", wide[1]))
    return sql.SQL("{}").format(name)


def _frozen(xmin: sql.Composable = _XMIN) -> sql.Composed:
    return sql.SQL("{} IN ({})").format(xmin, sql.SQL(", ").join(sql.Literal(str(xid)) for xid in FROZEN_XIDS))
