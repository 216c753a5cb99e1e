"""What is measured: one function per leg."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_dpone_xmin.contracts.envelope import Payload, Prior
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.policy.window import Window
from airflow_dpone_xmin.source.extract import extraction_sql
from benchmarks import budgets
from benchmarks.child import Filled, RunResult, campaign, in_child, staging, whole_run
from benchmarks.driver import OPTIMISED, Unavailable, with_release
from benchmarks.measure import Findings, in_turns, ratio, seconds_of
from benchmarks.model import Cost, Lanes, Run, Spread
from benchmarks.place import Extraction, Place, rest, since
from benchmarks.raw import copy_binary, copy_on_server, stream
from benchmarks.scale import Scale
from benchmarks.tpch import KEYS, Tpch
from tests.campaigns import initial
from tests.measured import wide_table
from tests.world import EmbeddedTarget, SourceSide, World

FULL = Window(payload=Payload.FULL, reason="baseline")
DRIVER = "the driver alone, Arrow batches thrown away"
_KEYS_TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY)"


class NotRun(Exception):
    """The leg cannot run here; the text says why."""


@dataclass
class Bench:
    """One benchmark run.

    :param say: tells what is going on.
    """

    place: Place
    scale: Scale
    found: Findings
    say: Callable[[str], None]


# ---- extraction -----------------------------------------------------------------------------------------------------------
def extract_leg(bench: Bench) -> None:
    """A full extraction, and the parts of it, against raw COPY."""
    rows, place, found = bench.scale.wide, bench.place, bench.found
    bench.say(f"wide table, {rows:,} rows")
    source = place.source(*wide_table(rows))
    world = place.world(source)
    extraction = Extraction(world, place.directory)
    plain = "SELECT * FROM public.orders"
    projection = extraction().projection
    request = extraction.request
    cast = extraction_sql(request, projection, FULL)["rows"]
    bench.say("extract against COPY BINARY")
    mine, raw = in_turns(extraction.seconds, lambda: copy_binary(source, plain), bench.scale.repetitions)
    label = "extract, guards, artifact"
    found.ratios.append(ratio("extract", label, "psql COPY BINARY to nowhere", rows=rows, seconds=mine, other=raw, budget=budgets.EXTRACT))
    bench.say("the parts of it")
    parts: dict[str, Callable[[], float]] = {
        "the server's COPY BINARY of the product's query": lambda: copy_binary(source, cast),
        DRIVER: lambda: stream(source, cast),
    }
    for name, part in parts.items():
        mine, raw = in_turns(part, lambda: copy_binary(source, plain), bench.scale.few)
        against = "psql COPY BINARY to nowhere"
        found.ratios.append(ratio("extract", name, against, rows=rows, seconds=mine, other=raw, budget=budgets.EXTRACT, part=True))
    _other_driver(bench, source, extraction, plain)
    _delta(bench, source, extraction)
    extraction.clear()
    _staging(bench, world, extraction, copied="SELECT * FROM public.orders", rows=rows)
    place.drop(source)


def _other_driver(bench: Bench, source: SourceSide, extraction: Extraction, plain: str) -> None:
    """How much of the extraction's time is the build of the driver's wheel."""
    try:
        with with_release(extraction) as seconds:
            mine, raw = in_turns(seconds, lambda: copy_binary(source, plain), bench.scale.few)
    except Unavailable as why:
        bench.say(f"the optimised driver was not measured: {why}")
        return
    name = f"the whole extraction with the driver's wheel {OPTIMISED}, which is compiled with optimisation"
    against = "psql COPY BINARY to nowhere"
    rows = bench.scale.wide
    bench.found.ratios.append(ratio("extract", name, against, rows=rows, seconds=mine, other=raw, budget=budgets.EXTRACT, part=True))


def change(source: SourceSide, share: float, *, key: str = "id") -> None:
    """Update so many rows, all over the table."""
    if share:
        source.run(f"UPDATE public.orders SET b = b + 1 WHERE {key} % 1000 < {round(1000 * share)}")


def _delta(bench: Bench, source: SourceSide, extraction: Extraction) -> None:
    for share in bench.scale.shares:
        bench.say(f"delta and keys against a full extract, {share:.1%} changed")
        prior = since(extraction())
        change(source, share)
        rest(source)

        seen: list[list[Progress]] = []

        def delta(prior: Prior = prior, seen: list[list[Progress]] = seen) -> float:
            seen.append([])
            return extraction.seconds(prior, progress=seen[-1].append)

        mine, full = in_turns(delta, extraction.seconds, bench.scale.repetitions if share == 0.01 else bench.scale.few)
        work = f"extract half of an incremental run, {share:.1%} changed"
        told: dict[str, Any] = {"rows": bench.scale.wide, "other": full, "budget": budgets.DELTA if share == 0.01 else None}
        bench.found.ratios.append(ratio("delta", work, "full extract", seconds=mine, **told))
        if share == 0.01:
            for event, name in (("POSTGRES_COPY_COMPLETE", "the delta query of it"), ("POSTGRES_KEYS_COMPLETE", "the key query of it")):
                seconds = [_seconds(events, event) for events in seen[1:]]
                bench.found.ratios.append(ratio("delta", name, "full extract", seconds=seconds, part=True, **told))


def _seconds(events: Sequence[Progress], event: str) -> float:
    return next(progress.seconds for progress in events if progress.event == event)


def keys_leg(bench: Bench) -> None:
    """The key snapshot against the server-side COPY alone."""
    rows, place = bench.scale.keys, bench.place
    bench.say(f"table of {rows:,} bigint keys")
    source = place.source(_KEYS_TABLE, f"INSERT INTO orders SELECT g FROM generate_series(1, {rows}) g")
    world = place.world(source)
    extraction = Extraction(world, place.directory)
    prior = since(extraction())
    bench.say("key snapshot against the server's COPY")

    def keys() -> float:
        seen: list[Progress] = []
        extraction(prior, progress=seen.append)
        return _seconds(seen, "POSTGRES_KEYS_COMPLETE")

    query = "SELECT id FROM public.orders"
    mine, raw = in_turns(keys, lambda: copy_on_server(source, query), bench.scale.repetitions)
    label = "key snapshot and artifact"
    bench.found.ratios.append(
        ratio("keys", label, "COPY BINARY on the server alone", rows=rows, seconds=mine, other=raw, budget=budgets.KEYS)
    )
    mine, raw = in_turns(lambda: stream(source, query), lambda: copy_on_server(source, query), bench.scale.few)
    told: dict[str, Any] = {"rows": rows, "seconds": mine, "other": raw, "budget": budgets.KEYS, "part": True}
    bench.found.ratios.append(ratio("keys", DRIVER, "COPY BINARY on the server alone", **told))
    _staging(bench, world, extraction, prior=prior, copied=query, rows=rows)
    place.drop(source)


# ---- staging --------------------------------------------------------------------------------------------------------------
def _staging(bench: Bench, world: World, extraction: Extraction, *, prior: Prior | None = None, copied: str, rows: int) -> None:
    """Load and prove one extraction, against the server's own binary COPY of the same rows into a bare table."""
    place, target = bench.place, world.target
    kind = "keys" if prior is not None else "rows"
    bench.say(f"stage {rows:,} {kind}")
    envelope = extraction(prior)
    event = f"STAGE_{kind.upper()}_COMPLETE"
    warm, job, count = place.warm_job(), place.job(world), bench.scale.few
    if not isinstance(target, EmbeddedTarget):
        results = in_child(staging, warm, job, envelope, count)
        _cost(bench, "wide" if kind == "rows" else "keys", rows, [cpu[event] for _, cpu in results])
        return
    file = place.directory / "raw.copy"
    world.source.run(f"COPY ({copied}) TO '{file}' (FORMAT binary)")
    _bare_table(world, target)
    raw = []
    results = []
    for _ in range(count):
        results += in_child(staging, warm, job, envelope, 1)
        target.run("TRUNCATE bare.orders")
        raw.append(seconds_of(lambda: target.run(f"COPY bare.orders FROM '{file}' (FORMAT binary)")))
    target.run("DROP SCHEMA bare CASCADE")
    file.unlink()
    bench.found.ratios.append(
        ratio(
            "stage",
            f"load, fingerprints and key index, {kind}",
            "COPY BINARY into a bare table on the server",
            rows=rows,
            seconds=[wall[event] for wall, _ in results],
            other=raw,
        )
    )
    _cost(bench, "wide" if kind == "rows" else "keys", rows, [cpu[event] for _, cpu in results])


