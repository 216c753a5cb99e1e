"""Every command that the documentation shows is run, page by page, on a real source and a real target, and prints what the page says.

How a page is read: ``docs/how-to/index.md`` says it to the reader, :class:`Reader` does it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from ruamel.yaml import YAML
from typer.core import TyperGroup
from typer.main import get_command

from airflow_dpone_xmin.cli.main import app
from airflow_dpone_xmin.contracts.errors import CODES
from airflow_dpone_xmin.contracts.route import Namespace
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.target.postgres_ddl import PostgresDdl
from tests.cli.conftest import Cli, cli  # noqa: F401  (the fixture)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]*)")?\n(?P<body>.*?)^(?P=indent)```$', re.M | re.S)
NOT_RUN = re.compile(r"\s+# not run: (?P<reason>\S.+)$")
READER, RUNTIME = "dpone_reader", "dpone_runtime"
ROWS = 1000


@dataclass(frozen=True)
class Block:
    """One fenced block.

    :param section: the level-2 heading that it stands under.
    """

    language: str
    title: str
    body: str
    section: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order, SQL of the embedded engine only."""
    text, found, tab = page.read_text(encoding="utf-8"), [], ""
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        sections, tabs = re.findall(r"^## (.*)$", before, re.M), re.findall(r'^=== "(.*)"$', before, re.M)
        tab = tabs[-1] if tabs and match["indent"] else ""
        if match["language"] == "sql" and tab != "embedded engine":
            assert tab == "SQL Server", "SQL stands in a tab of its engine"
            continue
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.M)
        found.append(Block(match["language"], match["title"] or "", body, sections[-1] if sections else ""))
    return found


def steps(body: str) -> Iterator[tuple[str, list[str]]]:
    """(command, lines that its output must have) of a console block."""
    command, expected = None, []
    for line in body.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, expected
            command, expected = line[2:], []
        else:
            assert command is not None, f"output without a command: {line}"
            expected.append(line)
    if command is not None:
        yield command, expected


def matches(expected: str, line: str) -> bool:
    """Whether a printed line is what the page shows; runs of blanks are one, ``…`` is anything."""
    wanted = ".*".join(re.escape(" ".join(part.split())) for part in expected.split("…")).replace(r"\ ", " ")
    return re.search(wanted.replace(" .*", ".*").replace(".* ", ".*"), " ".join(line.split())) is not None


@dataclass
class Reader:
    """Somebody who does what a page says, in a directory of their own."""

    cli: Cli
    environ: pytest.MonkeyPatch
    directory: Path
    source: Callable[..., None]
    target: Callable[..., None]
    provisioned: list[str]
    pins: dict[str, Any] = field(default_factory=dict)
    ran: int = 0

    def read(self, name: str, *, until: str = "") -> None:
        """Do a page.

        :param until: stop before the section whose heading starts so.
        """
        for block in blocks(DOCS / "how-to" / f"{name}.md"):
            if until and block.section.startswith(until):
                return
            if block.language == "yaml" and block.title:
                self.write(block)
            elif block.language == "sql":
                self.target(block.body)
            elif block.language == "python":
                self.parse(block)
            elif block.language == "console":
                for command, expected in steps(block.body):
                    self.run(command, expected)

    def write(self, block: Block) -> None:
        """A file, for the embedded engine, with the pins that were discovered."""
        document = _embedded(YAML(typ="safe").load(block.body), self.pins)
        stream = StringIO()
        YAML().dump(document, stream)
        (self.directory / block.title).write_text(stream.getvalue(), encoding="utf-8")

    def parse(self, block: Block) -> None:
        """A DAG file, as Airflow parses it."""
        path = self.directory / block.title
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.body, encoding="utf-8")
        bag = DagBag(dag_folder=str(path), safe_mode=False)
        assert (len(bag.dags), bag.import_errors) == (1, {})

    def run(self, command: str, expected: list[str]) -> None:
        """Run one line; it prints what the page says and ends as the page implies."""
        if NOT_RUN.search(command):
            assert not expected, "a line that is not run cannot show its output"
            return
        self.ran += 1
        if command.startswith("export "):
            for word in shlex.split(command)[1:]:
                self.environ.setenv(*word.split("=", 1))
            return
        if command.startswith("sqlcmd "):
            self.apply(command.rsplit(" ", 1)[1])
            return
        code, out, err = self._dpone(command) if command.startswith("dpone-xmin ") else self._shell(command)
        failing = [line.removeprefix("error: ") for line in expected if line.startswith("error: ")]
        wanted = (75 if CODES[failing[0]].retryable else 1) if failing else int("not ready" in expected)
        assert code == wanted, f"{command}\n{out}\n{err}"
        unseen = [line for line in expected if not any(matches(line, printed) for printed in (out + err).splitlines())]
        assert not unseen, f"{command} does not print {unseen}:\n{out}\n{err}"

    def _dpone(self, command: str) -> tuple[int, str, str]:
        words, _, file = command.partition(" > ")
        arguments = [_WORDS.get(word, word) for word in shlex.split(words)[1:]]
        done = self.cli(*arguments)
        if file:
            (self.directory / file).write_text(done.out, encoding="utf-8")
            self.pins |= YAML(typ="safe").load(done.out)["connections"]
        return done.code, done.out, done.err

    def _shell(self, command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=self.directory, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
        )
        return done.returncode, done.stdout, done.stderr

    def apply(self, file: str) -> None:
        """The owner runs a rendered script."""
        script = (self.directory / file).read_text(encoding="utf-8").split(PostgresDdl.separator)
        self.target(*[statement for statement in script if statement.strip() and statement not in self.provisioned])


