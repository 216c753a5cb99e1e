"""The document that a run writes: closed, typed, with the JSON Schema that it is checked against."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(Part):
    """Median, least and greatest of the repetitions."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=round(statistics.median(values), 4), low=round(min(values), 4), high=round(max(values), 4))


class Ratio(Part):
    """Two sides that were measured in turns; the ratio is taken within each pair.

    :param budget: name of the budget that it answers, or that its work is a part of.
    """

    leg: str
    work: str
    against: str
    rows: int
    repetitions: int
    work_seconds: Spread
    against_seconds: Spread
    ratio: Spread
    budget: str | None = None
    part: bool = False


class Run(Part):
    """Whole runs of one route, each in a process of its own.

    :param changed: share of the table's rows that changed before it.
    :param payload: rows that were extracted, of the last repetition.
    :param phases: event of the product → seconds.
    :param statements: label of a statement or load of the target side → seconds; those that took longest.
    :param peak_mib: greatest resident size above the idle process, in MiB.
    """

    leg: str
    table: str
    kind: Literal["baseline", "incremental"]
    rows: int
    changed: float
    payload: int
    repetitions: int
    seconds: Spread
    cpu_seconds: Spread
    phases: dict[str, Spread]
    statements: dict[str, Spread]
    peak_mib: Spread


class Cost(Part):
    """Client CPU of staging, in seconds per million rows."""

    table: str
    rows: int
    repetitions: int
    cpu_seconds_per_million: Spread


class Lanes(Part):
    """Campaigns that so many lanes filled: medians.

    :param start_seconds: until the first lane's interpreter had started and taken a chunk.
    :param fill_seconds: from then to the end of the last lane.
    :param rows_per_second: while the lanes filled.
    :param parent_peak_mib: greatest resident size of the process that started them.
    :param lane_peak_mib: of each lane, interpreter included.
    """

    lanes: int
    rows: int
    chunks: int
    repetitions: int
    open_seconds: float
    start_seconds: float
    fill_seconds: Spread
    publish_seconds: float
    rows_per_second: float
    parent_peak_mib: float
    lane_peak_mib: list[float]


class Budget(Part):
    """One line of the budgets.

    :param measured: None when it was not measured at its own size.
    """

    work: str
    limit: float
    unit: str
    measured: float | None
    verdict: Literal["met", "missed", "not_run"]
    reason: str


class Leg(Part):
    name: str
    status: Literal["run", "not_run", "failed"]
    reason: str
    seconds: float


class Machine(Part):
    """Where it ran.

    :param load: processes that wanted to run before it began, on the average of a minute; a busy machine distorts every number.
    """

    processor: str
    cpus: int
    memory_gib: float
    system: str
    load: float


class Document(Part):
    """Everything that one run found."""

    kind: Literal["dpone.benchmark.v1"] = "dpone.benchmark.v1"
    scale: str
    date: str
    seconds: float
    commit: str
    machine: Machine
    engine: Literal["embedded", "mssql"]
    versions: dict[str, str]
    settings: dict[str, str]
    legs: list[Leg]
    ratios: list[Ratio] = Field(default_factory=list)
    runs: list[Run] = Field(default_factory=list)
    costs: list[Cost] = Field(default_factory=list)
    lanes: list[Lanes] = Field(default_factory=list)
    budgets: list[Budget] = Field(default_factory=list)


class Peer(Part):
    """Another tool on the same work, from the start of its process to the end.

    :param ratio: its seconds by the product's.
    :param peak_mib: greatest resident size of its process.
    """

    name: str
    version: str
    work: str
    status: Literal["run", "not_run"]
    reason: str
    seconds: Spread | None = None
    ratio: Spread | None = None
    cpu_seconds: Spread | None = None
    peak_mib: Spread | None = None


class Peers(Part):
    """What ``benchmarks.peers`` found."""

    kind: Literal["dpone.benchmark.peers.v1"] = "dpone.benchmark.peers.v1"
    date: str
    rows: int
    machine: Machine
    peers: list[Peer]
