"""Staging: load an artifact under a lease, then prove set-wise that the server holds exactly what was extracted.

The proofs (design.md "One incremental run", step 5): driver count and server count against the artifact, column fingerprints, a unique
index on the key built after the load, no NULL or space-padded key, delta ⊆ keys. Imports contracts, artifacts and the target's own modules.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from sqlalchemy import exists, or_, select

from airflow_dpone_xmin.artifacts.reader import ArtifactStream
from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, Projection
from airflow_dpone_xmin.contracts.envelope import Artifact, Envelope
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, Progress
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import SessionFacts
from airflow_dpone_xmin.target.fingerprint import EXACT, Fingerprints
from airflow_dpone_xmin.target.lease import StagingLease
from airflow_dpone_xmin.target.sql import Count, Fingerprint, Stage, fingerprint_weights, stage_table

#: Columns that one statement proves, at up to four values each: the embedded engine's lists end at 1,664.
_PROVED_AT_ONCE = 400


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged extraction.

    :param rows: delta or full rows.
    :param keys: the complete key snapshot: its own stage, or ``rows`` when the payload is full; None when the route never deletes
        and the payload is a delta.
    """

    rows: Stage
    keys: Stage | None
    rows_count: int
    keys_count: int | None


def stage_envelope(
    engine: Engine,
    session: Session,
    envelope: Envelope,
    *,
    load_id: UUID,
    lease: StagingLease,
    progress: Listener,
    cancel: Cancellation,
    indexed: bool = True,
) -> Staged:
    """Load and prove the envelope's artifacts.

    :param session: session in the staging database, used for DDL and proofs.
    :param indexed: whether to prove the key unique by an index; rows that are only appended are proven once, at the publication.
    :raises XminError: ``staging.*``, ``storage.artifact_altered`` or the engine's own codes; nothing but staging was touched.
    """
    projection = envelope.projection
    rows = _load(
        engine,
        session,
        envelope.rows_artifact,
        stage_table(load_id, "rows", columns=projection.columns, key=projection.key),
        lease=lease,
        progress=progress,
        cancel=cancel,
        indexed=indexed,
    )
    keys_artifact = envelope.keys_artifact
    if keys_artifact is None:
        full = envelope.payload.value == "full"
        count = envelope.rows_artifact.rows
        return Staged(rows=rows, keys=rows if full else None, rows_count=count, keys_count=count if full else None)
    key_plans = _plans(projection, keys_artifact)
    keys = _load(
        engine,
        session,
        keys_artifact,
        stage_table(load_id, "keys", columns=key_plans, key=projection.key),
        lease=lease,
        progress=progress,
        cancel=cancel,
    )
    with lease.around():
        _prove_subset(session, rows, keys)
    return Staged(rows=rows, keys=keys, rows_count=envelope.rows_artifact.rows, keys_count=keys_artifact.rows)


def _plans(projection: Projection, artifact: Artifact) -> tuple[ColumnPlan, ...]:
    by_name = {plan.name: plan for plan in projection.columns}
    return tuple(by_name[name] for name in artifact.columns)


def _load(
    engine: Engine,
    session: Session,
    artifact: Artifact,
    stage: Stage,
    *,
    lease: StagingLease,
    progress: Listener,
    cancel: Cancellation,
    indexed: bool = True,
) -> Stage:
    seen = Fingerprints(plans=stage.columns, text_units=engine.text_units)
    started = time.monotonic()
    # Checked before and after every step; between two steps once.
    lease.check()
    engine.create_stage(session, stage)
    with lease.around():
        count = _bulk_load(engine, artifact, stage, seen, place=lease.place, cancel=cancel)
    if seen.rows != artifact.rows or count not in (-1, artifact.rows):
        raise XminError(
            "staging.proof_failed",
            "The bulk load's row count differs from the artifact's.",
            details={"artifact_rows": artifact.rows, "sent_rows": seen.rows, "driver_rows": count},
        )
    _prove_content(session, stage, seen)
    if indexed:
        lease.check()
        engine.index_stage(session, stage)
    lease.check()
    suffix = "ROWS" if len(stage.columns) > len(stage.key) else "KEYS"
    progress(Progress(f"STAGE_{suffix}_COMPLETE", rows=artifact.rows, bytes=artifact.size, seconds=time.monotonic() - started))
    return stage


