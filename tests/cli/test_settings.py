"""Where the registry and its trust come from, and what Airflow is told about it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.provider_info import get_provider_info
from airflow_dpone_xmin.runtime.settings import Settings, airflow_is_configured, resolve_settings, split_list


def test_options_win_over_variables() -> None:
    env = {"DPONE_REGISTRY": "env.json", "DPONE_TRUSTED_KEYS": "a.pub, b.pub,", "DPONE_ENVIRONMENT": "env"}
    assert resolve_settings(environ=env) == Settings(registry="env.json", trusted_keys=("a.pub", "b.pub"), environment="env")
    assert resolve_settings(registry="r", trusted_keys=["k"], environment="e", environ=env) == Settings("r", ("k",), "e")


def test_nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_dpone_xmin.runtime.settings.airflow_is_configured", lambda env: False)
    settings = resolve_settings(environ={})
    assert settings == Settings()
    with pytest.raises(XminError) as caught:
        settings.require_registry()
    assert caught.value.code == "registry.location_missing"
    assert split_list(None) == ()


def test_airflow_is_asked_only_where_it_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "airflow.configuration", raising=False)
    assert not airflow_is_configured({"AIRFLOW_HOME": str(tmp_path)})
    (tmp_path / "airflow.cfg").touch()
    assert airflow_is_configured({"AIRFLOW_HOME": str(tmp_path)})
    assert airflow_is_configured({"AIRFLOW_HOME": "/nowhere", "AIRFLOW_CONFIG": str(tmp_path / "airflow.cfg")})
    assert airflow_is_configured({"AIRFLOW_HOME": "/nowhere", "AIRFLOW__CORE__X": ""})


def test_airflow_configuration_fills_the_rest(tmp_path: Path) -> None:
    program = (
        "import dataclasses, json\nfrom airflow_dpone_xmin.runtime.settings import resolve_settings\n"
        "print('settings:' + json.dumps(dataclasses.asdict(resolve_settings(environment='given'))))"
    )
    env = {
        "PATH": "/usr/bin:/bin",
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DPONE_XMIN__REGISTRY": "s3://bucket/registry.json",
        "AIRFLOW__DPONE_XMIN__TRUSTED_KEYS": "/etc/a.pub, /etc/b.pub",
        "AIRFLOW__DPONE_XMIN__ENVIRONMENT": "configured",
    }
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert json.loads(done.stdout.rpartition("settings:")[2]) == {
        "registry": "s3://bucket/registry.json",
        "trusted_keys": ["/etc/a.pub", "/etc/b.pub"],
        "environment": "given",
        "work_dir": None,
    }


def test_airflow_discovers_the_provider() -> None:
    import airflow
    import jsonschema

    found = [entry for entry in entry_points(group="apache_airflow_provider") if entry.value.startswith("airflow_dpone_xmin")]
    assert found[0].load() is get_provider_info
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)
    assert set(get_provider_info()["config"]["dpone_xmin"]["options"]) == {"registry", "trusted_keys", "environment", "work_dir"}
