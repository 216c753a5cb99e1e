"""Canonical JSON and its SHA-256: the base of every identity in this product.

Sorted keys, no spaces, UTF-8, integers and strings only (design.md "Identities"): floats, booleans and null have more than one spelling
in other languages, so they are refused. Imports the standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Union

Canonical = Union[int, str, Sequence["Canonical"], Mapping[str, "Canonical"]]


def canonical_json(value: Canonical) -> bytes:
    """Encode *value* in its only canonical form.

    :raises TypeError: for anything but integers, strings, lists and string-keyed mappings.
    """
    _require_canonical(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def digest(value: Mapping[str, Canonical]) -> bytes:
    """SHA-256 (32 bytes) of a canonical mapping that carries its version in ``v``."""
    if not isinstance(value.get("v"), int):
        raise TypeError("a digested mapping carries an integer version in 'v'")
    return hashlib.sha256(canonical_json(value)).digest()


def _require_canonical(value: object) -> None:
    if isinstance(value, bool) or value is None or isinstance(value, float):
        raise TypeError(f"{type(value).__name__} has no canonical form")
    if isinstance(value, (int, str)):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError("canonical mappings have string keys")
            _require_canonical(item)
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            _require_canonical(item)
        return
    raise TypeError(f"{type(value).__name__} has no canonical form")
