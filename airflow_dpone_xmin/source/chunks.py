"""The campaign's half of the source: the anchor with its ordered boundaries, and one bounded range of rows.

Both run inside a verified boundary; a chunk's boundary must show the anchor's columns and at least the anchor's snapshot. Imports
contracts, policy and its sibling modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psycopg import sql

from airflow_dpone_xmin.contracts.campaign import SEED_REASON, Anchor, CampaignSpec, ChunkRange
from airflow_dpone_xmin.contracts.columns import ColumnPlan, Projection
from airflow_dpone_xmin.contracts.envelope import Envelope, Payload, SourceRequest
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.policy.chunks import plan_ranges, require_chunkable
from airflow_dpone_xmin.policy.window import SnapshotToken, Window, sees_all_of
from airflow_dpone_xmin.source.boundary import Boundary, within_boundary, within_session
from airflow_dpone_xmin.source.extract import discard_artifacts, extract_window
from airflow_dpone_xmin.source.session import Session

# Without an index that leads with the column every chunk would read the whole relation.
_LEADS = sql.SQL("""
    SELECT EXISTS (SELECT FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = c.relam
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = {relation} AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree' AND a.attname = {column})""")
_OUTSIDE = sql.SQL("SELECT EXISTS (SELECT FROM {table} WHERE {column} < {low} OR {column} > {high})")
_COUNT = sql.SQL("SELECT count(*) FROM {table}")
# In index order and by rank, so that nothing is sorted and every range holds about as many rows. The bare name in ORDER BY would be the
# text of the output: 100 before 99.
_BOUNDARIES = sql.SQL("""
    SELECT DISTINCT ON (ranked.value) ranked.value::text FROM
        (SELECT {column} AS value, row_number() OVER (ORDER BY {column}) - 1 AS rank FROM {table}) AS ranked
    WHERE rank > 0 AND rank % {width} = 0 ORDER BY ranked.value""")


@dataclass(frozen=True, slots=True)
class Opened:
    """What the anchor's boundary found.

    :param ranges: the whole plan.
    """

    anchor: Anchor
    ranges: tuple[ChunkRange, ...]
    projection: Projection


def take_anchor(
    endpoint: Endpoint,
    request: SourceRequest,
    spec: CampaignSpec,
    *,
    accept: Callable[[Projection], None],
    progress: Listener,
    cancel: Cancellation,
) -> Opened:
    """Capture the anchor and the plan in one verified boundary; no row leaves the source.

    :param accept: is shown the projection first, and raises to refuse it.
    :raises XminError: ``campaign.plan_invalid``, ``campaign.rows_outside_range``, ``postgres_source.*``, ``postgres_source_authority.*``.
    """

    def work(boundary: Boundary) -> Opened:
        projection = boundary.projection
        accept(projection)
        require_chunkable(spec, projection)
        _require_index(boundary, spec)
        _require_inside(boundary, spec)
        anchor = Anchor(boundary.snapshot, boundary.horizons, projection.fingerprint)
        return Opened(anchor, plan_ranges(spec, boundaries=_boundaries(boundary, spec)), projection)

    return within_boundary(endpoint, request, work, progress=progress, cancel=cancel)


def extract_chunk(
    session: Session, request: SourceRequest, spec: CampaignSpec, chunk: ChunkRange, *, anchor: Anchor, progress: Listener
) -> Envelope:
    """Extract the rows of one range, in a boundary of its own on a session that the lane keeps.

    :raises XminError: ``campaign.projection_changed``, ``campaign.source_lags``, and as :func:`source.extract.extract`.
    """

    def work(boundary: Boundary) -> Envelope:
        discard_artifacts(request)  # what an attempt on another state of the relation wrote
        _require_anchored(boundary, anchor)
        column = next(plan for plan in boundary.projection.key_columns if plan.name == spec.column)
        window = Window(payload=Payload.FULL, reason=SEED_REASON)
        return extract_window(boundary, window, progress, within=range_predicate(column, chunk))

    try:
        return within_session(session, request, work, progress=progress)
    except BaseException:
        discard_artifacts(request)
        raise


def range_predicate(column: ColumnPlan, chunk: ChunkRange) -> sql.Composable | None:
    """The rows of ``[lower, upper)`` by the column's own order; None for all rows."""
    name = sql.Identifier(column.name)
    edges = ((sql.SQL(">="), chunk.lower), (sql.SQL("<"), chunk.upper))
    parts = [sql.SQL("{} {} {}").format(name, sign, _literal(column, value)) for sign, value in edges if value is not None]
    return sql.SQL(" AND ").join(parts) if parts else None


def _literal(column: ColumnPlan, value: str) -> sql.Composable:
    if column.source_type in ("smallint", "integer", "bigint"):
        return sql.Literal(int(value))  # of the smallest type that holds it: an end may lie beyond the column's own
    return sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(column.source_type))  # type: ignore[arg-type]  # format_type() quotes it


def _require_anchored(boundary: Boundary, anchor: Anchor) -> None:
    if boundary.projection.fingerprint != anchor.projection_fingerprint:
        raise XminError("campaign.projection_changed", "The source's columns changed after the campaign's anchor was taken.")
    now, before = SnapshotToken.parse(boundary.snapshot), SnapshotToken.parse(anchor.snapshot)
    if not sees_all_of(now, before, standby=boundary.observed.standby):
        raise XminError(
            "campaign.source_lags",
            f"The anchor's snapshot was {before.xmin}:{before.xmax}; this one, {now.xmin}:{now.xmax}, does not see all of it.",
        )


def _require_index(boundary: Boundary, spec: CampaignSpec) -> None:
    relation = sql.Literal(boundary.request.authority.relations[boundary.request.relation_key].relation_oid)
    if not boundary.session.one(_LEADS.format(relation=relation, column=sql.Literal(spec.column)))[0]:
        raise XminError(
            "campaign.plan_invalid",
            f"No btree index of the source leads with {spec.column!r}: every chunk would read the whole relation.",
            details={"column": spec.column},
        )


def _require_inside(boundary: Boundary, spec: CampaignSpec) -> None:
    if spec.kind != "integer":
        return  # both ends are open
    boundary.extend()
    parts = {"table": boundary.table, "column": sql.Identifier(spec.column), "low": sql.Literal(spec.low), "high": sql.Literal(spec.high)}
    if boundary.session.one(_OUTSIDE.format(**parts))[0]:
        raise XminError(
            "campaign.rows_outside_range",
            f"Rows of the anchor's snapshot have {spec.column!r} outside the authored range.",
            details={"column": spec.column},
        )


def _boundaries(boundary: Boundary, spec: CampaignSpec) -> list[str]:
    if spec.kind != "ordered":
        return []
    boundary.extend()
    rows = int(boundary.session.one(_COUNT.format(table=boundary.table))[0])
    width = max(1, -(-rows // (spec.buckets or 1)))
    query = _BOUNDARIES.format(table=boundary.table, column=sql.Identifier(spec.column), width=sql.Literal(width))
    return [str(row[0]) for row in boundary.session.rows(query)]
