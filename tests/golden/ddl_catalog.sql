USE [Sys]
GO
SET QUOTED_IDENTIFIER ON
GO
SET ANSI_NULLS ON
GO
IF SCHEMA_ID(N'governance') IS NULL EXEC(N'CREATE SCHEMA [governance]')
GO
CREATE TABLE governance.dpone_catalog_version (
	component nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL,
	version INTEGER NOT NULL,
	installed_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_catalog_version PRIMARY KEY (component)
)
GO
CREATE TABLE governance.dpone_registry_serial (
	environment_digest binary(32) NOT NULL,
	environment nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	serial BIGINT NOT NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_registry_serial PRIMARY KEY (environment_digest)
)
GO
CREATE TABLE governance.dpone_source_state (
	state_key binary(32) NOT NULL,
	contract_version INTEGER NOT NULL,
	environment nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	process nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	handoff_id nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL,
	source_entry nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	source_database nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	source_schema nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	source_relation nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	target_identity binary(32) NOT NULL,
	key_columns nvarchar(max) NOT NULL,
	scope_hash binary(32) NOT NULL,
	schema_hash binary(32) NOT NULL,
	safe_xmin BIGINT NOT NULL,
	visible_horizon BIGINT NOT NULL,
	snapshot nvarchar(max) NOT NULL,
	revision BIGINT NOT NULL,
	source_authority_digest binary(32) NOT NULL,
	target_authority_digest binary(32) NOT NULL,
	projection_fingerprint binary(32) NOT NULL,
	load_id UNIQUEIDENTIFIER NOT NULL,
	receipt_id UNIQUEIDENTIFIER NOT NULL,
	created_at_utc datetime2(6) NOT NULL,
	updated_at_utc datetime2(6) NOT NULL,
	superseded_at_utc datetime2(6) NULL,
	superseded_by_state_key binary(32) NULL,
	CONSTRAINT pk_dpone_source_state PRIMARY KEY (state_key)
)
GO
CREATE UNIQUE INDEX ux_dpone_source_state_active_owner ON governance.dpone_source_state (target_identity) WHERE superseded_at_utc IS NULL
GO
CREATE TABLE governance.dpone_run_state (
	invocation_digest binary(32) NOT NULL,
	process nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	run_id nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	map_index INTEGER NOT NULL,
	target_identity binary(32) NOT NULL,
	state_key binary(32) NOT NULL,
	route_fingerprint binary(32) NOT NULL,
	status nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	attempts INTEGER NOT NULL,
	last_load_id UNIQUEIDENTIFIER NOT NULL,
	last_error_code nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL,
	created_at_utc datetime2(6) NOT NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_run_state PRIMARY KEY (invocation_digest)
)
GO
CREATE TABLE governance.dpone_commit_receipt (
	receipt_id UNIQUEIDENTIFIER NOT NULL,
	kind nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	contract_version INTEGER NOT NULL,
	process nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	run_id nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	map_index INTEGER NOT NULL,
	invocation_digest binary(32) NOT NULL,
	load_id UNIQUEIDENTIFIER NOT NULL,
	state_key binary(32) NOT NULL,
	target_identity binary(32) NOT NULL,
	route_fingerprint binary(32) NOT NULL,
	payload nvarchar(16) COLLATE Latin1_General_100_BIN2 NOT NULL,
	payload_reason nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL,
	previous_xmin BIGINT NULL,
	previous_revision BIGINT NULL,
	new_xmin BIGINT NOT NULL,
	new_revision BIGINT NOT NULL,
	visible_horizon BIGINT NOT NULL,
	snapshot nvarchar(max) NOT NULL,
	payload_count BIGINT NOT NULL,
	keys_count BIGINT NOT NULL,
	inserted_count BIGINT NOT NULL,
	updated_count BIGINT NOT NULL,
	reactivated_count BIGINT NOT NULL,
	unchanged_count BIGINT NOT NULL,
	soft_deleted_count BIGINT NOT NULL,
	hard_deleted_count BIGINT NOT NULL,
	active_before_count BIGINT NOT NULL,
	active_after_count BIGINT NOT NULL,
	total_after_count BIGINT NOT NULL,
	source_authority_digest binary(32) NOT NULL,
	target_authority_digest binary(32) NOT NULL,
	staging_authority_digest binary(32) NOT NULL,
	state_authority_digest binary(32) NOT NULL,
	scope_hash binary(32) NOT NULL,
	schema_hash binary(32) NOT NULL,
	projection_fingerprint binary(32) NOT NULL,
	rows_artifact_sha256 binary(32) NOT NULL,
	keys_artifact_sha256 binary(32) NULL,
	repair_authority_id nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL,
	repair_authority_digest binary(32) NULL,
	registry_serial BIGINT NOT NULL,
	detected_at_utc datetime2(6) NOT NULL,
	committed_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_commit_receipt PRIMARY KEY (receipt_id),
	CONSTRAINT uq_dpone_commit_receipt_invocation_digest UNIQUE (invocation_digest),
	CONSTRAINT uq_dpone_commit_receipt_load_id UNIQUE (load_id),
	CONSTRAINT uq_dpone_commit_receipt_state_key UNIQUE (state_key, new_revision)
)
GO
CREATE TRIGGER [governance].[tr_dpone_commit_receipt_immutable] ON [governance].[dpone_commit_receipt] INSTEAD OF UPDATE, DELETE AS BEGIN THROW 50001, N'Rows of this table never change.', 1; END
GO
CREATE TABLE governance.dpone_repair_authority (
	authority_id nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	authority_digest binary(32) NOT NULL,
	contract_version INTEGER NOT NULL,
	environment nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	state_key binary(32) NOT NULL,
	scope_hash binary(32) NOT NULL,
	checkpoint_xmin BIGINT NULL,
	checkpoint_revision BIGINT NULL,
	allow_full_baseline SMALLINT NOT NULL,
	allow_max_delete_rows BIGINT NULL,
	allow_max_delete_ratio NUMERIC(18, 15) NULL,
	transfer_from_state_key binary(32) NULL,
	transfer_from_xmin BIGINT NULL,
	transfer_from_revision BIGINT NULL,
	reason nvarchar(max) NOT NULL,
	envelope nvarchar(max) NULL,
	created_at_utc datetime2(6) NOT NULL,
	expires_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_repair_authority PRIMARY KEY (authority_id)
)
GO
CREATE TRIGGER [governance].[tr_dpone_repair_authority_immutable] ON [governance].[dpone_repair_authority] INSTEAD OF UPDATE, DELETE AS BEGIN THROW 50001, N'Rows of this table never change.', 1; END
GO
CREATE TABLE governance.dpone_repair_authority_consumption (
	authority_id nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	authority_digest binary(32) NOT NULL,
	state_key binary(32) NOT NULL,
	load_id UNIQUEIDENTIFIER NOT NULL,
	receipt_id UNIQUEIDENTIFIER NOT NULL,
	consumed_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_repair_authority_consumption PRIMARY KEY (authority_id),
	CONSTRAINT uq_dpone_repair_authority_consumption_receipt_id UNIQUE (receipt_id)
)
GO
CREATE TRIGGER [governance].[tr_dpone_repair_authority_consumption_immutable] ON [governance].[dpone_repair_authority_consumption] INSTEAD OF UPDATE, DELETE AS BEGIN THROW 50001, N'Rows of this table never change.', 1; END
GO
CREATE TABLE governance.dpone_load_audit (
	audit_id UNIQUEIDENTIFIER NOT NULL,
	load_id UNIQUEIDENTIFIER NOT NULL,
	invocation_digest binary(32) NOT NULL,
	process nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	run_id nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	map_index INTEGER NOT NULL,
	target_identity binary(32) NOT NULL,
	state_key binary(32) NOT NULL,
	outcome nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	error_code nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL,
	receipt_id UNIQUEIDENTIFIER NULL,
	evidence nvarchar(max) NOT NULL,
	recorded_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_load_audit PRIMARY KEY (audit_id)
)
GO
CREATE TABLE governance.dpone_target_fence (
	target_identity binary(32) NOT NULL,
	epoch BIGINT NOT NULL,
	owner nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_target_fence PRIMARY KEY (target_identity)
)
GO
CREATE TABLE governance.dpone_load_attempt (
	attempt_key binary(32) NOT NULL,
	invocation_digest binary(32) NOT NULL,
	target_identity binary(32) NOT NULL,
	route_fingerprint binary(32) NOT NULL,
	load_id UNIQUEIDENTIFIER NOT NULL,
	status nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	created_at_utc datetime2(6) NOT NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_load_attempt PRIMARY KEY (attempt_key),
	CONSTRAINT uq_dpone_load_attempt_invocation_digest UNIQUE (invocation_digest)
)
GO
CREATE TABLE governance.dpone_load_operation (
	operation_key binary(32) NOT NULL,
	attempt_key binary(32) NOT NULL,
	kind nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	epoch BIGINT NOT NULL,
	owner nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL,
	lease_until_utc datetime2(6) NULL,
	status nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_load_operation PRIMARY KEY (operation_key)
)
GO
CREATE TABLE governance.dpone_load_receipt (
	receipt_id UNIQUEIDENTIFIER NOT NULL,
	operation_key binary(32) NOT NULL,
	invocation_digest binary(32) NOT NULL,
	target_identity binary(32) NOT NULL,
	kind nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	epoch BIGINT NOT NULL,
	rows_count BIGINT NOT NULL,
	artifact_sha256 binary(32) NOT NULL,
	snapshot nvarchar(max) NOT NULL,
	committed_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_load_receipt PRIMARY KEY (receipt_id),
	CONSTRAINT uq_dpone_load_receipt_operation_key UNIQUE (operation_key)
)
GO
CREATE TRIGGER [governance].[tr_dpone_load_receipt_immutable] ON [governance].[dpone_load_receipt] INSTEAD OF UPDATE, DELETE AS BEGIN THROW 50001, N'Rows of this table never change.', 1; END
GO
CREATE TABLE governance.dpone_campaign (
	campaign_key binary(32) NOT NULL,
	process nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
	handoff_id nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	environment nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
	target_identity binary(32) NOT NULL,
	state_key binary(32) NOT NULL,
	plan_digest binary(32) NOT NULL,
	anchor_xmin BIGINT NOT NULL,
	anchor_visible_horizon BIGINT NOT NULL,
	anchor_snapshot nvarchar(max) NOT NULL,
	projection_fingerprint binary(32) NOT NULL,
	publication nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	shadow_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL,
	status nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	chunk_count INTEGER NOT NULL,
	created_at_utc datetime2(6) NOT NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_campaign PRIMARY KEY (campaign_key)
)
GO
CREATE TABLE governance.dpone_campaign_chunk (
	campaign_key binary(32) NOT NULL,
	chunk_no INTEGER NOT NULL,
	lower_bound nvarchar(max) NULL,
	upper_bound nvarchar(max) NULL,
	status nvarchar(32) COLLATE Latin1_General_100_BIN2 NOT NULL,
	epoch BIGINT NOT NULL,
	owner nvarchar(300) COLLATE Latin1_General_100_BIN2 NULL,
	lease_until_utc datetime2(6) NULL,
	rows_count BIGINT NULL,
	receipt_id UNIQUEIDENTIFIER NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_campaign_chunk PRIMARY KEY (campaign_key, chunk_no)
)
GO
INSERT INTO [governance].[dpone_catalog_version] (component, version, installed_at_utc) VALUES ('catalog', 2, SYSUTCDATETIME())
GO
USE [DWH]
GO
SET QUOTED_IDENTIFIER ON
GO
SET ANSI_NULLS ON
GO
IF SCHEMA_ID(N'dbo') IS NULL EXEC(N'CREATE SCHEMA [dbo]')
GO
CREATE TABLE dbo.dpone_target_identity (
	binding_id UNIQUEIDENTIFIER NOT NULL,
	schema_name nvarchar(128) COLLATE DATABASE_DEFAULT NOT NULL,
	table_name nvarchar(128) COLLATE DATABASE_DEFAULT NOT NULL,
	created_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_target_identity PRIMARY KEY (binding_id),
	CONSTRAINT uq_dpone_target_identity_schema_name UNIQUE (schema_name, table_name)
)
GO
CREATE TRIGGER [dbo].[tr_dpone_target_identity_immutable] ON [dbo].[dpone_target_identity] INSTEAD OF UPDATE, DELETE AS BEGIN THROW 50001, N'Rows of this table never change.', 1; END
GO
CREATE TABLE dbo.dpone_target_head (
	target_identity binary(32) NOT NULL,
	state_key binary(32) NOT NULL,
	revision BIGINT NOT NULL,
	load_id UNIQUEIDENTIFIER NOT NULL,
	updated_at_utc datetime2(6) NOT NULL,
	CONSTRAINT pk_dpone_target_head PRIMARY KEY (target_identity)
)
GO
USE [DWH_Stage]
GO
SET QUOTED_IDENTIFIER ON
GO
SET ANSI_NULLS ON
GO
IF SCHEMA_ID(N'staging') IS NULL EXEC(N'CREATE SCHEMA [staging]')
GO
USE [DWH]
GO
SET QUOTED_IDENTIFIER ON
GO
SET ANSI_NULLS ON
GO
IF SCHEMA_ID(N'landing') IS NULL EXEC(N'CREATE SCHEMA [landing]')
GO
USE [DWH]
GO
IF USER_ID(N'dpone_runtime') IS NULL CREATE USER [dpone_runtime] FOR LOGIN [dpone_runtime]
GO
GRANT CONNECT, VIEW DEFINITION TO [dpone_runtime]
GO
USE [DWH_Stage]
GO
IF USER_ID(N'dpone_runtime') IS NULL CREATE USER [dpone_runtime] FOR LOGIN [dpone_runtime]
GO
GRANT CONNECT, VIEW DEFINITION TO [dpone_runtime]
GO
USE [Sys]
GO
IF USER_ID(N'dpone_runtime') IS NULL CREATE USER [dpone_runtime] FOR LOGIN [dpone_runtime]
GO
GRANT CONNECT, VIEW DEFINITION TO [dpone_runtime]
GO
USE [DWH_Stage]
GO
GRANT CREATE TABLE TO [dpone_runtime]
GO
GRANT ALTER, SELECT, INSERT ON SCHEMA::[staging] TO [dpone_runtime]
GO
USE [master]
GO
GRANT VIEW ANY DATABASE TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT ON [governance].[dpone_catalog_version] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_registry_serial] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_source_state] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_run_state] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT ON [governance].[dpone_commit_receipt] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT ON [governance].[dpone_repair_authority] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT ON [governance].[dpone_repair_authority_consumption] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT ON [governance].[dpone_load_audit] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_target_fence] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_load_attempt] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_load_operation] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT ON [governance].[dpone_load_receipt] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_campaign] TO [dpone_runtime]
GO
USE [Sys]
GO
GRANT SELECT, INSERT, UPDATE ON [governance].[dpone_campaign_chunk] TO [dpone_runtime]
GO
USE [DWH]
GO
GRANT SELECT ON [dbo].[dpone_target_identity] TO [dpone_runtime]
GO
USE [DWH]
GO
GRANT SELECT, INSERT, UPDATE ON [dbo].[dpone_target_head] TO [dpone_runtime]
GO
