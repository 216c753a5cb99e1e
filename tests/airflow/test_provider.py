"""What Airflow discovers, and what a DAG file pays for."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import airflow
import jsonschema
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG, BaseHook, BaseOperator, BaseSensorOperator
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import BaseTrigger

from airflow_dpone_xmin import __version__
from airflow_dpone_xmin.hooks.mssql import MssqlDatabaseAuthorityHook
from airflow_dpone_xmin.hooks.postgres import PostgresSourceAuthorityHook
from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator
from airflow_dpone_xmin.operators.selection import authority_ref
from airflow_dpone_xmin.provider_info import get_provider_info

EXAMPLES = sorted((Path(__file__).parents[2] / "dags_examples").glob("*.py"))
PACKAGE = Path(__file__).parents[2] / "airflow_dpone_xmin"
DEMO = Path(__file__).parents[2] / "airflow_dpone_xmin" / "demo" / "dags" / "flights.py"


def test_the_provider_describes_itself_by_airflows_schema() -> None:
    info = get_provider_info()
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for module in info[kind][0]["python-modules"]:
            importlib.import_module(module)
    named = {module for kind in ("hooks", "operators", "sensors", "triggers") for module in info[kind][0]["python-modules"]}
    for kind, base in (("operators", BaseOperator), ("sensors", BaseSensorOperator), ("triggers", BaseTrigger), ("hooks", BaseHook)):
        for path in sorted((PACKAGE / kind).glob("*.py")):
            module = importlib.import_module(f"airflow_dpone_xmin.{kind}.{path.stem}")
            defines = any(
                isinstance(one, type) and issubclass(one, base) and one.__module__ == module.__name__ for one in vars(module).values()
            )
            assert not defines or module.__name__ in named, f"{module.__name__} is not declared"


def airflow_command(*arguments: str) -> str:
    """What Airflow's own command line says."""
    done = subprocess.run([sys.executable, "-m", "airflow", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_airflow_finds_the_provider() -> None:
    listed = {row["package_name"]: row for row in json.loads(airflow_command("providers", "list", "--output", "json"))}
    assert listed["airflow-dpone-xmin"]["version"] == __version__
    (shown,) = json.loads(airflow_command("providers", "get", "airflow-dpone-xmin", "--full", "--output", "json"))
    # the command spells some nested values its own way
    told = {name: value for name, value in get_provider_info().items() if name not in ("description", "connection-types", "config")}
    assert {name: shown[name] for name in told} == told


def test_airflow_registers_links_and_connection_types_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    manager = ProvidersManager()
    assert "airflow_dpone_xmin.links.receipt.ReceiptLink" in manager.extra_links_class_names
    for hook in (PostgresSourceAuthorityHook, MssqlDatabaseAuthorityHook):
        found = manager.hooks[hook.conn_type]
        assert found is not None and (found.hook_class_name, found.hook_name) == (f"{hook.__module__}.{hook.__name__}", hook.hook_name)
        assert found.connection_id_attribute_name == hook.conn_name_attr and found.connection_testable
    assert "dpone" not in caplog.text


def test_no_connection_form_can_hold_trust() -> None:
    for kind in get_provider_info()["connection-types"]:
        for name in kind["conn-fields"]:
            assert not re.search("key|trust|cert$|root|registry$|environment|authority", name, re.IGNORECASE)


def test_a_plugin_that_nobody_opens_costs_nothing() -> None:
    code = (
        "import sys; import airflow.sdk, airflow.plugins_manager; before = set(sys.modules)\n"
        "import airflow_dpone_xmin.plugins.xmin\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith(('airflow.sdk', 'airflow._shared'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert {name for name in new if name.split(".")[0] not in sys.stdlib_module_names} - {"airflow_dpone_xmin"} == {
        "airflow_dpone_xmin.links",
        "airflow_dpone_xmin.links.receipt",
        "airflow_dpone_xmin.plugins",
        "airflow_dpone_xmin.plugins.xmin",
    }


def test_describing_the_provider_imports_nothing_else() -> None:
    code = "import sys, airflow_dpone_xmin.provider_info as p; p.get_provider_info(); print(list(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in ast.literal_eval(done.stdout) if name.startswith("airflow")}
    assert loaded == {"airflow_dpone_xmin", "airflow_dpone_xmin.provider_info"}


def test_importing_the_operator_imports_no_driver() -> None:
    heavy = (
        "pyarrow",
        "adbc_driver_postgresql",
        "psycopg",
        "airflow_dpone_xmin.source",
        "airflow_dpone_xmin.target",
        "airflow_dpone_xmin.runtime",
    )
    code = (
        "import sys; import airflow.sdk; before = set(sys.modules)\n"
        "import airflow_dpone_xmin.operators.reconcile, airflow_dpone_xmin.hooks.postgres, airflow_dpone_xmin.hooks.mssql\n"
        "import airflow_dpone_xmin.sensors.repair_authority\n"
        f"print([name for name in {heavy!r} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize("path", [*EXAMPLES, DEMO], ids=lambda path: path.stem)
def test_a_dag_is_imported_and_survives_serialization(path: Path) -> None:
    bag = DagBag(dag_folder=str(path), safe_mode=False)
    assert bag.import_errors == {}
    assert bag.dags
    for dag in bag.dags.values():
        again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
        assert set(again.task_dict) == set(dag.task_dict)


def test_many_tables_of_one_manifest_are_mapped() -> None:
    with DAG("shop", schedule=None) as dag:
        XminReconcileOperator.partial(task_id="tables", manifest="shop.yaml", retries=2).expand(table=["public.a", "public.b"])
    again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert list(again.task_dict["tables"].template_fields) == ["manifest", "table", "repair_authority_ref"]


def test_the_exceptional_run_asks_for_its_approval_in_the_form() -> None:
    (dag,) = DagBag(dag_folder=str(EXAMPLES[0].parent / "exceptional_run.py"), safe_mode=False).dags.values()
    param = dag.params.get_param("repair_authority_ref")
    assert param.value is None
    schema = param.schema
    assert (schema["type"], schema["section"], schema["title"]) == (["null", "string"], "Exceptional run", "Repair authority")
    assert param.resolve("orders-2026:1") == "orders-2026:1"
    for wrong in ("a b", "", "x" * 129, "{{ 1 }}", 7):
        with pytest.raises(ParamValidationError):
            param.resolve(wrong)
    sensor, operator = dag.task_dict["wait_for_approval"], dag.task_dict["orders"]
    assert sensor.repair_authority_ref == operator.repair_authority_ref
    assert operator.upstream_task_ids == {"wait_for_approval"}


@pytest.mark.parametrize(("value", "meant"), [(None, None), ("fix-1", "fix-1")])
def test_the_parameter_reaches_sensor_and_operator(value: str | None, meant: str | None) -> None:
    (dag,) = DagBag(dag_folder=str(EXAMPLES[0].parent / "exceptional_run.py"), safe_mode=False).dags.values()
    for task in dag.task_dict.values():
        task.render_template_fields({"params": {"repair_authority_ref": value}})
        assert authority_ref(task.repair_authority_ref) == meant
