-- catalog.version
SELECT [Sys].governance.dpone_catalog_version.version
FROM [Sys].governance.dpone_catalog_version
WHERE [Sys].governance.dpone_catalog_version.component = :component_1;

-- registry.find
SELECT [Sys].governance.dpone_registry_serial.environment_digest, [Sys].governance.dpone_registry_serial.environment, [Sys].governance.dpone_registry_serial.serial, [Sys].governance.dpone_registry_serial.updated_at_utc
FROM [Sys].governance.dpone_registry_serial WITH (UPDLOCK, HOLDLOCK)
WHERE [Sys].governance.dpone_registry_serial.environment_digest = :environment_digest_1;

-- identity.resolve
SELECT [DWH].dbo.dpone_target_identity.binding_id, [DWH].dbo.dpone_target_identity.schema_name, [DWH].dbo.dpone_target_identity.table_name
FROM [DWH].dbo.dpone_target_identity
WHERE lower([DWH].dbo.dpone_target_identity.schema_name) = lower(:lower_1) AND lower([DWH].dbo.dpone_target_identity.table_name) = lower(:lower_2);

-- clock
SELECT CONVERT(datetime2(6), SYSUTCDATETIME()) AS utc_now_1;

-- registry.insert
INSERT INTO [Sys].governance.dpone_registry_serial (environment_digest, environment, serial, updated_at_utc) VALUES (:environment_digest, :environment, :serial, :updated_at_utc);

-- invocation.find
SELECT [Sys].governance.dpone_run_state.invocation_digest, [Sys].governance.dpone_run_state.process, [Sys].governance.dpone_run_state.run_id, [Sys].governance.dpone_run_state.map_index, [Sys].governance.dpone_run_state.target_identity, [Sys].governance.dpone_run_state.state_key, [Sys].governance.dpone_run_state.route_fingerprint, [Sys].governance.dpone_run_state.status, [Sys].governance.dpone_run_state.attempts, [Sys].governance.dpone_run_state.last_load_id, [Sys].governance.dpone_run_state.last_error_code, [Sys].governance.dpone_run_state.created_at_utc, [Sys].governance.dpone_run_state.updated_at_utc
FROM [Sys].governance.dpone_run_state WITH (UPDLOCK, HOLDLOCK)
WHERE [Sys].governance.dpone_run_state.invocation_digest = :invocation_digest_1;

-- invocation.insert
INSERT INTO [Sys].governance.dpone_run_state (invocation_digest, process, run_id, map_index, target_identity, state_key, route_fingerprint, status, attempts, last_load_id, last_error_code, created_at_utc, updated_at_utc) VALUES (:invocation_digest, :process, :run_id, :map_index, :target_identity, :state_key, :route_fingerprint, :status, :attempts, :last_load_id, NULL, :created_at_utc, :updated_at_utc);

-- receipt.find
SELECT [Sys].governance.dpone_commit_receipt.receipt_id, [Sys].governance.dpone_commit_receipt.kind, [Sys].governance.dpone_commit_receipt.contract_version, [Sys].governance.dpone_commit_receipt.process, [Sys].governance.dpone_commit_receipt.run_id, [Sys].governance.dpone_commit_receipt.map_index, [Sys].governance.dpone_commit_receipt.invocation_digest, [Sys].governance.dpone_commit_receipt.load_id, [Sys].governance.dpone_commit_receipt.state_key, [Sys].governance.dpone_commit_receipt.target_identity, [Sys].governance.dpone_commit_receipt.route_fingerprint, [Sys].governance.dpone_commit_receipt.payload, [Sys].governance.dpone_commit_receipt.payload_reason, [Sys].governance.dpone_commit_receipt.previous_xmin, [Sys].governance.dpone_commit_receipt.previous_revision, [Sys].governance.dpone_commit_receipt.new_xmin, [Sys].governance.dpone_commit_receipt.new_revision, [Sys].governance.dpone_commit_receipt.visible_horizon, [Sys].governance.dpone_commit_receipt.snapshot, [Sys].governance.dpone_commit_receipt.payload_count, [Sys].governance.dpone_commit_receipt.keys_count, [Sys].governance.dpone_commit_receipt.inserted_count, [Sys].governance.dpone_commit_receipt.updated_count, [Sys].governance.dpone_commit_receipt.reactivated_count, [Sys].governance.dpone_commit_receipt.unchanged_count, [Sys].governance.dpone_commit_receipt.soft_deleted_count, [Sys].governance.dpone_commit_receipt.hard_deleted_count, [Sys].governance.dpone_commit_receipt.active_before_count, [Sys].governance.dpone_commit_receipt.active_after_count, [Sys].governance.dpone_commit_receipt.total_after_count, [Sys].governance.dpone_commit_receipt.source_authority_digest, [Sys].governance.dpone_commit_receipt.target_authority_digest, [Sys].governance.dpone_commit_receipt.staging_authority_digest, [Sys].governance.dpone_commit_receipt.state_authority_digest, [Sys].governance.dpone_commit_receipt.scope_hash, [Sys].governance.dpone_commit_receipt.schema_hash, [Sys].governance.dpone_commit_receipt.projection_fingerprint, [Sys].governance.dpone_commit_receipt.rows_artifact_sha256, [Sys].governance.dpone_commit_receipt.keys_artifact_sha256, [Sys].governance.dpone_commit_receipt.repair_authority_id, [Sys].governance.dpone_commit_receipt.repair_authority_digest, [Sys].governance.dpone_commit_receipt.registry_serial, [Sys].governance.dpone_commit_receipt.detected_at_utc, [Sys].governance.dpone_commit_receipt.committed_at_utc
FROM [Sys].governance.dpone_commit_receipt WITH (UPDLOCK, HOLDLOCK)
WHERE [Sys].governance.dpone_commit_receipt.invocation_digest = :invocation_digest_1;

