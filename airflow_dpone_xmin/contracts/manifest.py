"""The manifest: one closed model of what an author may say about a route.

A field here is honoured. Fields of dpone manifests that are refused or have no effect are rows of ``contracts/verdicts.py``; everything
else is unknown and refused. Imports the standard library, pydantic and contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationError, field_validator, model_validator

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.manifest_columns import (
    Closed,
    Identifier,
    PgIdentifier,
    PhysicalDesign,
    SchemaContract,
    SchemaEvolution,
    TableIdentifier,
)
from airflow_dpone_xmin.contracts.verdicts import judge, strip_noticed


class XminExecution(Closed):
    """Which half of a handoff this process is."""

    mode: Literal["initial", "incremental"]
    handoff_id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:-]+$")]


class SourceOptions(Closed):
    """Options of the extraction."""

    incremental_strategy: Literal["xmin"] = "xmin"
    xmin_execution: XminExecution | None = None
    xmin_window: Literal["exact", "strict"] = "exact"
    xmin_max_replay_amplification_xids: Annotated[int, Field(gt=0)] | None = None
    lock_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    deadline_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 6 * 3600.0


class PgTable(Closed):
    """A PostgreSQL relation as authored."""

    schema_name: PgIdentifier = Field(alias="schema", default="public")
    name: PgIdentifier


class Source(Closed):
    """Where rows come from."""

    type: Literal["postgres"] = "postgres"
    connection: Identifier = Field(validation_alias=AliasChoices("connection_id", "connection_ref"))
    table: PgTable | None = None
    options: SourceOptions = SourceOptions()


class SinkTable(Closed):
    """A target table as authored; database and schema default to the registry's."""

    database: Identifier | None = None
    schema_name: Identifier | None = Field(alias="schema", default=None)
    name: TableIdentifier | None = None


class Chunk(Closed):
    """How a campaign cuts the source: integer range, uuid buckets, or computed ordered boundaries."""

    column: PgIdentifier
    kind: Literal["integer", "uuid", "ordered"] = "integer"
    from_: int | None = Field(alias="from", default=None)
    to: int | None = None
    step: Annotated[int, Field(gt=0)] | None = None
    buckets: Annotated[int, Field(gt=0, le=65536)] | None = None

    @model_validator(mode="after")
    def _kind_has_its_bounds(self) -> Chunk:
        bounds = (self.from_, self.to, self.step)
        if self.kind == "integer":
            if any(bound is None for bound in bounds) or self.buckets is not None or not (self.from_ or 0) <= (self.to or 0):
                raise ValueError("an integer chunk has from <= to and step, and no buckets")
        elif self.buckets is None or any(bound is not None for bound in bounds):
            raise ValueError("a uuid or ordered chunk has buckets, and no from, to or step")
        return self


class BackfillState(Closed):
    """Where the campaign ledger lives."""

    backend: Literal["audit_schema"] = "audit_schema"
    schema_name: Identifier | None = Field(alias="schema", default=None)
    require_distributed_lock: Literal[True] = True


class Publication(Closed):
    """How a campaign becomes visible."""

    mode: Literal["shadow_swap", "in_place"] = "in_place"


class Backfill(Closed):
    """An initial campaign."""

    inner_mode: Literal["incremental_append", "incremental_merge"]
    parallel_workers: Annotated[int, Field(gt=0, le=64)] = 4
    retry_policy: Literal["non_committed"] = "non_committed"
    state: BackfillState = BackfillState()
    chunk: Chunk
    publication: Publication = Publication()

    @model_validator(mode="after")
    def _publication_fits(self) -> Backfill:
        if (self.inner_mode == "incremental_append") is not (self.publication.mode == "shadow_swap"):
            raise ValueError("incremental_append goes with publication.mode shadow_swap, incremental_merge with in_place")
        return self


