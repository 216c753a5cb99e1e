"""The plugin: one page in Airflow's navigation. Every Airflow process loads this module: it imports Airflow's plugin base alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_dpone_xmin.links.receipt import PAGE, page_path

Scope = MutableMapping[str, Any]


class LazyApp:
    """The page's ASGI application, built by the first request: schedulers and workers load plugins too, and never serve one."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        """Serve one request."""
        if self._app is None:
            from airflow_dpone_xmin.plugins.app import create_app

            self._app = create_app()
        await self._app(scope, receive, send)


class XminPlugin(AirflowPlugin):
    """Routes, stops and campaigns of the registry's state catalogs, read-only, behind Airflow's login."""

    name = "dpone_xmin"
    fastapi_apps = [{"name": "dpone XMin", "app": LazyApp(), "url_prefix": f"/{PAGE}"}]  # noqa: RUF012  (Airflow's own shape)
    external_views = [  # noqa: RUF012
        {"name": "dpone XMin", "href": page_path() + "/", "url_route": PAGE, "destination": "nav", "category": "browse"}
    ]
