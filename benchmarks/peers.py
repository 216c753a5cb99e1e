"""Other tools on the same work, each in an environment of its own: ``make bench-peers``. Optional; needs a package registry.

The work is a whole copy of TPC-H ``orders`` from one PostgreSQL server to another, which is what all of them can do, from the start of the
interpreter to its end. What a peer wrote is compared with the source. No peer does what a run of the product does beside the copy (proof of
the staged rows, receipt, checkpoint, deletes), and none is tuned: options are those of its own documentation's first page.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import tables
from benchmarks.child import watched
from benchmarks.command import commit, machine
from benchmarks.driver import find_uv
from benchmarks.model import Peer, Peers, Spread
from benchmarks.place import ROOT, Place, opened
from benchmarks.tpch import KEYS, Tpch

ADDRESSES = ("127.0.0.2", "127.0.0.3")
RESULTS = ROOT / "benchmarks" / "peers.json"
_LIMIT_SECONDS = 900
_MIB = 2**20
_SUMS = "SELECT count(*), sum(o_orderkey), sum(o_totalprice::numeric(15,2)), sum(length(rtrim(o_comment))) FROM {}"

_DLT = """
import sys, dlt
from dlt.sources.sql_database import sql_database
source, target, backend = sys.argv[1:4]
data = sql_database(source, schema="public", table_names=["orders"], backend=backend)
pipeline = dlt.pipeline("peer", destination=dlt.destinations.postgres(target), dataset_name="peer")
pipeline.run(data, write_disposition="replace")
"""
_CONNECTORX = """
import sys, connectorx, pyarrow.parquet
table = connectorx.read_sql(sys.argv[1], "SELECT * FROM public.orders", return_type="arrow")
pyarrow.parquet.write_table(table, sys.argv[2])
"""
#: Of these two the newest release whose wheel holds the program; later ones fetch it from elsewhere.
_SLING = "import os, sys, sling_linux_amd64 as wheel; os.execv(wheel.SLING_BIN, ['sling', *sys.argv[1:]])"
_INGESTR = "ingestr<1"


@dataclass(frozen=True)
class Tool:
    """One peer.

    :param packages: installed into its environment; the first one's version is reported.
    :param command: from source URL, target URL and scratch directory; the program is looked for in the environment.
    :param written: table that it leaves in the target, or file in the scratch directory.
    """

    packages: tuple[str, ...]
    work: str
    command: Callable[[str, str, Path], list[str]]
    written: str


TOOLS: Mapping[str, Tool] = {
    "dlt, sqlalchemy": Tool(
        ("dlt[postgres,sql_database]", "psycopg[binary]"),
        "PostgreSQL to PostgreSQL",
        lambda source, target, _: ["python", "-c", _DLT, source, target, "sqlalchemy"],
        "peer.orders",
    ),
    "dlt, connectorx": Tool(
        ("dlt[postgres,sql_database,parquet]", "psycopg[binary]", "connectorx", "pyarrow"),
        "PostgreSQL to PostgreSQL",
        lambda source, target, _: ["python", "-c", _DLT, source, target, "connectorx"],
        "peer.orders",
    ),
    "connectorx": Tool(
        ("connectorx", "pyarrow"),
        "PostgreSQL to a Parquet file",
        lambda source, _, scratch: ["python", "-c", _CONNECTORX, source, str(scratch / "orders.parquet")],
        "orders.parquet",
    ),
    "ingestr": Tool(
        (_INGESTR,),
        "PostgreSQL to PostgreSQL",
        lambda source, target, _: [
            *("ingestr", "ingest", "--yes", "--source-uri", source, "--source-table", "public.orders"),
            *("--dest-uri", target, "--dest-table", "peer.orders"),
        ],
        "peer.orders",
    ),
    "sling": Tool(
        ("sling-linux-amd64",),
        "PostgreSQL to PostgreSQL",
        lambda source, target, _: [
            *("python", "-c", _SLING, "run", "--src-conn", f"{source}?sslmode=disable", "--src-stream", "public.orders"),
            *("--tgt-conn", f"{target}?sslmode=disable", "--tgt-object", "peer.orders", "--mode", "full-refresh"),
        ],
        "peer.orders",
    ),
}
console = Console(stderr=True)


class Unusable(Exception):
    """A peer that cannot run here, or did not copy what it should."""


# ---- a peer ---------------------------------------------------------------------------------------------------------------
def installed(tool: Tool, directory: Path) -> Path:
    """A new environment with the peer in it; :raises Unusable: when its packages do not install."""
    uv = find_uv()
    if uv is None:
        raise Unusable("uv is not installed")
    python = directory / "bin" / "python"
    making = [uv, "venv", "--quiet", "--python", sys.executable, str(directory)]
    filling = [uv, "pip", "install", "--quiet", "--python", str(python), *tool.packages]
    for command in (making, filling):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unusable(f"its packages do not install: {_last_line(done.stderr)}")
    return directory


def version_of(tool: Tool, environment: Path) -> str:
    name = re.split(r"[\[<]", tool.packages[0])[0]
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([environment / "bin" / "python", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def timed(command: list[str], environment: Path, scratch: Path) -> tuple[float, float, float]:
    """Seconds, CPU seconds and greatest resident MiB of a command; :raises Unusable: when it fails."""
    known = {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(scratch), "PYTHONPATH": str(ROOT)}
    quiet = {"RUNTIME__DLTHUB_TELEMETRY": "false", "DISABLE_TELEMETRY": "true", "SLING_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    log = scratch / "peer.log"
    started = time.perf_counter()
    with log.open("wb") as output, watched() as peaks:
        process = subprocess.Popen(
            [str(environment / "bin" / command[0]), *command[1:]],
            cwd=scratch,
            env={**known, **quiet, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        timer = _killer(process)
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
    seconds = time.perf_counter() - started
    if status:
        raise Unusable(f"ended with {os.waitstatus_to_exitcode(status)}: {_last_line(log.read_text(errors='replace'))}")
    return seconds, usage.ru_utime + usage.ru_stime, max(peaks.values()) / _MIB


def _killer(process: subprocess.Popen[bytes]) -> threading.Timer:
    timer = threading.Timer(_LIMIT_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "without a word"


# ---- the product ----------------------------------------------------------------------------------------------------------
_BASELINE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')).run()"


def product(place: Place, tpch: Tpch) -> tuple[float, float, float]:
    """The product's baseline, in an interpreter of this environment."""
    world = place.world(tpch.source, "orders", KEYS["orders"])
    scratch = place.directory / "product"
    scratch.mkdir(exist_ok=True)
    job = scratch / "job.pickle"
    job.write_bytes(pickle.dumps(place.job(world)))
    measured = timed(["python", "-c", _BASELINE, str(job)], Path(sys.prefix), scratch)
    _require(place, tpch, world.target_name, database=world.target.database)
    place.discard(world)
    return measured


