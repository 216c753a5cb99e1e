USE [DWH]
GO
SET QUOTED_IDENTIFIER ON
GO
SET ANSI_NULLS ON
GO
IF SCHEMA_ID(N'landing') IS NULL EXEC(N'CREATE SCHEMA [landing]')
GO
CREATE TABLE landing.orders (
	id bigint NOT NULL,
	code nvarchar(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
	u uniqueidentifier NOT NULL,
	si smallint NULL,
	i int NULL,
	price decimal(10,2) NULL,
	big decimal(38,4) NULL,
	ok bit NULL,
	note nvarchar(max) NULL,
	day date NULL,
	clock time(6) NULL,
	at datetime2(6) NULL,
	atz datetimeoffset(6) NULL,
	blob varbinary(max) NULL,
	js nvarchar(max) NULL,
	r real NULL,
	d float NULL,
	__dpone__load_id UNIQUEIDENTIFIER NOT NULL,
	__dpone__loaded_at datetime2(6) NOT NULL,
	__dpone__updated_at datetime2(6) NOT NULL,
	CONSTRAINT pk_orders PRIMARY KEY (id, code)
)
GO
CREATE INDEX [ix_orders_dpone_key] ON [landing].[orders] ([id], [code])
GO
INSERT INTO [dbo].[dpone_target_identity] (binding_id, schema_name, table_name, created_at_utc) VALUES (CONVERT(uniqueidentifier, '00000000-0000-0000-0000-000000000007'), N'landing', N'orders', SYSUTCDATETIME())
GO
USE [DWH]
GO
GRANT SELECT, INSERT, UPDATE, DELETE ON [landing].[orders] TO [dpone_runtime]
GO