-- checkpoint.read
SELECT [Sys].governance.dpone_source_state.state_key, [Sys].governance.dpone_source_state.contract_version, [Sys].governance.dpone_source_state.environment, [Sys].governance.dpone_source_state.process, [Sys].governance.dpone_source_state.handoff_id, [Sys].governance.dpone_source_state.source_entry, [Sys].governance.dpone_source_state.source_database, [Sys].governance.dpone_source_state.source_schema, [Sys].governance.dpone_source_state.source_relation, [Sys].governance.dpone_source_state.target_identity, [Sys].governance.dpone_source_state.key_columns, [Sys].governance.dpone_source_state.scope_hash, [Sys].governance.dpone_source_state.schema_hash, [Sys].governance.dpone_source_state.safe_xmin, [Sys].governance.dpone_source_state.visible_horizon, [Sys].governance.dpone_source_state.snapshot, [Sys].governance.dpone_source_state.revision, [Sys].governance.dpone_source_state.source_authority_digest, [Sys].governance.dpone_source_state.target_authority_digest, [Sys].governance.dpone_source_state.projection_fingerprint, [Sys].governance.dpone_source_state.load_id, [Sys].governance.dpone_source_state.receipt_id, [Sys].governance.dpone_source_state.created_at_utc, [Sys].governance.dpone_source_state.updated_at_utc, [Sys].governance.dpone_source_state.superseded_at_utc, [Sys].governance.dpone_source_state.superseded_by_state_key
FROM [Sys].governance.dpone_source_state WITH (UPDLOCK, HOLDLOCK)
WHERE [Sys].governance.dpone_source_state.state_key = :state_key_1 AND [Sys].governance.dpone_source_state.superseded_at_utc IS NULL;

-- head.read
SELECT [DWH].dbo.dpone_target_head.target_identity, [DWH].dbo.dpone_target_head.state_key, [DWH].dbo.dpone_target_head.revision, [DWH].dbo.dpone_target_head.load_id, [DWH].dbo.dpone_target_head.updated_at_utc
FROM [DWH].dbo.dpone_target_head WITH (UPDLOCK, HOLDLOCK)
WHERE [DWH].dbo.dpone_target_head.target_identity = :target_identity_1;

-- owner.read
SELECT [Sys].governance.dpone_source_state.state_key, [Sys].governance.dpone_source_state.contract_version, [Sys].governance.dpone_source_state.environment, [Sys].governance.dpone_source_state.process, [Sys].governance.dpone_source_state.handoff_id, [Sys].governance.dpone_source_state.source_entry, [Sys].governance.dpone_source_state.source_database, [Sys].governance.dpone_source_state.source_schema, [Sys].governance.dpone_source_state.source_relation, [Sys].governance.dpone_source_state.target_identity, [Sys].governance.dpone_source_state.key_columns, [Sys].governance.dpone_source_state.scope_hash, [Sys].governance.dpone_source_state.schema_hash, [Sys].governance.dpone_source_state.safe_xmin, [Sys].governance.dpone_source_state.visible_horizon, [Sys].governance.dpone_source_state.snapshot, [Sys].governance.dpone_source_state.revision, [Sys].governance.dpone_source_state.source_authority_digest, [Sys].governance.dpone_source_state.target_authority_digest, [Sys].governance.dpone_source_state.projection_fingerprint, [Sys].governance.dpone_source_state.load_id, [Sys].governance.dpone_source_state.receipt_id, [Sys].governance.dpone_source_state.created_at_utc, [Sys].governance.dpone_source_state.updated_at_utc, [Sys].governance.dpone_source_state.superseded_at_utc, [Sys].governance.dpone_source_state.superseded_by_state_key
FROM [Sys].governance.dpone_source_state WITH (UPDLOCK, HOLDLOCK)
WHERE [Sys].governance.dpone_source_state.target_identity = :target_identity_1 AND [Sys].governance.dpone_source_state.superseded_at_utc IS NULL;