_WORDS = {"mssql": "embedded", "DWH_Stage": "DWH", "DWH_State": "DWH"}


def _embedded(node: Any, pins: Any) -> Any:
    """The document of a page for the embedded engine: one database, three schemas; ``{…}`` is what was discovered."""
    if isinstance(node, dict):
        if list(node) == ["…"]:
            return pins
        return {name: _embedded(value, _below(pins, name)) for name, value in node.items() if name not in ("DWH_Stage", "DWH_State")}
    return _WORDS.get(node, node) if isinstance(node, str) else node


def _below(pins: Any, name: str) -> Any:
    # The discovered fragments are those of `connections`.
    return pins if name == "connections" else pins.get(name, {}) if isinstance(pins, dict) else {}


@pytest.fixture
def reader(
    cli: Cli,  # noqa: F811
    source_cluster: EmbeddedCluster,
    target_cluster: EmbeddedCluster,
    embedded_only: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Reader]:
    """A source `sales` with a thousand orders, an empty target `DWH`, and the logins of the guides."""
    source_cluster.create_database("sales")
    target_cluster.create_database("DWH")

    def owner_of(cluster: EmbeddedCluster, database: str) -> Callable[..., None]:
        def run(*statements: str) -> None:
            with cluster.connect(database) as connection:
                for statement in statements:
                    connection.execute(statement)  # type: ignore[call-overload]

        return run

    source, target = owner_of(source_cluster, "sales"), owner_of(target_cluster, "DWH")
    for run, role in ((source, READER), (target, RUNTIME)):
        run(f"DO $$ BEGIN IF to_regrole('{role}') IS NULL THEN CREATE ROLE {role} LOGIN; END IF; END $$")
    source(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, placed date NOT NULL, amount numeric(12,2))",
        f"INSERT INTO public.orders SELECT g, date '2019-01-01' + g, g FROM generate_series(1, {ROWS}) g",
        f"GRANT SELECT ON public.orders TO {READER}",
    )
    # A creation date that `discover` can see before the catalog is there, as on SQL Server.
    ddl, beside = PostgresDdl(), Namespace("DWH", "dbo")
    provisioned = [*ddl.enter(beside), *ddl.database_token(beside)]
    target(*provisioned)
    for name, user, cluster, database in (
        ("OLTP", READER, source_cluster, "sales"),
        ("DWH", RUNTIME, target_cluster, "DWH"),
        ("DWH_OWNER", "postgres", target_cluster, "DWH"),
    ):
        monkeypatch.setenv(f"DPONE_CONN_{name}", f"postgresql://{user}@/{database}?host={cluster.socket}")
    # The owner's discover sees what the runtime login sees only once the catalog is there.
    target(f"GRANT USAGE ON SCHEMA dbo TO {RUNTIME}", f"GRANT SELECT ON dbo.dpone_database_token TO {RUNTIME}")
    yield Reader(cli, monkeypatch, tmp_path, source, target, provisioned)
    target_cluster.drop_database("DWH")
    source_cluster.drop_database("sales")
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "keys" / "dpone-registry.key").unlink()


# ---- what must have happened before a guide begins --------------------------------------------------------------------------
def _archived(reader: Reader) -> None:
    reader.source("DELETE FROM public.orders WHERE id <= 100")


