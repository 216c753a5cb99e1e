"""Every way a registry is refused, each by its own code, and the one way it is accepted."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.registry.load import load_registry, read_bytes, shown

from .conftest import NOW, Keys, Load, document, with_payload

Refused = Callable[..., XminError]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The valid document with one field set, or removed when *value* is the Ellipsis."""
    result = copy.deepcopy(document())
    parent: Any = result
    *heads, last = path.split("/")
    for head in heads:
        parent = parent[head]
    if value is ...:
        del parent[last]
    else:
        parent[last] = value
    return result


def test_a_signed_registry_is_accepted(load: Load, keys: Keys) -> None:
    envelope = keys.envelope(document())
    registry = load(envelope)
    assert registry.document == RegistryDocument.model_validate(document())
    assert registry.digest == hashlib.sha256(base64.b64decode(envelope["payload"])).digest()
    assert (registry.serial, registry.key_ids) == (7, (keys.key_id,))
    assert load(envelope, environment=None).serial == 7


def test_an_object_storage_url_is_read(keys: Keys, tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    path.write_text(json.dumps(keys.envelope(document())))
    assert load_registry(f"file://{path}", trusted_keys=[keys.public], now=NOW).serial == 7


@pytest.mark.parametrize(
    "location", ["/nowhere/registry.json", "file:///nowhere/registry.json", "nosuchscheme://user:s3cret@host/x?token=s3cret", "\0"]
)
def test_an_unreadable_location(location: str, keys: Keys) -> None:
    with pytest.raises(XminError) as caught:
        load_registry(location, trusted_keys=[keys.public])
    assert caught.value.code == "registry.unreadable"
    assert "s3cret" not in str(caught.value)
    assert not caught.value.retryable
    assert ("Install the Airflow provider" in caught.value.hint) is location.startswith("nosuchscheme")


def test_a_location_is_shown_without_secrets() -> None:
    assert shown("s3://user:pw@bucket/a/b?sig=1") == "s3://bucket/a/b"
    assert shown(Path("/a/b")) == "/a/b"


def test_without_trusted_keys_nothing_is_read() -> None:
    with pytest.raises(XminError) as caught:
        load_registry("/nowhere", trusted_keys=[])
    assert caught.value.code == "registry.trust_missing"


def test_no_signature(refused: Refused, keys: Keys) -> None:
    assert refused({**keys.envelope(document()), "signatures": []}).code == "registry.unsigned"


def test_an_unknown_key(refused: Refused, stranger: Keys) -> None:
    assert refused(stranger.envelope(document())).code == "registry.key_unknown"


def test_an_unknown_key_under_a_trusted_name(refused: Refused, keys: Keys, stranger: Keys) -> None:
    envelope = stranger.envelope(document())
    envelope["signatures"][0]["keyid"] = keys.key_id
    assert refused(envelope).code == "registry.signature_invalid"


def test_one_trusted_signature_among_strangers_suffices(load: Load, keys: Keys, stranger: Keys) -> None:
    envelope = keys.envelope(document())
    envelope["signatures"] = [*stranger.envelope(document())["signatures"], *envelope["signatures"]]
    assert load(envelope).key_ids == (keys.key_id,)


def test_an_altered_payload(refused: Refused, keys: Keys) -> None:
    altered = with_payload(keys.envelope(document()), json.dumps(changed("serial", 8)).encode())
    assert refused(altered).code == "registry.signature_invalid"


def test_another_payload_type(refused: Refused, keys: Keys) -> None:
    assert refused(keys.envelope(document(), payload_type="application/vnd.dpone.repair-authority.v1+json")).code == "registry.payload_type"
    relabelled = {**keys.envelope(document(), payload_type="text/plain"), "payloadType": "application/vnd.dpone.registry.v1+json"}
    assert refused(relabelled).code == "registry.signature_invalid"


def test_another_environment(refused: Refused, keys: Keys) -> None:
    assert refused(keys.envelope(document()), environment="production").code == "registry.environment_mismatch"


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC), "registry.not_yet_valid"),
        (datetime(2026, 12, 31, 23, 0, 0, tzinfo=UTC), "registry.expired"),
    ],
)
def test_outside_its_validity(now: datetime, code: str, refused: Refused, keys: Keys) -> None:
    assert refused(keys.envelope(document()), now=now).code == code


