"""No secret and no business value leaves by the command line: planted everywhere, every command, in success and in failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.registry.keys import generate_keypair, read_signer
from airflow_dpone_xmin.registry.sign import sign_registry
from tests.secrets import PASSWORDS, TABLE, TOKEN, VALUE, Sink, unique_amount
from tests.world import READER, WRITER, Setup, World

from .conftest import Cli, Outcome


class Shell:
    """A user's shell whose every output, file and log line is searched."""

    def __init__(self, world: World, cli: Cli, environ: pytest.MonkeyPatch, directory: Path, sink: Sink) -> None:
        self.world, self.cli, self.environ, self.directory, self.sink = world, cli, environ, directory, sink
        self.private, public, _ = generate_keypair(directory, name="k")
        sink.key(self.private)
        environ.setenv("DPONE_REGISTRY", str(directory / "registry.json"))
        environ.setenv("DPONE_TRUSTED_KEYS", str(public))
        self.connect()
        document = world.registry().model_dump(mode="json", by_alias=True, exclude_unset=True)
        (directory / "registry.yaml").write_text(json.dumps(document))
        (directory / "registry.json").write_bytes(sign_registry(json.dumps(document).encode(), read_signer(self.private)))
        (directory / "m.yaml").write_text(json.dumps(world.manifest()))

    def connect(self) -> None:
        """Passwords in the URL, a token among the driver's options."""
        source, target = self.world.source, self.world.target
        self.url("SRC", READER, "reader", source.cluster, source.database)
        self.url("DWH", WRITER, "writer", target.cluster, target.database)
        self.url("OWNER", "postgres", "owner", target.cluster, target.database)

    def url(self, name: str, user: str, password: str, cluster: Any, database: str) -> None:
        query = f"host={getattr(cluster, 'socket', cluster)}&sslpassword={TOKEN}"
        self.environ.setenv(f"DPONE_CONN_{name}", f"postgresql://{user}:{PASSWORDS[password]}@/{database}?{query}")

    def __call__(self, *arguments: object, ok: bool | None = None) -> Outcome:
        """Both formats; *ok* says how the first must end."""
        done = self.cli(*arguments)
        self.sink.take(done.out, done.err)
        assert ok is None or (done.code == 0) is ok, done
        return done

    def reading(self, *forms: str) -> None:
        """Every command that reads, for people and for programs."""
        for form in forms or ("human", "json"):
            for arguments in (
                ("plan", "m.yaml"), ("plan", "m.yaml", "--connections"), ("plan", "m.yaml", "--sql"), ("check", "m.yaml"),
                ("check", "m.yaml", "--connections"), ("state", "show", "m.yaml"), ("evidence", "show", "m.yaml"),
                ("evidence", "show", "m.yaml", "--run-id", "stopped"), ("repair", "list", "m.yaml"), ("repair", "show", "m.yaml", "fix"),
                ("ddl", "verify", "-m", "m.yaml"), ("ddl", "render", "-m", "m.yaml", "--login", "x", "--part", "all"),
                ("ddl", "upgrade", "-m", "m.yaml", "--print"), ("ddl", "upgrade", "-m", "m.yaml", "--owner", "owner"),
                ("registry", "verify"), ("registry", "show"), ("registry", "diff", "registry.json", "registry.json"),
                ("registry", "discover", "src", "--relation", "public.orders"),
                ("registry", "discover", "dwh", "--type", "embedded", "--database", self.world.target.database),
                ("run", "m.yaml", "--dry-run"),
            ):  # fmt: skip
                self(*arguments, "--format", form)


