"""The compose environment without Docker: its own set-up script, on embedded servers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "dags_examples"


def setup_module() -> Any:
    """``compose/init.py`` as a module; it is not part of the package."""
    spec = importlib.util.spec_from_file_location("dpone_compose_init", ROOT / "compose" / "init.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Compose:
    """Both servers and what the set-up made of them."""

    source: EmbeddedCluster
    target: EmbeddedCluster
    directory: Path
    rows: int = 300
    connections: dict[str, Any] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """What docker-compose.yaml gives the set-up, with the embedded engine in SQL Server's place."""
        return {
            "DPONE_ENGINE": "embedded",
            "DPONE_SOURCE_OWNER_URL": f"postgresql://postgres@/postgres?host={self.source.socket}",
            "DPONE_TARGET_OWNER_URL": f"postgresql://postgres@/postgres?host={self.target.socket}",
            "DPONE_SOURCE_PASSWORD": "it's a reader",
            "DPONE_TARGET_PASSWORD": "it's a writer",
            "DPONE_OWNER_DIR": str(self.directory / "owner"),
            "DPONE_CONFIG_DIR": str(self.directory / "config"),
            "DPONE_SAMPLE_ROWS": str(self.rows),
        }

    def init(self) -> None:
        """Run the set-up."""
        path, before = self.directory / "connections.json", dict(os.environ)
        os.environ.update(self.variables())
        try:
            setup_module().main(path)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.connections = json.loads(path.read_text())

    def airflow(self) -> dict[str, str]:
        """What docker-compose.yaml gives Airflow."""
        config = self.directory / "config"
        return {
            "AIRFLOW__DPONE_XMIN__REGISTRY": str(config / "registry.json"),
            "AIRFLOW__DPONE_XMIN__TRUSTED_KEYS": str(config / "dpone-registry.pub"),
            "AIRFLOW__DPONE_XMIN__ENVIRONMENT": "compose",
            "AIRFLOW__DPONE_XMIN__WORK_DIR": str(self.directory / "work"),
        }

    def target_rows(self, query: str) -> list[tuple[Any, ...]]:
        """A query on the target database, as its owner."""
        with self.target.connect("dwh") as owner:
            return owner.execute(query).fetchall()  # type: ignore[call-overload]

    def source_run(self, *statements: str) -> None:
        """Statements on the source database, as its owner."""
        with self.source.connect("shop") as owner:
            for statement in statements:
                owner.execute(statement)  # type: ignore[call-overload]


def example(name: str) -> str:
    """Source text of an example DAG for the embedded engine: everything else is what users read."""
    text = (EXAMPLES / f"{name}.py").read_text()
    text = text.replace('"type": "mssql"', '"type": "embedded"')
    text = re.sub(r'^( +)target_conn="dwh",$', r'\1target_conn="dwh",\n\1target_type="embedded",', text, flags=re.MULTILINE)
    return re.sub(r'^( +)"target_conn": "dwh",$', r'\1"target_conn": "dwh",\n\1"target_type": "embedded",', text, flags=re.MULTILINE)
