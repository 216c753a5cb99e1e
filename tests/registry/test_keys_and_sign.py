"""Keys, signing, drafts and the other documents that use the same envelope."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat, PublicFormat
from securesystemslib.signer import CryptoSigner

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import PAYLOAD_TYPE
from airflow_dpone_xmin.registry.keys import generate_keypair, read_public_key, read_signer, replace_file, write_new
from airflow_dpone_xmin.registry.sign import canonical_payload, read_draft, sign_document, sign_registry
from airflow_dpone_xmin.registry.verify import verify_document

from .conftest import Keys, document

REPAIR = "application/vnd.dpone.repair-authority.v1+json"


def test_a_generated_key_is_private_and_never_overwritten(tmp_path: Path) -> None:
    private, public, key_id = generate_keypair(tmp_path, name="k")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert read_public_key(public).keyid == key_id
    before = private.read_bytes()
    with pytest.raises(XminError) as caught:
        generate_keypair(tmp_path, name="k")
    assert caught.value.code == "registry.output_exists"
    assert private.read_bytes() == before


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_other_key_types_pass_through(kind: str, tmp_path: Path) -> None:
    private = {
        "ed25519": Ed25519PrivateKey.generate,
        "ecdsa": lambda: ec.generate_private_key(ec.SECP384R1()),
        "rsa": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    }[kind]()
    (tmp_path / "k.key").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "k.pub").write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    envelope = sign_document(b"payload", read_signer(tmp_path / "k.key"), payload_type=REPAIR)
    assert verify_document(envelope, payload_type=REPAIR, trusted_keys=[tmp_path / "k.pub"]).payload == b"payload"


def test_the_librarys_own_key_form_and_signer_uri(tmp_path: Path) -> None:
    signer = CryptoSigner.generate_ed25519(keyid="owner-2026")
    (tmp_path / "k.key").write_bytes(signer.private_bytes)
    (tmp_path / "k.json").write_text(json.dumps({"keyid": "owner-2026", **signer.public_key.to_dict()}))
    opened = read_signer(f"file2:{tmp_path / 'k.key'}", public_key=tmp_path / "k.json")
    envelope = sign_document(b"x", opened, payload_type=REPAIR)
    assert verify_document(envelope, payload_type=REPAIR, trusted_keys=[tmp_path / "k.json"]).key_ids == ("owner-2026",)


def test_a_repair_approval_is_no_registry(keys: Keys) -> None:
    envelope = sign_document(b"{}", read_signer(keys.private), payload_type=REPAIR)
    assert verify_document(envelope, payload_type=REPAIR, trusted_keys=[keys.public]).payload == b"{}"
    with pytest.raises(XminError) as caught:
        verify_document(envelope, payload_type=PAYLOAD_TYPE, trusted_keys=[keys.public])
    assert caught.value.code == "registry.payload_type"


def test_key_files_that_are_none(tmp_path: Path, keys: Keys) -> None:
    locked = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pw"))
    files = {"empty": b"", "text": b"hello", "json": b'{"keyid": 1}', "list": b"{[]}", "locked": locked, "big": b"x" * 100_000}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for path in [*(tmp_path / name for name in files), tmp_path / "absent", tmp_path, keys.private]:
        with pytest.raises(XminError) as caught:
            read_public_key(path)
        assert caught.value.code == "registry.key_unusable"
    for path in [*(tmp_path / name for name in files), tmp_path / "absent", tmp_path, keys.public]:
        with pytest.raises(XminError) as caught:
            read_signer(path)
        assert caught.value.code == "registry.key_unusable"


@pytest.mark.parametrize("uri", ["awskms:alias/x", "nosuch:thing", "hsm:2?label=x", "gcpkms:projects/x"])
def test_signers_that_cannot_be_opened(uri: str, keys: Keys) -> None:
    with pytest.raises(XminError) as caught:
        read_signer(uri, public_key=keys.public)
    assert caught.value.code == "registry.key_unusable"
    with pytest.raises(XminError) as caught:
        read_signer(uri)
    assert "--public-key" in caught.value.hint


def test_a_draft_in_yaml_and_in_json_signs_to_the_same_bytes() -> None:
    from ruamel.yaml import YAML

    as_json = json.dumps(document()).encode()
    import io

    stream = io.BytesIO()
    YAML(typ="safe", pure=True).dump(document(), stream)
    assert canonical_payload(read_draft(as_json)) == canonical_payload(read_draft(stream.getvalue()))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"a: 1\na: 2\n", "registry.duplicate_key"),
        (b"a: [", "registry.malformed"),
        (b"\x00", "registry.malformed"),
        (b"\xff", "registry.malformed"),
        (b"- 1\n", "registry.malformed"),
        (b"", "registry.malformed"),
        (b"!!python/object/apply:os.system ['true']\n", "registry.malformed"),
        (b"? [1]\n: 2\n", "registry.malformed"),
        (b"&a [*a]\n", "registry.malformed"),
        (b"[" * 20_000, "registry.malformed"),
    ],
)
def test_drafts_that_are_none(raw: bytes, code: str, keys: Keys) -> None:
    with pytest.raises(XminError) as caught:
        sign_registry(raw, read_signer(keys.private))
    assert caught.value.code == code


def test_an_unquoted_token_in_yaml_is_refused_rather_than_reformatted(keys: Keys) -> None:
    text = json.dumps(document()).replace('"2026-08-16T09:14:22.1233333"', "2026-08-16T09:14:22.1233333")
    with pytest.raises(XminError) as caught:
        read_draft(b"# yaml\n" + text.encode())
    assert caught.value.code == "DPONE_MSSQL_DATABASE_AUTHORITY_INVALID"


def test_files_are_written_whole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "f"
    write_new(path, b"1")
    with pytest.raises(XminError) as caught:
        write_new(path, b"2")
    assert caught.value.code == "registry.output_exists"
    replace_file(path, b"3")
    assert path.read_bytes() == b"3"
    assert [entry.name for entry in path.parent.iterdir()] == ["f"]
    with pytest.raises(XminError) as caught:
        write_new(path / "below", b"4")
    assert caught.value.code in {"registry.unwritable", "registry.output_exists"}
