"""The page's application: three read-only routes, each behind Airflow's login and access checks. Imports FastAPI, Jinja2 and runtime.

Routes, checkpoints and receipts come from the state catalogs themselves, found through the signed registry of this deployment; the
connections are those that its entries name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi import Path as InPath
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.state import Receipt
from airflow_dpone_xmin.hooks.registry import deployment_registry, deployment_settings
from airflow_dpone_xmin.registry.load import VerifiedRegistry
from airflow_dpone_xmin.runtime.endpoints import EnvironmentEndpoints
from airflow_dpone_xmin.runtime.evidence import receipt_document
from airflow_dpone_xmin.runtime.overview import CAMPAIGNS, STOPS, TREND, CatalogView, Entry, Survey, read_catalogs, read_receipt, survey

HERE = Path(__file__).parent
STATIC = {"page.css": "text/css", "page.js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; frame-ancestors 'self'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
WIDTH, HEIGHT = 120.0, 22.0
"""Of a trend, in CSS pixels."""


def require_access(user: GetUserDep) -> None:
    """Whoever may see plugins, and the XComs of every DAG: the page shows what the tasks of all of them returned.

    :raises HTTPException: 401 without a login, 403 without the rights.
    """
    manager = get_auth_manager()
    if not (
        manager.is_authorized_view(access_view=AccessView.PLUGINS, user=user)
        and manager.is_authorized_dag(method="GET", access_entity=DagAccessEntity.XCOM, user=user)
    ):
        raise HTTPException(status_code=403, detail="Forbidden")


def create_app() -> FastAPI:
    """The application; nothing in it answers without :func:`require_access`."""
    app = FastAPI(title="dpone XMin", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(require_access)])
    templates = _templates()

    def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        values |= {"root": request.scope.get("root_path", ""), "now": datetime.now(UTC).replace(tzinfo=None)}
        return HTMLResponse(templates.get_template(template).render(values), status_code=status, headers=HEADERS)

    @app.get("/")
    def overview(request: Request) -> HTMLResponse:
        try:
            registry, answers = _answers()
        except XminError as error:
            return page(request, "error.html", error=error)
        return page(request, "overview.html", registry=registry.document, answers=answers, limits=(TREND, STOPS, CAMPAIGNS))

    @app.get("/receipts/{entry}/{receipt_id}")
    def receipt(request: Request, entry: str, receipt_id: UUID) -> HTMLResponse:
        try:
            found, target = _receipt(entry, receipt_id)
        except XminError as error:
            return page(request, "error.html", error=error, status=404 if error.code == "evidence.not_found" else 200)
        return page(request, "receipt.html", receipt=found, target=target, document=receipt_document(found), entry=entry)

    @app.get("/static/{name}")
    def static(name: Annotated[str, InPath(pattern="^[a-z]+[.](css|js)$")]) -> FileResponse:
        if name not in STATIC:
            raise HTTPException(status_code=404)
        return FileResponse(HERE / "static" / name, media_type=STATIC[name], headers={"X-Content-Type-Options": "nosniff"})

    return app


@dataclass(frozen=True, slots=True)
class Answer:
    """What one registry entry answered.

    :param error: instead of catalogs, when its server is away or is not the signed one.
    """

    entry: str
    catalogs: list[CatalogView]
    error: XminError | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What one registry entry can see: its survey, or the error instead."""

    name: str
    entry: Entry | None = None
    seen: Survey = Survey([], {})  # noqa: RUF009  (never changed)
    error: XminError | None = None


def _answers() -> tuple[VerifiedRegistry, list[Answer]]:
    """Every target and state entry of the registry; entries that pin the same catalog answer for it once."""
    registry = deployment_registry(deployment_settings())
    looks = _looks(registry)
    answers, known = [], set()
    for look in looks:
        if look.entry is None:
            answers.append(Answer(look.name, [], look.error))
            continue
        facts = look.entry.facts.connection.database_authorities or {}
        pins = {place: (tuple(map(str, facts[place[0]].pin_sets)), place[1]) for place in look.seen.places}
        new = [place for place in look.seen.places if pins[place] not in known]
        known |= set(pins.values())
        try:
            answers.append(Answer(look.name, read_catalogs(look.entry, Survey(new, _names(looks)))))
        except XminError as error:
            answers.append(Answer(look.name, [], error))
    return registry, answers


def _receipt(name: str, receipt_id: UUID) -> tuple[Receipt, str | None]:
    looks = _looks(deployment_registry(deployment_settings()))
    look = next((look for look in looks if look.name == name), None)
    if look is None:
        raise XminError("evidence.not_found", "The registry has no such target or state entry.")
    if look.entry is None:
        assert look.error is not None
        raise look.error
    receipt = read_receipt(look.entry, look.seen, receipt_id)
    return receipt, _names(looks).get(receipt.target_identity)


def _looks(registry: VerifiedRegistry) -> list[Look]:
    """One look for every entry that may hold targets or state."""
    looks = []
    for name, facts in registry.document.connections.items():
        if facts.type != "postgres":
            try:
                endpoint = EnvironmentEndpoints()(name, conn_id=facts.airflow_conn_id or name)
                entry = Entry(registry.document.environment, name, facts, endpoint)
                looks.append(Look(name, entry, survey(entry)))
            except XminError as error:
                looks.append(Look(name, error=error))
    return looks


def _names(looks: list[Look]) -> dict[bytes, str]:
    return {identity: name for look in looks for identity, name in look.seen.names.items()}


# ---- presentation -----------------------------------------------------------------------------------------------------------
def _templates() -> Environment:
    environment = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": _number, "trend": _trend, "ago": _ago, "utc": _utc}
    return environment


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def _utc(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S} UTC"


def _ago(value: datetime, now: datetime) -> str:
    """Coarse age; the exact time stands beside it."""
    seconds = max(0, int((now - value.replace(tzinfo=None)).total_seconds()))
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} ago"
    return f"{seconds} s ago"


def _trend(values: list[int]) -> str:
    """Points of an SVG polyline, oldest first, scaled to the largest value."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in _points(values))


def _points(values: list[int]) -> Iterator[tuple[float, float]]:
    top, step = max(max(values, default=0), 1), WIDTH / max(len(values) - 1, 1)
    for number, value in enumerate(values):
        yield number * step, HEIGHT - 1 - (HEIGHT - 2) * value / top
