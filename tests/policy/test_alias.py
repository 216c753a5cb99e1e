"""ASCII-case aliases of signed relations."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import SourceAuthority
from airflow_dpone_xmin.policy.alias import is_alias, resolve_alias


def authority(*names: tuple[str, str]) -> SourceAuthority:
    pin: dict[str, Any] = {"canonical_name": "x", "oid": 5}
    return SourceAuthority.model_validate(
        {
            "version": 2,
            "verification_profile": "catalog_identity",
            "topology_role": "primary",
            "database": pin,
            "principals": {"effective": pin, "session": pin},
            "relations": {f"{s}.{r}": {"schema": s, "relation": r, "namespace_oid": 1, "relation_oid": 2} for s, r in names},
        }
    )


def test_exact_and_alias() -> None:
    signed = authority(("public", "Orders"), ("public", "straße"))
    assert resolve_alias("public", "Orders", signed) == "public.Orders"
    assert resolve_alias("PUBLIC", "orders", signed) == "public.Orders"
    assert is_alias("PUBLIC", "orders", signed, "public.Orders")
    assert not is_alias("public", "Orders", signed, "public.Orders")


@pytest.mark.parametrize("name", ["STRASSE", "STRAẞE", "straſſe", "Orderſ", "order"])
def test_other_characters_never_fold(name: str) -> None:
    with pytest.raises(XminError) as caught:
        resolve_alias("public", name, authority(("public", "orders"), ("public", "straße")))
    assert caught.value.code == "DPONE_POSTGRES_SOURCE_AUTHORITY_REQUIRED"


def test_a_dot_in_a_name_is_no_separator() -> None:
    signed = authority(("a", "b.c"))
    assert resolve_alias("a", "B.C", signed) == "a.b.c"
    with pytest.raises(XminError):
        resolve_alias("a.b", "c", signed)
