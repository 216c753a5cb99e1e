"""How a campaign cuts its source: adjacent, complete, half-open ranges, the same every time. Pure: imports contracts only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

from airflow_dpone_xmin.contracts.campaign import CampaignSpec, ChunkRange
from airflow_dpone_xmin.contracts.columns import Family, Projection
from airflow_dpone_xmin.contracts.errors import XminError

MAX_CHUNKS = 65_536
_FAMILIES = {"integer": (Family.SMALLINT, Family.INTEGER, Family.BIGINT), "uuid": (Family.UUID,), "ordered": tuple(Family)}


def require_chunkable(spec: CampaignSpec, projection: Projection) -> None:
    """The chunk column has the authored kind.

    :raises XminError: ``campaign.plan_invalid``.
    """
    plan = next(plan for plan in projection.key_columns if plan.name == spec.column)
    if plan.family not in _FAMILIES[spec.kind]:
        raise _invalid(f"Chunk column {spec.column!r} is {plan.source_type}, which `kind: {spec.kind}` cannot cut.", spec)


def chunk_count(spec: CampaignSpec) -> int:
    """How many chunks the authored plan has; of ordered ones, at most.

    :raises XminError: ``campaign.plan_invalid`` above :data:`MAX_CHUNKS`.
    """
    if spec.kind != "integer":
        return int(spec.buckets or 0)
    assert spec.low is not None and spec.high is not None and spec.step is not None
    count = (spec.high - spec.low) // spec.step + 1
    if count > MAX_CHUNKS:
        raise _invalid(f"The plan has {count} chunks; {MAX_CHUNKS} is the limit. Use a larger `step`.", spec)
    return count


def plan_ranges(spec: CampaignSpec, *, boundaries: Sequence[str] = ()) -> tuple[ChunkRange, ...]:
    """The ranges in ascending order.

    An integer plan is bounded by its authored ends, and rows outside are refused when the anchor is taken; the others cover everything.

    :param boundaries: ascending values between ordered chunks, as the source spells them.
    """
    if spec.kind == "integer":
        assert spec.low is not None and spec.high is not None and spec.step is not None
        edges = [str(min(spec.low + index * spec.step, spec.high + 1)) for index in range(chunk_count(spec) + 1)]
        return tuple(ChunkRange(number, low, high) for number, (low, high) in enumerate(pairwise(edges)))
    if spec.kind == "uuid":
        count = chunk_count(spec)
        boundaries = [str(UUID(int=(index << 128) // count)) for index in range(1, count)]
    inner: list[str | None] = [None, *dict.fromkeys(boundaries), None]
    return tuple(ChunkRange(number, low, high) for number, (low, high) in enumerate(pairwise(inner)))


def _invalid(message: str, spec: CampaignSpec) -> XminError:
    return XminError("campaign.plan_invalid", message, details={"column": spec.column, "kind": spec.kind})
