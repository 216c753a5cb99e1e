"""What the runtime asks of the source side. Imports the standard library and contracts only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from airflow_dpone_xmin.contracts.envelope import SourceIdentity
from airflow_dpone_xmin.contracts.registry import SourceAuthority


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """The route's source half.

    :param identity: canonical names, already resolved against the signed pins (never learned).
    :param authority: the signed authority that the boundary must observe.
    :param relation_key: key of the pinned relation in ``authority.relations``.
    :param key: unique key columns in authored order.
    :param string_columns: columns that ``schema_contract`` authorises as canonical text.
    :param type_overrides: column → ``physical_design.columns.*.target_type.mssql``.
    :param window: ``exact`` or ``strict`` (DESIGN "Window").
    :param max_replay_amplification: optional limit on H − U, transaction ids.
    :param with_keys: extract the complete key snapshot beside a delta.
    :param lock_timeout_seconds: longest wait for ACCESS SHARE.
    :param deadline_seconds: longest life of the whole boundary.
    :param work_dir: directory that exists, mode 0700, owned by this attempt.
    :param min_free_bytes: floor below which nothing is written.
    :param alias: the authored spelling differs from the pinned one by ASCII case, so the live catalog must hold one such name only.
    """

    identity: SourceIdentity
    authority: SourceAuthority
    relation_key: str
    key: tuple[str, ...]
    work_dir: Path
    string_columns: frozenset[str] = frozenset()
    type_overrides: Mapping[str, str] = field(default_factory=dict)
    window: Literal["exact", "strict"] = "exact"
    max_replay_amplification: int | None = None
    with_keys: bool = True
    lock_timeout_seconds: float = 30.0
    deadline_seconds: float = 6 * 3600.0
    min_free_bytes: int = 256 * 1024 * 1024
    alias: bool = False


@dataclass(frozen=True, slots=True)
class Prior:
    """What the last commit left, as far as the source side needs it.

    :param xmin: previous U; None for a baseline.
    :param snapshot: previous snapshot token, ``xmin:xmax:xip,…``.
    :param projection_fingerprint: of the last commit; a difference makes the payload full.
    :param authority_rotated: whether the signed source authority differs from the last commit's.
    :param force_full: reason that makes the payload full whatever the window says, for example ``target_state_diverged``.
    :param approved_full: whether an approval makes the payload full; any other reason stays the reason.
    :param report: whether the run only reports: what an approval could admit does not stop it before the classification.
    """

    xmin: int | None = None
    snapshot: str | None = None
    projection_fingerprint: bytes | None = None
    authority_rotated: bool = False
    force_full: str | None = None
    approved_full: bool = False
    report: bool = False
