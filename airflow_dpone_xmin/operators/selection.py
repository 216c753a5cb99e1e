"""Which route and which approval a task means: shared by operator, sensor and trigger. Imports contracts; the rest lazily."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_dpone_xmin.contracts.repair import UNNAMED

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_dpone_xmin.contracts.route import FixedEndpoints, Route
    from airflow_dpone_xmin.registry.load import VerifiedRegistry
    from airflow_dpone_xmin.target.repair import RepairSelection

ManifestSource = str | Path | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SelectedRoute:
    """One route under the verified registry."""

    route: Route
    registry: VerifiedRegistry
    trusted_keys: tuple[str, ...]

    def endpoints(self) -> FixedEndpoints:
        """Its endpoints, looked up now.

        :raises XminError: ``DPONE_CONNECTION_UNRESOLVED``.
        """
        from airflow_dpone_xmin.hooks.endpoints import resolve_endpoints

        return resolve_endpoints(self.route)

    def repair(self, ref: str | None) -> RepairSelection | None:
        """The approval of a reference; None when none is named."""
        from airflow_dpone_xmin.runtime.repair import select_repair

        return select_repair(ref, registry=self.registry.document, trusted_keys=self.trusted_keys)


def select(manifest: ManifestSource, *, table: str | None) -> SelectedRoute:
    """The one route of a manifest.

    :param table: ``schema.table`` when the manifest names several; empty means None.
    :raises XminError: ``DPONE_MANIFEST_*``, ``registry.*``.
    """
    from airflow_dpone_xmin.hooks.registry import deployment_registry, deployment_settings
    from airflow_dpone_xmin.policy.route import select_route
    from airflow_dpone_xmin.runtime.manifests import load_routes

    settings = deployment_settings()
    registry = deployment_registry(settings)
    route = select_route(load_routes(manifest, registry.document), table or None)
    route = dataclasses.replace(route, work_dir=route.work_dir or settings.work_dir)
    return SelectedRoute(route=route, registry=registry, trusted_keys=settings.trusted_keys)


def manifest_source(task: BaseOperator, manifest: str | Mapping[str, Any]) -> ManifestSource:
    """A task's manifest; a relative path begins at the DAG file's folder."""
    if not isinstance(manifest, str) or Path(manifest).is_absolute():
        return manifest
    folder = task.dag.folder if task.has_dag() else None
    return Path(folder or ".") / manifest


def portable_manifest(task: BaseOperator, manifest: str | Mapping[str, Any]) -> Any:
    """A task's manifest as plain JSON: a path of the worker may not exist in the triggerer."""
    from airflow_dpone_xmin.runtime.manifests import read_manifest

    return json.loads(json.dumps(read_manifest(manifest_source(task, manifest)), default=str))


def authority_ref(rendered: str | None) -> str | None:
    """What a templated reference means: an absent parameter renders as None, as ``"None"`` or as an empty text, and names nothing."""
    text = str(rendered).strip() if rendered is not None else ""
    return None if text in UNNAMED else text
