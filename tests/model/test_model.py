"""Random histories of real servers against a plain oracle: every committed run made the target what its snapshot was, deletes included.

CI makes tours of every rule, always the same, and proves that they find planted faults. ``make nightly`` tries
``DPONE_MODEL_HISTORIES`` random histories (default 2000) and prints how to reproduce a failing one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from tests.approvals import Owner
from tests.model.machine import Machine, rules_of
from tests.model.planted import ANYWHERE, AT_THE_WRAP, Plant
from tests.model.servers import Servers, age, keep, source_server

HISTORIES = int(os.environ.get("DPONE_MODEL_HISTORIES", "2000"))
#: Enough for the template's own set-up; a history burns the rest.
BEFORE_WRAP = 300
#: Not derandomized, which is hypothesis's default where the environment says CI: it would try the same histories every night.
COMMON = settings(
    deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, stateful_step_count=25, database=None, derandomize=False
)
PLANTED = settings(COMMON, phases=[Phase.generate], max_examples=200, report_multiple_bugs=False)
RANDOM = settings(COMMON, max_examples=HISTORIES)
TOURS, TOURS_ACROSS_THE_WRAP = (2, 8, 10, 12), (1,)
"""Seeds of CI's histories: every kind of key, several modes of deletes, and the first ones find every planted fault. What a seed means
changes with the rules and their choices; when a fault is not found any more, try other seeds."""
CHOICES = 10_000
"""Bytes that the choices of one tour are made from; it needs a tenth."""


@pytest.fixture(scope="module")
def servers(target_cluster: EmbeddedCluster, catalog_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with source_server() as source:
        yield Servers(source, target_cluster, catalog_template, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def aged_servers(target_cluster: EmbeddedCluster, catalog_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Every history begins with a source whose counter wraps soon."""
    with source_server() as source:
        age(source, before_wrap=BEFORE_WRAP)
        aged = keep(source, source.directory / "aged")
        yield Servers(source, target_cluster, catalog_template, tmp_path_factory.mktemp("aged"), aged)


@pytest.fixture(scope="module")
def approver(tmp_path_factory: pytest.TempPathFactory) -> Owner:
    return Owner(tmp_path_factory.mktemp("keys"))


def search(servers: Servers, approver: Owner, options: settings, *, before_wrap: int | None = None) -> None:
    """Try histories until one breaks a promise or all are told."""
    servers.tally.clear()
    try:
        run_state_machine_as_test(lambda: Machine(servers, approver, before_wrap=before_wrap), settings=options)
    finally:
        print("model test:", ", ".join(f"{count} {name}" for name, count in servers.tally.most_common()))


def tour(servers: Servers, approver: Owner, *, seeds: Sequence[int], before_wrap: int | None = None) -> None:
    """Histories that are always the same; every rule happens in each.

    Hypothesis would begin with the simplest history, in which nearly nothing changes; its choices are made from the seed's bytes instead.
    """

    @settings(COMMON, verbosity=Verbosity.verbose)
    @given(data=st.data())
    def history(data: st.DataObject) -> None:
        machine = Machine(servers, approver, before_wrap=before_wrap)
        try:
            machine.tour(data)
        finally:
            machine.teardown()

    for seed in seeds:
        servers.tally.clear()
        if history.hypothesis.fuzz_one_input(random.Random(seed).randbytes(CHOICES)) is None:  # type: ignore[attr-defined]
            pytest.fail("the tour needs more choices")
        print(f"model test, seed {seed}:", ", ".join(f"{count} {name}" for name, count in servers.tally.most_common()))
        assert [name for name in rules_of(Machine) if not servers.tally[name]] == [], "rules that did not happen in this history"
        assert servers.tally["histories"] == 1


@pytest.mark.timeout(300)
def test_histories(servers: Servers, approver: Owner) -> None:
    tour(servers, approver, seeds=TOURS)


@pytest.mark.timeout(300)
def test_histories_across_the_wrap(aged_servers: Servers, approver: Owner) -> None:
    tour(aged_servers, approver, seeds=TOURS_ACROSS_THE_WRAP, before_wrap=BEFORE_WRAP)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", ANYWHERE, ids=lambda plant: plant.__name__)
def test_these_histories_find_a_planted_fault(servers: Servers, approver: Owner, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that cannot fail proves nothing: each of these faults breaks one of CI's histories."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        tour(servers, approver, seeds=TOURS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", AT_THE_WRAP, ids=lambda plant: plant.__name__)
def test_these_histories_find_a_planted_fault_at_the_wrap(
    aged_servers: Servers, approver: Owner, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        tour(aged_servers, approver, seeds=TOURS_ACROSS_THE_WRAP, before_wrap=BEFORE_WRAP)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_many_histories(servers: Servers, approver: Owner) -> None:
    search(servers, approver, RANDOM)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_many_histories_across_the_wrap(aged_servers: Servers, approver: Owner) -> None:
    search(aged_servers, approver, settings(RANDOM, max_examples=max(1, HISTORIES // 4)), before_wrap=BEFORE_WRAP)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("plant", ANYWHERE, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(servers: Servers, approver: Owner, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random histories find each of them, too, within a bounded number."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        search(servers, approver, PLANTED)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("plant", AT_THE_WRAP, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_at_the_wrap(
    aged_servers: Servers, approver: Owner, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        search(aged_servers, approver, PLANTED, before_wrap=BEFORE_WRAP)
