"""What a new registry changes, for the human who reviews it. Imports contracts only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_dpone_xmin.contracts.registry import RegistryDocument


@dataclass(frozen=True, slots=True)
class Change:
    """One leaf that differs.

    :param path: keys from the document's root; a name with a dot in it stays one part.
    :param before: value in the old document, None when added.
    :param after: value in the new document, None when removed.
    """

    path: tuple[str, ...]
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any


def diff_registries(old: RegistryDocument, new: RegistryDocument) -> list[Change]:
    """Leaves of the two documents that differ, in document order.

    :param old: the document in use.
    :param new: the document that shall replace it.
    """
    before = dict(_leaves(old.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)))
    after = dict(_leaves(new.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)))
    changes = []
    for path in dict.fromkeys((*before, *after)):
        if path not in before:
            changes.append(Change(path, "added", None, after[path]))
        elif path not in after:
            changes.append(Change(path, "removed", before[path], None))
        elif before[path] != after[path]:
            changes.append(Change(path, "changed", before[path], after[path]))
    return changes


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    elif isinstance(value, list) and value:
        for position, item in enumerate(value):
            yield from _leaves(item, (*path, str(position)))
    else:
        yield path, value
