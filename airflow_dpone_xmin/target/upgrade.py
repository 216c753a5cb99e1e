"""The step between two catalog versions: 1 → 2 makes ``invocation_digest`` unique on load attempts.

Owner's work, never runtime's. Under an application lock and in one transaction: prove the exact old contract, look for duplicates, add the
constraint, write the version, prove the new contract, commit; whatever does not hold aborts without a change. DDL is transactional on
both engines. Imports contracts and the target's own modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Executable, UniqueConstraint, Update, func, literal_column, select, update
from sqlalchemy.schema import AddConstraint

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import CatalogNames
from airflow_dpone_xmin.target.authority import VerifiedDatabases
from airflow_dpone_xmin.target.catalog import CATALOG_VERSION, COMPONENT, UPGRADABLE_FROM, Catalog, build_catalog
from airflow_dpone_xmin.target.ddl import DdlDialect, Script
from airflow_dpone_xmin.target.engine import Engine, Session
from airflow_dpone_xmin.target.proof import installed_version, live_catalog, refuse_foreign, refuse_legacy, require_exact
from airflow_dpone_xmin.target.sql import STATE, Count, Now
from airflow_dpone_xmin.target.transaction import exclusive


@dataclass(frozen=True, slots=True)
class Upgrade:
    """How an upgrade ended.

    :param found: version that was installed.
    :param changed: False when it was this version already, proven exact.
    """

    found: int
    changed: bool


def upgrade(engine: Engine, session: Session, names: CatalogNames, *, authority: VerifiedDatabases, timeout: float) -> Upgrade:
    """Migrate the catalog, or prove that there is nothing to do.

    :param session: the owner's session in the state database, outside any transaction.
    :param authority: proof that the state database is the signed one.
    :param timeout: seconds to wait for the lock.
    :raises XminError: ``DPONE_LEGACY_STATE``, ``mssql_transaction.catalog_foreign``, ``.catalog_mismatch``, ``.catalog_duplicates``,
        ``.permission_denied``, ``.lock_timeout``; nothing was changed then.
    """
    if not isinstance(authority, VerifiedDatabases):
        raise TypeError("an upgrade needs verified databases")
    catalog = build_catalog(names)
    resource = upgrade_resource(engine)
    with exclusive(engine, session, resource=resource, timeout=timeout):
        found = _upgrade(engine, session, catalog, build_catalog(names, version=UPGRADABLE_FROM))
        if found == CATALOG_VERSION:
            engine.rollback(session)
        else:
            engine.commit(session, resource=resource)
    return Upgrade(found=found, changed=found != CATALOG_VERSION)


def _upgrade(engine: Engine, session: Session, catalog: Catalog, old: Catalog) -> int:
    live = live_catalog(engine, session, catalog)
    refuse_legacy(catalog, live)
    version = installed_version(session, catalog, live)
    if version == UPGRADABLE_FROM:
        require_exact(engine, old, live)
        _refuse_duplicates(session, catalog)
        session.execute("upgrade.constraint", _add_constraint(catalog))
        session.execute("upgrade.version", _write_version(catalog))
        live = live_catalog(engine, session, catalog)
        refuse_foreign(catalog, live, version=installed_version(session, catalog, live))
    else:
        refuse_foreign(catalog, live, version=version)
    require_exact(engine, catalog, live)
    return UPGRADABLE_FROM if version == UPGRADABLE_FROM else CATALOG_VERSION


def _refuse_duplicates(session: Session, catalog: Catalog) -> None:
    row = session.first("upgrade.duplicates", _duplicates(catalog))
    digests, attempts = (0, 0) if row is None else (int(row[0]), int(row[1] or 0))
    if digests:
        raise XminError(
            "mssql_transaction.catalog_duplicates",
            f"{attempts} load attempts share {digests} invocations.",
            details={"repeated_invocations": digests, "load_attempts": attempts},
        )


def render_upgrade(engine: Engine, dialect: DdlDialect, names: CatalogNames) -> Script:
    """The statements that :func:`upgrade` runs between its two proofs, for review: the query must find nothing before the rest may run."""
    catalog, namespace = build_catalog(names), engine.namespace(STATE)

    def spell(statement: Executable) -> str:
        names = {STATE: namespace.schema}  # the script has entered the database
        return str(statement.compile(dialect=engine.dialect, schema_translate_map=names, render_schema_translate=True)).strip()  # type: ignore[attr-defined]

    statements = (_duplicates(catalog), _add_constraint(catalog), _write_version(catalog))
    return Script((*dialect.enter(namespace), *[spell(statement) for statement in statements]))


def upgrade_resource(engine: Engine) -> str:
    """Application lock of a state namespace's catalog."""
    state = engine.namespace(STATE)
    return f"dpone:catalog:{state.database}.{state.schema}"


def _duplicates(catalog: Catalog) -> Any:
    digest = catalog.load_attempt.c.invocation_digest
    repeated = (
        select(Count().label("n"))
        .select_from(catalog.load_attempt)
        .group_by(digest)
        .having(Count() > literal_column("1"))
        .subquery("repeated")
    )
    return select(Count(), func.sum(repeated.c.n)).select_from(repeated)


def _add_constraint(catalog: Catalog) -> AddConstraint:
    (constraint,) = (part for part in catalog.load_attempt.constraints if isinstance(part, UniqueConstraint))
    return AddConstraint(constraint, isolate_from_table=False)


def _write_version(catalog: Catalog) -> Update:
    table = catalog.version
    ours = table.c.component == literal_column(f"'{COMPONENT}'")  # literals, so that the printed statement is the executed one
    return update(table).where(ours).values(version=literal_column(str(CATALOG_VERSION)), installed_at_utc=Now())
