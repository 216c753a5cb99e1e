"""Sign what an environment's owner reviewed. Used by the owner, never by a run.

Imports securesystemslib, pydantic and contracts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import PAYLOAD_TYPE, RegistryDocument
from airflow_dpone_xmin.registry.parse import parse_json, parse_yaml, validate

if TYPE_CHECKING:
    from securesystemslib.signer import Signer


def sign_document(payload: bytes, signer: Signer, *, payload_type: str) -> bytes:
    """Sign *payload* and return the envelope as JSON text.

    :param signer: from :func:`~airflow_dpone_xmin.registry.keys.read_signer`.
    :raises XminError: ``registry.key_unusable`` when the signer fails.
    """
    from securesystemslib.dsse import Envelope

    envelope = Envelope(payload, payload_type, {})
    try:
        envelope.sign(signer)
    except Exception as error:  # key services raise their own clients' errors, whose texts may quote addresses
        raise XminError("registry.key_unusable", f"The signer failed: {type(error).__name__}.") from None
    return json.dumps(envelope.to_dict(), indent=2).encode("ascii") + b"\n"


def read_draft(raw: bytes) -> RegistryDocument:
    """An unsigned registry document, JSON or YAML.

    :raises XminError: as :func:`~airflow_dpone_xmin.registry.parse.parse_document`.
    """
    value = parse_json(raw) if raw.lstrip().startswith(b"{") else parse_yaml(raw)
    return validate(RegistryDocument, value)


def canonical_payload(document: RegistryDocument) -> bytes:
    """The bytes that are signed: the document as its author wrote it, validated, as sorted and indented JSON.

    :param document: defaults that the author left out stay out.
    """
    value = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"


def sign_registry(raw: bytes, signer: Signer) -> bytes:
    """Validate an unsigned document and sign it.

    :param raw: JSON or YAML.
    :returns: the envelope's JSON text.
    :raises XminError: as :func:`read_draft` and :func:`sign_document`.
    """
    return sign_document(canonical_payload(read_draft(raw)), signer, payload_type=PAYLOAD_TYPE)
