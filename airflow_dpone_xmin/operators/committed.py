"""What a task shows once it has its receipt: the link, asset events, metrics and OpenLineage. Imported by DAG files: Airflow's SDK only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_dpone_xmin.links.receipt import ReceiptLink

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_dpone_xmin.contracts.route import FixedEndpoints, Route
    from airflow_dpone_xmin.runtime.evidence import Outcome


class CommittedTask:
    """Mixed into the operators that end with a receipt: a run, and a campaign's publication."""

    operator_extra_links = (ReceiptLink(),)
    outlets: Sequence[Any]
    _done: tuple[Route, FixedEndpoints, Outcome] | None = None

    @property
    def receipt(self) -> tuple[str, str] | None:
        """Registry entry and id of the receipt that this attempt wrote or found."""
        return None if self._done is None else (self._done[0].state_entry, str(self._done[2].receipt.receipt_id))

    def get_openlineage_facets_on_complete(self, _: Any) -> OperatorLineage | None:
        """Input, output and the rows this attempt moved, once it has its receipt; None where the OpenLineage provider is not installed."""
        from airflow_dpone_xmin.operators.lineage import operator_lineage

        if self._done is None:
            return None
        route, found, outcome = self._done
        receipt = outcome.receipt
        source, target = found(route.source.entry, conn_id=route.source_conn_id), found(route.sink_entry, conn_id=route.sink_conn_id)
        return operator_lineage(route, None if receipt.replayed else receipt.counts, source=source, target=target)

    def _committed(self, context: Context, route: Route, endpoints: FixedEndpoints, outcome: Outcome) -> dict[str, Any]:
        """Remember the outcome and tell Airflow of it; returns the XCom value."""
        from airflow_dpone_xmin.operators.publish import evidence_summary, publish

        self._done = (route, endpoints, outcome)
        summary = evidence_summary(route, outcome)
        publish(context, self.outlets, summary, outcome)
        return summary
