"""The registry as runtime gets it: read, verified, valid now, of this environment.

The serial is exposed, not judged: only the state database knows which serial was accepted before. Imports contracts; Airflow's object
storage only when the location is a URL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import PAYLOAD_TYPE, RegistryDocument
from airflow_dpone_xmin.registry.parse import MAX_BYTES, parse_document
from airflow_dpone_xmin.registry.verify import verify_document

MAX_ENVELOPE_BYTES = 2 * MAX_BYTES
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VerifiedRegistry:
    """A registry that may be used now.

    :param document: the signed facts.
    :param digest: SHA-256 of the signed payload, 32 bytes.
    :param serial: the document's serial, for the rollback check against the state database.
    :param key_ids: ids of the trusted keys that signed.
    """

    document: RegistryDocument
    digest: bytes
    serial: int
    key_ids: tuple[str, ...]


def load_registry(
    location: Path | str,
    *,
    trusted_keys: Sequence[Path | str],
    environment: str | None = None,
    now: datetime | None = None,
) -> VerifiedRegistry:
    """Read, verify and admit a registry.

    :param location: local path, or an URL that Airflow's object storage opens.
    :param trusted_keys: public key files.
    :param environment: the environment that this deployment is; None accepts the document's own.
    :param now: for tests; the current time otherwise.
    :raises XminError: ``registry.unreadable``, everything :func:`~airflow_dpone_xmin.registry.verify.verify_document` and
        :func:`~airflow_dpone_xmin.registry.parse.parse_document` refuse, ``registry.environment_mismatch``, ``registry.not_yet_valid``,
        ``registry.expired``.
    """
    registry = read_registry(location, trusted_keys=trusted_keys)
    admit(registry.document, environment=environment, now=now)
    return registry


def read_registry(location: Path | str, *, trusted_keys: Sequence[Path | str]) -> VerifiedRegistry:
    """Read and verify a registry without asking whether it is valid now: for ``diff`` and ``show``.

    :raises XminError: as :func:`load_registry`, without the last three.
    """
    if not trusted_keys:
        raise XminError("registry.trust_missing", "No trusted public key is configured, so no registry can be accepted.")
    verified = verify_document(read_bytes(location), payload_type=PAYLOAD_TYPE, trusted_keys=trusted_keys)
    document = parse_document(verified.payload)
    return VerifiedRegistry(document=document, digest=verified.digest, serial=document.serial, key_ids=verified.key_ids)


def admit(document: RegistryDocument, *, environment: str | None, now: datetime | None = None) -> None:
    """Refuse a document of another environment or time; ``not_after`` itself is already too late.

    :raises XminError: ``registry.environment_mismatch``, ``registry.not_yet_valid``, ``registry.expired``.
    """
    moment = datetime.now(UTC) if now is None else now
    if environment is not None and document.environment != environment:
        raise XminError(
            "registry.environment_mismatch",
            f"The registry is for environment {document.environment!r}, this deployment is {environment!r}.",
        )
    if moment < document.not_before:
        raise XminError("registry.not_yet_valid", f"The registry is valid from {document.not_before.isoformat()}.")
    if moment >= document.not_after:
        raise XminError("registry.expired", f"The registry was valid until {document.not_after.isoformat()}.")


def read_bytes(location: Path | str) -> bytes:
    """The bytes of a local file or of an object, at most :data:`MAX_ENVELOPE_BYTES`.

    :raises XminError: ``registry.unreadable``; retryable, unless nothing is there or it may not be read.
    """
    try:
        with (_object(str(location)) if _SCHEME.match(str(location)) else Path(location)).open("rb") as file:
            raw: bytes = file.read(MAX_ENVELOPE_BYTES + 1)
    except XminError:
        raise
    except Exception as error:  # object stores raise errors of their own clients, whose texts may hold addresses and keys
        lasting = isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError))
        message = f"{shown(location)} cannot be read: {type(error).__name__}."
        raise XminError("registry.unreadable", message, retryable=not lasting) from None
    if len(raw) > MAX_ENVELOPE_BYTES:
        raise XminError("registry.malformed", f"{shown(location)} has more than {MAX_ENVELOPE_BYTES} bytes.")
    return raw


def _object(location: str) -> Any:
    """The object at a URL, once something that is installed serves its scheme."""
    from airflow.sdk import ObjectStoragePath

    try:
        path = ObjectStoragePath(location)
        _ = path.fs  # looked up here: what an object store refuses later has other reasons
    except (ImportError, ValueError):
        raise XminError(
            "registry.unreadable",
            f"{shown(location)} cannot be read: nothing installed serves its scheme.",
            hint="Install the Airflow provider of the object store (for s3:// apache-airflow-providers-amazon), or name a file.",
            retryable=False,
        ) from None
    return path


def shown(location: Path | str) -> str:
    """The location as it may be printed: without user information and without a query, where URLs keep secrets."""
    text = str(location)
    if not _SCHEME.match(text):
        return text
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
