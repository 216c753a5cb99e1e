"""The link from a task to its receipt on the provider's page. Imported by DAG files: Airflow's SDK only."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

PAGE = "dpone-xmin"
"""Where the page is mounted under the API server's address."""


def page_path() -> str:
    """Path of the page on the API server: the proxy's prefix in ``[api] base_url``, then :data:`PAGE`."""
    return f"{urlsplit(_base_url()).path}/{PAGE}"


def page_url(*path: str) -> str:
    """Address below the page: absolute where ``[api] base_url`` is set, else relative to the server's root.

    :param path: segments, not quoted.
    """
    return "/".join([_base_url(), PAGE, *(quote(segment, safe="") for segment in path)])


def _base_url() -> str:
    return (conf.get("api", "base_url", fallback="") or "").rstrip("/")


class ReceiptLink(BaseOperatorLink):
    """The receipt that this task wrote or found: counts, checkpoint and digests, read from the state database when the link is opened."""

    name = "Receipt"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Called in the worker after ``execute``; Airflow stores the answer as XCom.

        :returns: ``""`` when the task ended without a receipt.
        """
        receipt = getattr(operator, "receipt", None)
        return page_url("receipts", *receipt) if receipt else ""
