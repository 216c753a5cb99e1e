"""JSON Schemas of every document that the product prints or writes, built from the code's own names; ``docs/generate.py`` writes them.

Every object is closed and every property required, so that a document with one field more or less does not pass; the tests validate real
outputs.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from airflow_dpone_xmin.contracts.campaign import CampaignState
from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import CODES
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import DeleteMode
from airflow_dpone_xmin.contracts.state import ActionCounts
from airflow_dpone_xmin.runtime.check import Finding
from airflow_dpone_xmin.target.catalog import DIGEST_COLUMNS

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**63}
INDEX: Schema = {"type": "integer", "minimum": -1}
SECONDS: Schema = {"type": "number", "minimum": 0}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
UUID: Schema = {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
UTC: Schema = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(\+00:00)?$"}
CODE: Schema = {"enum": list(CODES)}
SNAPSHOT: Schema = {"type": "string", "pattern": "^[0-9]+:[0-9]+:[0-9,]*$"}
VERSION: Schema = {"const": 1}
ENGINE: Schema = {"enum": ["mssql", "embedded"]}
DELETES: Schema = {"enum": [mode.value for mode in DeleteMode]}
PAYLOAD: Schema = {"enum": [payload.value for payload in Payload]}


def closed(optional: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object with exactly these properties.

    :param optional: those that may be absent.
    """
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def many(items: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": items}


def maybe(schema: Schema) -> Schema:
    """Or null."""
    return {"anyOf": [schema, {"type": "null"}]}


ERROR = closed(code=CODE, message=TEXT, hint=TEXT, details={"type": "object"}, retryable=FLAG)
COUNTS = closed(**dict.fromkeys(ActionCounts.__slots__, COUNT))
PHASE = closed(event=TEXT, rows=COUNT, bytes=COUNT, seconds=SECONDS, rows_per_second=COUNT)

RECEIPT = closed(
    receipt_id=UUID,
    kind={"enum": ["reconcile", "seed"]},
    process=TEXT,
    run_id=TEXT,
    map_index=INDEX,
    load_id=UUID,
    invocation_digest=DIGEST,
    state_key=DIGEST,
    target_identity=DIGEST,
    route_fingerprint=DIGEST,
    payload=PAYLOAD,
    payload_reason=TEXT,
    checkpoint=closed(
        previous_xmin=maybe(COUNT),
        previous_revision=maybe(COUNT),
        xmin=COUNT,
        revision=COUNT,
        visible_horizon=COUNT,
        replay_amplification_xids=COUNT,
        snapshot=SNAPSHOT,
    ),
    counts=COUNTS,
    detected_at_utc=UTC,
    repair_authority=maybe(closed(id=TEXT, digest=DIGEST)),
    digests=closed(("keys_artifact_sha256",), **dict.fromkeys(DIGEST_COLUMNS, DIGEST)),
)
COMMITTED = closed(
    v=VERSION,
    status={"enum": ["committed", "replayed", "committed_cleanup_failed"]},
    engine=ENGINE,
    environment=TEXT,
    source=closed(entry=TEXT, database=TEXT, relation=TEXT),
    target=TEXT,
    delete_mode=DELETES,
    attempt={"type": "integer", "minimum": 1},
    receipt=RECEIPT,
    phases=many(PHASE),
    cleanup_error=maybe(ERROR),
    notices=many(TEXT),
)
REFUSED = closed(v=VERSION, status={"enum": ["refused", "unknown"]}, engine=ENGINE, environment=TEXT, target=TEXT, error=ERROR)
DRY_RUN = closed(
    v=VERSION,
    status={"const": "dry_run"},
    target=TEXT,
    payload=PAYLOAD,
    payload_reason=TEXT,
    repair_authority=maybe(closed(id=TEXT, digest=DIGEST)),
    classification=closed(
        keys=COUNT, active_before=COUNT, would_insert=COUNT, would_reactivate=COUNT, would_delete=COUNT, tombstones_kept=COUNT
    ),
    refusal=maybe(ERROR),
)
PLAN = closed(
    ("columns", "payload", "sql"),
    process=TEXT,
    engine=ENGINE,
    source=TEXT,
    target=TEXT,
    staging=TEXT,
    state=TEXT,
    unique_key=many(TEXT),
    delete_mode=DELETES,
    guards=closed(max_delete_rows=maybe(COUNT), max_delete_ratio=maybe(TEXT)),
    phases=many(TEXT),
    transport_contract={"type": "object"},
    notices=many(TEXT),
    ready=FLAG,
    problems=many(closed(code=CODE, subject=TEXT)),
    columns=many(closed(name=TEXT, source_type=TEXT, target_type=TEXT, nullable=FLAG, key=FLAG)),
    payload=closed(kind=PAYLOAD, reason=TEXT),
    sql={"type": "object", "additionalProperties": TEXT},
)
_FINDING = TypeAdapter(Finding).json_schema()["properties"]
CHECK = closed(
    ok=FLAG,
    connections=FLAG,
    routes=many(closed(process=TEXT, ok=FLAG, findings=many(closed(**_FINDING)))),
)
CAMPAIGN = closed(
    v=VERSION,
    campaign=DIGEST,
    handoff_id=TEXT,
    status={"enum": [state.value for state in CampaignState]},
    target=TEXT,
    publication={"enum": ["shadow_swap", "in_place"]},
    shadow=maybe(TEXT),
    backup=maybe(TEXT),
    opened_at_utc=UTC,
    anchor=closed(anchor_xmin=COUNT, anchor_visible_horizon=COUNT),
    progress=closed(chunks=COUNT, committed=COUNT, rows=COUNT, rows_per_second=COUNT, remaining_seconds=maybe(SECONDS)),
    lanes=many(closed(owner=TEXT, chunk=COUNT, since=UTC)),
)
STATE = closed(
    process=TEXT,
    target=TEXT,
    state_key=DIGEST,
    scope_hash=DIGEST,
    target_identity=DIGEST,
    active_owner=maybe(DIGEST),
    head_agrees=FLAG,
    checkpoint=maybe(closed(xmin=COUNT, revision=COUNT, load_id=UUID)),
    head=maybe(closed(state_key=DIGEST, revision=COUNT, load_id=UUID)),
)
APPROVAL = {**RepairAuthority.model_json_schema()}
APPROVAL_DEFINITIONS = APPROVAL.pop("$defs")
ATTEMPTS = many(
    closed(
        run_id=TEXT,
        map_index=INDEX,
        load_id=UUID,
        outcome={"enum": ["committed", "refused", "unknown"]},
        error_code=maybe(CODE),
        receipt_id=maybe(UUID),
        recorded_at_utc=UTC,
        evidence={"oneOf": [COMMITTED, REFUSED]},
    )
)
CONSUMED = closed(v=VERSION, approval=APPROVAL, digest=DIGEST, envelope=maybe(TEXT), consumed_at_utc=UTC, receipt_id=UUID)
CAMPAIGN_RECEIPTS = closed(
    v=VERSION,
    campaign=DIGEST,
    handoff_id=TEXT,
    status={"const": CampaignState.PUBLISHED.value},
    publication={"enum": ["shadow_swap", "in_place"]},
    opened_at_utc=UTC,
    anchor=closed(anchor_xmin=COUNT, anchor_visible_horizon=COUNT, snapshot=SNAPSHOT),
    chunks=many(closed(chunk=COUNT, receipt_id=UUID, rows=COUNT, artifact_sha256=DIGEST)),
)
BUNDLE = closed(
    v=VERSION,
    kind={"const": "dpone.evidence_bundle.v1"},
    product=TEXT,
    exported_at_utc=UTC,
    environment=TEXT,
    process=TEXT,
    source=TEXT,
    target=TEXT,
    state_key=DIGEST,
    run=maybe(closed(run_id=TEXT, map_index=INDEX)),
    receipts={"type": "integer", "minimum": 1},
    first_revision=COUNT,
    last_revision=COUNT,
    unrecorded_revisions=many(COUNT),
    files=many(closed(path=TEXT, schema={"type": "string", "pattern": r"^[a-z_]+\.schema\.json$"}, bytes=COUNT, sha256=DIGEST)),
)

VERDICT: Schema = {"enum": ["passed", "failed", "not_run"]}
COVERAGE: Schema = {"enum": ["complete", "sampled", "not_run"]}
FAULT: Schema = {"enum": ["raised", "session", "process", "lost_ack"]}
LEG = closed(
    leg={"enum": ["lifecycle", "concurrency", "source_mutation", "permission_denial", "fault_matrix"]},
    verdict=VERDICT,
    coverage=COVERAGE,
    cases=closed(passed=COUNT, failed=COUNT, skipped=COUNT),
    states_tried=COUNT,
    divergent_states=COUNT,
    states=many(
        closed(scenario=TEXT, kind={"enum": ["raised", "session", "process", "lost_ack"]}, found=COUNT, tried=COUNT, divergent=COUNT)
    ),
)
CERTIFICATION = closed(
    v=VERSION,
    kind={"const": "dpone.live_certification.v1"},
    route={"const": "postgres_mssql_xmin_reconciliation"},
    product=TEXT,
    commit=maybe({"type": "string", "pattern": "^[0-9a-f]{40}(-dirty)?$"}),
    python=TEXT,
    started_at_utc=UTC,
    seconds=SECONDS,
    status={"enum": ["passed", "passed_partial", "failed", "not_run"]},
    release_ready=FLAG,
    engines={
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": closed(
            engine=ENGINE,
            flavour=maybe({"enum": ["embedded", "sql_server", "babelfish", "unknown"]}),
            versions=closed(("source", "target"), source=TEXT, target=TEXT),
            coverage=COVERAGE,
            verdict=VERDICT,
            legs={"type": "array", "minItems": 5, "maxItems": 5, "items": LEG},
        ),
    },
)

