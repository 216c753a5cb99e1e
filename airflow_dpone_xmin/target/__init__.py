"""SQL Server and the embedded engine: catalog, identity, staging, finalizer, ledger. Imports contracts, policy and artifacts."""
