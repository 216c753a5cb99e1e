"""The one table of error codes: stable, because users write alerts and runbooks against them.

``area.reason`` is raised at run time, ``DPONE_…`` by static checks; the docs page is generated from :data:`CODES`. Imports the standard
library and the campaign's codes.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_dpone_xmin.contracts.campaign_codes import CAMPAIGN_CODES


class ErrorSpec(NamedTuple):
    """What a code means.

    :param meaning: one sentence for the reference page.
    :param hint: what the reader should do; the default hint of every error with this code.
    :param retryable: whether the same invocation may simply be tried again.
    """

    meaning: str
    hint: str
    retryable: bool = False


_REVIEW = "Review the change, rotate the signed registry entry and start a new invocation; runtime never learns a pin."
_MANIFEST = "Correct the named fields; the manifest reference has every field that is accepted."
_FULL = "Approve a full baseline with a repair authority, or investigate what changed the target."

CODES: dict[str, ErrorSpec] = {
    # ---- manifest, static -------------------------------------------------------------------------------------------------
    "DPONE_MANIFEST_UNREADABLE": ErrorSpec("The manifest file cannot be read.", "Check the path and its permissions."),
    "DPONE_MANIFEST_SYNTAX": ErrorSpec("The manifest is not valid YAML, or repeats a key.", "Correct the named line."),
    "DPONE_MANIFEST_INVALID": ErrorSpec("A manifest field has a wrong type or value.", _MANIFEST),
    "DPONE_MANIFEST_UNKNOWN_FIELD": ErrorSpec("The manifest has a field that no version of this product knows.", _MANIFEST),
    "DPONE_MANIFEST_NAME_REQUIRED": ErrorSpec(
        "The manifest has no `name`; a checkpoint cannot be tied to a process.", "Add a stable `name: …` to the manifest."
    ),
    "DPONE_MANIFEST_ROUTE_AMBIGUOUS": ErrorSpec(
        "The manifest does not describe exactly one route, or two of its routes share a target.",
        "Name one table with --table, or give every table its own target.",
    ),
    "DPONE_COLUMN_CURSOR_UNSUPPORTED": ErrorSpec(
        "A column cursor loses rows: equal, late or out-of-order values fall behind the maximum.",
        "Remove it and use `source.options.incremental_strategy: xmin`.",
    ),
    "DPONE_SOURCE_PARTITIONING_UNSUPPORTED": ErrorSpec(
        "Independent range exports have no common snapshot.",
        "Remove `source.options.partitioning`; partitioned tables themselves are supported.",
    ),
    "DPONE_RAW_PREDICATE_UNSUPPORTED": ErrorSpec(
        "A raw predicate has no proven meaning on both databases.", "Remove the predicate; the route copies the whole relation."
    ),
    "DPONE_SCOPE_UNSUPPORTED": ErrorSpec("A portable scope is not supported on the XMin route.", "Remove `portable_scope`."),
    "mssql_transaction.hook_exactly_once_capability_required": ErrorSpec(
        "Inline hooks cannot be replayed exactly after a crash.", "Move the statement to a task of its own before or after the run."
    ),
    "DPONE_RECONCILIATION_LEGACY": ErrorSpec(
        "`reconciliation: true` and `mode: snapshot` name an older contract without a common source snapshot.",
        "Write `reconciliation: {enabled: true, mode: key_snapshot, …}`, or remove it to never delete.",
    ),
    "DPONE_REPAIR_AUTHORITY_IN_MANIFEST": ErrorSpec(
        "A manifest cannot approve an exceptional run.", "Pass --repair-authority-ref at run time; the environment's owner provisions it."
    ),
    "DPONE_STRATEGY_UNSUPPORTED": ErrorSpec(
        "The load strategy is not one of this route's.", "Use `incremental_merge`, or `backfill` for an initial campaign."
    ),
    "DPONE_OPTION_UNSUPPORTED": ErrorSpec("A recognised option would weaken or change the contract of this route.", _MANIFEST),
    "DPONE_CDC_UNSUPPORTED": ErrorSpec("Logical replication is another route.", "Remove the `cdc` block."),
    "DPONE_STATE_INVALID": ErrorSpec(
        "The state block does not describe target-atomic state on the target's own server.",
        "Use `state: {type: mssql, atomicity: target_atomic, …}` on the connection of the target's server.",
    ),
    "DPONE_STAGING_SHARED": ErrorSpec(
        "Staging tables would be created in a schema of the catalog: the right to do so is a right to alter what must never change.",
        "Give staging a schema of its own: `staging` of the sink's registry entry, or `sink.options.staging`.",
    ),
    "DPONE_LEGACY_STATE": ErrorSpec(
        "State keyed by source schema and table was found or asked for; it is never adopted.",
        "Start a new process with a full baseline, or migrate the row explicitly.",
    ),
    "DPONE_KEY_INVALID": ErrorSpec(
        "The unique key is missing, repeated, nullable, unknown at the source, too wide or of a type that cannot be a key.",
        "Name non-null source columns within 900 bytes: smallint, integer, bigint, date, timestamp, uuid, varchar(n), or text with an "
        "override nvarchar(n).",
    ),
    "DPONE_TYPE_UNSUPPORTED": ErrorSpec(
        "A source column has a type that this route does not carry losslessly.",
        "Authorise canonical text with `schema_contract.columns.<name>.type: string` if the type allows it, or drop the column from the source table.",
    ),
    "DPONE_TYPE_LOSSY": ErrorSpec("A target type override would lose values.", "Widen the override or remove it."),
    "DPONE_COLUMN_RESERVED": ErrorSpec("A source column uses a reserved `__dpone__` name.", "Rename the source column."),
    "DPONE_COLUMN_AMBIGUOUS": ErrorSpec(
        "Two source columns have names that a collation of SQL Server may call equal: by case, accent, width or trailing space.",
        "Rename one of the columns.",
    ),
    "DPONE_RELATION_UNSUPPORTED": ErrorSpec(
        "The source relation is not a plain, permanent heap table or a partitioned table of such.",
        "Use an ordinary table: views, foreign, unlogged, temporary and inheritance tables cannot prove what changed.",
    ),
    "DPONE_TARGET_UNSUPPORTED": ErrorSpec(
        "The target table does not have the shape this route writes.",
        "Compare it with `dpone-xmin ddl render --manifest …`; how a route goes on after a change is in the reference, Schema evolution.",
    ),
    "DPONE_SCHEMA_EVOLUTION_REQUIRED": ErrorSpec(
        "The source has changed safely, but the runtime login may not change the target table accordingly.",
        "Run the DDL of the details as the target's owner, or grant the runtime login ALTER on the table; then run again.",
    ),
    "DPONE_REGISTRY_CONNECTION_UNKNOWN": ErrorSpec(
        "The manifest names a connection that the signed registry does not hold.", "Name an entry of the registry or have it added."
    ),
    "DPONE_CONNECTION_UNRESOLVED": ErrorSpec(
        "No credentials were found for a connection.",
        "Set DPONE_CONN_<NAME> to its URL, or create the Airflow connection of that name.",
    ),
    "DPONE_POSTGRES_SOURCE_AUTHORITY_REQUIRED": ErrorSpec(
        "The registry pins no source authority for this connection and relation.", "Discover, review and sign the pins."
    ),
    "DPONE_POSTGRES_SOURCE_AUTHORITY_INVALID": ErrorSpec(
        "The source authority document is not closed and complete.", "Correct the registry document and sign it again."
    ),
    "DPONE_POSTGRES_SOURCE_DATABASE_AUTHORITY_MISMATCH": ErrorSpec(
        "The connection's database is not the database of its signed source authority.", "Use one database name in both places."
    ),
    "DPONE_MSSQL_TARGET_DATABASE_AUTHORITY_REQUIRED": ErrorSpec("The registry pins no authority for the target database.", _REVIEW),
    "DPONE_MSSQL_STAGING_DATABASE_AUTHORITY_REQUIRED": ErrorSpec("The registry pins no authority for the staging database.", _REVIEW),
    "DPONE_MSSQL_STATE_DATABASE_AUTHORITY_REQUIRED": ErrorSpec("The registry pins no authority for the state database.", _REVIEW),
    "DPONE_MSSQL_DATABASE_AUTHORITY_INVALID": ErrorSpec("A database authority is not closed and complete.", _REVIEW),
    "DPONE_AIRFLOW_RETRIES_REQUIRE_TARGET_FENCE": ErrorSpec(
        "Task retries are allowed only where a receipt in the target fences them, and at most three.",
        "Set retries=0, or use a route with target-atomic state and at most three retries.",
    ),
    "DPONE_POSTGRES_MSSQL_SOURCE_VALUE_UNREPRESENTABLE": ErrorSpec(
        "A source value lies outside what the target type can hold.",
        "Correct the value at the source, or widen the column's override if it has one. A column outside the key may land as text: set "
        "`schema_contract.columns.<name>.type: string` and have the target's owner alter the column to nvarchar(max).",
    ),
    # ---- registry ---------------------------------------------------------------------------------------------------------
    "registry.unreadable": ErrorSpec("The registry file cannot be read.", "Check the location and its permissions."),
    "registry.location_missing": ErrorSpec(
        "No registry is configured.", "Set [dpone_xmin] registry in Airflow's configuration, DPONE_REGISTRY, or pass --registry."
    ),
    "registry.malformed": ErrorSpec("The registry is not a DSSE envelope around a valid document.", "Sign the document again."),
    "registry.unknown_field": ErrorSpec(
        "The registry has a field that this version does not know.", "Remove the field, or upgrade the product; then sign again."
    ),
    "registry.duplicate_key": ErrorSpec(
        "The registry repeats a key; readers would disagree on which value counts.", "Remove one of the two, then sign again."
    ),
    "registry.duplicate_fold": ErrorSpec(
        "Two names of the registry differ only by ASCII case, so an alias could mean either.", "Remove or rename one, then sign again."
    ),
    "registry.key_unusable": ErrorSpec(
        "A key file is missing, unreadable, encrypted, or not a key.", "Name a PEM file, or a securesystemslib key as JSON."
    ),
    "registry.unwritable": ErrorSpec("A key or registry file cannot be written.", "Check the directory and its permissions."),
    "registry.output_exists": ErrorSpec(
        "The output file exists and is not overwritten.", "Choose another name, move the file away, or pass --force where offered."
    ),
    "registry.unsigned": ErrorSpec("The envelope carries no signature.", "Sign it; there is no unsigned mode."),
    "registry.key_unknown": ErrorSpec(
        "No signature was made by a trusted key.", "Trust the signer's public key, or sign with a trusted one."
    ),
    "registry.signature_invalid": ErrorSpec(
        "The payload was altered after signing.", "Sign the document again; treat the file as hostile."
    ),
    "registry.payload_type": ErrorSpec("The envelope carries another kind of document.", "Use the registry envelope of this product."),
    "registry.not_yet_valid": ErrorSpec("The registry is not valid yet.", "Wait, or correct the clock or the validity."),
    "registry.expired": ErrorSpec("The registry is no longer valid.", "Sign a renewed registry."),
    "registry.rollback": ErrorSpec(
        "The registry's serial is lower than one this state database has already accepted.", "Deploy the newest signed registry."
    ),
    "registry.environment_mismatch": ErrorSpec("The registry belongs to another environment.", "Use the registry of this environment."),
    "registry.trust_missing": ErrorSpec("No trusted public key is configured.", "Set [dpone_xmin] trusted_keys or pass --trusted-key."),
    # ---- source -----------------------------------------------------------------------------------------------------------
    "postgres_source.unreachable": ErrorSpec("The source server cannot be reached.", "Check host, port and network.", True),
    "postgres_source.authentication_failed": ErrorSpec("The source refused the login.", "Check user and password of the connection."),
    "postgres_source.relation_missing": ErrorSpec("The source relation does not exist or is not visible.", "Check schema, name and USAGE."),
    "postgres_source.permission_denied": ErrorSpec("The source role lacks a grant.", "Grant the named privilege to the source role."),
    "postgres_source.row_security": ErrorSpec(
        "Row-level security would hide rows from this role.", "Use a role that the policies do not filter; hidden rows would look deleted."
    ),
    "postgres_source.boundary_unstable": ErrorSpec(
        "The relation was rewritten, truncated or repartitioned while the snapshot was taken, several times.",
        "Run again when the DDL is over.",
        True,
    ),
    "postgres_source.lost": ErrorSpec("The source session ended or was cancelled by recovery.", "Run again.", True),
    "postgres_source.deadline": ErrorSpec(
        "The source boundary ran past its deadline.", "Raise the deadline or run when the source is quieter.", True
    ),
    "postgres_source.lock_timeout": ErrorSpec("The source relation could not be locked in time.", "Run again when the DDL is over.", True),
    "postgres_source.projection_invalid": ErrorSpec("The source columns do not fit the route.", "Compare the source with the manifest."),
    "postgres_source.value_unreadable": ErrorSpec(
        "PostgreSQL cannot compute or send a value of the table: a virtual column that fails (22012 is a division by zero), or text that does "
        "not convert to UTF-8 (22021, 22P05).",
        "Correct the rows: selecting one column at a time, as this role and with client_encoding UTF8, finds the column.",
    ),
    "postgres_source_authority.metadata_permission_denied": ErrorSpec(
        "A function of the signed profile may not be executed.", "Grant the exact function, or sign a version 2 authority."
    ),
    "postgres_source_authority.timeline_unavailable": ErrorSpec("The timeline is empty or invalid.", "Check the server's recovery state."),
    "postgres_source_authority.system_identifier_mismatch": ErrorSpec("The cluster is not the signed one.", _REVIEW),
    "postgres_source_authority.timeline_mismatch": ErrorSpec("The timeline is not the signed one.", _REVIEW),
    "postgres_source_authority.topology_role_mismatch": ErrorSpec("The recovery role is not the signed one.", _REVIEW),
    "postgres_source_authority.database_mismatch": ErrorSpec("The source database is not the signed one.", _REVIEW),
    "postgres_source_authority.principal_mismatch": ErrorSpec("The source principal is not the signed one.", _REVIEW),
    "postgres_source_authority.relation_mismatch": ErrorSpec("The source relation is not the signed one.", _REVIEW),
    "postgres_source_authority.relation_ambiguous": ErrorSpec(
        "The authored name folds to more than one pin or relation.", "Author the exact spelling."
    ),
    "xmin_window.regressed": ErrorSpec(
        "The source's safe horizon lies below the stored checkpoint.",
        "A restored or replaced source needs a rotated, signed source authority; then the payload is full.",
    ),
    "xmin_window.standby_lags": ErrorSpec("The standby has not yet replayed the stored checkpoint.", "Run again later.", True),
    "xmin_window.strict_stop": ErrorSpec("`xmin_window: strict` stops at an epoch change.", "Approve a full baseline, or use `exact`."),
    "xmin_window.amplification_exceeded": ErrorSpec(
        "The replay amplification is above the configured limit.", "End the old transaction at the source, or raise the limit."
    ),
    # ---- work directory ---------------------------------------------------------------------------------------------------
    "storage.floor": ErrorSpec("The work directory has less free space than its floor.", "Free space, or set runtime.storage.", True),
    "storage.write_failed": ErrorSpec("An artifact could not be written.", "Check space and permissions of the work directory.", True),
    "storage.artifact_altered": ErrorSpec(
        "An artifact differs from what was written.", "Run again; check the work directory's disk.", True
    ),
    # ---- target -----------------------------------------------------------------------------------------------------------
    "mssql_transaction.unreachable": ErrorSpec("The target server cannot be reached.", "Check host, port and network.", True),
    "mssql_transaction.authentication_failed": ErrorSpec(
        "The target server refused the login.", "Check user and password of the connection."
    ),
    "mssql_transaction.driver_missing": ErrorSpec(
        "The ODBC driver manager or driver cannot be loaded.", "Run `apt install unixodbc` and install the `mssql` extra."
    ),
    "mssql_transaction.topology_mismatch": ErrorSpec(
        "Sessions of one run are on different servers.", "Keep target, staging and state on one instance behind one address."
    ),
    "mssql_transaction.principal_mismatch": ErrorSpec("Sessions of one run act as different principals.", "Use one login for all."),
    "mssql_transaction.permission_denied": ErrorSpec(
        "The runtime login lacks a right.", "Apply the grants of `dpone-xmin ddl render --manifest …`."
    ),
    "mssql_transaction.permission_surplus": ErrorSpec(
        "The runtime login could change rows that must never change, or their tables.",
        "Revoke what `dpone-xmin ddl render` does not grant; keep the catalog out of schemas where the login may ALTER, staging first.",
    ),
    "mssql_transaction.schema_ambiguous": ErrorSpec(
        "A schema is spelled otherwise in the live catalog, or another one differs from it by case only.",
        "Author the exact spelling in manifest and registry; rename or drop the other schema.",
    ),
    "mssql_transaction.availability_group_unsupported": ErrorSpec(
        "Target and state could commit separately in this availability group.",
        "Put target and state in one database, or use one group with per-database DTC support.",
    ),
    "mssql_transaction.connection_lost": ErrorSpec("The target session ended before the outcome was decided.", "Run again.", True),
    "mssql_transaction.conflict": ErrorSpec("A concurrent transaction won.", "Run again.", True),
    "mssql_transaction.lock_timeout": ErrorSpec(
        "A lock in the target was not granted in time.", "Run again when the other run is over.", True
    ),
    "mssql_transaction.session_invalid": ErrorSpec("The target session is not in the state that commit requires.", "Run again.", True),
    "mssql_transaction.constraint_violation": ErrorSpec(
        "The target refused a row by a constraint.", "Compare the target's constraints with the source."
    ),
    "mssql_transaction.row_too_wide": ErrorSpec(
        "A row needs more than the 8,060 bytes that SQL Server keeps in a page: too many long columns hold values at once.",
        "Nothing was written. Drop columns from the source table, or split it.",
    ),
    "mssql_transaction.statement_failed": ErrorSpec("The target refused a statement.", "See the details; report it if it persists."),
    "mssql_transaction.commit_outcome_unknown": ErrorSpec(
        "Whether the transaction committed cannot be decided yet.", "Run the same invocation again: the receipt decides.", True
    ),
    "mssql_transaction.catalog_mismatch": ErrorSpec(
        "The state catalog is not the exact one this version needs.", "Apply `dpone-xmin ddl render`, then verify."
    ),
    "mssql_transaction.catalog_foreign": ErrorSpec(
        "The state catalog has another version or was not made by this product.",
        "Apply `dpone-xmin ddl upgrade` as owner, or use another schema.",
    ),
    "mssql_transaction.catalog_duplicates": ErrorSpec(
        "Load attempts repeat an invocation, so the catalog cannot be upgraded.",
        "Decide as owner which attempts are history, remove the others, then upgrade; nothing was changed.",
    ),
    "mssql_transaction.staging_database_lease_lost": ErrorSpec("The staging session was evicted.", "Run again.", True),
    "mssql_transaction.target_database_authority_mismatch": ErrorSpec("The target database is not the signed one.", _REVIEW),
    "mssql_transaction.target_database_unavailable": ErrorSpec(
        "The target database is not ONLINE and MULTI_USER.", "Bring it online.", True
    ),
    "mssql_transaction.target_database_access_denied": ErrorSpec(
        "The login has no access to the target database.", "Map the login to a user and grant CONNECT."
    ),
    "mssql_transaction.target_database_metadata_permission_denied": ErrorSpec(
        "The login may not see the target database's metadata.", "GRANT VIEW ANY DATABASE to the runtime login."
    ),
    "mssql_transaction.staging_database_authority_mismatch": ErrorSpec("The staging database is not the signed one.", _REVIEW),
    "mssql_transaction.staging_database_unavailable": ErrorSpec(
        "The staging database is not ONLINE and MULTI_USER.", "Bring it online.", True
    ),
    "mssql_transaction.staging_database_access_denied": ErrorSpec(
        "The login has no access to the staging database.", "Map the login to a user and grant CONNECT."
    ),
    "mssql_transaction.staging_database_metadata_permission_denied": ErrorSpec(
        "The login may not see the staging database's metadata.", "GRANT VIEW ANY DATABASE to the runtime login."
    ),
    "mssql_transaction.state_database_authority_mismatch": ErrorSpec("The state database is not the signed one.", _REVIEW),
    "mssql_transaction.state_database_unavailable": ErrorSpec("The state database is not ONLINE and MULTI_USER.", "Bring it online.", True),
    "mssql_transaction.state_database_access_denied": ErrorSpec(
        "The login has no access to the state database.", "Map the login to a user and grant CONNECT."
    ),
    "mssql_transaction.state_database_metadata_permission_denied": ErrorSpec(
        "The login may not see the state database's metadata.", "GRANT VIEW ANY DATABASE to the runtime login."
    ),
    "target_identity.missing": ErrorSpec(
        "The target table has no row in dpone_target_identity.", "Apply `dpone-xmin ddl render --manifest …` as owner."
    ),
    "target_identity.ambiguous": ErrorSpec("More than one identity or case variant answers to the target's name.", "Remove the decoys."),
    "target_identity.mismatch": ErrorSpec("The target's identity is not the one this invocation was admitted with.", _REVIEW),
    "target_ownership.conflict": ErrorSpec(
        "Another state key owns the target.",
        "Compare process, handoff, key and delete mode with the owner's; if the change is meant, transfer the ownership with a repair authority.",
    ),
    "staging.proof_failed": ErrorSpec("The staged rows are not the extracted rows.", "Run again; report it if it persists.", True),
    "staging.key_invalid": ErrorSpec("The staged keys are not unique, not complete, padded or NULL.", "Correct the keys at the source."),
    # ---- reconciliation ---------------------------------------------------------------------------------------------------
    "invocation.invalid": ErrorSpec(
        "The run's identity does not fit the ledger.", "Use a process name and a run id of at most 256 characters."
    ),
    "invocation.route_changed": ErrorSpec(
        "This invocation was admitted with another route.", "Start a new run: an invocation may not change its route."
    ),
    "invocation.attempt_conflict": ErrorSpec("Another attempt of this invocation is running.", "Wait for it.", True),
    "checkpoint.conflict": ErrorSpec("The checkpoint moved while this run was working.", "Run again.", True),
    "checkpoint.missing": ErrorSpec("The target has rows but this state key has no checkpoint.", _FULL),
    "checkpoint.seed_missing": ErrorSpec(
        "The handoff's seed is absent or conflicting.",
        "Finish the initial campaign of this handoff first; its handoff_id, key and delete mode must be this manifest's.",
    ),
    "guard.deletes_exceeded": ErrorSpec(
        "More rows are missing at the source than the guards allow.", "Verify the deletes, then approve them with a repair authority."
    ),
    "guard.empty_snapshot": ErrorSpec("The source is empty.", "Verify it, then approve it with a repair authority."),
    "guard.quality_gate": ErrorSpec("A quality gate of the manifest failed.", "Compare source and target with the gate."),
    "reconcile.full_repair_required": ErrorSpec("The target differs from the key snapshot in a way the delta cannot mend.", _FULL),
    "reconcile.invariant": ErrorSpec("The server's row counts contradict the classification.", "Nothing was committed; report it.", True),
    "repair_authority.not_found": ErrorSpec(
        "The named repair authority does not exist here.", "Check the reference and the state database."
    ),
    "repair_authority.consumed": ErrorSpec("The repair authority was already used; it is one-shot.", "Propose and approve a new one."),
    "repair_authority.expired": ErrorSpec("The repair authority is no longer valid.", "Propose and approve a new one."),
    "repair_authority.not_yet_valid": ErrorSpec(
        "The repair authority begins later.", "Wait, or correct the clock that wrote `created_at`."
    ),
    "repair_authority.environment_mismatch": ErrorSpec(
        "The repair authority belongs to another environment.", "Approve one for this environment."
    ),
    "repair_authority.binding_mismatch": ErrorSpec(
        "The repair authority is bound to another state key, scope or checkpoint.",
        "Run without it; if that run is stopped, propose a new one from it.",
    ),
    "repair_authority.digest_mismatch": ErrorSpec(
        "The repair authority's row is not what was approved.", "Treat the state database as tampered with."
    ),
    "repair_authority.unsigned": ErrorSpec(
        "The repair authority carries no signature of a trusted key.", "Approve it with `dpone-xmin repair approve --key …`."
    ),
    "repair_authority.bounds_exceeded": ErrorSpec(
        "The observed deletes exceed the approved bounds.", "Verify the deletes; approve larger bounds if they are right."
    ),
    "repair_authority.transfer_mismatch": ErrorSpec(
        "The active owner is not the one named in the transfer.", "Propose a new transfer from the current owner."
    ),
    "repair_authority.unused": ErrorSpec("The run did not need the repair authority.", "Run without it; it stays unconsumed."),
    "repair_authority.exists": ErrorSpec("A repair authority of that id exists already; rows never change.", "Use another id."),
    "repair_authority.document_invalid": ErrorSpec(
        "The repair document is not closed and complete.", "Propose it again; edit only bounds, expiry and reason."
    ),
    **{code: ErrorSpec(*spec) for code, spec in CAMPAIGN_CODES.items()},
    "run.cancelled": ErrorSpec("The run was cancelled.", "Run again; only what has a receipt was committed.", True),
    "cli.usage": ErrorSpec("The command line is not understood.", "See `dpone-xmin --help`."),
    "run.unexpected": ErrorSpec("An unexpected fault.", "Nothing was committed unless a receipt says so; report it."),
    "evidence.not_found": ErrorSpec("There is no receipt or state for this.", "Check process, run id and state connection."),
    "evidence.already_committed": ErrorSpec("The invocation has a receipt already.", "Use another run id for a dry run."),
    "evidence.incomplete": ErrorSpec(
        "Something that proves these commits is missing or contradicts its receipt.",
        "Nothing was written. Restore what the details name, or export single runs with --run-id.",
    ),
    "demo.parity_failed": ErrorSpec("Source and target differ.", "This is a defect: report it with the printed table."),
}
