"""Key files: make, read, refuse.

A public key is a PEM file, or securesystemslib's own JSON form with its ``keyid`` when the key type has no PEM. A private key is a
PKCS#8 PEM file, or a signer URI of securesystemslib (``gcpkms:``, ``awskms:``, ``hsm:`` …). Imports securesystemslib, cryptography and
contracts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.registry.parse import parse_json

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signer

MAX_KEY_BYTES = 64 * 1024
_URI = re.compile(r"[a-z][a-z0-9]{2,}:.+", re.IGNORECASE)


def generate_keypair(directory: Path, *, name: str) -> tuple[Path, Path, str]:
    """Make an Ed25519 key pair: ``NAME.key`` (mode 0600) and ``NAME.pub``.

    :returns: private file, public file, key id.
    :raises XminError: ``registry.output_exists`` rather than overwriting a key; ``registry.unwritable``.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    from securesystemslib.signer import SSlibKey

    private = Ed25519PrivateKey.generate()
    public_pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    private_pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    private_file, public_file = directory / f"{name}.key", directory / f"{name}.pub"
    for path in (private_file, public_file):
        if path.exists():
            raise XminError("registry.output_exists", f"{path} exists.")
    write_new(private_file, private_pem, mode=0o600)
    write_new(public_file, public_pem, mode=0o644)
    return private_file, public_file, SSlibKey.from_crypto(private.public_key()).keyid


def write_new(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Create *path*; never overwrite, never follow a link that is already there.

    :raises XminError: ``registry.output_exists``, ``registry.unwritable``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except FileExistsError:
        raise XminError("registry.output_exists", f"{path} exists.") from None
    except (OSError, ValueError) as error:
        raise XminError("registry.unwritable", f"{path} cannot be written: {type(error).__name__}.") from None


def replace_file(path: Path, content: bytes) -> None:
    """Write *path* in one step: a reader sees the old bytes or the new ones.

    :raises XminError: ``registry.unwritable``.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_new(draft, content)
    try:
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise XminError("registry.unwritable", f"{path} cannot be replaced: {type(error).__name__}.") from None


def read_public_key(path: Path | str) -> Key:
    """Read one public key file.

    :raises XminError: ``registry.key_unusable``; a private key is refused too, since it should not be where public keys are read.
    """
    raw = _read(path)
    try:
        return _key_from_json(raw) if raw.lstrip().startswith(b"{") else _key_from_pem(raw, path)
    except XminError as error:
        raise XminError("registry.key_unusable", f"{path}: {error.message}") from None
    except Exception as error:
        raise XminError("registry.key_unusable", f"{path} is not a public key: {type(error).__name__}.") from None


def read_signer(key: Path | str, *, public_key: Path | str | None = None) -> Signer:
    """A signer from a private key file or a signer URI.

    :param key: PKCS#8 PEM file, or a securesystemslib URI.
    :param public_key: the matching public key file; needed with a URI, where it also fixes the scheme.
    :raises XminError: ``registry.key_unusable``.
    """
    from securesystemslib.signer import Signer

    if not _URI.fullmatch(str(key)) or Path(key).exists():
        return _signer_from_pem(key)
    if public_key is None:
        raise XminError("registry.key_unusable", "A signer URI needs its public key file.", hint="Pass --public-key.")
    public = read_public_key(public_key)
    try:
        return Signer.from_priv_key_uri(str(key), public)
    except Exception as error:  # each key service raises errors of its own client
        raise XminError("registry.key_unusable", f"The signer cannot be opened: {type(error).__name__}.") from None


def _signer_from_pem(path: Path | str) -> Signer:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    raw = _read(path)
    try:
        return CryptoSigner(load_pem_private_key(raw, None))
    except TypeError:
        hint = "Sign with a key service, or decrypt the key first."
        raise XminError("registry.key_unusable", f"{path} is encrypted.", hint=hint) from None
    except Exception as error:
        hint = "Pass the private half of the pair, a PEM file; the public half only proves what was signed."
        raise XminError("registry.key_unusable", f"{path} is not a private key: {type(error).__name__}.", hint=hint) from None


def _key_from_pem(raw: bytes, path: Path | str) -> Key:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    if b"PRIVATE KEY" in raw:
        raise XminError("registry.key_unusable", f"{path} holds a private key; name the public one.")
    return SSlibKey.from_crypto(load_pem_public_key(raw))


def _key_from_json(raw: bytes) -> Key:
    from securesystemslib.signer import Key

    data: dict[str, Any] = parse_json(raw)
    key: Key = Key.from_dict(data.pop("keyid"), data)
    return key


def _read(path: Path | str) -> bytes:
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_KEY_BYTES + 1)
    except (OSError, ValueError) as error:
        raise XminError("registry.key_unusable", f"{path} cannot be read: {type(error).__name__}.") from None
    if len(raw) > MAX_KEY_BYTES:
        raise XminError("registry.key_unusable", f"{path} is too large for a key.")
    return raw