-- fence.find
SELECT [Sys].governance.dpone_target_fence.target_identity, [Sys].governance.dpone_target_fence.epoch, [Sys].governance.dpone_target_fence.owner, [Sys].governance.dpone_target_fence.updated_at_utc
FROM [Sys].governance.dpone_target_fence WITH (UPDLOCK, HOLDLOCK)
WHERE [Sys].governance.dpone_target_fence.target_identity = :target_identity_1;

-- target.has_rows
SELECT TOP 1 1
FROM [DWH].landing.orders;

-- stage.create
CREATE TABLE [DWH_Stage].staging.dpone_stg_LOAD_rows (
	id bigint NOT NULL,
	code nvarchar(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
	u nvarchar(36) COLLATE Latin1_General_100_BIN2 NULL,
	si smallint NULL,
	i int NULL,
	price decimal(10,2) NULL,
	big decimal(38,4) NULL,
	ok bit NULL,
	note nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
	day date NULL,
	clock time(6) NULL,
	at datetime2(6) NULL,
	atz datetime2(6) NULL,
	blob varbinary(max) NULL,
	js nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
	r real NULL,
	d float NULL
);

-- stage.prove
SELECT COUNT_BIG(*) AS n, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.id) AS v0, ISNULL(SUM(CONVERT(decimal(38, 0), [DWH_Stage].staging.dpone_stg_LOAD_rows.id)), 0) AS s0, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.code) AS v1, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, DATALENGTH([DWH_Stage].staging.dpone_stg_LOAD_rows.code)))), 0) AS s1, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.u) AS v2, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, CONVERT(binary(8), REPLACE(SUBSTRING([DWH_Stage].staging.dpone_stg_LOAD_rows.u, 1, 18), '-', ''), 2)))), 0) AS s2, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, CONVERT(binary(8), REPLACE(SUBSTRING([DWH_Stage].staging.dpone_stg_LOAD_rows.u, 20, 17), '-', ''), 2)))), 0) AS s2_low, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.si) AS v3, ISNULL(SUM(CONVERT(decimal(38, 0), [DWH_Stage].staging.dpone_stg_LOAD_rows.si)), 0) AS s3, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.i) AS v4, ISNULL(SUM(CONVERT(decimal(38, 0), [DWH_Stage].staging.dpone_stg_LOAD_rows.i)), 0) AS s4, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.price) AS v5, ISNULL(SUM(CONVERT(decimal(38, 2), [DWH_Stage].staging.dpone_stg_LOAD_rows.price)), 0) AS s5, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.big) AS v6, ISNULL(SUM(CONVERT(decimal(38, 0), (([DWH_Stage].staging.dpone_stg_LOAD_rows.big) - ([DWH_Stage].staging.dpone_stg_LOAD_rows.big) % 1000000000000000) / 1000000000000000)), 0) AS s6, ISNULL(SUM(CONVERT(decimal(38, 4), ([DWH_Stage].staging.dpone_stg_LOAD_rows.big) % 1000000000000000)), 0) AS s6_low, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.ok) AS v7, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(int, [DWH_Stage].staging.dpone_stg_LOAD_rows.ok))), 0) AS s7, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.note) AS v8, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, DATALENGTH([DWH_Stage].staging.dpone_stg_LOAD_rows.note)))), 0) AS s8, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.day) AS v9, ISNULL(SUM(CONVERT(decimal(38, 0), DATEDIFF(day, CONVERT(date, '19700101', 112), [DWH_Stage].staging.dpone_stg_LOAD_rows.day))), 0) AS s9, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.clock) AS v10, ISNULL(SUM(CONVERT(decimal(38, 0), DATEDIFF_BIG(microsecond, CONVERT(time(6), '00:00:00'), [DWH_Stage].staging.dpone_stg_LOAD_rows.clock))), 0) AS s10, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.at) AS v11, ISNULL(SUM(CONVERT(decimal(38, 0), DATEDIFF_BIG(microsecond, CONVERT(datetime2(6), '19700101', 112), [DWH_Stage].staging.dpone_stg_LOAD_rows.at))), 0) AS s11, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.atz) AS v12, ISNULL(SUM(CONVERT(decimal(38, 0), DATEDIFF_BIG(microsecond, CONVERT(datetime2(6), '19700101', 112), [DWH_Stage].staging.dpone_stg_LOAD_rows.atz))), 0) AS s12, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.blob) AS v13, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, DATALENGTH([DWH_Stage].staging.dpone_stg_LOAD_rows.blob)))), 0) AS s13, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.js) AS v14, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, DATALENGTH([DWH_Stage].staging.dpone_stg_LOAD_rows.js)))), 0) AS s14, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.r) AS v15, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(int, CONVERT(binary(4), [DWH_Stage].staging.dpone_stg_LOAD_rows.r)))), 0) AS s15, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_rows.d) AS v16, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, CONVERT(binary(8), [DWH_Stage].staging.dpone_stg_LOAD_rows.d)))), 0) AS s16
FROM [DWH_Stage].staging.dpone_stg_LOAD_rows;

