-- new nullable column
USE [DWH]
GO
ALTER TABLE [landing].[orders] ADD [note] nvarchar(max) NULL
GO

-- new column with a default
USE [DWH]
GO
ALTER TABLE [landing].[orders] ADD [flag] bit NULL
GO

-- new column with an odd name
USE [DWH]
GO
ALTER TABLE [landing].[orders] ADD [a:b %s "x] int NULL
GO

-- wider integer
USE [DWH]
GO
ALTER TABLE [landing].[orders] ALTER COLUMN [qty] bigint NULL
GO

-- wider decimal
USE [DWH]
GO
ALTER TABLE [landing].[orders] ALTER COLUMN [price] decimal(14,4) NULL
GO

-- wider text
USE [DWH]
GO
ALTER TABLE [landing].[orders] ALTER COLUMN [code] nvarchar(80) COLLATE Latin1_General_CI_AS NULL
GO

-- unbounded text
USE [DWH]
GO
ALTER TABLE [landing].[orders] ALTER COLUMN [code] nvarchar(max) COLLATE Latin1_General_CI_AS NULL
GO

-- wider float
USE [DWH]
GO
ALTER TABLE [landing].[orders] ALTER COLUMN [f] float NULL
GO

-- narrower decimal

-- narrower integer

-- narrower key

-- NULL allowed
USE [DWH]
GO
ALTER TABLE [landing].[orders] ALTER COLUMN [must] int NULL
GO

-- integer to decimal
USE [DWH]
GO
ALTER TABLE [landing].[orders] ALTER COLUMN [qty] decimal(12,2) NULL
GO
