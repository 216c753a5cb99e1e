"""The verdict on manifest fields that are not simply honoured: refused by code, or accepted with a notice.

Every field of a dpone manifest is either a field of ``contracts/manifest.py`` (honoured) or a row here. A field that is in neither place is
unknown, and refused as such. Imports the standard library and contracts only.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens when a manifest holds a field.

    :param path: dotted path with shell wildcards, written without the ``defaults.`` prefix.
    :param code: error code that refuses it; None accepts it with the notice.
    :param reason: why, in one sentence.
    :param values: only these values are meant; empty means any value.
    """

    path: str
    code: str | None
    reason: str
    values: tuple[Any, ...] = ()

    def matches(self, path: str, value: object) -> bool:
        """Whether this row speaks about *path* holding *value*."""
        if not fnmatch.fnmatchcase(path, self.path):
            return False
        return not self.values or any(value is v or (type(value) is type(v) and value == v) for v in self.values)


_CURSOR = "DPONE_COLUMN_CURSOR_UNSUPPORTED"
_HOOK = "mssql_transaction.hook_exactly_once_capability_required"
_OPTION = "DPONE_OPTION_UNSUPPORTED"
_RAW = "DPONE_RAW_PREDICATE_UNSUPPORTED"
_REPAIR = "DPONE_REPAIR_AUTHORITY_IN_MANIFEST"
_STRATEGY = "DPONE_STRATEGY_UNSUPPORTED"

REFUSED: tuple[Verdict, ...] = (
    Verdict("source.options.incremental_strategy", _CURSOR, "a column cursor loses rows", ("column", "column_cursor", "cursor")),
    Verdict("source.options.incremental_column", _CURSOR, "a column cursor loses rows"),
    Verdict("source.options.cursor_column", _CURSOR, "a column cursor loses rows"),
    Verdict("source.options.column_cursor", _CURSOR, "a column cursor loses rows"),
    Verdict("source.incremental_column", _CURSOR, "a column cursor loses rows"),
    Verdict("source.column_cursor", _CURSOR, "a column cursor loses rows"),
    Verdict("sink.strategy.incremental_column", _CURSOR, "a column cursor loses rows"),
    Verdict("sink.strategy.column_cursor", _CURSOR, "a column cursor loses rows"),
    Verdict("incremental_column", _CURSOR, "a column cursor loses rows"),
    Verdict("source.options.partitioning", "DPONE_SOURCE_PARTITIONING_UNSUPPORTED", "independent exports have no common snapshot"),
    Verdict("source.partitioning", "DPONE_SOURCE_PARTITIONING_UNSUPPORTED", "independent exports have no common snapshot"),
    Verdict("source.options.cdc*", "DPONE_CDC_UNSUPPORTED", "logical replication is another route"),
    Verdict("source.custom_predicate", _RAW, "raw SQL has no proven meaning on both sides"),
    Verdict("source.options.custom_predicate", _RAW, "raw SQL has no proven meaning on both sides"),
    Verdict("source.where", _RAW, "raw SQL has no proven meaning on both sides"),
    Verdict("source.options.where", _RAW, "raw SQL has no proven meaning on both sides"),
    Verdict("source.query", _RAW, "raw SQL has no proven meaning on both sides"),
    Verdict("source.options.query", _RAW, "raw SQL has no proven meaning on both sides"),
    Verdict("sink.strategy.custom_predicate", _RAW, "raw SQL has no proven meaning on both sides"),
    Verdict("sink.strategy.portable_scope", "DPONE_SCOPE_UNSUPPORTED", "the XMin route copies the whole relation"),
    Verdict("*pre_hook", _HOOK, "an inline hook cannot be replayed exactly"),
    Verdict("*post_hook", _HOOK, "an inline hook cannot be replayed exactly"),
    Verdict("*pre_hooks", _HOOK, "an inline hook cannot be replayed exactly"),
    Verdict("*post_hooks", _HOOK, "an inline hook cannot be replayed exactly"),
    Verdict("hooks", _HOOK, "an inline hook cannot be replayed exactly"),
    Verdict("reconciliation", "DPONE_RECONCILIATION_LEGACY", "the boolean names an older contract", (True,)),
    Verdict("reconciliation.mode", "DPONE_RECONCILIATION_LEGACY", "`snapshot` has no common source snapshot", ("snapshot",)),
    Verdict("reconciliation.allow*", _REPAIR, "only the environment's owner approves"),
    Verdict("*repair_authority", _REPAIR, "only the environment's owner approves"),
    Verdict("*repair_authority_ref", _REPAIR, "only the environment's owner approves"),
    Verdict("*allow_full_baseline", _REPAIR, "only the environment's owner approves"),
    Verdict("state.type", "DPONE_STATE_INVALID", "state lives in the target's server", ("file", "s3", "postgres", "airflow")),
    Verdict("state.key", "DPONE_LEGACY_STATE", "a state key is derived, never authored"),
    Verdict("state.adopt_legacy", "DPONE_LEGACY_STATE", "legacy state is never adopted"),
    Verdict(
        "sink.strategy.mode",
        _STRATEGY,
        "not a strategy of this route",
        ("full_refresh", "incremental_append", "replace", "partition_replace", "snapshot_diff", "scd2", "cdc_apply"),
    ),
    Verdict("sink.strategy.partition*", _STRATEGY, "partition replacement is another strategy"),
    Verdict("sink.strategy.duplicate_policy", _OPTION, "duplicate keys always fail", ("ignore", "keep_first", "keep_last", "deduplicate")),
    Verdict("schema_evolution.on_dropped_column", _OPTION, "a run never drops a column of the target", ("drop",)),
    Verdict("schema_evolution.on_type_change", _OPTION, "an incompatible type stops; no second column takes its values"),
    Verdict("schema_evolution.renames", _OPTION, "a rename is done by the target's owner, never guessed or replayed"),
    Verdict("sink.options.deletes*", _OPTION, "deletes are declared under `reconciliation`"),
    Verdict("*allow_unsafe_raw_mssql_bulk_files", _OPTION, "NULL and '' would become one value"),
    Verdict("source.options.compress_export", _OPTION, "artifacts have one format", (True,)),
    Verdict("state.provisioning", "DPONE_STATE_INVALID", "runtime has no DDL right on the catalog", ("runtime", "auto", "managed")),
)