-- stage.padded
SELECT COUNT_BIG(*) AS count_rows_1
FROM [DWH_Stage].staging.dpone_stg_LOAD_rows
WHERE [DWH_Stage].staging.dpone_stg_LOAD_rows.code LIKE :code_1;

-- finalize.difference
CREATE TABLE [#dpone_difference] (
	__dpone__pass SMALLINT NOT NULL,
	__dpone__kind SMALLINT NOT NULL,
	id bigint NULL,
	code nvarchar(10) COLLATE Latin1_General_100_BIN2 NULL,
	__dpone__n BIGINT NOT NULL
);

-- finalize.classify
INSERT INTO [#dpone_difference] (__dpone__pass, __dpone__kind, id, code, __dpone__n) SELECT 1, each_key.__dpone__kind, each_key.id, each_key.code, COUNT_BIG(*) AS __dpone__n
FROM (SELECT CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_rows.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 0 WHEN ([DWH].landing.orders.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 1 WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_rows.id IS NOT NULL) THEN 3 WHEN ([DWH].landing.orders.id IS NOT NULL) THEN 4 ELSE 2 END AS __dpone__kind, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_rows.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_rows.id IS NOT NULL)) THEN [DWH].landing.orders.id ELSE NULL END AS id, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_rows.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_rows.id IS NOT NULL)) THEN [DWH].landing.orders.code ELSE NULL END AS code
FROM [DWH].landing.orders WITH (TABLOCK, HOLDLOCK) FULL OUTER JOIN [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK) ON [DWH].landing.orders.id = staged_rows.id AND [DWH].landing.orders.code = staged_rows.code) AS each_key GROUP BY each_key.__dpone__kind, each_key.id, each_key.code;

-- finalize.summary
SELECT [#dpone_difference].__dpone__kind, sum([#dpone_difference].__dpone__n) AS sum_1
FROM [#dpone_difference]
WHERE [#dpone_difference].__dpone__pass = 1 GROUP BY [#dpone_difference].__dpone__kind;

-- finalize.insert
INSERT INTO [DWH].landing.orders (id, code, u, si, i, price, big, ok, note, day, clock, at, atz, blob, js, r, d, __dpone__load_id, __dpone__loaded_at, __dpone__updated_at) SELECT staged_rows.id, staged_rows.code, CONVERT(uniqueidentifier, staged_rows.u) AS wire_1, staged_rows.si, staged_rows.i, staged_rows.price, staged_rows.big, staged_rows.ok, staged_rows.note, staged_rows.day, staged_rows.clock, staged_rows.at, TODATETIMEOFFSET(staged_rows.atz, 0) AS wire_2, staged_rows.blob, staged_rows.js, staged_rows.r, staged_rows.d, :param_1 AS anon_1, :param_2 AS anon_2, :param_2 AS anon__1
FROM [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK);

-- finalize.classify
INSERT INTO [#dpone_difference] (__dpone__pass, __dpone__kind, id, code, __dpone__n) SELECT 2, each_key.__dpone__kind, each_key.id, each_key.code, COUNT_BIG(*) AS __dpone__n
FROM (SELECT CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_rows.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 0 WHEN ([DWH].landing.orders.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 1 WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_rows.id IS NOT NULL) THEN 3 WHEN ([DWH].landing.orders.id IS NOT NULL) THEN 4 ELSE 2 END AS __dpone__kind, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_rows.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_rows.id IS NOT NULL)) THEN [DWH].landing.orders.id ELSE NULL END AS id, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_rows.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_rows.id IS NOT NULL)) THEN [DWH].landing.orders.code ELSE NULL END AS code
FROM [DWH].landing.orders WITH (TABLOCK, HOLDLOCK) FULL OUTER JOIN [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK) ON [DWH].landing.orders.id = staged_rows.id AND [DWH].landing.orders.code = staged_rows.code) AS each_key GROUP BY each_key.__dpone__kind, each_key.id, each_key.code;

