"""A manifest from an operator's inline parameters, so that a simple route needs no YAML. Imports contracts only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from airflow_dpone_xmin.contracts.errors import XminError

#: What the optional parameters are when nobody gives them; beside a manifest nothing else may be given.
DEFAULTS: Mapping[str, Any] = {
    "target_type": "mssql",
    "state_conn": None,
    "state_schema": None,
    "delete_mode": "timestamp_only",
    "max_delete_ratio": 0.05,
    "max_delete_rows": 100_000,
}
InlineDeleteMode = Literal["timestamp_only", "timestamp_and_flag", "flag_only", "hard_delete"]


def authored_manifest(
    manifest: str | Path | Mapping[str, Any] | None,
    *,
    default_process: str | None,
    process: str | None,
    source_table: str | None,
    target_table: str | None,
    unique_key: str | Sequence[str] | None,
    source_conn: str | None,
    target_conn: str | None,
    **options: Any,
) -> str | Mapping[str, Any]:
    """The manifest of a task: the given one, or what its inline parameters stand for.

    :param default_process: name of an inline route that has none of its own; None demands one.
    :param options: the other parameters of :func:`inline_manifest`.
    :raises XminError: ``DPONE_MANIFEST_INVALID`` when both or neither are given.
    """
    if manifest is not None:
        own = {"process": process, "source_table": source_table, "target_table": target_table, "unique_key": unique_key}
        own |= {"source_conn": source_conn, "target_conn": target_conn}
        given = [name for name, value in own.items() if value is not None]
        given += [name for name, value in options.items() if value != DEFAULTS[name]]
        if given:
            message = f"`manifest` and inline parameters exclude each other; given beside it: {', '.join(given)}."
            raise XminError("DPONE_MANIFEST_INVALID", message, hint="Write them into the manifest, or pass no manifest.")
        return str(manifest) if isinstance(manifest, Path) else manifest
    return inline_manifest(
        process=process or default_process,
        source_table=source_table,
        target_table=target_table,
        unique_key=unique_key,
        source_conn=source_conn,
        target_conn=target_conn,
        **options,
    )


def inline_manifest(
    *,
    process: str | None,
    source_table: str | None,
    target_table: str | None,
    unique_key: str | Sequence[str] | None,
    source_conn: str | None,
    target_conn: str | None,
    target_type: Literal["mssql", "embedded"],
    state_conn: str | None,
    state_schema: str | None,
    delete_mode: InlineDeleteMode | None,
    max_delete_ratio: float | Decimal | str | None,
    max_delete_rows: int | None,
) -> dict[str, Any]:
    """The manifest that the parameters of :class:`~airflow_dpone_xmin.operators.reconcile.XminReconcileOperator` stand for.

    :raises XminError: ``DPONE_MANIFEST_INVALID``, naming the parameters that are missing, or the field that no manifest may hold so; what
        a template leaves open until the task runs is judged then.
    """
    needed = {
        "process": process,
        "source_table": source_table,
        "unique_key": unique_key,
        "source_conn": source_conn,
        "target_conn": target_conn,
    }
    missing = [name for name, value in needed.items() if not value]
    if missing or source_table is None:
        raise XminError(
            "DPONE_MANIFEST_INVALID",
            f"Neither `manifest` nor every inline parameter is given; missing: {', '.join(missing)}.",
            hint="Pass `manifest`, or the missing parameters.",
            details={"missing": missing},
        )
    schema, relation = _split(source_table, parameter="source_table", default="public")
    document: dict[str, Any] = {
        "name": process,
        "source": {"type": "postgres", "connection_id": source_conn, "table": {"schema": schema, "name": relation}},
        "sink": {
            "type": target_type,
            "connection_id": target_conn,
            "table": _target(target_table, relation),
            "strategy": {
                "mode": "incremental_merge",
                "unique_key": [unique_key] if isinstance(unique_key, str) else list(unique_key or ()),
            },
        },
        "state": {"type": target_type, **_given(connection_id=state_conn, schema=state_schema)},
    }
    if delete_mode is not None:
        document["reconciliation"] = _reconciliation(delete_mode, max_delete_ratio=max_delete_ratio, max_delete_rows=max_delete_rows)
    if "{{" not in str(document) and "{%" not in str(document):
        from airflow_dpone_xmin.contracts.manifest import parse_manifest  # building its models takes a tenth of a second

        parse_manifest(document)
    return document


def _given(**fields: str | None) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value is not None}


def _reconciliation(
    delete_mode: InlineDeleteMode, *, max_delete_ratio: float | Decimal | str | None, max_delete_rows: int | None
) -> dict[str, Any]:
    hard = delete_mode == "hard_delete"
    policy = {"delete_policy": "hard_delete"} if hard else {"delete_policy": "soft_delete", "delete_mode": delete_mode}
    guards = {"max_delete_ratio": max_delete_ratio, "max_delete_rows": max_delete_rows}
    return {"enabled": True, "mode": "key_snapshot", **policy, "guards": guards}


def _target(authored: str | None, relation: str) -> dict[str, str]:
    schema, name = _split(authored or relation, parameter="target_table", default=None)
    return _given(schema=schema, name=name)


def _split(name: str, *, parameter: str, default: str | None) -> tuple[str | None, str]:
    """``schema.table`` or ``table``; a name that holds a dot itself needs a manifest."""
    parts = name.split(".")
    if len(parts) > 2 or not all(parts):
        raise XminError(
            "DPONE_MANIFEST_INVALID",
            f"`{parameter}` is written as schema.table or table.",
            hint="Use a manifest for names that contain a dot.",
            details={"parameter": parameter},
        )
    return (parts[0], parts[1]) if len(parts) == 2 else (default, parts[0])
