"""OpenLineage's view of a run: one input, one output, rows read and written. Imports the OpenLineage client, which may be absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_dpone_xmin.contracts.route import Endpoint, Route
from airflow_dpone_xmin.contracts.state import ActionCounts

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

_PORTS = {"postgres": 5432, "mssql": 1433}


def operator_lineage(route: Route, counts: ActionCounts | None, *, source: Endpoint, target: Endpoint) -> OperatorLineage | None:
    """Datasets named as OpenLineage's naming rules have it (``postgres://host:port``, ``mssql://host:port``, ``database.schema.table``).

    :param counts: of the receipt. Rows written are those that moved: unchanged ones were read and left alone. None for a replay, whose rows
        were told by the attempt that moved them.
    :returns: None where the OpenLineage provider is not installed.
    """
    try:
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import input_statistics_input_dataset, output_statistics_output_dataset
    except ImportError:
        return None
    read: dict[str, Any] = {}
    written: dict[str, Any] = {}
    if counts is not None:
        moved = counts.inserted + counts.updated + counts.reactivated + counts.deleted
        read["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=counts.payload)
        written["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=moved)
    origin, engine = route.source, "mssql" if route.layout.engine == "mssql" else "postgres"
    lineage: Any = OperatorLineage(
        inputs=[
            InputDataset(
                namespace=_namespace("postgres", source),
                name=f"{origin.database}.{origin.schema}.{origin.relation}",
                inputFacets=read,
            )
        ],
        outputs=[OutputDataset(namespace=_namespace(engine, target), name=route.layout.target.display, outputFacets=written)],
    )
    return lineage


def _namespace(scheme: str, endpoint: Endpoint) -> str:
    """Scheme, host and port; never a login. A unix socket is this host."""
    host = endpoint.host if endpoint.host and not endpoint.host.startswith("/") else "localhost"
    return f"{scheme}://{host}:{endpoint.port or _PORTS[scheme]}"
