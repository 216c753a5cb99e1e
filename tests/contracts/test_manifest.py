"""What becomes of every field: honoured, accepted with a notice, refused by its code, or unknown."""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.manifest import parse_manifest
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.contracts.route import DeleteMode, Route
from airflow_dpone_xmin.contracts.verdicts import NOTICED, REFUSED, Verdict
from airflow_dpone_xmin.policy.route import resolve_routes, select_route
from tests.contracts.manifests import INCREMENTAL, INITIAL, SHORT


def with_field(path: str, value: Any, base: dict[str, Any] = INCREMENTAL) -> dict[str, Any]:
    """A copy of the incremental manifest with one field set."""
    document = copy.deepcopy(base)
    node = document
    *parents, last = path.split(".")
    for part in parents:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value
    return document


def example(row: Verdict) -> tuple[str, Any]:
    """A path and value that a row speaks about."""
    path = row.path.replace("*", "sink.strategy.", 1) if row.path.startswith("*") else row.path.replace("*", "_x")
    return path, row.values[0] if row.values else "x"


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.path}={','.join(map(str, row.values))}")
def test_refused_by_its_code(row: Verdict) -> None:
    """Every refusing row refuses each of its values with its own code, and says which field."""
    path, _ = example(row)
    for value in row.values or ("x", {"a": 1}, True):
        with pytest.raises(XminError) as caught:
            parse_manifest(with_field(path, value))
        assert caught.value.code == row.code
        assert caught.value.details["path"] == path
        assert caught.value.hint


@pytest.mark.parametrize("row", [row for row in REFUSED if not row.values], ids=lambda row: row.path)
def test_refused_below_defaults_too(row: Verdict) -> None:
    """``defaults`` is no way around a refusal."""
    path, value = example(row)
    document = {"defaults": with_field(path, value)}
    with pytest.raises(XminError) as caught:
        parse_manifest(document)
    assert caught.value.code == row.code


@pytest.mark.parametrize("row", NOTICED, ids=lambda row: row.path)
def test_accepted_with_a_notice(row: Verdict) -> None:
    """Every noticed row is accepted, and told."""
    path, _ = example(row)
    values = row.values or ("x", 1, {"mode": "bcp", "bcp": {"batch_size": 1}})
    for value in values:
        base = INITIAL if "backfill" in path else INCREMENTAL
        notices = parse_manifest(with_field(path, value, base)).notices
        assert any(f"`{path}`" in notice for notice in notices), notices


def test_handoff_manifests_parse() -> None:
    """Both halves of the route guide's handoff, and its short example, parse; what has no effect is told."""
    initial, incremental, short = (parse_manifest(document) for document in (INITIAL, INCREMENTAL, SHORT))
    assert initial.sink.strategy.backfill is not None
    assert initial.sink.strategy.backfill.chunk.to == 50_000_000
    assert initial.source.options.xmin_execution == incremental.source.options.xmin_execution.model_copy(update={"mode": "initial"})  # type: ignore[union-attr]
    assert incremental.reconciliation is not None
    assert incremental.reconciliation.guards.max_delete_ratio == Decimal("0.05")
    assert short.name == "postgres_to_mssql_example"
    assert short.sink.strategy.unique_key == ("order_id",)
    assert any("lease_ttl_minutes" in notice for notice in initial.notices)
    assert any("merge_policy" in notice for notice in incremental.notices)
    assert {notice.partition("`:")[0].strip("`") for notice in short.notices} == {
        "source.options.batch_size",
        "source.options.export_format",
        "sink.strategy.merge_policy",
    }


def test_uuid_chunks_parse() -> None:
    """The uuid form of a chunk."""
    document = with_field("sink.strategy.backfill.chunk", {"column": "id", "kind": "uuid", "buckets": 64}, INITIAL)
    backfill = parse_manifest(document).sink.strategy.backfill
    assert backfill is not None
    assert backfill.chunk.buckets == 64


