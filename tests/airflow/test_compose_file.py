"""docker-compose.yaml against what it configures: no engine is at hand, so every name in it is looked up where it is defined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf, retrieve_configuration_description
from ruamel.yaml import YAML

from airflow_dpone_xmin.provider_info import get_provider_info
from tests.airflow.compose import EXAMPLES, ROOT, setup_module

OTHERS = {"celery": {"broker_url", "result_backend"}}
"""Options of providers that are in the official image and not in the test environment."""


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "docker-compose.yaml").read_text()


@pytest.fixture(scope="module")
def document(text: str) -> Any:
    """The file with its merge keys resolved, defaults in the place of variables."""
    plain = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)
    return YAML(typ="safe", pure=True).load(plain)


def test_every_variable_has_a_default(text: str) -> None:
    bare = [found for found in re.findall(r"(?<!\$)\$\{?[A-Za-z_][^}\s]*", text) if ":-" not in found]
    assert bare == []


def test_what_services_name_exists(document: Any) -> None:
    services = document["services"]
    assert {"source", "metadata", "target", "init", "airflow-apiserver", "airflow-scheduler", "airflow-triggerer"} <= set(services)
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}, which has no check"
            assert "profiles" not in services[other] or services[other]["profiles"] == service.get("profiles")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).is_dir() if source.startswith(".") else source in document["volumes"]
    assert {name for name, service in services.items() if service.get("profiles") == ["celery"]} == {"redis", "airflow-worker"}


def test_only_the_setup_sees_the_private_key_and_the_owners_logins(document: Any) -> None:
    owned = {
        name
        for name, service in document["services"].items()
        if any(volume.startswith("dpone-owner:") for volume in service.get("volumes", ()))
        or any("OWNER_URL" in variable for variable in service.get("environment", {}))
    }
    assert owned == {"init"}
    writers = {name for name, service in document["services"].items() if "dpone-config:/etc/dpone" in service.get("volumes", ())}
    assert writers == {"init"}


def test_every_airflow_variable_is_an_option(document: Any) -> None:
    ours = set(get_provider_info()["config"]["dpone_xmin"]["options"])
    known = conf.configuration_description
    for service in document["services"].values():
        for variable in service.get("environment", {}):
            if variable.startswith("AIRFLOW__"):
                _, section, option = variable.lower().split("__")
                options = ours if section == "dpone_xmin" else OTHERS.get(section) or set(known[section]["options"])
                assert option in options, variable


def test_every_secret_that_an_installation_makes_up_is_the_same_in_every_container(document: Any) -> None:
    """Airflow writes them to its airflow.cfg at the first start, and no container sees another's."""
    made_up = {
        f"AIRFLOW__{section}__{option}".upper()
        for section, described in retrieve_configuration_description(include_providers=False).items()
        for option, facts in described["options"].items()
        if facts.get("sensitive") and re.fullmatch(r"\{[A-Z_]+\}", str(facts["default"]))
    }
    assert {"AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__CORE__FERNET_KEY"} <= made_up
    containers = [service["environment"] for service in document["services"].values() if "airflow-dpone-xmin" in service["image"]]
    for name in made_up:
        assert len({environment[name] for environment in containers}) == 1, name
        assert containers[0][name] or name.endswith("FERNET_KEY")  # an empty one means: do not encrypt


def test_the_setup_reads_what_it_is_given(document: Any) -> None:
    environment = document["services"]["init"]["environment"]
    given = {name: str(value) for name, value in environment.items() if name.startswith("DPONE_")}
    settings = setup_module().Settings.read(given)
    assert (settings.engine, settings.databases) == ("mssql", ("DWH", "DWH_Stage", "DWH_State"))
    assert (settings.source.host, settings.target.host) == ("source", "target")
    assert dict(settings.target.extra) == {"Encrypt": "yes", "TrustServerCertificate": "yes"}
    written = setup_module().airflow_connections(settings)
    assert (written["oltp"]["login"], written["dwh"]["login"]) == ("dpone_reader", "dpone_runtime")
    for service in document["services"].values():
        config = service.get("environment", {}).get("AIRFLOW__DPONE_XMIN__REGISTRY")
        assert config is None or Path(config).parent == Path(given["DPONE_CONFIG_DIR"])


def test_what_nobody_schedules_is_triggered_once(document: Any) -> None:
    """Everything ends green, and nothing is triggered that does not exist."""
    (script,) = document["services"]["first-runs"]["command"]
    named = re.search(r"for dag in ([a-z_ ]+);", script)
    assert named is not None
    unscheduled = {path.stem for path in EXAMPLES.glob("*.py") if "schedule=None" in path.read_text()}
    assert set(named[1].split()) == unscheduled
