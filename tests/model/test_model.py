"""Random histories of real servers against a plain oracle: every committed run made the target what its snapshot was, deletes included.

CI makes a tour of every rule, always the same. ``make nightly`` tries ``DPONE_MODEL_HISTORIES`` random ones (default
2000) and prints how to reproduce a failing one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
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
COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, stateful_step_count=25)
BOUNDED = settings(COMMON, derandomize=True, database=None, phases=[Phase.generate])
PLANTED = settings(BOUNDED, derandomize=False, max_examples=200, report_multiple_bugs=False)
RANDOM = settings(COMMON, database=None, max_examples=HISTORIES)


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


def tour(servers: Servers, approver: Owner, *, count: int, before_wrap: int | None = None) -> None:
    """*count* histories, always the same, the simplest first; every rule happens in each."""
    servers.tally.clear()

    @settings(BOUNDED, max_examples=count)
    @given(data=st.data())
    def histories(data: st.DataObject) -> None:
        machine = Machine(servers, approver, before_wrap=before_wrap)
        try:
            machine.tour(data)
        finally:
            machine.teardown()

    histories()
    print("model test:", ", ".join(f"{count} {name}" for name, count in servers.tally.most_common()))
    assert [name for name in rules_of(Machine) if servers.tally[name] < count] == [], "rules that did not happen in every history"
    assert servers.tally["histories"] == count


@pytest.mark.timeout(300)
def test_histories(servers: Servers, approver: Owner) -> None:
    tour(servers, approver, count=2)


@pytest.mark.timeout(300)
def test_histories_across_the_wrap(aged_servers: Servers, approver: Owner) -> None:
    tour(aged_servers, approver, count=1, before_wrap=BEFORE_WRAP)


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
    """A test that cannot fail proves nothing: each of these faults is found within a bounded number of histories."""
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