-- finalize.summary
SELECT [#dpone_difference].__dpone__kind, sum([#dpone_difference].__dpone__n) AS sum_1
FROM [#dpone_difference]
WHERE [#dpone_difference].__dpone__pass = 2 GROUP BY [#dpone_difference].__dpone__kind;

-- receipt.highest
SELECT max([Sys].governance.dpone_commit_receipt.new_revision) AS max_1
FROM [Sys].governance.dpone_commit_receipt
WHERE [Sys].governance.dpone_commit_receipt.state_key = :state_key_1;

-- checkpoint.insert
INSERT INTO [Sys].governance.dpone_source_state (state_key, contract_version, environment, process, handoff_id, source_entry, source_database, source_schema, source_relation, target_identity, key_columns, scope_hash, schema_hash, safe_xmin, visible_horizon, snapshot, revision, source_authority_digest, target_authority_digest, projection_fingerprint, load_id, receipt_id, created_at_utc, updated_at_utc, superseded_at_utc, superseded_by_state_key) VALUES (:state_key, :contract_version, :environment, :process, NULL, :source_entry, :source_database, :source_schema, :source_relation, :target_identity, :key_columns, :scope_hash, :schema_hash, :safe_xmin, :visible_horizon, :snapshot, :revision, :source_authority_digest, :target_authority_digest, :projection_fingerprint, :load_id, :receipt_id, :created_at_utc, :updated_at_utc, NULL, NULL);

-- head.insert
INSERT INTO [DWH].dbo.dpone_target_head (target_identity, state_key, revision, load_id, updated_at_utc) VALUES (:target_identity, :state_key, :revision, :load_id, :updated_at_utc);

-- receipt.insert
INSERT INTO [Sys].governance.dpone_commit_receipt (receipt_id, kind, contract_version, process, run_id, map_index, invocation_digest, load_id, state_key, target_identity, route_fingerprint, payload, payload_reason, previous_xmin, previous_revision, new_xmin, new_revision, visible_horizon, snapshot, payload_count, keys_count, inserted_count, updated_count, reactivated_count, unchanged_count, soft_deleted_count, hard_deleted_count, active_before_count, active_after_count, total_after_count, source_authority_digest, target_authority_digest, staging_authority_digest, state_authority_digest, scope_hash, schema_hash, projection_fingerprint, rows_artifact_sha256, keys_artifact_sha256, repair_authority_id, repair_authority_digest, registry_serial, detected_at_utc, committed_at_utc) VALUES (:receipt_id, :kind, :contract_version, :process, :run_id, :map_index, :invocation_digest, :load_id, :state_key, :target_identity, :route_fingerprint, :payload, :payload_reason, NULL, NULL, :new_xmin, :new_revision, :visible_horizon, :snapshot, :payload_count, :keys_count, :inserted_count, :updated_count, :reactivated_count, :unchanged_count, :soft_deleted_count, :hard_deleted_count, :active_before_count, :active_after_count, :total_after_count, :source_authority_digest, :target_authority_digest, :staging_authority_digest, :state_authority_digest, :scope_hash, :schema_hash, :projection_fingerprint, :rows_artifact_sha256, NULL, NULL, NULL, :registry_serial, :detected_at_utc, :committed_at_utc);

-- invocation.close
UPDATE [Sys].governance.dpone_run_state SET status=:status, last_error_code=NULL, updated_at_utc=:updated_at_utc WHERE [Sys].governance.dpone_run_state.invocation_digest = :invocation_digest_1;

-- audit.insert
INSERT INTO [Sys].governance.dpone_load_audit (audit_id, load_id, invocation_digest, process, run_id, map_index, target_identity, state_key, outcome, error_code, receipt_id, evidence, recorded_at_utc) VALUES (:audit_id, :load_id, :invocation_digest, :process, :run_id, :map_index, :target_identity, :state_key, :outcome, :error_code, :receipt_id, :evidence, :recorded_at_utc);

-- invocation.revisit
UPDATE [Sys].governance.dpone_run_state SET status=:status, attempts=:attempts, last_load_id=:last_load_id, updated_at_utc=:updated_at_utc WHERE [Sys].governance.dpone_run_state.invocation_digest = :invocation_digest_1;

-- stage.create
CREATE TABLE [DWH_Stage].staging.dpone_stg_LOAD_keys (
	id bigint NOT NULL,
	code nvarchar(10) COLLATE Latin1_General_100_BIN2 NOT NULL
);

-- stage.prove
SELECT COUNT_BIG(*) AS n, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_keys.id) AS v0, ISNULL(SUM(CONVERT(decimal(38, 0), [DWH_Stage].staging.dpone_stg_LOAD_keys.id)), 0) AS s0, COUNT_BIG([DWH_Stage].staging.dpone_stg_LOAD_keys.code) AS v1, ISNULL(SUM(CONVERT(decimal(38, 0), CONVERT(bigint, DATALENGTH([DWH_Stage].staging.dpone_stg_LOAD_keys.code)))), 0) AS s1
FROM [DWH_Stage].staging.dpone_stg_LOAD_keys;

-- stage.padded
SELECT COUNT_BIG(*) AS count_rows_1
FROM [DWH_Stage].staging.dpone_stg_LOAD_keys
WHERE [DWH_Stage].staging.dpone_stg_LOAD_keys.code LIKE :code_1;

-- stage.subset
SELECT COUNT_BIG(*) AS count_rows_1
FROM [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows
WHERE NOT (EXISTS (SELECT 1
FROM [DWH_Stage].staging.dpone_stg_LOAD_keys AS staged_keys
WHERE staged_rows.id = staged_keys.id AND staged_rows.code = staged_keys.code));

-- finalize.payload
SELECT COUNT_BIG(*) AS count_rows_1
FROM [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK);

-- finalize.classify
INSERT INTO [#dpone_difference] (__dpone__pass, __dpone__kind, id, code, __dpone__n) SELECT 1, each_key.__dpone__kind, each_key.id, each_key.code, COUNT_BIG(*) AS __dpone__n
FROM (SELECT CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_keys.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 0 WHEN ([DWH].landing.orders.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 1 WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_keys.id IS NOT NULL) THEN 3 WHEN ([DWH].landing.orders.id IS NOT NULL) THEN 4 ELSE 2 END AS __dpone__kind, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_keys.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_keys.id IS NOT NULL)) THEN [DWH].landing.orders.id ELSE NULL END AS id, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_keys.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_keys.id IS NOT NULL)) THEN [DWH].landing.orders.code ELSE NULL END AS code
FROM [DWH].landing.orders WITH (TABLOCK, HOLDLOCK) FULL OUTER JOIN [DWH_Stage].staging.dpone_stg_LOAD_keys AS staged_keys WITH (TABLOCK, HOLDLOCK) ON [DWH].landing.orders.id = staged_keys.id AND [DWH].landing.orders.code = staged_keys.code) AS each_key GROUP BY each_key.__dpone__kind, each_key.id, each_key.code;

