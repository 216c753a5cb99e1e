"""The manifests of the reference documents, as data: both halves of a handoff, and the short example."""

from __future__ import annotations

from typing import Any

STATE: dict[str, Any] = {
    "type": "mssql",
    "connection_id": "mssql_dwh",
    "atomicity": "target_atomic",
    "provisioning": "external",
    "table": {"name": "dpone_source_state"},
    "run_table": {"name": "dpone_run_state"},
    "receipt_table": {"name": "dpone_commit_receipt"},
    "repair_authority_table": {"name": "dpone_repair_authority"},
    "repair_consumption_table": {"name": "dpone_repair_authority_consumption"},
    "audit_table": {"name": "dpone_load_audit"},
}
INITIAL: dict[str, Any] = {
    "source": {
        "type": "postgres",
        "connection_id": "postgres_oltp",
        "table": {"schema": "public", "name": "orders"},
        "options": {"incremental_strategy": "xmin", "xmin_execution": {"mode": "initial", "handoff_id": "orders_v1"}},
    },
    "sink": {
        "type": "mssql",
        "connection_id": "mssql_dwh",
        "table": {"schema": "landing", "name": "orders"},
        "strategy": {
            "mode": "backfill",
            "unique_key": ["id"],
            "backfill": {
                "inner_mode": "incremental_merge",
                "parallel_workers": 4,
                "retry_policy": "non_committed",
                "lease_ttl_minutes": 60,
                "state": {"backend": "audit_schema", "schema": "governance", "require_distributed_lock": True},
                "chunk": {"column": "id", "from": 1, "to": 50000000, "step": 250000, "kind": "integer"},
            },
        },
    },
    "state": STATE,
}
INCREMENTAL: dict[str, Any] = {
    "source": {
        "type": "postgres",
        "connection_id": "postgres_oltp",
        "table": {"schema": "public", "name": "orders"},
        "options": {"incremental_strategy": "xmin", "xmin_execution": {"mode": "incremental", "handoff_id": "orders_v1"}},
    },
    "sink": {
        "type": "mssql",
        "connection_id": "mssql_dwh",
        "table": {"schema": "landing", "name": "orders"},
        "strategy": {"mode": "incremental_merge", "unique_key": ["id"], "merge_policy": "delete_insert"},
    },
    "reconciliation": {
        "enabled": True,
        "mode": "key_snapshot",
        "cadence": "every_run",
        "consistency": "same_source_snapshot",
        "delete_policy": "soft_delete",
        "empty_snapshot": {"policy": "fail"},
        "guards": {"max_delete_ratio": 0.05, "max_delete_rows": 100000},
    },
    "state": STATE,
}
SHORT: dict[str, Any] = {
    "kind": "dpone.batch.v1",
    "defaults": {
        "name": "postgres_to_mssql_example",
        "source": {"type": "postgres", "connection_id": "postgres_source", "options": {"batch_size": 50000, "export_format": "csv"}},
        "sink": {
            "type": "mssql",
            "connection_id": "mssql_dwh",
            "table": {"schema": "dbo", "name": "orders"},
            "strategy": {
                "mode": "incremental_merge",
                "unique_key": "order_id",
                "merge_policy": "delete_insert",
                "duplicate_policy": "fail",
            },
        },
    },
    "quality": {
        "gates": [
            {
                "id": "source_target_rows",
                "type": "row_count_reconciliation",
                "severity": "error",
                "tolerance": {"mode": "pct", "value": 0.1},
            }
        ]
    },
    "schemas": {"public": {"tables": ["orders"]}},
}
