"""Accept signed bytes: one envelope format (DSSE) for the registry and for repair approvals.

All cryptography is securesystemslib's: Ed25519, ECDSA, RSA and ML-DSA keys, and the key types it knows beside them. Here are only the
refusals. Imports securesystemslib, pydantic and contracts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.registry.keys import read_public_key
from airflow_dpone_xmin.registry.parse import parse_json, validate

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import Key

Ascii = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$", strict=True)]


class _SignatureShape(BaseModel):
    """What the standard fixes of a signature; other members belong to the signer and are passed through."""

    model_config = ConfigDict(extra="allow", frozen=True)

    keyid: Ascii
    sig: Ascii


class _EnvelopeShape(BaseModel):
    """What the standard fixes of an envelope; anything else would be unsigned, so it is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    payload: Ascii
    payload_type: Annotated[Ascii, Field(alias="payloadType", max_length=255)]
    signatures: list[_SignatureShape]


@dataclass(frozen=True, slots=True)
class VerifiedDocument:
    """Signed bytes whose signature was made by a trusted key.

    :param payload: the signed bytes.
    :param digest: SHA-256 of the payload, 32 bytes.
    :param key_ids: ids of the trusted keys that signed.
    """

    payload: bytes
    digest: bytes
    key_ids: tuple[str, ...]


def verify_document(envelope: bytes, *, payload_type: str, trusted_keys: Sequence[Path | str]) -> VerifiedDocument:
    """Accept signed bytes only when one trusted key signed exactly this payload as exactly this type.

    :param envelope: the envelope's JSON text.
    :param payload_type: the only accepted type, which is under the signature.
    :param trusted_keys: public key files.
    :raises XminError: ``registry.trust_missing``, ``registry.key_unusable``, ``registry.malformed``, ``registry.unknown_field``,
        ``registry.duplicate_key``, ``registry.payload_type``, ``registry.unsigned``, ``registry.key_unknown``,
        ``registry.signature_invalid``.
    """
    if not trusted_keys:
        raise XminError("registry.trust_missing", "No trusted public key is configured, so no signature can be accepted.")
    keys = [read_public_key(path) for path in trusted_keys]
    parsed = _read_envelope(envelope)
    if parsed.payload_type != payload_type:
        raise XminError("registry.payload_type", f"The envelope's payload type is not {payload_type}.")
    if not parsed.signatures:
        raise XminError("registry.unsigned", "The envelope carries no signature.")
    known = {key.keyid for key in keys} & set(parsed.signatures)
    if not known:
        raise XminError(
            "registry.key_unknown",
            "None of the envelope's signatures names a trusted key.",
            details={"trusted_key_ids": sorted(key.keyid for key in keys)},
        )
    accepted = [key.keyid for key in keys if key.keyid in known and _signed_by(parsed, key)]
    if not accepted:
        raise XminError(
            "registry.signature_invalid",
            "A trusted key is named, but it did not sign this payload: the envelope was altered after signing.",
            details={"key_ids": sorted(known)},
        )
    return VerifiedDocument(payload=parsed.payload, digest=sha256(parsed.payload).digest(), key_ids=tuple(dict.fromkeys(accepted)))


def _read_envelope(raw: bytes) -> Envelope:
    from securesystemslib.dsse import Envelope

    data: dict[str, Any] = validate(_EnvelopeShape, parse_json(raw)).model_dump(by_alias=True)
    names = [signature["keyid"] for signature in data["signatures"]]
    if len(set(names)) != len(names):
        raise XminError("registry.malformed", "Two signatures name the same key.")
    try:
        return Envelope.from_dict(data)
    except Exception as error:  # text that is not base64; members that a signer's own format refuses
        raise XminError("registry.malformed", f"The envelope cannot be decoded: {type(error).__name__}.") from None


def _signed_by(envelope: Envelope, key: Key) -> bool:
    from securesystemslib.exceptions import UnsupportedLibraryError, UnverifiedSignatureError

    try:
        return bool(envelope.verify([key], 1))
    except UnverifiedSignatureError:
        return False
    except UnsupportedLibraryError:
        raise XminError(
            "registry.key_unusable", "A trusted key needs a library that is not installed.", details={"key_id": key.keyid}
        ) from None
    except Exception:  # whatever a foreign key type raises for a signature that is not one of its own
        return False
