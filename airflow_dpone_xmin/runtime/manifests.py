"""A manifest as users give it: a path, or a mapping. Imports contracts, policy and the registry's YAML reader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.manifest import Manifest, parse_manifest
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.policy.route import resolve_routes
from airflow_dpone_xmin.registry.parse import parse_yaml


def load_routes(source: str | Path | Mapping[str, Any], registry: RegistryDocument, *, options: Sequence[str] = ()) -> list[Route]:
    """All routes of a manifest; each knows the words that name it on a command line.

    :param options: options that a command needs beside the manifest to find the same registry.
    :raises XminError: what :func:`load_manifest` and :func:`~airflow_dpone_xmin.policy.route.resolve_routes` refuse.
    """
    routes = resolve_routes(load_manifest(source), registry)
    inline = json.dumps(source, default=str) if isinstance(source, Mapping) else None
    words = [str(source) if inline is None else re.sub(r"[^\w.-]+", "-", routes[0].process).lstrip("-") + ".json", *options]
    several = len(routes) > 1

    def named(route: Route) -> tuple[str, ...]:
        return (*words, *(["--table", f"{route.source.schema}.{route.source.relation}"] if several else []))

    return [replace(route, command_words=named(route), inline_manifest=inline) for route in routes]


def load_manifest(source: str | Path | Mapping[str, Any]) -> Manifest:
    """Read and judge a manifest.

    :param source: path of a YAML or JSON file, or the mapping itself.
    :raises XminError: ``DPONE_MANIFEST_UNREADABLE``, ``DPONE_MANIFEST_SYNTAX``, and what
        :func:`~airflow_dpone_xmin.contracts.manifest.parse_manifest` refuses.
    """
    return parse_manifest(read_manifest(source))


def read_manifest(source: str | Path | Mapping[str, Any]) -> Any:
    """The document of a manifest, not yet judged.

    :raises XminError: ``DPONE_MANIFEST_UNREADABLE``, ``DPONE_MANIFEST_SYNTAX``.
    """
    if isinstance(source, Mapping):
        return source
    try:
        raw = Path(source).read_bytes()
    except OSError as error:
        raise XminError("DPONE_MANIFEST_UNREADABLE", f"{source} cannot be read: {type(error).__name__}.") from None
    return parse_yaml(raw, malformed="DPONE_MANIFEST_SYNTAX", duplicate="DPONE_MANIFEST_SYNTAX")
