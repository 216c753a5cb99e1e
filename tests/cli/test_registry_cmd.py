"""The owner's commands, from key to diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import DOCUMENT, Cli


def test_from_key_to_diff(cli: Cli, signed: Path) -> None:
    trusted = ("--trusted-key", "k.pub")
    assert cli("registry", "verify", "r.json", *trusted).code == 0
    verified = cli("registry", "verify", "r.json", *trusted, "--environment", "test", "--format", "json")
    assert (verified.json["environment"], verified.json["connections"]) == ("test", ["dwh"])
    shown = cli("registry", "show", "r.json", *trusted, "--format", "json").json
    assert shown["document"]["connections"]["dwh"]["connection"]["database_authorities"]["DWH"]["database_id"] == 7
    assert "database_id: 7" in cli("registry", "show", "r.json", *trusted, "--entry", "dwh").out
    difference = cli("registry", "diff", "r.json", "r2.json", *trusted, "--format", "json").json
    assert difference["serial_rises"] is True
    assert [change["path"][-1] for change in difference["changes"]] == ["serial", "database_id"]
    assert "database_id" in cli("registry", "diff", "r.json", "r2.json", *trusted).out
    assert "equal" in cli("registry", "diff", "r.json", "r.json", *trusted).out
    assert "serial" in cli("registry", "diff", "r2.json", "r.json", *trusted).err


def test_refusals_have_their_code_and_exit_1(cli: Cli, signed: Path) -> None:
    (signed / "bad.yaml").write_text(DOCUMENT.format(serial=1, database_id=7) + "surprise: 1\n")
    cli("registry", "keygen", "other", "--name", "o")
    for code, arguments in {
        "registry.trust_missing": ["verify", "r.json"],
        "registry.location_missing": ["verify", "--trusted-key", "k.pub"],
        "registry.key_unknown": ["verify", "r.json", "--trusted-key", "other/o.pub"],
        "registry.environment_mismatch": ["verify", "r.json", "--trusted-key", "k.pub", "--environment", "prod"],
        "registry.key_unusable": ["verify", "r.json", "--trusted-key", "k.key"],
        "registry.unreadable": ["sign", "absent.yaml", "-o", "x", "--key", "k.key"],
        "registry.unknown_field": ["sign", "bad.yaml", "-o", "x", "--key", "k.key"],
        "registry.output_exists": ["sign", "d.yaml", "-o", "r.json", "--key", "k.key"],
        "registry.malformed": ["verify", "d.yaml", "--trusted-key", "k.pub"],
        "DPONE_REGISTRY_CONNECTION_UNKNOWN": ["show", "r.json", "--trusted-key", "k.pub", "--entry", "nosuch"],
    }.items():
        done = cli("registry", *arguments, "--format", "json")
        assert (done.code, done.json["error"]["code"]) == (1, code)
    assert cli("registry", "sign", "d2.yaml", "-o", "r.json", "--key", "k.key", "--force").code == 0
    assert not (signed / "x").exists()


def test_environment_variables_stand_in_for_options(cli: Cli, signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPONE_REGISTRY", "r.json")
    monkeypatch.setenv("DPONE_TRUSTED_KEYS", "k.pub, k.pub")
    monkeypatch.setenv("DPONE_ENVIRONMENT", "prod")
    assert cli("registry", "verify", "--format", "json").json["error"]["code"] == "registry.environment_mismatch"
    assert cli("registry", "verify", "--environment", "test").code == 0


def test_discover_needs_credentials(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("registry", "discover", "oltp", "--relation", "public.orders", "--format", "json")
    assert (done.code, done.json["error"]["code"]) == (1, "DPONE_CONNECTION_UNRESOLVED")
    monkeypatch.setenv("DPONE_CONN_OLTP", "postgresql://u:s3cret@127.0.0.1:1/db")
    done = cli("registry", "discover", "oltp", "--relation", "public.orders")
    assert done.code == 75
    assert "s3cret" not in done.out + done.err


def test_discover_prints_queries_without_connecting(cli: Cli) -> None:
    done = cli("registry", "discover", "oltp", "--relation", "public.o'rders", "--queries")
    assert done.code == 0
    assert "c.relname = 'o''rders'" in done.out
    assert "pg_control" not in done.out
    assert "pg_control_system" in cli("registry", "discover", "oltp", "--relation", "a.b", "--queries", "--physical-cluster").out
    assert "database_recovery_status" in cli("registry", "discover", "dwh", "--type", "mssql", "--queries").out
    assert "dpone_database_token" in cli("registry", "discover", "dwh", "--type", "embedded", "--queries").out
    assert cli("registry", "discover", "dwh", "--type", "mssql").code == 1  # names no database
    assert cli("registry", "discover", "oltp").code == 1
    assert cli("registry", "discover", "oltp", "--relation", "nodot").code == 1
