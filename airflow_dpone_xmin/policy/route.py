"""From manifest and signed registry to routes: every default resolved, every authority selected, nothing read from a server.

Precedence for database and schema: manifest, then the registry connection. Imports contracts and policy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from airflow_dpone_xmin.contracts.campaign import CampaignSpec
from airflow_dpone_xmin.contracts.canonical import Canonical
from airflow_dpone_xmin.contracts.envelope import SourceIdentity
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.identity import route_fingerprint
from airflow_dpone_xmin.contracts.manifest import Manifest, SinkTable
from airflow_dpone_xmin.contracts.registry import DatabaseAuthority, RegistryConnection, RegistryDocument, SourceAuthority, ascii_fold
from airflow_dpone_xmin.contracts.route import (
    Authorities,
    CatalogNames,
    DeleteGuards,
    DeleteMode,
    Layout,
    Namespace,
    Route,
    TableName,
)
from airflow_dpone_xmin.policy.alias import is_alias, resolve_alias

Role = Literal["target", "staging", "state"]


def resolve_routes(manifest: Manifest, registry: RegistryDocument) -> list[Route]:
    """All routes of a manifest, in authored order.

    A table named by ``source.table`` belongs to process ``name``; one listed under ``schemas`` to ``name:schema.table``, so that
    adding a table never moves another one's checkpoint.

    :raises XminError: ``DPONE_MANIFEST_NAME_REQUIRED``, ``DPONE_MANIFEST_ROUTE_AMBIGUOUS`` or whatever :func:`_route` refuses.
    """
    if manifest.name is None:
        raise XminError("DPONE_MANIFEST_NAME_REQUIRED", "The manifest has no `name`.", details={"path": "name"})
    single, many = manifest.source.table, manifest.schemas
    if (single is None) is (many is None):
        raise XminError("DPONE_MANIFEST_ROUTE_AMBIGUOUS", "Exactly one of `source.table` and `schemas` names the source.")
    if single is not None:
        return [_route(manifest, registry, process=manifest.name, schema=single.schema_name, relation=single.name)]
    routes = []
    count = sum(len(entry.tables) for entry in (many or {}).values())
    for schema, tables in (many or {}).items():
        for table in tables.tables:
            target = table.target
            if target is None and count > 1 and manifest.sink.table.name is not None:
                raise XminError(
                    "DPONE_MANIFEST_ROUTE_AMBIGUOUS",
                    f"`sink.table.name` would send {schema}.{table.name} and its siblings into one table.",
                    hint="Remove `sink.table.name`, or give each table a `target`.",
                )
            own = {block: value for block in ("schema_contract", "physical_design") if (value := getattr(table, block)) is not None}
            routes.append(
                _route(
                    manifest.model_copy(update=own),
                    registry,
                    process=f"{manifest.name}:{schema}.{table.name}",
                    schema=schema,
                    relation=table.name,
                    target=target,
                    unique_key=table.unique_key,
                )
            )
    seen: set[str] = set()
    for route in routes:
        name = ascii_fold(route.layout.target.display)
        if name in seen:
            raise XminError("DPONE_MANIFEST_ROUTE_AMBIGUOUS", f"Two tables go to {route.layout.target.display}.")
        seen.add(name)
    return routes


def select_route(routes: list[Route], table: str | None) -> Route:
    """The one route, or the one whose source is named ``schema.table``.

    :raises XminError: ``DPONE_MANIFEST_ROUTE_AMBIGUOUS``.
    """
    chosen = [route for route in routes if table is None or f"{route.source.schema}.{route.source.relation}" == table]
    if len(chosen) != 1:
        names = [f"{route.source.schema}.{route.source.relation}" for route in routes]
        raise XminError("DPONE_MANIFEST_ROUTE_AMBIGUOUS", "Exactly one route must be selected.", details={"tables": names})
    return chosen[0]


def _route(
    manifest: Manifest,
    registry: RegistryDocument,
    *,
    process: str,
    schema: str,
    relation: str,
    target: SinkTable | None = None,
    unique_key: tuple[str, ...] | None = None,
) -> Route:
    key = unique_key or manifest.sink.strategy.unique_key
    if not key:
        raise XminError("DPONE_KEY_INVALID", "The route has no `sink.strategy.unique_key`.", details={"path": "sink.strategy.unique_key"})
    source_entry = _connection(registry, manifest.source.connection, types=("postgres",))
    sink_entry = _connection(registry, manifest.sink.connection, types=(manifest.sink.type,))
    state_name = manifest.state.connection or manifest.sink.connection
    state_entry = _connection(registry, state_name, types=(manifest.sink.type,))
    if manifest.state.type != manifest.sink.type:
        raise XminError("DPONE_STATE_INVALID", "State and target are of different types.", details={"path": "state.type"})
    source, authority, relation_key = _source(manifest, source_entry, schema=schema, relation=relation)
    layout = _layout(manifest, sink_entry, state_entry, target=target or manifest.sink.table, relation=relation)
    authorities = _authorities(authority, relation_key, layout, sink_entry=sink_entry, state_entry=state_entry)
    execution = manifest.source.options.xmin_execution
    campaign = _campaign(manifest, key=key)
    mode = _delete_mode(manifest)
    return Route(
        environment=registry.environment,
        process=process,
        execution=execution.mode if execution else None,
        handoff_id=execution.handoff_id if execution else None,
        source=source,
        source_alias=is_alias(schema, relation, authority, relation_key),
        source_conn_id=source_entry.airflow_conn_id or manifest.source.connection,
        sink_entry=manifest.sink.connection,
        sink_conn_id=sink_entry.airflow_conn_id or manifest.sink.connection,
        state_entry=state_name,
        state_conn_id=state_entry.airflow_conn_id or state_name,
        layout=layout,
        authorities=authorities,
        key=key,
        delete_mode=mode,
        guards=_guards(manifest),
        route_fingerprint=route_fingerprint(
            contract=_contract(manifest, source, layout, key=key, mode=mode), authorities=authorities.digests
        ),
        registry_serial=registry.serial,
        campaign=campaign,
        window=manifest.source.options.xmin_window,
        max_replay_amplification=manifest.source.options.xmin_max_replay_amplification_xids,
        string_columns=frozenset(manifest.schema_contract.columns),
        type_overrides={name: column.target_type.mssql for name, column in manifest.physical_design.columns.items()},
        evolve=manifest.schema_evolution.enabled,
        keep_dropped_columns=manifest.schema_evolution.on_dropped_column == "keep",
        min_rows=_min_rows(manifest, mode),
        work_dir=manifest.runtime.storage.work_dir,
        min_free_bytes=manifest.runtime.storage.min_free_bytes,
        source_lock_timeout=manifest.source.options.lock_timeout_seconds,
        source_deadline=manifest.source.options.deadline_seconds,
        target_lock_timeout=manifest.sink.options.lock_timeout_seconds,
        sink_multi_subnet=sink_entry.connection.multi_subnet_failover,
        state_multi_subnet=state_entry.connection.multi_subnet_failover,
        notices=(*manifest.notices, *_assumed(manifest)),
    )


def _connection(registry: RegistryDocument, name: str, *, types: tuple[str, ...]) -> RegistryConnection:
    entry = registry.connections.get(name)
    if entry is None:
        raise XminError(
            "DPONE_REGISTRY_CONNECTION_UNKNOWN",
            f"The registry has no connection `{name}`.",
            details={"connection": name, "known": sorted(registry.connections)},
        )
    if entry.type not in types:
        raise XminError(
            "DPONE_REGISTRY_CONNECTION_UNKNOWN", f"Connection `{name}` is of type {entry.type}; the manifest needs {' or '.join(types)}."
        )
    return entry


def _source(manifest: Manifest, entry: RegistryConnection, *, schema: str, relation: str) -> tuple[SourceIdentity, SourceAuthority, str]:
    facts = entry.connection
    authority = facts.postgres_source_authority
    if authority is None:
        raise XminError(
            "DPONE_POSTGRES_SOURCE_AUTHORITY_REQUIRED", f"Connection `{manifest.source.connection}` has no postgres_source_authority."
        )
    if facts.database != authority.database.canonical_name:
        raise XminError(
            "DPONE_POSTGRES_SOURCE_DATABASE_AUTHORITY_MISMATCH",
            f"Connection `{manifest.source.connection}` names one database and its authority another.",
        )
    relation_key = resolve_alias(schema, relation, authority)
    pin = authority.relations[relation_key]
    identity = SourceIdentity(
        entry=manifest.source.connection, database=authority.database.canonical_name, schema=pin.schema_name, relation=pin.relation
    )
    return identity, authority, relation_key


def _layout(manifest: Manifest, sink: RegistryConnection, state: RegistryConnection, *, target: SinkTable, relation: str) -> Layout:
    facts, staging, authored = sink.connection, sink.connection.staging, manifest.sink.options.staging
    schema = target.schema_name or facts.schema_name or "dbo"
    database = _database(sink, target.database or facts.database, role="target")
    staging_database = authored.database or (staging.database if staging else None) or database
    staging_schema = authored.schema_name or (staging.schema_name if staging else None) or schema
    state_schema = manifest.state.schema_name or (state.connection.schema_name if manifest.state.connection else None) or "dbo"
    run_table = manifest.state.run_table
    layout = Layout(
        engine="embedded" if sink.type == "embedded" else "mssql",
        target=TableName(Namespace(database, schema), target.name or relation),
        staging=Namespace(_database(sink, staging_database, role="staging"), staging_schema),
        state=Namespace(_database(state, manifest.state.database or state.connection.database, role="state"), state_schema),
        names=CatalogNames(
            source_state=manifest.state.table.name,
            run_state=run_table.name or run_table.run_name or "dpone_run_state",
            commit_receipt=manifest.state.receipt_table.name,
            repair_authority=manifest.state.repair_authority_table.name,
            repair_consumption=manifest.state.repair_consumption_table.name,
            load_audit=manifest.state.audit_table.name,
        ),
    )
    if layout.staging in (layout.state, Namespace(database, layout.dbo)):
        raise XminError(
            "DPONE_STAGING_SHARED",
            f"Staging is {layout.staging.database}.{layout.staging.schema}, where tables of the catalog are.",
            details={"staging": f"{layout.staging.database}.{layout.staging.schema}"},
        )
    return layout


def _database(entry: RegistryConnection, name: str, *, role: Role) -> str:
    """The canonical spelling of a database: an exact pin, or the only one that differs by ASCII case."""
    pins: Mapping[str, DatabaseAuthority] = entry.connection.database_authorities or {}
    if name in pins:
        return name
    folded = [pin for pin in pins if ascii_fold(pin) == ascii_fold(name)]
    if len(folded) != 1:
        raise XminError(
            f"DPONE_MSSQL_{role.upper()}_DATABASE_AUTHORITY_REQUIRED",
            f"The registry has no authority for the {role} database.",
            details={"database": name},
        )
    return folded[0]


def _authorities(
    source: SourceAuthority, relation_key: str, layout: Layout, *, sink_entry: RegistryConnection, state_entry: RegistryConnection
) -> Authorities:
    digests = {"source": source.authority_digest(relation_key)}

    def signed(role: Role, entry: RegistryConnection, database: str) -> DatabaseAuthority:
        authority = (entry.connection.database_authorities or {})[_database(entry, database, role=role)]
        digests[role] = authority.authority_digest(role=role, database=database)
        return authority

    return Authorities(
        source=source,
        relation_key=relation_key,
        target=signed("target", sink_entry, layout.target.namespace.database),
        staging=signed("staging", sink_entry, layout.staging.database),
        state=signed("state", state_entry, layout.state.database),
        digests=digests,
    )


def _campaign(manifest: Manifest, *, key: tuple[str, ...]) -> CampaignSpec | None:
    execution, backfill = manifest.source.options.xmin_execution, manifest.sink.strategy.backfill
    if (execution is not None and execution.mode == "initial") is not (backfill is not None):
        raise XminError(
            "DPONE_MANIFEST_INVALID",
            "`source.options.xmin_execution: {mode: initial, handoff_id}` and `sink.strategy.mode: backfill` go together.",
            details={"path": "source.options.xmin_execution"},
        )
    if backfill is None:
        return None
    chunk = backfill.chunk
    if chunk.column not in key:
        raise XminError(
            "campaign.plan_invalid",
            f"Chunk column {chunk.column!r} is not part of the unique key: a row whose value changes could escape every chunk.",
            details={"column": chunk.column, "key": list(key)},
        )
    return CampaignSpec(
        kind=chunk.kind,
        column=chunk.column,
        low=chunk.from_,
        high=chunk.to,
        step=chunk.step,
        buckets=chunk.buckets,
        publication=backfill.publication.mode,
        lanes=backfill.parallel_workers,
    )


def _assumes_default(manifest: Manifest) -> bool:
    """An initial manifest need not repeat how deletes are marked; the live table's markers would contradict a wrong guess."""
    return manifest.sink.strategy.backfill is not None and "reconciliation" not in manifest.model_fields_set