def _bulk_load(engine: Engine, artifact: Artifact, stage: Stage, seen: Fingerprints, *, place: SessionFacts, cancel: Cancellation) -> int:
    stream = ArtifactStream(artifact)
    try:
        count = engine.bulk_load(stage, _wired(engine, stream, stage, seen, cancel=cancel), place=place, cancel=cancel)
    except XminError:
        # A loader reports the producer's failure as its own; the producer's is the cause.
        if stream.failure is not None:
            raise stream.failure from None
        raise
    finally:
        stream.close()
    stream.check()
    return count


def _wired(engine: Engine, stream: ArtifactStream, stage: Stage, seen: Fingerprints, *, cancel: Cancellation) -> pa.RecordBatchReader:
    """The artifact's batches in the types that the bulk loader wants, counted as they pass."""
    fields = []
    for plan in stage.columns:
        field = stream.schema.field(plan.name)
        wanted = engine.wire_type(plan)
        fields.append(field.with_type(wanted) if wanted is not None else field)
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in stream.reader:
            cancel.check()
            yield pa.RecordBatch.from_arrays([_cast(batch.column(field.name), field.type) for field in schema], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, seen.following(batches()))


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values if values.type == wanted else values.cast(wanted)


def _prove_content(session: Session, stage: Stage, seen: Fingerprints) -> None:
    """Server-side counts, NULL counts and sums against those of the Arrow side: one scan, a few for a very wide table."""
    wrong: list[str] = []
    for start in range(0, len(stage.columns), _PROVED_AT_ONCE):
        wrong += _differences(session, stage, stage.columns[start : start + _PROVED_AT_ONCE], seen)
    if wrong:
        raise XminError("staging.proof_failed", "The staged rows differ from the artifact.", details={"differences": wrong})
    _prove_keys(session, stage)


def _differences(session: Session, stage: Stage, plans: Sequence[ColumnPlan], seen: Fingerprints) -> Iterator[str]:
    table = stage.table
    wanted: list[Any] = [Count().label("n")]
    for index, plan in enumerate(plans):
        column = table.c[plan.name]
        wanted.append(Count(column).label(f"v{index}"))
        parts = range(len(fingerprint_weights(plan)))
        wanted += [Fingerprint(plan, column, part).label(f"s{index}" + "_low" * part) for part in parts]
    row = session.first("stage.prove", select(*wanted).select_from(table))
    assert row is not None
    values = iter(row)
    if next(values) != seen.rows:
        yield "row count"
    for plan in plans:
        nulls = seen.rows - int(next(values))
        if nulls != seen.nulls.get(plan.name, 0):
            yield f"{plan.name}: NULL count"
        total = Decimal(0)
        for weight in fingerprint_weights(plan):
            total = EXACT.fma(Decimal(next(values)), weight, total)
        if total != seen.sums.get(plan.name, 0):
            yield f"{plan.name}: fingerprint"


def _prove_keys(session: Session, stage: Stage) -> None:
    """No key is padded: SQL Server would take ``'a'`` and ``'a '`` for one (NULL is refused by the heap itself)."""
    padded = [stage.table.c[plan.name].like("% ") for plan in stage.columns if plan.key and plan.family is Family.TEXT]
    if not padded:
        return
    if session.scalar("stage.padded", select(Count()).select_from(stage.table).where(or_(*padded))):
        raise XminError("staging.key_invalid", "A text key ends in a space.", details={"key": list(stage.key)})


def _prove_subset(session: Session, rows: Stage, keys: Stage) -> None:
    """Every delta row's key is in the key snapshot: both came from one snapshot."""
    match = [rows.rows.c[name] == keys.rows.c[name] for name in rows.key]
    orphans = session.scalar(
        "stage.subset",
        select(Count()).select_from(rows.rows).where(~exists(select(1).select_from(keys.rows).where(*match))),
    )
    if orphans:
        raise XminError("staging.proof_failed", "The delta holds keys that its own key snapshot lacks.", details={"rows": int(orphans)})