-- finalize.classify
INSERT INTO [#dpone_difference] (__dpone__pass, __dpone__kind, id, code, __dpone__n) SELECT 2, each_key.__dpone__kind, each_key.id, each_key.code, COUNT_BIG(*) AS __dpone__n
FROM (SELECT CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_keys.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 0 WHEN ([DWH].landing.orders.id IS NOT NULL AND [DWH].landing.orders.__dpone__deleted_at IS NULL) THEN 1 WHEN ([DWH].landing.orders.id IS NOT NULL AND staged_keys.id IS NOT NULL) THEN 3 WHEN ([DWH].landing.orders.id IS NOT NULL) THEN 4 ELSE 2 END AS __dpone__kind, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_keys.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_keys.id IS NOT NULL)) THEN [DWH].landing.orders.id ELSE NULL END AS id, CASE WHEN ([DWH].landing.orders.id IS NOT NULL AND ([DWH].landing.orders.__dpone__deleted_at IS NULL AND staged_keys.id IS NULL OR [DWH].landing.orders.__dpone__deleted_at IS NOT NULL AND staged_keys.id IS NOT NULL)) THEN [DWH].landing.orders.code ELSE NULL END AS code
FROM [DWH].landing.orders WITH (TABLOCK, HOLDLOCK) FULL OUTER JOIN [DWH_Stage].staging.dpone_stg_LOAD_keys AS staged_keys WITH (TABLOCK, HOLDLOCK) ON [DWH].landing.orders.id = staged_keys.id AND [DWH].landing.orders.code = staged_keys.code) AS each_key GROUP BY each_key.__dpone__kind, each_key.id, each_key.code;

-- checkpoint.compare_and_set
UPDATE [Sys].governance.dpone_source_state SET safe_xmin=:safe_xmin, visible_horizon=:visible_horizon, snapshot=:snapshot, revision=:revision, source_authority_digest=:source_authority_digest, target_authority_digest=:target_authority_digest, projection_fingerprint=:projection_fingerprint, load_id=:load_id, receipt_id=:receipt_id, updated_at_utc=:updated_at_utc WHERE [Sys].governance.dpone_source_state.state_key = :state_key_1 AND [Sys].governance.dpone_source_state.safe_xmin = :safe_xmin_1 AND [Sys].governance.dpone_source_state.revision = :revision_1 AND [Sys].governance.dpone_source_state.superseded_at_utc IS NULL;

-- head.update
UPDATE [DWH].dbo.dpone_target_head SET state_key=:state_key, revision=:revision, load_id=:load_id, updated_at_utc=:updated_at_utc WHERE [DWH].dbo.dpone_target_head.target_identity = :target_identity_1;

