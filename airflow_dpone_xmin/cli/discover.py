"""``registry discover``: connect as the runtime principal, look, print. Imports source and registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_dpone_xmin.cli.context import CliContext
from airflow_dpone_xmin.cli.registry_cmd import as_yaml
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.registry.discover import discover_source, source_queries

if TYPE_CHECKING:
    from rich.console import Console


_REVIEW = "Candidates only. Compare them with what the server's owner knows, then put them into the document and sign it."


def discover_entry(
    context: CliContext,
    entry: str,
    *,
    type: str,
    relations: tuple[str, ...],
    databases: tuple[str, ...],
    physical_cluster: bool,
    conn_id: str | None,
    queries_only: bool,
) -> None:
    """Print the candidate pins of one connection.

    :param entry: registry entry, existing or to be made.
    :param type: the entry's type.
    :param databases: databases of a target to pin.
    :param queries_only: print the queries without connecting.
    :raises XminError: ``cli.usage``, ``DPONE_CONNECTION_UNRESOLVED``, and what
        :func:`~airflow_dpone_xmin.registry.discover.discover_source` raises.
    """
    if type in ("mssql", "embedded") and queries_only:
        from airflow_dpone_xmin.runtime.provision import database_queries

        _print(context, {"entry": entry, "queries": database_queries(type), "fragment": None})
    elif type in ("mssql", "embedded"):
        if not databases:
            raise XminError("cli.usage", "Name the target, staging and state databases with --database.")
        _print(context, _discover_target(context, entry, type=type, conn_id=conn_id or entry, databases=databases))
    elif type != "postgres":
        raise XminError("cli.usage", "--type is postgres, mssql or embedded.")
    elif not relations:
        raise XminError("cli.usage", "Name at least one --relation schema.relation.")
    elif queries_only:
        _print(context, {"entry": entry, "queries": source_queries(relations, physical_cluster=physical_cluster), "fragment": None})
    else:
        _print(context, _discover(context, entry, conn_id=conn_id or entry, relations=relations, physical_cluster=physical_cluster))


def _discover(context: CliContext, entry: str, *, conn_id: str, relations: tuple[str, ...], physical_cluster: bool) -> dict[str, Any]:
    from psycopg import sql

    from airflow_dpone_xmin.source.session import Session

    with Session(context.endpoints(entry, conn_id=conn_id)) as session:
        session.execute(sql.SQL("BEGIN READ ONLY"))
        found = discover_source(session.rows, relations, physical_cluster=physical_cluster)
    facts = {"database": found.fragment["database"]["canonical_name"], "postgres_source_authority": found.fragment}
    return {
        "entry": entry,
        "queries": found.queries,
        "fragment": {"connections": {entry: {"type": "postgres", "connection": facts}}},
    }


def _discover_target(context: CliContext, entry: str, *, type: str, conn_id: str, databases: tuple[str, ...]) -> dict[str, Any]:
    from airflow_dpone_xmin.runtime.provision import database_queries, discover_databases

    pins = discover_databases(context.endpoints(entry, conn_id=conn_id), engine=type, databases=databases)
    facts = {"database": databases[0], "database_authorities": pins}
    return {
        "entry": entry,
        "queries": database_queries(type),
        "fragment": {"connections": {entry: {"type": type, "connection": facts}}},
    }


def _print(context: CliContext, data: dict[str, Any]) -> None:
    def human(console: Console) -> None:
        text = ";\n".join(data["queries"]) + ";"
        if data["fragment"] is None:
            console.print(text, markup=False, soft_wrap=True)
            context.output.note("Run these as the runtime principal; nothing was connected to.")
            return
        context.output.note(text)
        console.print(as_yaml(data["fragment"]), markup=False, soft_wrap=True)
        context.output.note(_REVIEW)

    context.output.result(data, human)
