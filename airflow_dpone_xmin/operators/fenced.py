"""The limit of a task's retries, while the DAG is parsed. Imported by every DAG file: Airflow's SDK and contracts only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_dpone_xmin.operators.errors import require_fenced_retries
from airflow_dpone_xmin.operators.task import XminTask

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial


class FencedTask(XminTask):
    """Mixed into the operators whose retries find the receipt of the try before: three at most, mapped or not."""

    retries: int | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_fenced_retries(self.retries)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """As of ``BaseOperator``; a mapped task is constructed by the worker, where its refusal would be retried."""
        partial: OperatorPartial = super().partial(**kwargs)  # type: ignore[misc]
        require_fenced_retries(partial.kwargs["retries"])
        return partial