def test_at_the_edges_of_its_validity(load: Load, keys: Keys) -> None:
    assert load(keys.envelope(document()), now=datetime(2026, 1, 1, tzinfo=UTC))
    assert load(keys.envelope(document()), now=datetime(2026, 12, 31, 22, 59, 59, tzinfo=UTC))


def test_repeated_keys(refused: Refused, keys: Keys) -> None:
    payload = json.dumps(document()).encode()
    assert refused(keys.envelope(payload.replace(b'"serial": 7', b'"serial": 9, "serial": 7'))).code == "registry.duplicate_key"
    inside = payload.replace(b'"oid": 16384', b'"oid": 1, "oid": 16384')
    assert refused(keys.envelope(inside)).code == "registry.duplicate_key"
    envelope = json.dumps(keys.envelope(document()))
    assert refused(envelope.replace('"payload":', '"payload": "", "payload":').encode()).code == "registry.duplicate_key"


SOURCE = "connections/oltp/connection/postgres_source_authority"
TARGET = "connections/dwh/connection/database_authorities"
SOURCE_INVALID = "DPONE_POSTGRES_SOURCE_AUTHORITY_INVALID"
TARGET_INVALID = "DPONE_MSSQL_DATABASE_AUTHORITY_INVALID"


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("surprise", 1, "registry.unknown_field"),
        ("connections/dwh/password", "x", "registry.unknown_field"),
        ("connections/dwh/connection/password", "x", "registry.unknown_field"),
        ("connections/DWH", {"type": "mssql", "connection": {"database": "x"}}, "registry.duplicate_fold"),
        ("kind", "dpone.registry.v2", "registry.malformed"),
        ("serial", 0, "registry.malformed"),
        ("serial", "7", "registry.malformed"),
        ("serial", True, "registry.malformed"),
        ("serial", 7.0, "registry.malformed"),
        ("environment", "", "registry.malformed"),
        ("environment", "te\nst", "registry.malformed"),
        ("environment", ..., "registry.malformed"),
        ("not_before", 1767225600, "registry.malformed"),
        ("serial", 2**63, "registry.malformed"),  # the state database could not keep it
        ("not_before", "1767225600", "registry.malformed"),
        ("not_before", "0001-01-01T00:00:00+14:00", "registry.malformed"),
        ("not_after", "9999-12-31T23:59:59-14:00", "registry.malformed"),
        ("not_before", "2026-01-01T00:00:00", "registry.malformed"),
        ("not_before", "2028-01-01T00:00:00Z", "registry.malformed"),
        ("repair_approvals/signed", "no", "registry.malformed"),
        ("connections", {}, "registry.malformed"),
        ("connections/dwh/type", "oracle", "registry.malformed"),
        ("connections/dwh/type", "postgres", "registry.malformed"),
        ("connections/oltp/type", "embedded", "registry.malformed"),
        ("connections/dwh/connection/multi_subnet_failover", 1, "registry.malformed"),
        ("connections/dwh/connection/port", "1433", "registry.malformed"),
        (f"{SOURCE}/surprise", 1, SOURCE_INVALID),
        (f"{SOURCE}/version", 1, SOURCE_INVALID),
        (f"{SOURCE}/version", True, SOURCE_INVALID),
        (f"{SOURCE}/version", 3, SOURCE_INVALID),
        (f"{SOURCE}/verification_profile", "physical_cluster", SOURCE_INVALID),
        (f"{SOURCE}/system_identifier", "7000000000000000000", SOURCE_INVALID),
        (f"{SOURCE}/timeline_id", 1, SOURCE_INVALID),
        (f"{SOURCE}/topology_role", "replica", SOURCE_INVALID),
        (f"{SOURCE}/principals", ..., SOURCE_INVALID),
        (f"{SOURCE}/database/oid", 0, SOURCE_INVALID),
        (f"{SOURCE}/database/oid", 2**32, SOURCE_INVALID),
        (f"{SOURCE}/database/oid", "16384", SOURCE_INVALID),
        (f"{SOURCE}/relations", {}, SOURCE_INVALID),
        (f"{SOURCE}/relations/public.orders/relation", "other", SOURCE_INVALID),
        (
            f"{SOURCE}/relations/public.Orders",
            {"schema": "public", "relation": "Orders", "namespace_oid": 2200, "relation_oid": 5},
            SOURCE_INVALID,
        ),
        (f"{TARGET}/DWH/surprise", 1, TARGET_INVALID),
        (f"{TARGET}/DWH/create_token", ..., TARGET_INVALID),
        (f"{TARGET}/DWH/create_token", "none yet: apply ddl render --part catalog", TARGET_INVALID),
        (f"{TARGET}/DWH/database_guid", "not-a-uuid", TARGET_INVALID),
        (f"{TARGET}/DWH/database_id", "7", TARGET_INVALID),
        (f"{TARGET}/DWH/replicas", [{"database_id": 1, "create_token": "t", "database_guid": "0" * 32}], TARGET_INVALID),
        (
            f"{TARGET}/dwh",
            {"database_id": 9, "create_token": "t", "database_guid": "01234567-89ab-cdef-0123-456789abcdef"},
            TARGET_INVALID,
        ),
    ],
)
def test_a_document_that_is_not_closed_and_complete(path: str, value: Any, code: str, refused: Refused, keys: Keys) -> None:
    error = refused(keys.envelope(changed(path, value)))
    assert error.code == code
    assert error.details["path"]