def _cost(bench: Bench, table: str, rows: int, cpu: Sequence[float]) -> None:
    spread = Spread.of([seconds / rows * 1_000_000 for seconds in cpu])
    bench.found.costs.append(Cost(table=table, rows=rows, repetitions=len(cpu), cpu_seconds_per_million=spread))


def _bare_table(world: World, target: EmbeddedTarget) -> None:
    """A table like the source's, without any index or constraint, in the target's server."""
    columns = world.source.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'public.orders'::regclass AND attnum > 0 ORDER BY attnum"
    )
    target.run("CREATE SCHEMA bare", f"CREATE TABLE bare.orders ({', '.join(f'{name} {kind}' for name, kind in columns)})")


# ---- whole runs -----------------------------------------------------------------------------------------------------------
def _run(
    leg: str, table: str, kind: Literal["baseline", "incremental"], rows: int, results: Sequence[RunResult], *, changed: float = 0
) -> Run:
    names = results[-1].phases
    labels = sorted(results[-1].statements, key=results[-1].statements.__getitem__, reverse=True)[:8]
    return Run(
        leg=leg,
        table=table,
        kind=kind,
        rows=rows,
        changed=round(changed, 6),
        payload=results[-1].payload,
        repetitions=len(results),
        seconds=Spread.of([result.seconds for result in results]),
        cpu_seconds=Spread.of([result.cpu_seconds for result in results]),
        phases={name: Spread.of([result.phases[name] for result in results]) for name in names},
        statements={name: Spread.of([result.statements.get(name, 0.0) for result in results]) for name in labels},
        peak_mib=Spread.of([result.peak_mib for result in results]),
    )


