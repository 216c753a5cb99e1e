"""What the state catalogs of a registry hold, read-only: routes, receipts, stops, campaigns. For people who look, never for a run.

Where the catalogs are is not configured twice: every database that an entry of the registry pins is asked for them, after its pins were
compared. Only default table names are known. Imports everything below runtime.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import and_, bindparam, case, func, or_, select, text

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import target_identity
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.registry import RegistryConnection
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.contracts.state import Receipt
from airflow_dpone_xmin.target.authority import compare_pins
from airflow_dpone_xmin.target.catalog import Catalog, build_catalog
from airflow_dpone_xmin.target.connect import engine_at
from airflow_dpone_xmin.target.engine import Session
from airflow_dpone_xmin.target.ledger import receipt_of
from airflow_dpone_xmin.target.sql import Count, Now

STATEMENT_SECONDS, LOCK_SECONDS = 5.0, 2.0
"""A page is not worth more of a server's time."""
TREND, STOPS, CAMPAIGNS = 30, 50, 20
"""Receipts of a route, newest stops and newest campaigns of a catalog that are read."""

_FIND = text("SELECT TABLE_SCHEMA, TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME IN :names").bindparams(
    bindparam("names", expanding=True)
)


@dataclass(frozen=True, slots=True)
class RouteView:
    """The active checkpoint of one state key, with its last receipts, newest first.

    :param target: ``schema.table``, None when no identity row of a pinned database names it.
    """

    process: str
    source: str
    target: str | None
    state_key: bytes
    revision: int
    xmin: int
    amplification: int
    updated_at: datetime
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class StopView:
    """A run that a refusal stopped, as its audit row tells it.

    :param binding: what an approval must be bound to; None for a refusal that none admits.
    :param open: whether the checkpoint is still the one that the run saw, so that an approval of it could be used.
    """

    process: str
    run_id: str
    map_index: int
    at: datetime
    code: str
    message: str
    binding: Mapping[str, Any] | None
    open: bool


@dataclass(frozen=True, slots=True)
class LaneView:
    """A leased chunk.

    :param alive: whether the lease runs on the state server's clock.
    """

    owner: str
    chunk: int
    alive: bool