-- receipt.insert
INSERT INTO [Sys].governance.dpone_commit_receipt (receipt_id, kind, contract_version, process, run_id, map_index, invocation_digest, load_id, state_key, target_identity, route_fingerprint, payload, payload_reason, previous_xmin, previous_revision, new_xmin, new_revision, visible_horizon, snapshot, payload_count, keys_count, inserted_count, updated_count, reactivated_count, unchanged_count, soft_deleted_count, hard_deleted_count, active_before_count, active_after_count, total_after_count, source_authority_digest, target_authority_digest, staging_authority_digest, state_authority_digest, scope_hash, schema_hash, projection_fingerprint, rows_artifact_sha256, keys_artifact_sha256, repair_authority_id, repair_authority_digest, registry_serial, detected_at_utc, committed_at_utc) VALUES (:receipt_id, :kind, :contract_version, :process, :run_id, :map_index, :invocation_digest, :load_id, :state_key, :target_identity, :route_fingerprint, :payload, :payload_reason, :previous_xmin, :previous_revision, :new_xmin, :new_revision, :visible_horizon, :snapshot, :payload_count, :keys_count, :inserted_count, :updated_count, :reactivated_count, :unchanged_count, :soft_deleted_count, :hard_deleted_count, :active_before_count, :active_after_count, :total_after_count, :source_authority_digest, :target_authority_digest, :staging_authority_digest, :state_authority_digest, :scope_hash, :schema_hash, :projection_fingerprint, :rows_artifact_sha256, :keys_artifact_sha256, NULL, NULL, :registry_serial, :detected_at_utc, :committed_at_utc);

-- finalize.drift
SELECT COUNT_BIG(*) AS count_rows_1
FROM [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK) LEFT OUTER JOIN [DWH].landing.orders WITH (TABLOCK, HOLDLOCK) ON [DWH].landing.orders.id = staged_rows.id AND [DWH].landing.orders.code = staged_rows.code AND [DWH].landing.orders.__dpone__deleted_at IS NULL
WHERE [DWH].landing.orders.id IS NULL;

