"""Which signed relation an authored name means: exactly, or by an unambiguous ASCII-case alias.

Pure. Imports contracts only. The live catalog has its own say in ``source/boundary.py``: an alias that folds onto two live relations is
refused there.
"""

from __future__ import annotations

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.registry import SourceAuthority, ascii_fold


def resolve_alias(authored_schema: str, authored_relation: str, authority: SourceAuthority) -> str:
    """Key of the signed pin that an authored name means.

    Only ASCII A–Z folds; any other character keeps its identity, so a Unicode look-alike never matches.

    :param authored_schema: schema as the manifest spells it.
    :param authored_relation: relation as the manifest spells it.
    :returns: a key of ``authority.relations``.
    :raises XminError: ``DPONE_POSTGRES_SOURCE_AUTHORITY_REQUIRED`` without a pin, ``postgres_source_authority.relation_ambiguous`` when
        the spelling folds onto more than one.
    """
    exact = [key for key, pin in authority.relations.items() if (pin.schema_name, pin.relation) == (authored_schema, authored_relation)]
    if exact:
        return exact[0]
    wanted = (ascii_fold(authored_schema), ascii_fold(authored_relation))
    folded = [key for key, pin in authority.relations.items() if (ascii_fold(pin.schema_name), ascii_fold(pin.relation)) == wanted]
    name = f"{authored_schema}.{authored_relation}"
    if not folded:
        raise XminError(
            "DPONE_POSTGRES_SOURCE_AUTHORITY_REQUIRED",
            f"The registry signs {len(authority.relations)} relation(s) of this connection, but not {name!r}.",
            details={"relation": name},
        )
    if len(folded) > 1:
        raise XminError(
            "postgres_source_authority.relation_ambiguous",
            f"The authored name {name!r} folds onto {len(folded)} signed relations.",
            details={"relation": name, "candidates": sorted(folded)},
        )
    return folded[0]


def is_alias(authored_schema: str, authored_relation: str, authority: SourceAuthority, relation_key: str) -> bool:
    """Whether the authored spelling differs from the signed one, so that the live catalog must confirm that it is unambiguous."""
    pin = authority.relations[relation_key]
    return (pin.schema_name, pin.relation) != (authored_schema, authored_relation)
