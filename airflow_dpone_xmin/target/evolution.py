"""Schema evolution: what DDL makes the live target hold what the source now delivers, and what no DDL may decide.

Safe is what keeps every stored value: a new nullable column, a wider type, NULL where the source now allows it. Everything else stops.
DDL runs before staging, under the target's application lock, in a transaction of its own, and only when the source has changed since the
last commit: the payload is full then, so that a new column is filled. Imports contracts, policy and the target's own modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from airflow_dpone_xmin.contracts.columns import Projection
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.policy.limits import folded
from airflow_dpone_xmin.policy.overrides import widens
from airflow_dpone_xmin.target.campaign_ledger import require_unfenced
from airflow_dpone_xmin.target.catalog import Catalog
from airflow_dpone_xmin.target.ddl import DdlDialect
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.facts import ColumnFacts, TableFacts
from airflow_dpone_xmin.target.shape import live_table, require_shape
from airflow_dpone_xmin.target.sql import TARGET
from airflow_dpone_xmin.target.transaction import exclusive
from airflow_dpone_xmin.target.work import TargetBinding, lock_resource, require_binding


@dataclass(frozen=True, slots=True)
class Change:
    """One column that must change.

    :param live: as it is; None when it is missing.
    :param wanted: as it must be.
    """

    live: ColumnFacts | None
    wanted: ColumnFacts

    def sentence(self) -> str:
        """The change in words."""
        name, kind = self.wanted.name, self.wanted.type
        if self.live is None:
            return f"add column {name} {kind}"
        widened = [f"make column {name} {kind} instead of {self.live.type}"] if kind != self.live.type else []
        opened = [f"let column {name} be NULL"] if self.wanted.nullable and not self.live.nullable else []
        return " and ".join(widened + opened)


@dataclass(frozen=True, slots=True)
class Evolution:
    """The changes that a route needs, with the DDL that makes them.

    :param statements: in order, for a session whose current database is the target's.
    :param script: the same for the owner's own session.
    """

    changes: tuple[Change, ...]
    statements: tuple[str, ...]
    script: tuple[str, ...]

    def required(self, route: Route, why: str, **details: str) -> XminError:
        """The refusal that hands the DDL to the owner."""
        stuck = " If the owner is refused, too: a view, an index or a statistics object needs the column as it is." if details else ""
        seen = "; ".join(change.sentence() for change in self.changes)
        return XminError(
            "DPONE_SCHEMA_EVOLUTION_REQUIRED",
            f"{route.layout.target.display} must change with the source ({seen}), but {why}.",
            hint="Run as the target's owner: " + "; ".join(self.script) + "." + stuck,
            details={"changes": [change.sentence() for change in self.changes], "ddl": list(self.script), **details},
        )


def plan_evolution(
    engine: Engine, dialect: DdlDialect, facts: TableFacts, route: Route, projection: Projection, *, source_changed: bool
) -> Evolution | None:
    """What must change in the live table; None when it fits.

    :param source_changed: whether the projection differs from that of the last commit. Without it a difference is the target's own
        drift, and a column that somebody dropped and added again would not be filled by a delta.
    :raises XminError: ``DPONE_TARGET_UNSUPPORTED`` naming every difference that is left.
    """
    changes = tuple(_changes(engine, facts, route, projection)) if source_changed else ()
    require_shape(engine, _after(facts, changes), route, projection)
    if not changes:
        return None
    namespace, table = engine.namespace(TARGET), route.layout.target.name
    statements: list[str] = []
    for change in changes:
        wanted = change.wanted
        if change.live is None:
            statements += dialect.add_column(namespace, table, wanted)
        else:
            statements += dialect.alter_column(namespace, table, change.live, wanted)
    return Evolution(changes, tuple(statements), (*dialect.use(namespace), *statements))


def apply_evolution(
    engine: Engine,
    session: Session,
    dialect: DdlDialect,
    catalog: Catalog,
    *,
    route: Route,
    projection: Projection,
    binding: TargetBinding,
) -> Evolution | None:
    """Make the changes under the target's lock, look again, commit.

    :param session: in the target's database, outside any transaction, its databases proven.
    :param binding: the identity that the attempt was admitted with.
    :returns: what was changed; None when somebody else did it meanwhile.
    :raises XminError: ``DPONE_SCHEMA_EVOLUTION_REQUIRED`` when the server refuses a statement, ``DPONE_TARGET_UNSUPPORTED``,
        ``target_identity.*``, ``campaign.target_fenced``, the engine's codes; everything is rolled back then.
    """
    resource = lock_resource(binding.identity)
    with exclusive(engine, session, resource=resource, timeout=route.target_lock_timeout):
        require_binding(session, catalog, binding, environment=route.environment)
        require_unfenced(session, catalog, binding.identity)  # the shadow of a campaign has the live table's columns
        target = route.layout.target
        evolution = plan_evolution(engine, dialect, live_table(engine, session, target), route, projection, source_changed=True)
        if evolution is not None:
            _run(session, evolution, route)
            require_shape(engine, live_table(engine, session, target), route, projection)
        engine.commit(session, resource=resource)
    return evolution


def _run(session: Session, evolution: Evolution, route: Route) -> None:
    for statement in evolution.statements:
        try:
            session.command("evolve.ddl", statement)
        except XminError as error:
            if error.code in ("mssql_transaction.statement_failed", "mssql_transaction.permission_denied"):
                raise evolution.required(route, "the server refused the statement", cause=error.code, **_codes(error)) from None
            raise


def _codes(error: XminError) -> dict[str, str]:
    return {name: str(error.details[name]) for name in ("sqlstate", "native") if name in error.details}


def _changes(engine: Engine, facts: TableFacts, route: Route, projection: Projection) -> Iterator[Change]:
    """Safe changes only; key columns never change, because their types identify the checkpoint."""
    for plan in projection.value_columns:
        live, kind = facts.column(plan.name), engine.column_type(plan)
        if live is None:
            if folded(plan.name) not in {folded(column.name) for column in facts.columns}:
                yield Change(None, ColumnFacts(plan.name, kind, nullable=True, collation=None, computed=False, identity=False))
            continue
        if live.computed or live.identity:
            continue
        wanted = replace(live, type=kind if widens(live.type, kind) else live.type, nullable=live.nullable or plan.nullable)
        if wanted != live:
            yield Change(live, wanted)
    if not route.keep_dropped_columns:
        return
    carried = {folded(plan.name) for plan in projection.columns}
    for live in facts.columns:
        ours = folded(live.name) in carried or live.name.lower().startswith("__dpone__")
        if not (ours or live.nullable or live.computed or live.identity):
            yield Change(live, replace(live, nullable=True))


def _after(facts: TableFacts, changes: tuple[Change, ...]) -> TableFacts:
    """The table as it will be."""
    changed = {change.wanted.name: change.wanted for change in changes}
    kept = [changed.pop(column.name, column) for column in facts.columns]
    return replace(facts, columns=(*kept, *changed.values()))