@pytest.fixture
def shell(
    worlds: Setup, cli: Cli, embedded_only: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> Shell:
    monkeypatch.delenv("DPONE_REPAIR_AUTHORITY_REF", raising=False)
    world = worlds(*TABLE, key=("code",), reconciliation={"guards": {"max_delete_rows": 2}})
    return Shell(world, cli, monkeypatch, tmp_path, Sink(caplog))


def search(shell: Shell, *expected: str) -> None:
    """Outputs, logs, evidence rows and files."""
    shell.sink.rows(shell.world)
    shell.sink.files([shell.directory], but=[shell.private])
    shell.sink.search(expected=expected)


def test_days_that_end_well(shell: Shell) -> None:
    """Run, replay, stop, propose, approve, run: and everything read before and after."""
    shell.reading()
    shell("run", "m.yaml", "--run-id", "r1", ok=True)
    shell("run", "m.yaml", "--run-id", "r1", ok=True)
    shell.world.source.run("DELETE FROM orders WHERE code > (SELECT code FROM orders ORDER BY code OFFSET 9 LIMIT 1)")
    shell("run", "m.yaml", "--run-id", "stopped", ok=False)
    shell("run", "m.yaml", "--run-id", "stopped", "--format", "json", ok=False)
    proposing = ("repair", "propose", "m.yaml", "--run-id", "stopped", "--id", "fix", "--reason", "archived", "-o", "fix.yaml")
    shell(*proposing, ok=True)
    shell("repair", "approve", "m.yaml", "fix.yaml", "--owner", "owner", "--key", "k.key", ok=True)
    shell.reading()
    shell("run", "m.yaml", "--run-id", "stopped", "--repair-authority-ref", "fix", ok=True)
    shell.reading()
    assert VALUE in str(shell.world.target_rows(("code", "note"))), "the values did travel"
    search(shell, "guard.deletes_exceeded", "orders_process", "FROM")


def test_servers_that_refuse_or_are_gone(shell: Shell) -> None:
    """Bad passwords and unreachable hosts, side by side, through every command."""
    shell("run", "m.yaml", "--run-id", "r1", ok=True)
    with EmbeddedCluster() as strict:
        with strict.connect() as owner:
            for role in (READER, WRITER):
                owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")  # type: ignore[call-overload]
        (strict.data / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        strict.stop()
        strict.start()
        for place, form in ((strict, "human"), (shell.directory / "nowhere", "json")):
            for name, user in (("SRC", READER), ("DWH", WRITER), ("OWNER", "postgres")):
                shell.connect()
                shell.url(name, user, "wrong", place, "postgres")
                shell("run", "m.yaml", ok=name == "OWNER")
                shell.reading(form)
    for url in (f"{TOKEN}", f"postgresql://w:{PASSWORDS['wrong']}@h:{TOKEN}/db", f"nosuch+dialect://w:{PASSWORDS['wrong']}@h/db?x={TOKEN}"):
        shell.environ.setenv("DPONE_CONN_DWH", url)
        shell.reading("human")
        shell("run", "m.yaml", ok=False)
    search(shell, "mssql_transaction.unreachable", "postgres_source.unreachable", "mssql_transaction.authentication_failed",
           "postgres_source.authentication_failed", "DPONE_CONNECTION_UNRESOLVED")  # fmt: skip


def test_values_that_servers_quote(shell: Shell) -> None:
    """Vendor messages name the offending value: a unique index of the target, a check of staging's type, a guard of the source."""
    shell("run", "m.yaml", "--run-id", "r1", ok=True)
    shell.world.target.run(unique_amount(shell.world))
    shell.world.source.run(f"INSERT INTO orders SELECT '{VALUE}-twin', note, amount, at FROM orders LIMIT 1")
    shell("run", "m.yaml", "--run-id", "twin", ok=False)
    shell("run", "m.yaml", "--run-id", "twin", "--format", "json", ok=False)
    shell("evidence", "show", "m.yaml", "--run-id", "twin")
    shell.world.source.run(f"DELETE FROM orders WHERE code = '{VALUE}-twin'")
    shell.world.source.run(f"INSERT INTO orders VALUES ('{VALUE}-inf', 'x', 1, 'infinity')")
    shell("run", "m.yaml", "--run-id", "late", ok=False)
    shell("evidence", "show", "m.yaml", "--run-id", "late", "--format", "json")
    shell.world.source.run(f"UPDATE orders SET at = now(), code = '{VALUE}-pad ' WHERE at = 'infinity'")
    shell("run", "m.yaml", "--run-id", "padded", ok=False)
    shell.world.source.run("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", f"CREATE POLICY p ON orders USING (code <> '{VALUE}-1')")
    shell("run", "m.yaml", "--run-id", "hidden", ok=False)
    shell.reading()
    search(shell, "mssql_transaction.constraint_violation", "DPONE_POSTGRES_MSSQL_SOURCE_VALUE_UNREPRESENTABLE", "row_security")


def test_documents_with_secrets_in_the_wrong_place(shell: Shell) -> None:
    """A password where a field should be, a private key where a public one should be, a key file that is none."""
    wrong = PASSWORDS["wrong"]
    registry = json.loads((shell.directory / "registry.yaml").read_text())
    broken = {
        "unknown": {**registry, "password": wrong},
        "typed": {**registry, "serial": wrong},
        "named": {**registry, "environment": f"{wrong}\x00"},
        "time": {**registry, "not_after": wrong},
    }
    kept = [shell.private]
    for name, document in broken.items():
        (path := shell.directory / f"{name}.yaml").write_text(json.dumps(document))
        kept.append(path)
        shell("registry", "sign", path.name, "-o", "x.json", "--key", "k.key", ok=False)
    (path := shell.directory / "broken.yaml").write_text(f"kind: [{wrong}\n  {TOKEN}: : {{")
    kept.append(path)
    shell("registry", "sign", path.name, "-o", "x.json", "--key", "k.key", ok=False)
    (path := shell.directory / "torn.key").write_text(shell.private.read_text()[:-40])
    kept.append(path)
    shell("registry", "sign", "registry.yaml", "-o", "x.json", "--key", "torn.key", ok=False)
    shell("registry", "verify", "--trusted-key", "k.key", ok=False)
    shell("registry", "verify", "k.key", ok=False)
    shell("run", "k.key", ok=False)
    shell("repair", "approve", "m.yaml", "k.key", "--owner", "owner", "--key", "k.key", ok=False)
    for name, change in {"a": {"password": wrong}, "b": {"name": {"x": wrong}}, "c": {"state": {"database": wrong}}}.items():
        (path := shell.directory / f"m-{name}.yaml").write_text(json.dumps({**shell.world.manifest(), **change}))
        kept.append(path)
        if name != "c":  # a database's name is no secret: it is told
            shell("run", path.name, ok=False)
            shell("check", path.name, "--connections", ok=False)
    shell.sink.files([shell.directory], but=kept)
    shell.sink.search(expected=["registry.unknown_field", "registry.malformed", "registry.key_unusable", "DPONE_MANIFEST_UNKNOWN_FIELD"])