-- finalize.delete
UPDATE [DWH].landing.orders SET __dpone__load_id=:__dpone__load_id, __dpone__updated_at=:__dpone__updated_at, __dpone__deleted_at=:__dpone__updated_at FROM [DWH].landing.orders, [#dpone_difference] WHERE [DWH].landing.orders.id = [#dpone_difference].id AND [DWH].landing.orders.code = [#dpone_difference].code AND [#dpone_difference].__dpone__pass = 1 AND [#dpone_difference].__dpone__kind = 1;

-- finalize.update
UPDATE [DWH].landing.orders SET u=CONVERT(uniqueidentifier, staged_rows.u), si=staged_rows.si, i=staged_rows.i, price=staged_rows.price, big=staged_rows.big, ok=staged_rows.ok, note=staged_rows.note, day=staged_rows.day, clock=staged_rows.clock, at=staged_rows.at, atz=TODATETIMEOFFSET(staged_rows.atz, 0), blob=staged_rows.blob, js=staged_rows.js, r=staged_rows.r, d=staged_rows.d, __dpone__load_id=:__dpone__load_id, __dpone__updated_at=:__dpone__updated_at FROM [DWH].landing.orders, [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK) WHERE [DWH].landing.orders.id = staged_rows.id AND [DWH].landing.orders.code = staged_rows.code AND [DWH].landing.orders.__dpone__deleted_at IS NULL AND (([DWH].landing.orders.u <> CONVERT(uniqueidentifier, staged_rows.u) OR ([DWH].landing.orders.u IS NULL AND CONVERT(uniqueidentifier, staged_rows.u) IS NOT NULL) OR ([DWH].landing.orders.u IS NOT NULL AND CONVERT(uniqueidentifier, staged_rows.u) IS NULL)) OR ([DWH].landing.orders.si <> staged_rows.si OR ([DWH].landing.orders.si IS NULL AND staged_rows.si IS NOT NULL) OR ([DWH].landing.orders.si IS NOT NULL AND staged_rows.si IS NULL)) OR ([DWH].landing.orders.i <> staged_rows.i OR ([DWH].landing.orders.i IS NULL AND staged_rows.i IS NOT NULL) OR ([DWH].landing.orders.i IS NOT NULL AND staged_rows.i IS NULL)) OR ([DWH].landing.orders.price <> staged_rows.price OR ([DWH].landing.orders.price IS NULL AND staged_rows.price IS NOT NULL) OR ([DWH].landing.orders.price IS NOT NULL AND staged_rows.price IS NULL)) OR ([DWH].landing.orders.big <> staged_rows.big OR ([DWH].landing.orders.big IS NULL AND staged_rows.big IS NOT NULL) OR ([DWH].landing.orders.big IS NOT NULL AND staged_rows.big IS NULL)) OR ([DWH].landing.orders.ok <> staged_rows.ok OR ([DWH].landing.orders.ok IS NULL AND staged_rows.ok IS NOT NULL) OR ([DWH].landing.orders.ok IS NOT NULL AND staged_rows.ok IS NULL)) OR ([DWH].landing.orders.note COLLATE Latin1_General_100_BIN2 <> staged_rows.note COLLATE Latin1_General_100_BIN2 OR DATALENGTH([DWH].landing.orders.note) <> DATALENGTH(staged_rows.note) OR ([DWH].landing.orders.note IS NULL AND staged_rows.note IS NOT NULL) OR ([DWH].landing.orders.note IS NOT NULL AND staged_rows.note IS NULL)) OR ([DWH].landing.orders.day <> staged_rows.day OR ([DWH].landing.orders.day IS NULL AND staged_rows.day IS NOT NULL) OR ([DWH].landing.orders.day IS NOT NULL AND staged_rows.day IS NULL)) OR ([DWH].landing.orders.clock <> staged_rows.clock OR ([DWH].landing.orders.clock IS NULL AND staged_rows.clock IS NOT NULL) OR ([DWH].landing.orders.clock IS NOT NULL AND staged_rows.clock IS NULL)) OR ([DWH].landing.orders.at <> staged_rows.at OR ([DWH].landing.orders.at IS NULL AND staged_rows.at IS NOT NULL) OR ([DWH].landing.orders.at IS NOT NULL AND staged_rows.at IS NULL)) OR ([DWH].landing.orders.atz <> TODATETIMEOFFSET(staged_rows.atz, 0) OR DATEPART(tzoffset, [DWH].landing.orders.atz) <> DATEPART(tzoffset, TODATETIMEOFFSET(staged_rows.atz, 0)) OR ([DWH].landing.orders.atz IS NULL AND TODATETIMEOFFSET(staged_rows.atz, 0) IS NOT NULL) OR ([DWH].landing.orders.atz IS NOT NULL AND TODATETIMEOFFSET(staged_rows.atz, 0) IS NULL)) OR ([DWH].landing.orders.blob <> staged_rows.blob OR DATALENGTH([DWH].landing.orders.blob) <> DATALENGTH(staged_rows.blob) OR ([DWH].landing.orders.blob IS NULL AND staged_rows.blob IS NOT NULL) OR ([DWH].landing.orders.blob IS NOT NULL AND staged_rows.blob IS NULL)) OR ([DWH].landing.orders.js COLLATE Latin1_General_100_BIN2 <> staged_rows.js COLLATE Latin1_General_100_BIN2 OR DATALENGTH([DWH].landing.orders.js) <> DATALENGTH(staged_rows.js) OR ([DWH].landing.orders.js IS NULL AND staged_rows.js IS NOT NULL) OR ([DWH].landing.orders.js IS NOT NULL AND staged_rows.js IS NULL)) OR (CONVERT(binary(4), [DWH].landing.orders.r) <> CONVERT(binary(4), staged_rows.r) OR ([DWH].landing.orders.r IS NULL AND staged_rows.r IS NOT NULL) OR ([DWH].landing.orders.r IS NOT NULL AND staged_rows.r IS NULL)) OR (CONVERT(binary(8), [DWH].landing.orders.d) <> CONVERT(binary(8), staged_rows.d) OR ([DWH].landing.orders.d IS NULL AND staged_rows.d IS NOT NULL) OR ([DWH].landing.orders.d IS NOT NULL AND staged_rows.d IS NULL)));

-- finalize.insert
INSERT INTO [DWH].landing.orders (id, code, u, si, i, price, big, ok, note, day, clock, at, atz, blob, js, r, d, __dpone__load_id, __dpone__loaded_at, __dpone__updated_at) SELECT staged_rows.id, staged_rows.code, CONVERT(uniqueidentifier, staged_rows.u) AS wire_1, staged_rows.si, staged_rows.i, staged_rows.price, staged_rows.big, staged_rows.ok, staged_rows.note, staged_rows.day, staged_rows.clock, staged_rows.at, TODATETIMEOFFSET(staged_rows.atz, 0) AS wire_2, staged_rows.blob, staged_rows.js, staged_rows.r, staged_rows.d, :param_1 AS anon_1, :param_2 AS anon_2, :param_2 AS anon__1
FROM [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK)
WHERE NOT (EXISTS (SELECT 1
FROM [DWH].landing.orders WITH (TABLOCK, HOLDLOCK)
WHERE [DWH].landing.orders.id = staged_rows.id AND [DWH].landing.orders.code = staged_rows.code));

-- finalize.reactivate
UPDATE [DWH].landing.orders SET u=CONVERT(uniqueidentifier, staged_rows.u), si=staged_rows.si, i=staged_rows.i, price=staged_rows.price, big=staged_rows.big, ok=staged_rows.ok, note=staged_rows.note, day=staged_rows.day, clock=staged_rows.clock, at=staged_rows.at, atz=TODATETIMEOFFSET(staged_rows.atz, 0), blob=staged_rows.blob, js=staged_rows.js, r=staged_rows.r, d=staged_rows.d, __dpone__load_id=:__dpone__load_id, __dpone__updated_at=:__dpone__updated_at, __dpone__deleted_at=NULL FROM [DWH].landing.orders, [DWH_Stage].staging.dpone_stg_LOAD_rows AS staged_rows WITH (TABLOCK, HOLDLOCK) WHERE [DWH].landing.orders.id = staged_rows.id AND [DWH].landing.orders.code = staged_rows.code AND [DWH].landing.orders.__dpone__deleted_at IS NOT NULL;