def whole_leg(bench: Bench) -> None:
    """Baselines into fresh targets, then runs after 0, 0.1, 1 and 10 % of the rows changed."""
    rows, place, found = bench.scale.whole, bench.place, bench.found
    bench.say(f"wide table, {rows:,} rows, to be kept equal")
    source = place.source(*wide_table(rows))
    baselines, inserts = [], []
    for number in range(bench.scale.few):
        bench.say(f"baseline {number + 1}")
        world = place.world(source)
        baselines.append(in_child(whole_run, place.warm_job(), place.job(world)))
        if isinstance(world.target, EmbeddedTarget):
            inserts.append(_insert_again(world, world.target))
        if number + 1 < bench.scale.few:
            place.discard(world)
    found.runs.append(_run("whole", "wide", "baseline", rows, baselines))
    if inserts:
        finalize = [result.phases["FINALIZE_COMPLETE"] for result in baselines]
        against = "INSERT … SELECT of the same rows into an equal table"
        found.ratios.append(ratio("finalize", "the transaction of a baseline", against, rows=rows, seconds=finalize, other=inserts))
    for share in bench.scale.shares:
        results = []
        for number in range(bench.scale.few):
            bench.say(f"incremental run {number + 1}, {share:.1%} changed")
            change(source, share)
            rest(source, world)
            before = _entries_read(world)
            results.append(in_child(whole_run, place.warm_job(), place.job(world)))
            if before is not None and share == 0.01:
                read = (_entries_read(world) or 0) - before
                found.passes = (read / rows, results[-1].payload / rows)
        found.runs.append(_run("whole", "wide", "incremental", rows, results, changed=share))
        middle = [statistics.median(result.seconds for result in baselines)] * len(results)
        work = f"whole incremental run, {share:.1%} changed"
        seconds = [result.seconds for result in results]
        found.ratios.append(ratio("whole", work, "whole baseline (median)", rows=rows, seconds=seconds, other=middle))
    require_equal(world, "b")
    place.discard(world)
    place.drop(source)


def _insert_again(world: World, target: EmbeddedTarget) -> float:
    """Seconds of writing the target's rows once more, with all of its indexes."""
    name = world.target_name
    target.run("CREATE SCHEMA bare", f"CREATE TABLE bare.again (LIKE {name} INCLUDING INDEXES)")
    seconds = seconds_of(lambda: target.run(f"INSERT INTO bare.again SELECT * FROM {name}"))
    target.run("DROP SCHEMA bare CASCADE")
    return seconds


def _entries_read(world: World) -> int | None:
    """Rows and index entries of the target table that any session has read so far; None where the server does not count them."""
    if not isinstance(world.target, EmbeddedTarget):
        return None
    name = world.target_name
    time.sleep(1)  # a session's counts appear when it has ended, which the run did not wait for
    query = (
        f"SELECT (SELECT seq_tup_read FROM pg_stat_all_tables WHERE relid = '{name}'::regclass)"
        f" + (SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE relid = '{name}'::regclass)"
    )
    return int(world.target.rows(query)[0][0])


