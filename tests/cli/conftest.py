"""Run the command line in a process of its own or in this one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.cli.main import main

DOCUMENT = """\
kind: dpone.registry.v1
environment: test
serial: {serial}
not_before: 2020-01-01T00:00:00Z
not_after: 2120-01-01T00:00:00Z
connections:
  dwh:
    type: mssql
    connection:
      database: DWH
      database_authorities:
        DWH: {{database_id: {database_id}, create_token: "t", database_guid: 01234567-89ab-cdef-0123-456789abcdef}}
"""


@dataclass(frozen=True)
class Outcome:
    """What a caller of the process sees."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cli]:
    """Run ``dpone-xmin`` with these arguments, without any configuration of the machine."""
    for name in ("DPONE_REGISTRY", "DPONE_TRUSTED_KEYS", "DPONE_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("airflow_dpone_xmin.runtime.settings.airflow_is_configured", lambda env=None: False)
    monkeypatch.setattr("airflow_dpone_xmin.runtime.endpoints.airflow_is_configured", lambda env=None: False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Outcome(int(caught.value.code or 0), out, err)

    yield run


@pytest.fixture
def signed(cli: Cli, tmp_path: Path) -> Path:
    """Two registries and a key pair, made by the commands themselves: r.json, r2.json, k.key, k.pub."""
    (tmp_path / "d.yaml").write_text(DOCUMENT.format(serial=1, database_id=7))
    (tmp_path / "d2.yaml").write_text(DOCUMENT.format(serial=2, database_id=9))
    assert cli("registry", "keygen", "--name", "k").code == 0
    assert cli("registry", "sign", "d.yaml", "-o", "r.json", "--key", "k.key").code == 0
    assert cli("registry", "sign", "d2.yaml", "-o", "r2.json", "--key", "k.key").code == 0
    return tmp_path