class Strategy(Closed):
    """How rows become visible in the target."""

    mode: Literal["incremental_merge", "backfill"] = "incremental_merge"
    unique_key: tuple[PgIdentifier, ...] = ()
    duplicate_policy: Literal["fail"] = "fail"
    backfill: Backfill | None = None

    @field_validator("unique_key", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _backfill_block(self) -> Strategy:
        if (self.mode == "backfill") is not (self.backfill is not None):
            raise ValueError("mode `backfill` and the `backfill` block go together")
        if len(set(self.unique_key)) != len(self.unique_key):
            raise ValueError("unique_key repeats a column")
        return self


class Staging(Closed):
    """Where staging tables are created; defaults to the registry's."""

    database: Identifier | None = None
    schema_name: Identifier | None = Field(alias="schema", default=None)


class SinkOptions(Closed):
    """Options of the target side."""

    staging: Staging = Staging()
    lock_timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 300.0


class Sink(Closed):
    """Where rows go. ``embedded`` is PostgreSQL standing in for SQL Server."""

    type: Literal["mssql", "embedded"] = "mssql"
    connection: Identifier = Field(validation_alias=AliasChoices("connection_id", "connection_ref"))
    table: SinkTable = SinkTable()
    strategy: Strategy = Strategy()
    options: SinkOptions = SinkOptions()


class EmptySnapshot(Closed):
    """What an empty source means; without an authority it always stops."""

    policy: Literal["fail"] = "fail"


class Guards(Closed):
    """Limits on deletes; either may be absent. The ratio is exact decimal."""

    max_delete_ratio: Annotated[Decimal, Field(ge=0, le=1, max_digits=18, decimal_places=15)] | None = None
    max_delete_rows: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @field_validator("max_delete_ratio", mode="before")
    @classmethod
    def _exact(cls, value: Any) -> Any:
        # YAML gives a binary float; its shortest decimal spelling is what the author wrote.
        return str(value) if isinstance(value, float) else value


class Reconciliation(Closed):
    """Deletes by key snapshot. Without this block nothing is ever deleted."""

    enabled: bool = True
    mode: Literal["key_snapshot"] = "key_snapshot"
    cadence: Literal["every_run"] = "every_run"
    consistency: Literal["same_source_snapshot"] = "same_source_snapshot"
    delete_policy: Literal["soft_delete", "hard_delete"] = "soft_delete"
    delete_mode: Literal["timestamp_only", "timestamp_and_flag", "flag_only"] | None = None
    empty_snapshot: EmptySnapshot = EmptySnapshot()
    guards: Guards = Guards(max_delete_ratio=Decimal("0.05"), max_delete_rows=100_000)

    @model_validator(mode="after")
    def _mode_belongs_to_soft(self) -> Reconciliation:
        if self.delete_policy == "hard_delete" and self.delete_mode is not None:
            raise ValueError("delete_mode belongs to soft_delete")
        return self


class StateTable(Closed):
    """The name of one catalog table."""

    name: TableIdentifier


class RunTable(Closed):
    """The run-state table; ``run_name`` is the deprecated spelling of ``name``."""

    name: TableIdentifier | None = None
    run_name: TableIdentifier | None = None

    @model_validator(mode="after")
    def _one_spelling(self) -> RunTable:
        if self.name is not None and self.run_name is not None:
            raise ValueError("run_name is a deprecated alias of name and cannot be combined with it")
        return self


class State(Closed):
    """Where checkpoints and receipts live: always in the target's own transaction."""

    type: Literal["mssql", "embedded"] = "mssql"
    connection: Identifier | None = Field(default=None, validation_alias=AliasChoices("connection_id", "connection_ref"))
    atomicity: Literal["target_atomic"] = "target_atomic"
    provisioning: Literal["external"] = "external"
    database: Identifier | None = None
    schema_name: Identifier | None = Field(alias="schema", default=None)
    table: StateTable = StateTable(name="dpone_source_state")
    run_table: RunTable = RunTable(name="dpone_run_state")
    receipt_table: StateTable = StateTable(name="dpone_commit_receipt")
    repair_authority_table: StateTable = StateTable(name="dpone_repair_authority")
    repair_consumption_table: StateTable = StateTable(name="dpone_repair_authority_consumption")
    audit_table: StateTable = StateTable(name="dpone_load_audit")


class Tolerance(Closed):
    """Accepted difference of a row-count gate; exact parity is stricter than any."""

    mode: Literal["pct", "abs"]
    value: Annotated[float, Field(ge=0)]


class Gate(Closed):
    """One durable quality gate, judged inside the target transaction."""

    id: Identifier
    type: Literal["row_count_reconciliation", "min_rows"]
    severity: Literal["error"] = "error"
    side: Literal["target"] = "target"
    threshold: Annotated[int, Field(ge=0)] | None = None
    tolerance: Tolerance | None = None

    @model_validator(mode="after")
    def _fields_fit(self) -> Gate:
        if (self.type == "min_rows") is not (self.threshold is not None):
            raise ValueError("threshold belongs to min_rows")
        return self


class Quality(Closed):
    """Quality gates."""

    gates: tuple[Gate, ...] = ()


class Storage(Closed):
    """The work directory."""

    work_dir: str | None = None
    min_free_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024


class Runtime(Closed):
    """Where and how the run works."""

    storage: Storage = Storage()


class TableEntry(Closed):
    """One table of a manifest that names many; what it says itself stands in place of the manifest's own block."""

    name: PgIdentifier
    target: SinkTable | None = None
    unique_key: tuple[PgIdentifier, ...] | None = None
    schema_contract: SchemaContract | None = None
    physical_design: PhysicalDesign | None = None


class SchemaTables(Closed):
    """The tables of one source schema."""

    tables: tuple[TableEntry, ...] = Field(min_length=1)

    @field_validator("tables", mode="before")
    @classmethod
    def _bare_names(cls, value: Any) -> Any:
        return [{"name": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


class Manifest(Closed):
    """A whole manifest, after ``defaults`` were merged under its own fields."""

    kind: Literal["dpone.batch.v1"] = "dpone.batch.v1"
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.:/-]+$")] | None = None
    source: Source
    sink: Sink
    reconciliation: Reconciliation | None = None
    state: State = State()
    quality: Quality = Quality()
    schema_contract: SchemaContract = SchemaContract()
    schema_evolution: SchemaEvolution = SchemaEvolution()
    physical_design: PhysicalDesign = PhysicalDesign()
    runtime: Runtime = Runtime()
    schemas: dict[PgIdentifier, SchemaTables] | None = None
    notices: tuple[str, ...] = Field(default=(), exclude=True)

    @field_validator("reconciliation", mode="before")
    @classmethod
    def _false_is_absent(cls, value: Any) -> Any:
        return None if value is False else value


def parse_manifest(document: object) -> Manifest:
    """Judge, merge and validate one manifest document.

    :param document: the parsed YAML or JSON mapping, or an operator's dict.
    :raises XminError: a verdict's own code, ``DPONE_MANIFEST_UNKNOWN_FIELD`` or ``DPONE_MANIFEST_INVALID``; messages name the path,
        never the value.
    """
    if not isinstance(document, Mapping):
        raise XminError("DPONE_MANIFEST_INVALID", "A manifest is a mapping at its top level.")
    defaults = document.get("defaults", {})
    if not isinstance(defaults, Mapping):
        raise XminError("DPONE_MANIFEST_INVALID", "`defaults` is a mapping.", details={"path": "defaults"})
    if "notices" in document:
        raise XminError("DPONE_MANIFEST_UNKNOWN_FIELD", "`notices` is not a manifest field.", details={"path": "notices"})
    merged = _merge(defaults, {key: value for key, value in document.items() if key != "defaults"})
    notices = judge(merged)
    if isinstance(merged.get("state"), Mapping) and "run_name" in (merged["state"].get("run_table") or {}):
        notices.append("`state.run_table.run_name` is deprecated; write `name`.")
    try:
        return Manifest.model_validate({**strip_noticed(merged), "notices": tuple(notices)})
    except ValidationError as error:
        raise _manifest_error(error) from None


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _manifest_error(error: ValidationError) -> XminError:
    """All that is wrong, with the code of the first."""
    faults = error.errors(include_url=False, include_input=False)[:20]
    paths = [".".join(str(part) for part in fault["loc"]) for fault in faults]
    new = [fault["type"] == "extra_forbidden" for fault in faults]
    words = [f"`{path}` is not a manifest field" if new[n] else f"`{path}`: {faults[n]['msg']}" for n, path in enumerate(paths)]
    code = "DPONE_MANIFEST_UNKNOWN_FIELD" if new[0] else "DPONE_MANIFEST_INVALID"
    return XminError(code, "; ".join(words) + ".", details={"path": paths[0], "paths": paths})
