"""Bytes into a registry document, every fault a typed refusal.

Exists because a plain JSON or YAML parser keeps the last of two equal keys, and because a validation library's messages quote the
value they refuse. Imports the standard library, pydantic, ruamel.yaml and contracts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import RegistryDocument

MAX_BYTES = 8 * 1024 * 1024
"""A registry of a thousand relations is below one percent of this; more is a mistake or an attack."""

Model = TypeVar("Model", bound=BaseModel)

_BLOCKS = {
    "postgres_source_authority": "DPONE_POSTGRES_SOURCE_AUTHORITY_INVALID",
    "database_authorities": "DPONE_MSSQL_DATABASE_AUTHORITY_INVALID",
}
_TYPES = {"extra_forbidden": "registry.unknown_field", "duplicate_fold": "registry.duplicate_fold"}
_PLAIN_NAME = re.compile(r"[\w.$@ \-\[\]]{1,64}")


def parse_json(raw: bytes) -> Any:
    """JSON as the standard has it: UTF-8, no repeated key, no NaN.

    :raises XminError: ``registry.malformed``, ``registry.duplicate_key``.
    """
    if len(raw) > MAX_BYTES:
        raise XminError("registry.malformed", f"The document has {len(raw)} bytes; at most {MAX_BYTES} are read.")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise XminError("registry.malformed", "The document is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise XminError("registry.malformed", f"Not JSON: line {error.lineno}, column {error.colno}.") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; brackets without end
        raise XminError("registry.malformed", f"Not JSON that can be read: {type(error).__name__}.") from None


def parse_yaml(raw: bytes, *, malformed: str = "registry.malformed", duplicate: str = "registry.duplicate_key") -> Any:
    """YAML 1.2 of a document that a human wrote; repeated keys are refused by the library.

    :param malformed: code of a document that is not YAML.
    :param duplicate: code of a repeated key.
    :raises XminError: *malformed*, *duplicate*.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(raw) > MAX_BYTES:
        raise XminError(malformed, f"The document has {len(raw)} bytes; at most {MAX_BYTES} are read.")
    try:
        return YAML(typ="safe", pure=True).load(raw.decode("utf-8"))
    except DuplicateKeyError as error:
        raise XminError(duplicate, f"A key is repeated{_at(error)}.") from None
    except MarkedYAMLError as error:
        raise XminError(malformed, f"Not YAML{_at(error)}.") from None
    except (YAMLError, ValueError, RecursionError) as error:  # a control character; not UTF-8; brackets without end
        raise XminError(malformed, f"Not YAML that can be read: {type(error).__name__}.") from None


def parse_document(raw: bytes) -> RegistryDocument:
    """The payload of a registry envelope.

    :raises XminError: ``registry.malformed``, ``registry.duplicate_key``, ``registry.duplicate_fold``, ``registry.unknown_field``, or
        inside a pin block ``DPONE_POSTGRES_SOURCE_AUTHORITY_INVALID`` or ``DPONE_MSSQL_DATABASE_AUTHORITY_INVALID``.
    """
    return validate(RegistryDocument, parse_json(raw))


def validate(model: type[Model], value: Any) -> Model:
    """Validate *value*; a refusal names the field and the rule, never the value.

    :raises XminError: as :func:`parse_document`.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        _refuse(error)
    except RecursionError:
        raise XminError("registry.malformed", "The document is nested too deeply.") from None


def _refuse(error: ValidationError) -> NoReturn:
    faults = error.errors(include_url=False, include_input=False)
    first = faults[0]
    code = next((_BLOCKS[part] for part in first["loc"] if part in _BLOCKS), None) or _TYPES.get(first["type"], "registry.malformed")
    path = field_path(first["loc"])
    rule = _rule(first["type"], first.get("ctx", {}), first["msg"])
    more = f" {len(faults) - 1} more fields are refused." if len(faults) > 1 else ""
    raise XminError(
        code,
        f"{path}: {rule}.{more}",
        details={"path": path, "rule": first["type"], "paths": [field_path(fault["loc"]) for fault in faults[:20]]},
    ) from None


def field_path(location: Sequence[str | int]) -> str:
    """A dotted path; a name that is not plain is withheld, since a misplaced secret would be one.

    :param location: keys and list positions, outermost first.
    """
    names = [str(part) if isinstance(part, int) or _PLAIN_NAME.fullmatch(part) else "(name withheld)" for part in location]
    return ".".join(names) or "document"


def _rule(kind: str, context: dict[str, Any], message: str) -> str:
    """Own words for the library's rule: its messages may quote a piece of the value."""
    bounds = {"gt": "greater than", "ge": "at least", "lt": "below", "le": "at most", "min_length": "at least", "max_length": "at most"}
    limit = next((f"must be {words} {context[name]}" for name, words in bounds.items() if name in context), "is out of range")
    if kind in ("too_short", "string_too_short", "too_long", "string_too_long"):
        return limit.replace("must be", "must have a length of")
    rules = {
        "missing": "is missing",
        "extra_forbidden": "is not a field of this document",
        "literal_error": f"must be {context.get('expected', 'one of the known words')}",
        "string_pattern_mismatch": "has characters that are not allowed",
        "string_unicode": "is not Unicode text",
        "uuid_parsing": "is not a UUID",
        "greater_than": limit,
        "less_than": limit,
    }
    if kind in rules:
        return rules[kind]
    if kind in ("profile", "relation_key", "pin_set", "misplaced", "timezone", "validity", "duplicate_fold", "int_type", "datetime_type"):
        return message  # the contract's own words, or a plain statement of the expected type
    return f"breaks the rule {kind}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise XminError("registry.duplicate_key", f"The key {field_path([repeated])} is repeated.", details={"key": field_path([repeated])})
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise XminError("registry.malformed", f"{name} is not JSON.")


def _at(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    return f": line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
