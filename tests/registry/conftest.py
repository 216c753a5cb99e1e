"""A signed registry to break."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import PAYLOAD_TYPE
from airflow_dpone_xmin.registry.keys import generate_keypair, read_signer
from airflow_dpone_xmin.registry.load import VerifiedRegistry, load_registry
from airflow_dpone_xmin.registry.sign import sign_document

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def document() -> dict[str, Any]:
    """A valid document with every kind of block."""
    return {
        "kind": "dpone.registry.v1",
        "environment": "test",
        "serial": 7,
        "not_before": "2026-01-01T00:00:00Z",
        "not_after": "2027-01-01T00:00:00+01:00",
        "repair_approvals": {"signed": True},
        "connections": {
            "oltp": {
                "type": "postgres",
                "airflow_conn_id": "oltp_conn",
                "connection": {
                    "host": "db.internal",
                    "port": 5432,
                    "database": "sales",
                    "postgres_source_authority": {
                        "version": 2,
                        "verification_profile": "catalog_identity",
                        "topology_role": "primary",
                        "database": {"canonical_name": "sales", "oid": 16384},
                        "principals": {
                            "effective": {"canonical_name": "reader", "oid": 16385},
                            "session": {"canonical_name": "reader", "oid": 16385},
                        },
                        "relations": {
                            "public.orders": {"schema": "public", "relation": "orders", "namespace_oid": 2200, "relation_oid": 16402},
                            "public.lines": {"schema": "public", "relation": "lines", "namespace_oid": 2200, "relation_oid": 16403},
                        },
                    },
                },
            },
            "dwh": {
                "type": "mssql",
                "connection": {
                    "host": "sql.internal",
                    "database": "DWH",
                    "schema": "dbo",
                    "multi_subnet_failover": True,
                    "staging": {"database": "DWH_Stage", "schema": "stage"},
                    "database_authorities": {
                        "DWH": {
                            "database_id": 7,
                            "create_token": "2026-08-16T09:14:22.1233333",
                            "database_guid": "01234567-89ab-cdef-0123-456789abcdef",
                        },
                        "DWH_Stage": {
                            "replicas": [
                                {
                                    "database_id": 8,
                                    "create_token": "2026-08-16T09:15:01.1000000",
                                    "database_guid": "89abcdef-0123-4567-89ab-cdef01234567",
                                }
                            ]
                        },
                    },
                },
            },
        },
    }


@dataclass(frozen=True)
class Keys:
    """One key pair on disk."""

    private: Path
    public: Path
    key_id: str

    def envelope(self, payload: bytes | dict[str, Any], *, payload_type: str = PAYLOAD_TYPE) -> dict[str, Any]:
        """Sign anything, valid or not."""
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        result: dict[str, Any] = json.loads(sign_document(raw, read_signer(self.private), payload_type=payload_type))
        return result


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(*generate_keypair(tmp_path_factory.mktemp("keys"), name="owner"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(*generate_keypair(tmp_path_factory.mktemp("keys"), name="stranger"))


Load = Callable[..., VerifiedRegistry]


@pytest.fixture(scope="session")
def load(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Write an envelope (bytes or mapping) to a file and load it as a run would."""
    path = tmp_path_factory.mktemp("registry") / "registry.json"

    def run(envelope: bytes | dict[str, Any], *, environment: str | None = "test", now: datetime = NOW) -> VerifiedRegistry:
        path.write_bytes(envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode())
        return load_registry(path, trusted_keys=[keys.public], environment=environment, now=now)

    return run


@pytest.fixture(scope="session")
def refused(load: Load) -> Callable[..., XminError]:
    """Load an envelope that must be refused and return the refusal."""

    def run(envelope: bytes | dict[str, Any], **options: Any) -> XminError:
        with pytest.raises(XminError) as caught:
            load(envelope, **options)
        return caught.value

    return run


def with_payload(envelope: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """The envelope with another payload under the old signature."""
    return {**envelope, "payload": base64.b64encode(payload).decode()}
