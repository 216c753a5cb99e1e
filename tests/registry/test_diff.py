"""What a reviewer is shown."""

from __future__ import annotations

from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.registry.diff import diff_registries

from .conftest import document


def test_every_changed_pin_is_named() -> None:
    new = document()
    authority = new["connections"]["oltp"]["connection"]["postgres_source_authority"]
    authority["relations"]["public.orders"]["relation_oid"] = 99
    del authority["relations"]["public.lines"]
    new["connections"]["dwh"]["connection"]["port"] = 1433
    changes = diff_registries(RegistryDocument.model_validate(document()), RegistryDocument.model_validate(new))
    shown = {(change.kind, ".".join(change.path[-2:]), change.before, change.after) for change in changes}
    assert ("changed", "public.orders.relation_oid", 16402, 99) in shown
    assert ("added", "connection.port", None, 1433) in shown
    assert ("removed", "public.lines.relation_oid", 16403, None) in shown
    assert len(changes) == 6


def test_spelling_out_a_default_is_no_change() -> None:
    new = document()
    del new["repair_approvals"]
    assert diff_registries(RegistryDocument.model_validate(document()), RegistryDocument.model_validate(new)) == []