NOTICED: tuple[Verdict, ...] = (
    Verdict("source.options.export_format", None, "artifacts are always Arrow IPC; the export format has no effect"),
    Verdict("source.options.compress_export", None, "artifacts are always Arrow IPC; compression is chosen by the product", (False,)),
    Verdict("source.options.batch_size", None, "batches are sized in bytes by the driver; the row count has no effect"),
    Verdict("sink.options.bulk", None, "rows are bulk-loaded from Arrow; bcp settings have no effect"),
    Verdict("sink.strategy.merge_policy", None, "the finalizer updates, inserts and deletes in place; readers never see a gap"),
    Verdict("sink.strategy.backfill.lease_ttl_minutes", None, "leases are fixed at 90 seconds, renewed every 30"),
    Verdict("runtime.storage.max_spool_bytes", None, "the free-space floor bounds the work directory; the cap has no effect"),
)


def judge(document: Mapping[str, Any]) -> list[str]:
    """Refuse what is refused; return the notices, sorted.

    :param document: the manifest after ``defaults`` were merged.
    :raises XminError: with the first refusing row's code.
    """
    notices: set[str] = set()
    for path, value in _walk(document, ""):
        for row in REFUSED:
            if row.matches(path, value):
                raise XminError(row.code or "", f"`{path}` is refused: {row.reason}.", details={"path": path})
        for row in NOTICED:
            if row.matches(path, value):
                notices.add(f"`{path}`: {row.reason}.")
    return sorted(notices)


def strip_noticed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without the fields that have no effect, so that the closed models need not know them."""
    return _strip(document, "")


def _strip(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in node.items():
        path = f"{prefix}{key}"
        if any(row.matches(path, value) for row in NOTICED):
            continue
        kept[str(key)] = _strip(value, f"{path}.") if isinstance(value, Mapping) else value
    return kept


def _walk(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        yield path, value
        if isinstance(value, Mapping):
            yield from _walk(value, f"{path}.")
