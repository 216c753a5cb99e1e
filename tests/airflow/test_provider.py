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
from airflow.serialization.serialized_objects import DagSerialization

from airflow_dpone_xmin.operators.reconcile import XminReconcileOperator
from airflow_dpone_xmin.provider_info import get_provider_info

EXAMPLES = sorted((Path(__file__).parents[2] / "dags_examples").glob("*.py"))
DEMO = Path(__file__).parents[2] / "airflow_dpone_xmin" / "demo" / "dags" / "flights.py"


def test_the_provider_describes_itself_by_airflows_schema() -> None:
    info = get_provider_info()
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    for kind in ("hooks", "operators"):
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
    assert list(again.task_dict["tables"].template_fields) == ["manifest", "table"]
