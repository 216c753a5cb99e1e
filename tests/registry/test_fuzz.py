"""Whatever bytes a registry holds: accepted, or refused with a code of the table. Never another exception."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_dpone_xmin.contracts.errors import CODES, XminError

from .conftest import Keys, Load, document, with_payload

REFUSALS = {code for code in CODES if code.startswith("registry.") or code.endswith("_AUTHORITY_INVALID")}
SETTINGS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

TIMES = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z", "1700000000", "2026-01-01"]

text = st.text(st.characters(), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | text
    | st.sampled_from([0, 1, 2, -1, 2**32, 2**63, 2**64, 10**400, "", "\0", "public.orders", "primary", "embedded", "DWH", "dwh", *TIMES])
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all nodes."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in below for place in places(item, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn, original: Any) -> Any:
    """The original with up to three nodes replaced, removed, renamed or joined by others."""
    result = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([place for place in places(result) if place] or [()]))
        if not path:
            return draw(values)
        parent = result
        for key in path[:-1]:
            parent = parent[key]
        action = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
        if action == "replace" or isinstance(parent, list):
            parent[path[-1]] = draw(values)
        elif action == "remove":
            del parent[path[-1]]
        elif action == "rename":
            parent[draw(text | st.just(str(path[-1]).swapcase()))] = parent.pop(path[-1])
        else:
            parent[draw(text)] = draw(values)
    return result


def judged(load: Load, raw: bytes) -> None:
    try:
        registry = load(raw)
    except XminError as error:
        assert error.code in REFUSALS
        assert error.message and error.hint
        json.dumps(error.to_dict())
        return
    for connection in registry.document.connections.values():  # an accepted document yields its digests
        authority = connection.connection.postgres_source_authority
        for relation in authority.relations if authority else ():
            assert len(authority.authority_digest(relation)) == 32  # type: ignore[union-attr]
        for name, pins in (connection.connection.database_authorities or {}).items():
            assert len(pins.authority_digest(role="target", database=name)) == 32


@SETTINGS
@given(payload=mutated(document()))
def test_signed_mutations_of_the_document(payload: Any, load: Load, keys: Keys) -> None:
    judged(load, json.dumps(keys.envelope(json.dumps(payload).encode())).encode())


@SETTINGS
@given(data=st.data())
def test_mutations_of_the_envelope(data: st.DataObject, load: Load, keys: Keys) -> None:
    judged(load, json.dumps(data.draw(mutated(keys.envelope(document())))).encode())


@SETTINGS
@given(data=st.data())
def test_truncated_and_altered_bytes(data: st.DataObject, load: Load, keys: Keys) -> None:
    raw = bytearray(json.dumps(keys.envelope(document())).encode())
    del raw[data.draw(st.integers(0, len(raw))) :]
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, max(len(raw) - 1, 0)), st.integers(0, 255)), max_size=3)):
        if position < len(raw):
            raw[position] = value
    judged(load, bytes(raw))


@SETTINGS
@given(
    payload=st.binary(max_size=200) | text.map(lambda value: value.encode("utf-8", "surrogatepass")),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-32", "latin-1"]),
)
def test_signed_nonsense_and_other_encodings(payload: bytes, encoding: str, load: Load, keys: Keys) -> None:
    judged(load, json.dumps(keys.envelope(payload)).encode())
    judged(load, json.dumps(keys.envelope(document())).encode(encoding))
    judged(load, json.dumps(keys.envelope(json.dumps(document(), ensure_ascii=False).encode(encoding))).encode())


@SETTINGS
@given(flip=st.integers(0, 10**6))
def test_no_altered_payload_is_ever_accepted(flip: int, load: Load, keys: Keys) -> None:
    envelope = keys.envelope(document())
    payload = bytearray(base64.b64decode(envelope["payload"]))
    payload[flip % len(payload)] ^= 1 + flip % 255
    try:
        load(with_payload(envelope, bytes(payload)))
    except XminError as error:
        assert error.code == "registry.signature_invalid"
    else:
        raise AssertionError("an altered payload was accepted")