def growth_leg(bench: Bench) -> None:
    """TPC-H at growing sizes: a baseline, then the refresh functions before every incremental run."""
    place = bench.place
    for lines in bench.scale.growth:
        bench.say(f"TPC-H, {lines:,} lines")
        tpch = Tpch(place, lines)
        worlds = {table: place.world(tpch.source, table, key) for table, key in KEYS.items()}
        for table, world in worlds.items():
            bench.say(f"{table}: baseline of {tpch.rows[table]:,} rows")
            result = in_child(whole_run, place.warm_job(), place.job(world))
            bench.found.runs.append(_run("growth", table, "baseline", tpch.rows[table], [result]))
        results: dict[str, list[RunResult]] = {table: [] for table in worlds}
        for number in range(bench.scale.few):
            tpch.refresh()
            rest(tpch.source, *worlds.values())
            for table, world in worlds.items():
                bench.say(f"{table}: run {number + 1} after RF1 and RF2")
                results[table].append(in_child(whole_run, place.warm_job(), place.job(world)))
        for table, world in worlds.items():
            require_equal(world)
            run = _run("growth", table, "incremental", tpch.rows[table], results[table], changed=tpch.share)
            bench.found.runs.append(run)
            place.discard(world)
        place.drop(tpch.source)


def require_equal(world: World, *more: str) -> None:
    """A measurement of wrong work is worth nothing.

    :param more: number columns beside the key.
    :raises RuntimeError: when the sums over the target's active rows differ from the source's.
    """
    sums = ", ".join(f"sum(cast({name} AS decimal(38)))" for name in (*world.key, *more))
    source = world.source.rows(f'SELECT count(*), {sums} FROM public."{world.table}"')[0]
    target = world.target.rows(f"SELECT count(*), {sums} FROM {world.target_name} WHERE {world.alive()}")[0]
    if source != target:
        raise RuntimeError(f"{world.table}: {source[0]} rows at the source, {target[0]} active ones in the target, or other values")


# ---- lanes ----------------------------------------------------------------------------------------------------------------
def lanes_leg(bench: Bench) -> None:
    """The same campaign with one lane and with more, in turns; a first one, which warms the servers, does not count."""
    rows, place = bench.scale.lane_rows, bench.place
    bench.say(f"wide table, {rows:,} rows, for campaigns")
    source = place.source(*wide_table(rows))
    chunk = {"column": "id", "from": 1, "to": rows, "step": rows // bench.scale.chunks}

    def fill(lanes: int) -> Filled:
        bench.say(f"campaign with {lanes} lanes")
        world = place.world(source, manifest_over=initial(chunk))
        filled: Filled = in_child(campaign, place.warm_job(), place.job(world), lanes)
        if filled.rows != rows:
            raise RuntimeError(f"{filled.rows} of {rows} rows were loaded")
        place.discard(world)
        return filled

    fill(bench.scale.lanes[0])
    turns = [[fill(lanes) for lanes in bench.scale.lanes] for _ in range(bench.scale.few)]
    bench.found.lanes += [_lanes(lanes, rows, filled) for lanes, filled in zip(bench.scale.lanes, zip(*turns, strict=True), strict=True)]
    place.drop(source)


def _lanes(lanes: int, rows: int, campaigns: Sequence[Filled]) -> Lanes:
    """Medians of the campaigns; memory is the greatest."""
    seconds = {name: statistics.median(filled.seconds[name] for filled in campaigns) for name in ("open", "start", "publish")}
    fills = [filled.seconds["fill"] - filled.seconds["start"] for filled in campaigns]
    return Lanes(
        lanes=lanes,
        rows=rows,
        chunks=campaigns[0].chunks,
        repetitions=len(campaigns),
        open_seconds=round(seconds["open"], 3),
        start_seconds=round(seconds["start"], 3),
        fill_seconds=Spread.of(fills),
        publish_seconds=round(seconds["publish"], 3),
        rows_per_second=round(rows / statistics.median(fills)),
        parent_peak_mib=round(max(filled.parent_mib for filled in campaigns), 1),
        lane_peak_mib=[round(max(sizes), 1) for sizes in zip(*(filled.lane_mib for filled in campaigns), strict=True)],
    )


def sql_server_leg(bench: Bench) -> None:
    """The target engine that the product is for."""
    if bench.place.engine != "mssql":
        raise NotRun("DPONE_TEST_MSSQL_URL is not set: the target was the embedded engine, and nothing here tells how fast SQL Server is")


LEGS: Mapping[str, Callable[[Bench], Any]] = {
    "extract": extract_leg,
    "keys": keys_leg,
    "whole": whole_leg,
    "growth": growth_leg,
    "lanes": lanes_leg,
    "sql_server": sql_server_leg,
}
"""Leg → function; ``extract`` holds staging and the delta, too, ``whole`` the finalizer."""