@pytest.mark.parametrize(
    "path",
    [
        "surprise",
        "source.surprise",
        "source.options.surprise",
        "source.table.surprise",
        "sink.surprise",
        "sink.strategy.surprise",
        "sink.table.surprise",
        "reconciliation.surprise",
        "reconciliation.guards.surprise",
        "state.surprise",
        "state.table.surprise",
        "quality.surprise",
        "runtime.surprise",
        "runtime.storage.surprise",
        "reconciliation.delete_modes",
        "Name",
        "source.options.XMIN_WINDOW",
    ],
)
def test_unknown_fields(path: str) -> None:
    """A field that no version knows is refused by its path, never ignored."""
    with pytest.raises(XminError) as caught:
        parse_manifest(with_field(path, "secret-value"))
    assert caught.value.code == "DPONE_MANIFEST_UNKNOWN_FIELD"
    assert caught.value.details["path"] == path
    assert "secret-value" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("reconciliation.guards.max_delete_ratio", 1.01),
        ("reconciliation.guards.max_delete_ratio", -0.1),
        ("reconciliation.guards.max_delete_rows", -1),
        ("reconciliation.guards.max_delete_rows", 2**63),
        ("reconciliation.delete_mode", "sometimes"),
        ("reconciliation.cadence", "daily"),
        ("reconciliation.empty_snapshot", {"policy": "allow"}),
        ("sink.strategy.unique_key", ["id", "id"]),
        ("name", ""),
        ("name", "a b"),
        ("name", 7),
        ("state.atomicity", "eventual"),
        ("source.options.xmin_window", "loose"),
        ("sink.options.lock_timeout_seconds", 0),
        ("source.table", {"name": "x" * 64}),
    ],
)
def test_wrong_values(path: str, value: Any) -> None:
    """A wrong type or value is refused by its path, without the value in the text."""
    with pytest.raises(XminError) as caught:
        parse_manifest(with_field(path, value))
    assert caught.value.code in ("DPONE_MANIFEST_INVALID", "DPONE_STATE_INVALID")
    assert caught.value.details["path"].startswith(path.rpartition(".")[0] or path)


@pytest.mark.parametrize("document", [None, [], "text", 1, {"defaults": []}])
def test_not_a_mapping(document: Any) -> None:
    """A manifest is a mapping."""
    with pytest.raises(XminError) as caught:
        parse_manifest(document)
    assert caught.value.code == "DPONE_MANIFEST_INVALID"


def test_run_name_is_a_deprecated_alias() -> None:
    """``run_name`` works alone with a notice, and not beside ``name``."""
    manifest = parse_manifest(with_field("state.run_table", {"run_name": "runs"}))
    assert manifest.state.run_table.run_name == "runs"
    assert any("run_name" in notice for notice in manifest.notices)
    assert route(with_field("state.run_table", {"run_name": "runs"})).layout.names.run_state == "runs"
    assert route(with_field("state.run_table", {"name": "runs"})).layout.names.run_state == "runs"
    with pytest.raises(XminError) as caught:
        parse_manifest(with_field("state.run_table", {"name": "a", "run_name": "b"}))
    assert caught.value.code == "DPONE_MANIFEST_INVALID"


def test_exact_ratio() -> None:
    """A ratio is the decimal that was written, not its binary neighbour."""
    manifest = parse_manifest(with_field("reconciliation.guards", {"max_delete_ratio": 0.1}))
    assert manifest.reconciliation is not None
    assert manifest.reconciliation.guards.max_delete_ratio == Decimal("0.1")
    assert manifest.reconciliation.guards.max_delete_rows is None, "an authored block replaces the default limits"


@pytest.mark.parametrize("value", [False, None])
def test_no_reconciliation(value: Any) -> None:
    """``reconciliation: false`` and its absence never delete."""
    assert route(with_field("reconciliation", value)).delete_mode is DeleteMode.NEVER


@pytest.mark.parametrize(
    ("block", "mode"),
    [
        ({}, DeleteMode.TIMESTAMP_ONLY),
        ({"delete_mode": "flag_only"}, DeleteMode.FLAG_ONLY),
        ({"delete_mode": "timestamp_and_flag"}, DeleteMode.TIMESTAMP_AND_FLAG),
        ({"delete_policy": "hard_delete"}, DeleteMode.HARD),
        ({"enabled": False}, DeleteMode.NEVER),
    ],
)
def test_delete_modes(block: dict[str, Any], mode: DeleteMode) -> None:
    """The default is timestamp_only; a mode belongs to soft_delete."""
    assert route(with_field("reconciliation", block)).delete_mode is mode


def test_delete_mode_contradicts_hard_delete() -> None:
    """A column mode beside hard_delete is refused."""
    with pytest.raises(XminError):
        parse_manifest(with_field("reconciliation", {"delete_policy": "hard_delete", "delete_mode": "flag_only"}))


