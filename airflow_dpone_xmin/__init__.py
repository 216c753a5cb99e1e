"""Keep a SQL Server table equal to a PostgreSQL table, deletes included, from ``xmin`` alone."""

__version__ = "0.1.0"
