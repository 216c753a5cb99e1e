"""Plan: what a run would do, without doing it. Imports everything below runtime."""

from __future__ import annotations

from typing import Any

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.envelope import Prior
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.policy.window import Window, decide_window
from airflow_dpone_xmin.runtime.admission import prior_of
from airflow_dpone_xmin.runtime.check import Report, check_connections, check_static
from airflow_dpone_xmin.runtime.reconcile import source_request
from airflow_dpone_xmin.runtime.workdir import work_base
from airflow_dpone_xmin.source.extract import extraction_sql

PHASES = (
    "admit: verify authorities, catalog and grants; allocate the invocation; answer from its receipt if there is one",
    "boundary: lock the relation, verify the signed source authority, take one snapshot",
    "extract: rows and keys of that snapshot into immutable artifacts, every value guarded",
    "stage: bulk-load under a lease, prove counts, fingerprints and key uniqueness",
    "finalize: one transaction: classify, guard, delete, update, reactivate, insert, classify again, checkpoint, head, receipt",
    "clean up: drop staging, remove artifacts, write the audit row",
)


def transport_contract(route: Route) -> dict[str, Any]:
    """How values travel and what makes that lossless."""
    return {
        "route": f"postgres_to_{route.layout.engine}",
        "wire_format": "arrow-ipc-stream",
        "source_encoding": "postgres_binary_copy",
        "ingest_mode": "bulkcopy_arrow" if route.layout.engine == "mssql" else "adbc_ingest",
        "null_policy": "arrow_validity_bitmap",
        "empty_string_policy": "zero_length_value",
        "compression": {"rows": "none", "keys": "zstd"},
        "lossless": True,
        "lossless_enforcement": {
            "declared_types": "type_table_before_export",
            "values": "guards_on_every_batch_before_staging",
            "wire": "sha256_and_row_count_of_every_artifact",
            "staging": "row_count_null_counts_and_column_fingerprints",
        },
    }


def plan_document(route: Route, *, endpoints: EndpointResolver | None = None, with_sql: bool = False) -> dict[str, Any]:
    """The plan of a route.

    :param endpoints: when given, both servers are looked at, so that payload and columns are known.
    :param with_sql: add the extraction statements.
    """
    report = check_static(route) if endpoints is None else check_connections(route, endpoints=endpoints)
    document: dict[str, Any] = {
        "process": route.process,
        "engine": route.layout.engine,
        "source": f"{route.source.database}.{route.source.schema}.{route.source.relation}",
        "target": route.layout.target.display,
        "staging": f"{route.layout.staging.database}.{route.layout.staging.schema}",
        "state": f"{route.layout.state.database}.{route.layout.state.schema}",
        "unique_key": list(route.key),
        "delete_mode": route.delete_mode.value,
        "guards": {
            "max_delete_rows": route.guards.max_rows,
            "max_delete_ratio": None if route.guards.max_ratio is None else str(route.guards.max_ratio),
        },
        "phases": list(PHASES),
        "transport_contract": transport_contract(route),
        "notices": list(route.notices),
        "ready": report.ok,
        "problems": [{"code": finding.code, "subject": finding.subject} for finding in report.findings if finding.ok is False],
    }
    if report.projection is not None:
        document["columns"] = _columns(report.projection, route)
        window = _window(report)
        if window is not None:
            document["payload"] = {"kind": window.payload.value, "reason": window.reason}
            if with_sql:
                partitioned = report.source is not None and report.source.partitioned
                document["sql"] = extraction_sql(
                    source_request(route, work_dir=work_base(route)), report.projection, window, partitioned=partitioned
                )
    return document


def _columns(projection: Projection, route: Route) -> list[dict[str, Any]]:
    embedded = route.layout.engine == "embedded"
    return [
        {
            "name": plan.name,
            "source_type": plan.source_type,
            "target_type": plan.embedded_type if embedded else plan.mssql_type,
            "nullable": plan.nullable,
            "key": plan.key,
        }
        for plan in projection.columns
    ]


def _window(report: Report) -> Window | None:
    """The window as it would be decided now; None when the servers do not tell enough."""
    source = report.source
    if source is None or source.horizons is None or source.snapshot is None or source.projection is None:
        return None
    prior = Prior() if report.identity is None or report.position is None else prior_of(report.route, report.identity, report.position)
    return decide_window(
        prior,
        source.horizons,
        fingerprint=source.projection.fingerprint,
        volatile=source.projection.volatile,
        standby=source.standby,
        snapshot=source.snapshot,
        mode=report.route.window,
    )