# ---- precedence -----------------------------------------------------------------------------------------------------------
def registry(**sink: Any) -> RegistryDocument:
    """A registry whose databases are pinned; *sink* overrides facts of the target's connection."""
    pins = {
        name: {"database_id": n, "create_token": f"t{n}", "database_guid": f"00000000-0000-0000-0000-00000000000{n}"}
        for n, name in enumerate(("DWH", "Stage", "Sys", "Other"), 1)
    }
    principal = {"canonical_name": "reader", "oid": 16385}
    source = {
        "version": 2,
        "verification_profile": "catalog_identity",
        "topology_role": "primary",
        "database": {"canonical_name": "shop", "oid": 16384},
        "principals": {"effective": principal, "session": principal},
        "relations": {
            f"public.{name}": {"schema": "public", "relation": name, "namespace_oid": 2200, "relation_oid": oid}
            for name, oid in (("orders", 16402), ("lines", 16403))
        },
    }
    return RegistryDocument.model_validate(
        {
            "kind": "dpone.registry.v1",
            "environment": "prod",
            "serial": 1,
            "not_before": "2020-01-01T00:00:00Z",
            "not_after": "2100-01-01T00:00:00Z",
            "connections": {
                "postgres_oltp": {"type": "postgres", "connection": {"database": "shop", "postgres_source_authority": source}},
                "mssql_dwh": {"type": "mssql", "connection": {"database": "DWH", "database_authorities": pins, **sink}},
                "mssql_state": {"type": "mssql", "connection": {"database": "Sys", "schema": "governance", "database_authorities": pins}},
            },
        }
    )


def route(document: dict[str, Any], **sink: Any) -> Route:
    """The route of a manifest without a handoff's name problem."""
    return select_route(resolve_routes(parse_manifest({"name": "orders", **document}), registry(**sink)), None)


def test_target_precedence() -> None:
    """Manifest, then registry, then dbo; the table's name defaults to the source's."""
    bare = with_field("sink.table", {})
    assert route(bare, staging={"schema": "staging"}).layout.target.display == "DWH.dbo.orders"
    assert route(bare, schema="landing", staging={"schema": "st"}).layout.target.display == "DWH.landing.orders"
    assert route(with_field("sink.table", {"schema": "own"}), schema="landing").layout.target.display == "DWH.own.orders"
    assert (
        route(
            with_field("sink.table", {"database": "Other", "name": "o"}), schema="landing", staging={"schema": "st"}
        ).layout.target.display
        == "Other.landing.o"
    )


def test_staging_precedence() -> None:
    """Manifest, then the registry's staging, then the target's own."""

    def staging(document: dict[str, Any], **sink: Any) -> tuple[str, str]:
        namespace = route(document, **sink).layout.staging
        return namespace.database, namespace.schema

    assert staging(INCREMENTAL) == ("DWH", "landing")
    assert staging(INCREMENTAL, staging={"database": "Stage", "schema": "st"}) == ("Stage", "st")
    assert staging(with_field("sink.options.staging", {"schema": "own"}), staging={"database": "Stage", "schema": "st"}) == ("Stage", "own")


@pytest.mark.parametrize("staging", [None, {"schema": "dbo"}, {"database": "Sys", "schema": "governance"}])
def test_staging_is_no_schema_of_the_catalog(staging: dict[str, str] | None) -> None:
    """The right to create tables is a right to alter the schema: refused by name, before a script could grant it."""
    document = {**with_field("sink.table", {}), "state": {"type": "mssql", "connection_id": "mssql_state"}}
    with pytest.raises(XminError) as caught:
        route(document, staging=staging)
    assert caught.value.code == "DPONE_STAGING_SHARED"
    assert route(document, staging={"database": "Stage", "schema": "dbo"}).layout.staging.schema == "dbo"


def test_state_precedence() -> None:
    """Manifest, then the state connection's registry entry, by default the sink's database."""

    def state(document: dict[str, Any]) -> tuple[str, str]:
        namespace = route(document).layout.state
        return namespace.database, namespace.schema

    assert state(with_field("state", {"connection_id": "mssql_state"})) == ("Sys", "governance")
    assert state(with_field("state", {"connection_id": "mssql_state", "database": "Other", "schema": "s"})) == ("Other", "s")
    assert state(with_field("state", {})) == ("DWH", "dbo")


def test_case_alias_of_a_database() -> None:
    """A database spelled otherwise by ASCII case is the pinned one; an unknown one has no authority."""
    assert route(with_field("sink.table", {"database": "dwh", "schema": "landing"})).layout.target.namespace.database == "DWH"
    with pytest.raises(XminError) as caught:
        route(with_field("sink.table", {"database": "nowhere", "schema": "landing"}))
    assert caught.value.code == "DPONE_MSSQL_TARGET_DATABASE_AUTHORITY_REQUIRED"


