"""What Airflow discovers, and what a DAG file pays for."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import airflow
import jsonschema
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator
from airflow_dpone_xmin.operators.selection import authority_ref
from airflow_dpone_xmin.provider_info import get_provider_info

EXAMPLES = sorted((Path(__file__).parents[2] / "dags_examples").glob("*.py"))
DEMO = Path(__file__).parents[2] / "airflow_dpone_xmin" / "demo" / "dags" / "flights.py"


def test_the_provider_describes_itself_by_airflows_schema() -> None:
    info = get_provider_info()
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for module in info[kind][0]["python-modules"]:
            importlib.import_module(module)


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