@dataclass(frozen=True, slots=True)
class CampaignView:
    """One initial load: chunks by status, rows so far, who holds what.

    :param done: chunks that have their receipt.
    """

    process: str
    handoff: str
    status: str
    publication: str
    target: str | None
    chunks: int
    done: int
    by_status: Mapping[str, int]
    rows: int
    lanes: tuple[LaneView, ...]
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class CatalogView:
    """One state catalog."""

    database: str
    schema: str
    routes: list[RouteView]
    stops: list[StopView]
    campaigns: list[CampaignView]


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``mssql`` or ``embedded`` entry of a verified registry, and how to log in to it."""

    environment: str
    name: str
    facts: RegistryConnection
    endpoint: Endpoint

    @property
    def databases(self) -> list[str]:
        """The databases that it pins."""
        return list(self.facts.connection.database_authorities or {})


@dataclass(frozen=True, slots=True)
class Survey:
    """Where an entry's catalogs are, and what the targets are called whose identity rows it can see.

    :param places: (database, schema).
    :param names: target identity → ``database.schema.table``. Those of all entries together: state may have an entry of its own.
    """

    places: list[tuple[str, str]]
    names: dict[bytes, str]


def survey(entry: Entry) -> Survey:
    """Look into every database that an entry pins.

    :raises XminError: connection codes, ``mssql_transaction.state_database_*`` for a database that is not the signed one.
    """
    places: list[tuple[str, str]] = []
    names: dict[bytes, str] = {}
    for database in entry.databases:
        with _looking(entry, database, "dbo") as (session, catalog):
            wanted = [catalog.identity.name, catalog.source_state.name]
            found = [(row[0], row[1]) for row in session.rows("overview.find", _FIND, {"names": wanted})]
            places += sorted((database, schema) for schema, table in found if table == catalog.source_state.name)
            if any(table == catalog.identity.name for _, table in found):
                names |= _target_names(session, catalog, environment=entry.environment, database=database)
    return Survey(places, names)


def read_catalogs(entry: Entry, seen: Survey) -> list[CatalogView]:
    """All state catalogs of an entry.

    :raises XminError: as :func:`survey`.
    """
    views = []
    for database, schema in seen.places:
        with _looking(entry, database, schema) as (session, catalog):
            views.append(_Reader(session, catalog, seen.names).view(database, schema))
    return views


def read_receipt(entry: Entry, seen: Survey, receipt_id: UUID) -> Receipt:
    """One receipt, in whichever catalog of the entry it is.

    :raises XminError: ``evidence.not_found``; as :func:`survey`.
    """
    for database, schema in seen.places:
        with _looking(entry, database, schema) as (session, catalog):
            table = catalog.receipt
            row = session.first("overview.receipt", select(table).where(table.c.receipt_id == receipt_id))
            if row is not None:
                return receipt_of(row._mapping)
    raise XminError("evidence.not_found", f"No catalog of registry entry {entry.name!r} holds this receipt.")


def _target_names(session: Session, catalog: Catalog, *, environment: str, database: str) -> dict[bytes, str]:
    table = catalog.identity
    rows = session.rows("overview.targets", select(table.c.binding_id, table.c.schema_name, table.c.table_name))
    return {
        target_identity(environment=environment, binding_id=UUID(str(row[0])), database=database): f"{database}.{row[1]}.{row[2]}"
        for row in rows
    }


@contextlib.contextmanager
def _looking(entry: Entry, database: str, schema: str) -> Iterator[tuple[Session, Catalog]]:
    """A session in one pinned database, verified; *schema* is that of the state catalog."""
    facts = entry.facts
    endpoint = dataclasses.replace(entry.endpoint, multi_subnet_failover=facts.connection.multi_subnet_failover)
    with (
        contextlib.closing(engine_at(endpoint, database, engine=facts.type, schema=schema)) as engine,
        contextlib.closing(
            engine.connect("state", cancel=Cancellation(), statement_timeout=STATEMENT_SECONDS, lock_timeout=LOCK_SECONDS)
        ) as session,
    ):
        authority = (facts.connection.database_authorities or {})[database]
        for verdict in compare_pins("state", database, authority, engine.observe_database(session, database)):
            if not verdict.ok:
                raise XminError(
                    f"mssql_transaction.state_database_{verdict.reason}", f"{database}'s {verdict.pin} is not what the registry signs."
                )
        yield session, build_catalog()


class _Reader:
    """Reads one catalog.

    :param names: target identity → name.
    """

    def __init__(self, session: Session, catalog: Catalog, names: Mapping[bytes, str]) -> None:
        self._session, self._catalog, self._names = session, catalog, names

    def view(self, database: str, schema: str) -> CatalogView:
        routes = self._routes()
        revisions = {route.state_key.hex(): route.revision for route in routes}
        return CatalogView(database, schema, routes, self._stops(revisions), self._campaigns())

    def _routes(self) -> list[RouteView]:
        table = self._catalog.source_state
        active = select(table).where(table.c.superseded_at_utc.is_(None)).order_by(table.c.process)
        return [self._route(row._mapping) for row in self._session.rows("overview.routes", active)]

    def _route(self, m: Mapping[str, Any]) -> RouteView:
        table, key = self._catalog.receipt, bytes(m["state_key"])
        newest = select(table).where(table.c.state_key == key).order_by(table.c.new_revision.desc()).limit(TREND)
        return RouteView(
            process=m["process"],
            source=f"{m['source_entry']}:{m['source_schema']}.{m['source_relation']}",
            target=self._names.get(bytes(m["target_identity"])),
            state_key=key,
            revision=int(m["revision"]),
            xmin=int(m["safe_xmin"]),
            amplification=int(m["visible_horizon"]) - int(m["safe_xmin"]),
            updated_at=m["updated_at_utc"],
            receipts=tuple(receipt_of(row._mapping) for row in self._session.rows("overview.receipts", newest)),
        )

    def _stops(self, revisions: Mapping[str, int]) -> list[StopView]:
        """The newest stop of every checkpoint; *revisions* by hexadecimal state key. The phases of a campaign have no invocation."""
        runs, audit = self._catalog.run_state, self._catalog.audit
        last = and_(runs.c.status == "refused", runs.c.last_load_id == audit.c.load_id)
        query = (
            select(audit)
            .select_from(audit.outerjoin(runs, runs.c.invocation_digest == audit.c.invocation_digest))
            .where(audit.c.outcome == "refused", or_(runs.c.invocation_digest.is_(None), last))
            .order_by(audit.c.recorded_at_utc.desc())
            .limit(STOPS)
        )
        found: dict[Any, StopView] = {}
        for row in self._session.rows("overview.stops", query):
            stop = _stop(row._mapping, revisions)
            binding = stop.binding
            found.setdefault((binding["state_key"], binding["checkpoint_revision"]) if binding else row.invocation_digest, stop)
        return list(found.values())

    def _campaigns(self) -> list[CampaignView]:
        table = self._catalog.campaign
        newest = select(table).order_by(table.c.updated_at_utc.desc()).limit(CAMPAIGNS)
        return [self._campaign(row._mapping) for row in self._session.rows("overview.campaigns", newest)]

    def _campaign(self, m: Mapping[str, Any]) -> CampaignView:
        chunk, key = self._catalog.campaign_chunk, bytes(m["campaign_key"])
        mine = chunk.c.campaign_key == key
        by_status = (
            select(chunk.c.status, Count(), func.sum(chunk.c.rows_count), func.sum(case((chunk.c.receipt_id.is_not(None), 1), else_=0)))
            .select_from(chunk)
            .where(mine)
            .group_by(chunk.c.status)
        )
        rows = self._session.rows("overview.chunks", by_status)
        leased = select(chunk.c.owner, chunk.c.chunk_no, case((chunk.c.lease_until_utc > Now(), 1), else_=0)).where(
            mine, chunk.c.owner.is_not(None), chunk.c.receipt_id.is_(None)
        )
        lanes = self._session.rows("overview.lanes", leased.order_by(chunk.c.chunk_no))
        return CampaignView(
            process=m["process"],
            handoff=m["handoff_id"],
            status=m["status"],
            publication=m["publication"],
            target=self._names.get(bytes(m["target_identity"])),
            chunks=int(m["chunk_count"]),
            done=sum(int(row[3]) for row in rows),
            by_status={row[0]: int(row[1]) for row in rows},
            rows=sum(int(row[2] or 0) for row in rows),
            lanes=tuple(LaneView(row[0], int(row[1]), bool(row[2])) for row in lanes),
            updated_at=m["updated_at_utc"],
        )


def _stop(m: Mapping[str, Any], revisions: Mapping[str, int]) -> StopView:
    error = json.loads(m["evidence"]).get("error", {})
    binding = error.get("details", {}).get("binding")
    return StopView(
        process=m["process"],
        run_id=m["run_id"],
        map_index=int(m["map_index"]),
        at=m["recorded_at_utc"],
        code=str(m["error_code"]),
        message=str(error.get("message", "")),
        binding=binding,
        open=binding is not None and revisions.get(binding["state_key"]) == binding["checkpoint_revision"],
    )