def _restored(reader: Reader) -> None:
    reader.source(
        "CREATE TABLE public.restored (LIKE public.orders INCLUDING ALL)",
        "INSERT INTO public.restored SELECT * FROM public.orders",
        "DROP TABLE public.orders",
        "ALTER TABLE public.restored RENAME TO orders",
        f"GRANT SELECT ON public.orders TO {READER}",
    )


def _column(reader: Reader) -> None:
    reader.source("ALTER TABLE public.orders ADD COLUMN note text", "UPDATE public.orders SET note = 'rush' WHERE id > 990")


def _older_catalog(reader: Reader) -> None:
    reader.target(
        "ALTER TABLE dpone.dpone_load_attempt DROP CONSTRAINT uq_dpone_load_attempt_invocation_digest",
        "UPDATE dpone.dpone_catalog_version SET version = 1",
    )


def _nothing(reader: Reader) -> None:
    """The first route is enough."""


GUIDES: dict[str, Callable[[Reader], None]] = {
    "evidence": _nothing,
    "approval": _archived,
    "rotation": _restored,
    "add-a-column": _column,
    "upgrade": _older_catalog,
}
"""Guide → the situation that it begins with, in the order in which one reader does them all after the first route."""


def test_the_first_route_and_what_comes_after_it(reader: Reader) -> None:
    reader.read("first-route")
    for guide, happened in GUIDES.items():
        happened(reader)
        before = reader.ran
        reader.read(guide)
        assert reader.ran > before, guide
        if guide == "approval":
            _look_up(reader, {"MANIFEST": "orders.yaml", "--run-id ID": "--run-id nightly-42", "ID": "archive-2026"}, but="campaign")


def test_a_large_first_load(reader: Reader) -> None:
    """In place of the first route's target table and run."""
    reader.read("first-route", until="4.")
    reader.read("campaign")
    _look_up(reader, {"MANIFEST": "orders_initial.yaml"}, only="campaign")


def _look_up(reader: Reader, words: Mapping[str, str], *, only: str = "", but: str = "nothing") -> None:
    """The runbook's commands, which change nothing, on the reader's route; its words in capitals are the reader's to fill in."""
    shown = sorted(set(re.findall(r"`(dpone-xmin [^`]*\bMANIFEST\b[^`]*)`", (DOCS / "runbook.md").read_text())))
    shown = [command for command in shown if command.startswith(f"dpone-xmin {only}") and not command.startswith(f"dpone-xmin {but}")]
    assert shown
    for command in shown:
        for word, meant in words.items():
            command = command.replace(word, meant)
        reader.run(command, [])


# ---- what only names a command ----------------------------------------------------------------------------------------------
PLACES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "dags_examples").glob("*.py"))]
NAMED = re.compile(r"`dpone-xmin ((?:[^`\n]|\n(?!\n))*)`")


@pytest.mark.parametrize("place", [path for path in PLACES if NAMED.search(path.read_text())], ids=lambda path: path.name)
def test_a_command_named_in_a_sentence_exists(place: Path) -> None:
    for named in NAMED.findall(place.read_text()):
        command, words = get_command(app), shlex.split(named)
        while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{place.name}: dpone-xmin {named}"
            command = command.commands[words.pop(0)]
        known = {"--help", *(name for parameter in command.params for name in parameter.opts)}
        assert {word for word in words if word.startswith("-")} <= known, f"{place.name}: dpone-xmin {named}"


# ---- nothing is left out ----------------------------------------------------------------------------------------------------
def test_every_page_with_commands_is_run() -> None:
    """A console block outside of the guides holds `make` targets and lines with a reason only."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    guides = {DOCS / "how-to" / f"{name}.md" for name in ("first-route", "campaign", *GUIDES)}
    assert guides <= set(pages)
    for page in set(pages) - guides:
        for block in [block for block in blocks(page) if block.language == "console"]:
            for command, _ in steps(re.sub(r"^(?=make )", "$ ", block.body, flags=re.M)):
                made = re.match(r"make (\w+)", command)
                assert made or NOT_RUN.search(command), f"{page.name}: no test runs {command!r}"
                if made:
                    subprocess.run(["make", "--dry-run", made[1]], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("expected", "line", "same"),
    [
        ("status … committed", "status      committed", True),
        ("payload … 0", "payload         0", True),
        ("exact", "different", False),
        ("kind … full (baseline)", "kind   full (campaign)", False),
        ("error: guard.empty", "error: guard_empty", False),
    ],
)
def test_what_a_page_shows_is_compared(expected: str, line: str, same: bool) -> None:
    assert matches(expected, line) is same
