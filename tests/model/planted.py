"""Faults to plant in the product: for each one the model test must find a history that breaks a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import func, text

from airflow_dpone_xmin.contracts.columns import Family
from airflow_dpone_xmin.contracts.envelope import Horizons
from airflow_dpone_xmin.policy.window import DeltaWindow
from airflow_dpone_xmin.source import boundary as source_boundary
from airflow_dpone_xmin.source import extract
from airflow_dpone_xmin.source.session import Session
from airflow_dpone_xmin.target import dml
from airflow_dpone_xmin.target.postgres import PostgresEngine

Plant = Callable[[pytest.MonkeyPatch], None]


def window_ends_early(patch: pytest.MonkeyPatch) -> None:
    """The delta leaves out the newest transaction."""
    between = DeltaWindow.between

    def short(previous: int, visible: int) -> DeltaWindow:
        return between(previous, max(previous, visible - 1))

    patch.setattr(DeltaWindow, "between", staticmethod(short))


def visible_horizon_is_kept(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint is H instead of U: what commits late lies below it."""
    read = source_boundary.read_horizons

    def wrong(session: Session, *, version: int) -> tuple[str, Horizons]:
        token, horizons = read(session, version=version)
        return token, replace(horizons, safe=horizons.visible)

    patch.setattr(source_boundary, "read_horizons", wrong)


def case_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Texts that differ by case only are taken for equal."""
    differs = dml.Differs

    def blind(family: Family, left: Any, right: Any) -> Any:
        return func.lower(left).is_distinct_from(func.lower(right)) if family is Family.TEXT else differs(family, left, right)

    patch.setattr(dml, "Differs", blind)


def keys_of_another_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The key snapshot is read in a transaction of its own."""
    write, within, endpoints = extract._write, extract.within_boundary, []

    def remember(endpoint: Any, *args: Any, **kw: Any) -> Any:
        endpoints.append(endpoint)
        return within(endpoint, *args, **kw)

    def apart(boundary: Any, query: Any, columns: Any, kind: Any, *args: Any, **kw: Any) -> Any:
        if kind != "keys":
            return write(boundary, query, columns, kind, *args, **kw)
        with Session(endpoints[-1]) as session:
            return write(replace(boundary, session=session), query, columns, kind, *args, **kw)

    patch.setattr(extract, "within_boundary", remember)
    patch.setattr(extract, "_write", apart)


def nobody_waits_for_the_log(patch: pytest.MonkeyPatch) -> None:
    """A run accepts what a crash of the source can undo."""
    patch.setattr(source_boundary.Boundary, "wait_until_durable", lambda _: None)


def a_failed_run_keeps_its_half(patch: pytest.MonkeyPatch) -> None:
    """A transaction that fails is committed as far as it came."""
    patch.setattr(PostgresEngine, "rollback", lambda self, session: session.quietly(text("COMMIT")))


def window_compared_without_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """The predicate compares raw ids: everything behind the wrap is lost."""

    def naive(window: DeltaWindow, **_: object) -> sql.Composed:
        low, xmin = window.base32, sql.SQL("xmin")
        return sql.SQL("({xmin}::text::bigint >= {low} AND {xmin}::text::bigint < {high})").format(
            xmin=xmin, low=sql.Literal(low), high=sql.Literal(low + window.width)
        )

    patch.setattr(extract, "delta_predicate", naive)


ANYWHERE: tuple[Plant, ...] = (
    window_ends_early,
    visible_horizon_is_kept,
    case_is_ignored,
    keys_of_another_snapshot,
    nobody_waits_for_the_log,
    a_failed_run_keeps_its_half,
)
AT_THE_WRAP: tuple[Plant, ...] = (window_compared_without_the_epoch,)