def _assumed(manifest: Manifest) -> tuple[str, ...]:
    if not _assumes_default(manifest):
        return ()
    return ("`reconciliation` is absent: soft deletes by timestamp are assumed, as in the default of the incremental manifest.",)


def _delete_mode(manifest: Manifest) -> DeleteMode:
    block = manifest.reconciliation
    if _assumes_default(manifest):
        return DeleteMode.TIMESTAMP_ONLY
    if block is None or not block.enabled:
        return DeleteMode.NEVER
    if block.delete_policy == "hard_delete":
        return DeleteMode.HARD
    return DeleteMode(block.delete_mode or "timestamp_only")


def _guards(manifest: Manifest) -> DeleteGuards:
    block = manifest.reconciliation
    if block is None:
        return DeleteGuards(None, None)
    return DeleteGuards(max_rows=block.guards.max_delete_rows, max_ratio=block.guards.max_delete_ratio)


def _min_rows(manifest: Manifest, mode: DeleteMode) -> dict[str, int]:
    for gate in manifest.quality.gates:
        if gate.type == "row_count_reconciliation" and not mode.reconciles:
            raise XminError(
                "DPONE_OPTION_UNSUPPORTED",
                f"Gate `{gate.id}` compares row counts, but without `reconciliation` no complete key snapshot is taken.",
                hint="Add the `reconciliation` block (its parity check is exact), or remove the gate.",
            )
    return {gate.id: gate.threshold for gate in manifest.quality.gates if gate.threshold is not None}


def _contract(
    manifest: Manifest, source: SourceIdentity, layout: Layout, *, key: tuple[str, ...], mode: DeleteMode
) -> dict[str, Canonical]:
    """What changes the meaning of the data; limits, work directories and time-outs do not."""
    target, staging, state = layout.target, layout.staging, layout.state
    return {
        "source": [source.entry, source.database, source.schema, source.relation],
        "target": [layout.engine, target.namespace.database, target.namespace.schema, target.name],
        "staging": [staging.database, staging.schema],
        "state": [state.database, state.schema, layout.names.source_state, layout.names.run_state, layout.names.commit_receipt],
        "key": list(key),
        "delete_mode": mode.value,
        "window": manifest.source.options.xmin_window,
        "handoff": manifest.source.options.xmin_execution.handoff_id if manifest.source.options.xmin_execution else "",
        "text_columns": sorted(manifest.schema_contract.columns),
        "overrides": {name: column.target_type.mssql for name, column in manifest.physical_design.columns.items()},
    }