def test_handoff_halves_share_their_contract() -> None:
    """Both halves select the same source, target, key and handoff; only the incremental one reconciles."""
    initial, incremental = route(INITIAL), route(INCREMENTAL)
    assert (initial.handoff_id, initial.source, initial.layout, initial.key) == (
        incremental.handoff_id,
        incremental.source,
        incremental.layout,
        incremental.key,
    )
    assert (initial.execution, incremental.execution) == ("initial", "incremental")


def test_a_table_of_several_has_its_own_contract() -> None:
    """What an entry says stands in place of the manifest's block, for that table alone: names, types and fingerprints."""
    own = {"name": "orders", "schema_contract": {"columns": {"span": {"type": "string"}}}}
    typed = {"name": "lines", "physical_design": {"columns": {"price": {"target_type": {"mssql": "decimal(12,2)"}}}}}
    common = {"columns": {"shape": {"type": "string"}}}

    def planned(*tables: Any, **blocks: Any) -> dict[str, Route]:
        document = {"name": "shop", **INCREMENTAL, **blocks, "schemas": {"public": {"tables": list(tables)}}}
        document["source"] = {key: value for key, value in INCREMENTAL["source"].items() if key != "table"}
        document["sink"] = {**INCREMENTAL["sink"], "table": {}}
        return {each.source.relation: each for each in resolve_routes(parse_manifest(document), registry(staging={"schema": "st"}))}

    routes, plain = planned(own, typed, schema_contract=common), planned("orders", "lines", schema_contract=common)
    assert {name: set(each.string_columns) for name, each in routes.items()} == {"orders": {"span"}, "lines": {"shape"}}
    assert {name: dict(each.type_overrides) for name, each in routes.items()} == {"orders": {}, "lines": {"price": "decimal(12,2)"}}
    for name in routes:
        assert routes[name].route_fingerprint != plain[name].route_fingerprint, "its rows mean something else now"
    assert planned({"name": "orders", "schema_contract": {}}, schema_contract=common)["orders"].string_columns == frozenset()


def test_name_is_required() -> None:
    """A checkpoint belongs to a name."""
    with pytest.raises(XminError) as caught:
        resolve_routes(parse_manifest(INCREMENTAL), registry())
    assert caught.value.code == "DPONE_MANIFEST_NAME_REQUIRED"


def test_schema_evolution_is_closed() -> None:
    """On by default, dropped columns stop; nothing else may be said."""
    assert parse_manifest(INCREMENTAL).schema_evolution.model_dump() == {"enabled": True, "on_dropped_column": "stop"}
    kept = parse_manifest(with_field("schema_evolution", {"enabled": False, "on_dropped_column": "keep"}))
    assert kept.schema_evolution.model_dump() == {"enabled": False, "on_dropped_column": "keep"}
    for block in ({"on_dropped_column": "guess"}, {"allow_narrowing": True}):
        with pytest.raises(XminError):
            parse_manifest(with_field("schema_evolution", block))


@pytest.mark.parametrize(
    "blocks",
    [
        {"source": {**INCREMENTAL["source"], "table": {"name": "orders"}}, "schemas": {"public": {"tables": ["orders"]}}},
        {"source": {key: value for key, value in INCREMENTAL["source"].items() if key != "table"}},
        {"sink": with_field("sink.table", {"name": "one"})["sink"], "schemas": {"public": {"tables": ["orders", "customers"]}}},
        {
            "sink": with_field("sink.table", {})["sink"],
            "schemas": {"public": {"tables": ["orders", {"name": "lines", "target": {"name": "ORDERS"}}]}},
        },
    ],
    ids=["both ways", "neither way", "one name for two", "two that SQL Server calls the same"],
)
def test_which_table_goes_where_is_never_guessed(blocks: dict[str, Any]) -> None:
    document = {"name": "shop", **INCREMENTAL, **blocks}
    if "schemas" in blocks and "source" not in blocks:
        document["source"] = {key: value for key, value in INCREMENTAL["source"].items() if key != "table"}
    with pytest.raises(XminError) as caught:
        resolve_routes(parse_manifest(document), registry(staging={"schema": "st"}))
    assert caught.value.code == "DPONE_MANIFEST_ROUTE_AMBIGUOUS"


def test_all_that_is_wrong_is_told_at_once() -> None:
    """Three typing errors are one refusal, not three runs."""
    document = with_field("sink.strategy.unique_keys", ["id"], with_field("state.atomicity", "x", with_field("surprise", 1)))
    with pytest.raises(XminError) as caught:
        parse_manifest(document)
    wrong = {"sink.strategy.unique_keys", "state.atomicity", "surprise"}
    assert set(caught.value.details["paths"]) == wrong
    assert all(f"`{path}`" in caught.value.message for path in wrong)