def test_versions_are_closed_both_ways(load: Load, refused: Refused, keys: Keys) -> None:
    physical = document()
    authority = physical["connections"]["oltp"]["connection"]["postgres_source_authority"]
    authority.update(version=1, verification_profile="physical_cluster", system_identifier="7000000000000000000", timeline_id=3)
    assert load(keys.envelope(physical))
    del authority["timeline_id"]
    assert refused(keys.envelope(physical)).code == SOURCE_INVALID


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"{" * 100_000,
        b'{"a":' * 100_000,
        b"[" + b"9" * 5000 + b"]",
        b'{"payload": NaN}',
        b'{"payload": "AAAA", "payloadType": "t", "signatures": {}}',
        b'{"payload": "AAAA", "payloadType": "t", "signatures": [{}]}',
        b'{"payload": 1, "payloadType": "t", "signatures": []}',
        b'{"payload": "\\ud800", "payloadType": "t", "signatures": []}',
        json.dumps(document()).encode(),
    ],
)
def test_bytes_that_are_no_envelope(raw: bytes, refused: Refused) -> None:
    assert refused(raw).code in {"registry.malformed", "registry.unknown_field"}


def test_payloads_that_are_no_document(refused: Refused, keys: Keys) -> None:
    for raw in (b"", b"[]", b"\xff", b'{"a":' * 100_000, b'"\\ud800"', json.dumps(document()).encode("utf-16")):
        assert refused(keys.envelope(raw)).code == "registry.malformed"


def test_envelope_members_outside_the_signature(refused: Refused, keys: Keys) -> None:
    assert refused({**keys.envelope(document()), "note": "unsigned"}).code == "registry.unknown_field"
    twice = keys.envelope(document())
    twice["signatures"] *= 2
    assert refused(twice).code == "registry.malformed"


def test_an_oversized_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(XminError) as caught:
        read_bytes(path)
    assert caught.value.code == "registry.malformed"


def test_refusals_never_quote_a_value(refused: Refused, keys: Keys) -> None:
    secret = "hunter2-planted"
    for path in (
        "environment", "serial", "not_before", "kind", "connections/dwh/type", "connections/dwh/connection/port", "connections",
        "connections/dwh/connection/password", f"{TARGET}/DWH/database_guid", f"{TARGET}/DWH/replicas", f"{SOURCE}/version",
        f"{SOURCE}/topology_role", f"{SOURCE}/database/oid", f"{SOURCE}/relations/public.orders/relation",
        f"{SOURCE}/relations/u:{secret}@h",
    ):  # fmt: skip
        error = refused(keys.envelope(changed(path, f"{secret}\n")))
        assert secret not in str(error) + json.dumps(error.to_dict())