# ---- all of them in turns -------------------------------------------------------------------------------------------------
def _require(place: Place, tpch: Tpch, table: str, *, database: str) -> None:
    """:raises Unusable: when the copy is not the source."""
    assert place.target_cluster is not None
    with place.target_cluster.connect(database) as connection:
        found = connection.execute(_SUMS.format(table)).fetchone()  # type: ignore[call-overload]
    if tuple(found or ()) != tpch.source.rows(_SUMS.format("public.orders"))[0]:
        raise Unusable("its copy differs from the source")


def _require_file(tpch: Tpch, file: Path) -> None:
    table = pq.read_table(file)
    count, keys, *_ = tpch.source.rows(_SUMS.format("public.orders"))[0]
    if (table.num_rows, pc.sum(table["o_orderkey"]).as_py()) != (count, keys):
        raise Unusable("its file differs from the source")


def once(tool: Tool, place: Place, tpch: Tpch, environment: Path) -> tuple[float, float, float]:
    """One copy by one peer into a fresh database."""
    assert place.target_cluster is not None
    scratch = environment / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    place.target_cluster.drop_database("peer")
    place.target_cluster.create_database("peer")
    databases = (tpch.source.database, "peer")
    urls = [f"postgresql://postgres:none@{address}:5432/{name}" for address, name in zip(ADDRESSES, databases, strict=True)]
    measured = timed(tool.command(urls[0], urls[1], scratch), environment, scratch)
    if tool.written.endswith(".parquet"):
        _require_file(tpch, scratch / tool.written)
    else:
        _require(place, tpch, tool.written, database="peer")
    return measured


