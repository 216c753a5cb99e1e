"""Identities are contract: committed vectors, and every input changes the digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from airflow_dpone_xmin.contracts import identity
from airflow_dpone_xmin.contracts.canonical import canonical_json, digest
from airflow_dpone_xmin.contracts.envelope import SourceIdentity
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import DatabaseAuthority, SourceAuthority
from airflow_dpone_xmin.contracts.state import Invocation

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "digest_vectors.json").read_text())


def _source_authority(**of: Any) -> bytes:
    return SourceAuthority.model_validate(of["document"]).authority_digest(of["relation"])


def _database_authority(**of: Any) -> bytes:
    return DatabaseAuthority.model_validate(of["document"]).authority_digest(role=of["role"], database=of["database"])


def _state_key(**of: Any) -> bytes:
    hexes = {name: bytes.fromhex(of.pop(name)) for name in ("target", "scope", "schema")}
    return identity.state_key(source=SourceIdentity(*of.pop("source")), **hexes, **of)


def _schema_hash(**of: Any) -> bytes:
    return identity.schema_hash(**{**of, "key": [tuple(part) for part in of["key"]]})


FUNCTIONS: dict[str, Callable[..., bytes]] = {
    "invocation_digest": lambda **of: identity.invocation_digest(Invocation(**of)),
    "scope_hash": lambda **of: identity.scope_hash(of["scope"]) if "scope" in of else identity.scope_hash(),
    "schema_hash": _schema_hash,
    "target_identity": lambda **of: identity.target_identity(**{**of, "binding_id": UUID(of["binding_id"])}),
    "state_key": _state_key,
    "route_fingerprint": lambda **of: identity.route_fingerprint(
        contract=of["contract"], authorities={role: bytes.fromhex(value) for role, value in of["authorities"].items()}
    ),
    "source_authority": _source_authority,
    "database_authority": _database_authority,
}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['function']}: {vector['says']}")
def test_vector(vector: dict[str, Any]) -> None:
    """The digest of these inputs is the committed one, in this version and every later one of the contract."""
    assert FUNCTIONS[vector["function"]](**json.loads(json.dumps(vector["of"]))).hex() == vector["sha256"]


def test_every_function_has_vectors() -> None:
    """No digest is without a vector, and no two different inputs of one function share a digest."""
    assert {vector["function"] for vector in VECTORS} == set(FUNCTIONS)
    for function in FUNCTIONS:
        digests = [vector["sha256"] for vector in VECTORS if vector["function"] == function and not vector.get("same")]
        assert len(digests) == len(set(digests)), function


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [path for key, item in value.items() for path in _paths(item, (*prefix, key))]
    if isinstance(value, list):
        return [path for index, item in enumerate(value) for path in _paths(item, (*prefix, index))]
    return [prefix]


def _changed(value: Any, path: tuple[Any, ...]) -> Any:
    copy = json.loads(json.dumps(value))
    node = copy
    for part in path[:-1]:
        node = node[part]
    last = node[path[-1]]
    node[path[-1]] = last + 1 if isinstance(last, int) else _other(str(last))
    return copy


def _other(text: str) -> str:
    if len(text) in (36, 64) and set(text) <= set("0123456789abcdef-"):
        return ("1" if text[0] != "1" else "2") + text[1:]
    return text + "x"


@pytest.mark.parametrize("function", ["invocation_digest", "schema_hash", "target_identity", "state_key", "route_fingerprint"])
def test_every_input_counts(function: str) -> None:
    """A change of any single input changes the digest."""
    vector = next(vector for vector in VECTORS if vector["function"] == function)
    for path in _paths(vector["of"]):
        if vector["of"].get("handoff_id") is None and path[0] == "handoff_id":
            continue
        found = FUNCTIONS[function](**_changed(vector["of"], path)).hex()
        assert found != vector["sha256"], f"{function} ignores {path}"


def test_a_handoff_replaces_the_process() -> None:
    """Two processes of one handoff share a state key; a handoff named like a process does not."""
    base = next(vector["of"] for vector in VECTORS if vector["function"] == "state_key")
    key = lambda **over: _state_key(**json.loads(json.dumps({**base, **over})))  # noqa: E731
    assert key(process="a", handoff_id="h") == key(process="b", handoff_id="h")
    assert key(process="h", handoff_id=None) != key(process="x", handoff_id="h")


# ---- canonical JSON -------------------------------------------------------------------------------------------------------
def test_canonical_form() -> None:
    """Sorted keys, no spaces, UTF-8 as it is, nested alike."""
    assert canonical_json({"b": [1, "é"], "a": {"z": 0, "y": "\u2028"}}) == '{"a":{"y":"\u2028","z":0},"b":[1,"é"]}'.encode()
    assert canonical_json({"n": 2**63}) == b'{"n":9223372036854775808}'


@pytest.mark.parametrize("bad", [1.0, True, None, b"x", {"a": None}, [1.5], {1: "a"}, {"a": {"b": False}}, {1, 2}])
def test_what_has_more_than_one_spelling_is_refused(bad: Any) -> None:
    """Floats, booleans, null, bytes and keys that are no strings have no canonical form."""
    with pytest.raises(TypeError):
        canonical_json(bad)


@pytest.mark.parametrize("bad", [{}, {"a": 1}, {"v": "1"}, {"v": True}])
def test_a_digest_carries_its_version(bad: Any) -> None:
    """A digested mapping has an integer ``v``."""
    with pytest.raises(TypeError):
        digest(bad)


@pytest.mark.parametrize("name", ["", "x" * 257, "\U0001f600" * 129])
def test_an_invocation_fits_its_column(name: str) -> None:
    """1 to 256 UTF-16 units, judged before anything is opened."""
    for over in ({"process": name}, {"run_id": name}):
        with pytest.raises(XminError) as caught:
            Invocation(**{"process": "p", "run_id": "r", **over})
        assert caught.value.code == "invocation.invalid"
    assert Invocation(process="\U0001f600" * 128, run_id="r").map_index == -1
