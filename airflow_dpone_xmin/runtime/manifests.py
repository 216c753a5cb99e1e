"""A manifest as users give it: a path, or a mapping. Imports contracts and the registry's YAML reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.manifest import Manifest, parse_manifest
from airflow_dpone_xmin.registry.parse import parse_yaml


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