def compare(rows: int, repetitions: int, chosen: list[str]) -> Peers:
    """Every peer in turns, the product first."""
    where = machine()
    with opened(ADDRESSES) as place:
        console.print(f"TPC-H orders, about {rows:,} rows")
        tpch = Tpch(place, rows * 4)
        work: dict[str, Callable[[], tuple[float, float, float]]] = {"airflow-dpone-xmin": lambda: product(place, tpch)}
        versions, reasons = {"airflow-dpone-xmin": commit()}, dict.fromkeys(set(TOOLS) - set(chosen), "not asked for")
        for name in chosen:
            console.print(f"installing {name}")
            try:
                environment = installed(TOOLS[name], place.directory / name.replace(", ", "_"))
                versions[name] = version_of(TOOLS[name], environment)
                work[name] = lambda tool=TOOLS[name], environment=environment: once(tool, place, tpch, environment)  # type: ignore[misc]
            except Unusable as reason:
                reasons[name] = str(reason)
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in work}
        for number in range(repetitions):
            for name in list(work):
                console.print(f"{name}, {number + 1} of {repetitions}")
                try:
                    results[name].append(work[name]())
                except Unusable as reason:
                    reasons[name] = str(reason)
                    del work[name], results[name]
        base = [seconds for seconds, _, _ in results["airflow-dpone-xmin"]]
        names = ("airflow-dpone-xmin", *TOOLS)
        listed = [_peer(name, versions.get(name, ""), results.get(name, []), base, reasons.get(name, "")) for name in names]
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Peers(date=date, rows=tpch.rows["orders"], machine=where, peers=listed)


def _peer(name: str, version: str, results: list[tuple[float, float, float]], base: list[float], reason: str) -> Peer:
    work = TOOLS[name].work if name in TOOLS else "PostgreSQL to PostgreSQL, proven, with receipt"
    status: Literal["run", "not_run"] = "run" if results else "not_run"
    if not results:
        return Peer(name=name, version=version, work=work, status=status, reason=reason)
    seconds, cpu, peak = (list(values) for values in zip(*results, strict=True))
    return Peer(
        name=name,
        version=version,
        work=work,
        status=status,
        reason="",
        seconds=Spread.of(seconds),
        ratio=Spread.of([theirs / ours for theirs, ours in zip(seconds, base, strict=True)]),
        cpu_seconds=Spread.of(cpu),
        peak_mib=Spread.of(peak),
    )


def main(
    rows: Annotated[int, typer.Option(help="of orders")] = 300_000,
    repetitions: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[list[str] | None, typer.Option(help=f"a peer, repeatable: {'; '.join(TOOLS)}")] = None,
    publish: Annotated[bool, typer.Option(help="write benchmarks/peers.json, which the docs page shows")] = False,
) -> None:
    """Measure the peers."""
    from benchmarks.command import regenerate, terminal, write

    document = compare(rows, repetitions, only or list(TOOLS))
    heads, lines = tables.peers(document)
    table = Table(*heads)
    for line in lines:
        table.add_row(*line)
    terminal().print(table)
    write(document, RESULTS if publish else ROOT / "build" / "benchmarks" / "peers.json")
    if publish:
        regenerate()


if __name__ == "__main__":
    typer.run(main)