DOCUMENTS: dict[str, tuple[str, Schema]] = {
    "evidence": ("A run: `run --format json`, with a dry run and a refusal as they are kept.", {"oneOf": [COMMITTED, REFUSED, DRY_RUN]}),
    "receipt": ("The immutable proof of one commit.", RECEIPT),
    "plan": ("`plan --format json`.", PLAN),
    "check": ("`check --format json`.", CHECK),
    "campaign": ("`campaign status --format json`.", CAMPAIGN),
    "approval": ("The document of `repair propose`, which `repair approve` signs and inserts.", APPROVAL),
    "state": ("`state show --format json`.", STATE),
    "error": ("What `--format json` prints of every command that fails.", closed(error=ERROR)),
    "bundle": ("`index.json` of an evidence bundle.", BUNDLE),
    "attempts": ("`attempts.json` of a bundle: how every attempt ended.", ATTEMPTS),
    "consumed_approval": ("`approvals/<id>.json` of a bundle: an approval with the receipt that consumed it.", CONSUMED),
    "certification": ("What `make certify` writes: which engine proved which leg.", CERTIFICATION),
    "campaign_receipts": ("`campaign.json` of a bundle: the receipts of an initial load's chunks.", CAMPAIGN_RECEIPTS),
}
"""Name → what it describes, and its schema."""


def schema_document(name: str) -> Schema:
    """One published schema."""
    title, body = DOCUMENTS[name]
    definitions = {"$defs": APPROVAL_DEFINITIONS} if name in ("approval", "consumed_approval") else {}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:dpone-xmin:{name}:1", "title": title}
    return {**head, **{key: value for key, value in body.items() if key != "title"}, **definitions}
