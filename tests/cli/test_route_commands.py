"""The commands of a route on real databases: what they print, how they end, and that a refusal is one clear message."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone_xmin.cli.context import CommonOptions
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.registry.keys import generate_keypair, read_signer
from airflow_dpone_xmin.registry.sign import sign_registry
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.ddl import privileges
from tests.approvals import everything
from tests.world import READER, WRITER, Setup, World

from .conftest import Cli, Outcome

SECRETS = ("s3cret-reader", "s3cret-writer", "s3cret-owner", "Planted-Value")
TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, qty integer, note text)",
    "INSERT INTO orders SELECT g, g, 'Planted-Value ' || g FROM generate_series(1, 20) g",
)


@dataclass
class Shell:
    """A user's shell: configuration in the environment, one manifest, and every output kept."""

    world: World
    cli: Cli
    environ: pytest.MonkeyPatch
    directory: Path
    printed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.private, public, _ = generate_keypair(self.directory, name="k")
        self.environ.setenv("DPONE_REGISTRY", str(self.directory / "registry.dsse"))
        self.environ.setenv("DPONE_TRUSTED_KEYS", str(public))
        self.connect("SRC", READER, "s3cret-reader", self.world.source.cluster, self.world.source.database)
        self.connect("DWH", WRITER, "s3cret-writer", self.world.target.cluster, self.world.target.database)
        self.connect("OWNER", "postgres", "s3cret-owner", self.world.target.cluster, self.world.target.database)
        self.sign()
        self.write()

    def connect(self, name: str, user: str, password: str, cluster: Any, database: str) -> None:
        self.environ.setenv(f"DPONE_CONN_{name}", f"postgresql://{user}:{password}@/{database}?host={cluster.socket}")

    def sign(self) -> None:
        document = self.world.registry().model_dump(mode="json", by_alias=True, exclude_unset=True)
        (self.directory / "registry.dsse").write_bytes(sign_registry(json.dumps(document).encode(), read_signer(self.private)))

    def write(self, text: str | None = None) -> None:
        """The manifest file; JSON is YAML."""
        (self.directory / "m.yaml").write_text(json.dumps(self.world.manifest(), indent=1) if text is None else text)

    def __call__(self, *arguments: object) -> Outcome:
        done = self.cli(*arguments)
        self.printed += [done.out, done.err]
        assert "Traceback" not in done.out + done.err
        return done

    def refused(self, code: str, *arguments: object, exit_code: int = 1) -> str:
        """One message with code and hint, nothing on stdout, nothing changed."""
        before = everything(self.world)
        done = self(*arguments)
        assert (done.code, done.out) == (exit_code, ""), done
        assert done.err.count(f"error: {code}\n") == 1, done.err
        assert done.err.count("\nHint: ") == 1
        assert ("may simply be run again" in done.err) is (exit_code == 75)
        assert everything(self.world) == before
        return done.err


@pytest.fixture
def shell(worlds: Setup, cli: Cli, embedded_only: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shell]:
    """A provisioned route; at the end no output may hold a planted secret."""
    for name in ("DPONE_REPAIR_AUTHORITY_REF", "DPONE_WORK_DIR"):
        monkeypatch.delenv(name, raising=False)
    world = worlds(*TABLE, reconciliation={"guards": {"max_delete_ratio": 0.05}})
    shell = Shell(world, cli, monkeypatch, tmp_path)
    yield shell
    assert shell.printed, "nothing was printed"
    for secret in SECRETS:
        assert secret not in "".join(shell.printed)


# ---- the ordinary day -----------------------------------------------------------------------------------------------------
def test_from_plan_to_evidence(shell: Shell) -> None:
    """Every reading command, for people and for programs, before and after the first commit."""
    assert shell("plan", "m.yaml").out.count("\n") > 8
    plan = shell("plan", "m.yaml", "--sql", "--format", "json").json
    assert (plan["ready"], plan["payload"]["kind"], plan["problems"]) == (True, "full", [])
    assert "FROM" in plan["sql"]["rows"].upper() if "rows" in plan["sql"] else plan["sql"]
    assert "ready" in shell("check", "m.yaml").out
    checked = shell("check", "m.yaml", "--connections", "--format", "json")
    assert (checked.code, checked.json["ok"]) == (0, True)
    assert {f["area"] for f in checked.json["routes"][0]["findings"]} >= {"manifest", "registry", "source", "target", "staging", "state"}
    assert "exact" in shell("ddl", "verify", "-m", "m.yaml").out
    assert shell("state", "show", "m.yaml", "--format", "json").json["checkpoint"] is None
    shell.refused("evidence.not_found", "evidence", "show", "m.yaml")

    first = shell("run", "m.yaml", "--run-id", "r1", "--format", "json")
    assert (first.code, first.json["status"], first.json["receipt"]["counts"]["inserted"]) == (0, "committed", 20)
    again = shell("run", "m.yaml", "--run-id", "r1")
    assert (again.code, "replayed" in again.out) == (0, True)
    assert "run id r1" in again.err
    state = shell("state", "show", "m.yaml", "--format", "json").json
    assert (state["checkpoint"]["revision"], state["head_agrees"], state["active_owner"]) == (1, True, state["state_key"])
    assert "revision" in shell("state", "show", "m.yaml").out
    (receipt,) = shell("evidence", "show", "m.yaml", "--format", "json").json["receipts"]
    assert receipt == {**first.json["receipt"]}
    assert receipt["receipt_id"] in shell("evidence", "show", "m.yaml", "--run-id", "r1").out
    assert "r1" in shell("evidence", "show", "m.yaml").out
    assert shell("plan", "m.yaml", "--connections", "--format", "json").json["payload"]["kind"] == "delta"


def test_an_exceptional_day(shell: Shell) -> None:
    """Stopped, looked at, proposed, approved, run, and not again; the reference comes by option or environment."""
    shell("run", "m.yaml", "--run-id", "r1")
    shell.world.source.run("DELETE FROM orders WHERE id <= 5")
    text = shell.refused("guard.deletes_exceeded", "run", "m.yaml", "--run-id", "r2")
    assert "command: dpone-xmin repair propose m.yaml --run-id r2 --id repair-" in text
    look = shell("run", "m.yaml", "--run-id", "look", "--dry-run", "--format", "json")
    assert (look.code, look.json["classification"]["would_delete"], look.json["refusal"]["code"]) == (1, 5, "guard.deletes_exceeded")
    proposed = shell(
        "repair", "propose", "m.yaml", "--run-id", "r2", "--id", "fix", "--reason", "archived", "-o", "fix.yaml", "--format", "json"
    )
    assert proposed.json["allow"] == {"full_baseline": False, "max_delete_rows": 5, "max_delete_ratio": "0.250000000000000"}
    shell.refused("repair_authority.not_found", "run", "m.yaml", "--run-id", "r2", "--repair-authority-ref", "fix")
    shell.refused("repair_authority.unsigned", "repair", "approve", "m.yaml", "fix.yaml", "--owner", "owner")
    shell.refused("mssql_transaction.permission_denied", "repair", "approve", "m.yaml", "fix.yaml", "--owner", "dwh", "--key", "k.key")
    assert shell("repair", "approve", "m.yaml", "fix.yaml", "--owner", "owner", "--key", "k.key").code == 0
    shell.refused("repair_authority.exists", "repair", "approve", "m.yaml", "fix.yaml", "--owner", "owner", "--key", "k.key")
    (listed,) = shell("repair", "list", "m.yaml", "--format", "json").json["authorities"]
    assert (listed["state"], listed["signed"]) == ("valid", True)
    shell.environ.setenv("DPONE_REPAIR_AUTHORITY_REF", "fix")
    before = everything(shell.world)
    look = shell("run", "m.yaml", "--run-id", "look", "--dry-run", "--format", "json")
    assert (look.code, look.json["refusal"], look.json["repair_authority"]["id"]) == (0, None, "fix")
    assert "fix would be consumed" in shell("run", "m.yaml", "--run-id", "look", "--dry-run").out
    assert everything(shell.world) == before
    done = shell("run", "m.yaml", "--run-id", "r2", "--format", "json")
    assert (done.code, done.json["receipt"]["repair_authority"]["id"], done.json["receipt"]["counts"]["soft_deleted"]) == (0, "fix", 5)
    shell.refused("repair_authority.consumed", "run", "m.yaml", "--run-id", "r3")
    assert "consumed" in shell("repair", "show", "m.yaml", "fix").out
    shell.refused("repair_authority.not_found", "repair", "show", "m.yaml", "nosuch")
    shell.environ.setenv("DPONE_REPAIR_AUTHORITY_REF", "")
    assert shell("run", "m.yaml", "--run-id", "r3").code == 0, "an empty reference is none"


def several(shell: Shell) -> None:
    """The manifest names two tables, both pinned."""
    world = shell.world
    world.source.run("CREATE TABLE customers (id bigint PRIMARY KEY)", f"GRANT SELECT ON customers TO {READER}")
    document = world.registry().model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["connections"]["src"]["connection"]["postgres_source_authority"] = world.source.authority("public.orders", "public.customers")
    world._registry = RegistryDocument.model_validate(document)
    shell.sign()
    manifest = world.manifest()
    del manifest["source"]["table"], manifest["sink"]["table"]
    shell.write(json.dumps(manifest | {"schemas": {"public": {"tables": ["customers", "orders"]}}}))


def test_a_contract_of_one_table_leaves_its_sibling_alone(shell: Shell) -> None:
    """Beside the tables it names a column that the sibling lacks, and is refused; in the entry it belongs to its table."""
    several(shell)
    shell.world.source.run("ALTER TABLE customers ADD COLUMN span interval")
    manifest = json.loads((shell.directory / "m.yaml").read_text())
    contract = {"schema_contract": {"columns": {"span": {"type": "string"}}}}
    orders = ("m.yaml", "--table", "public.orders")
    render = ("ddl", "render", "-m", "m.yaml", "--table", "public.customers", "--login", WRITER)
    shell.write(json.dumps(manifest | contract))
    assert "its entry under `schemas`" in shell.refused("postgres_source.projection_invalid", "run", *orders, "--run-id", "r1")
    shell.write(json.dumps(manifest | {"schemas": {"public": {"tables": ["orders", {"name": "customers", **contract}]}}}))
    assert shell("run", *orders, "--run-id", "r2").code == 0
    rendered = shell(*render)
    assert (rendered.code, "span" in rendered.out) == (0, True)
    shell.write(json.dumps(manifest))
    shell.refused("DPONE_TYPE_UNSUPPORTED", *render)


def test_the_command_of_a_stop_runs_as_it_is_printed(shell: Shell) -> None:
    """With the table of several, and with the options that found the registry; in the error and in the evidence alike."""
    several(shell)
    settings = {name: os.environ[f"DPONE_{name}"] for name in ("REGISTRY", "TRUSTED_KEYS")}
    for name in settings:
        shell.environ.delenv(f"DPONE_{name}")
    given = ("--registry", settings["REGISTRY"], "--trusted-key", settings["TRUSTED_KEYS"], "--environment", "test")
    route = ("m.yaml", "--table", "public.orders", *given)
    assert shell("run", *route, "--run-id", "r1").code == 0
    shell.world.source.run("DELETE FROM orders WHERE id <= 5")
    stopped = shell("run", *route, "--run-id", "it's r2", "--format", "json").json["error"]
    assert stopped["code"] == "guard.deletes_exceeded"
    kept = shell("evidence", "show", *route, "--run-id", "it's r2", "--format", "json").json["error"]["details"]["evidence"]["error"]
    assert kept == stopped
    program, *words = shlex.split(stopped["details"]["command"])
    assert program == "dpone-xmin"
    done = shell(*words)
    assert done.code == 0, done.err
    (document,) = shell.directory.glob("repair-*.yaml")
    approve = done.err.partition("then: dpone-xmin ")[2].partition(" --key …")[0]
    assert shell(*shlex.split(approve), "--key", "k.key", "--owner", "owner").code == 0
    committed = shell("run", *route, "--run-id", "it's r2", "--repair-authority-ref", document.stem, "--format", "json").json
    assert committed["receipt"]["repair_authority"]["id"] == document.stem


def test_a_password_in_the_registry_s_address_is_not_printed() -> None:
    assert CommonOptions(registry="https://user:s3cret@host/r", trusted_key=("k",)).words() == ["--trusted-key", "k"]


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("max_delete_rows: 5", "max_delete_rows: many"),
        ("environment: test", "environment: test\nsurprise: 1"),
        ("reason: archived", "reason: ''"),
        ("kind: dpone", "kind: [dpone"),
        ("full_baseline: false", "full_baseline: false\n  full_baseline: true"),
    ],
)
def test_an_edited_document_is_read_strictly(shell: Shell, line: str, replacement: str) -> None:
    shell("run", "m.yaml", "--run-id", "r1")
    shell.world.source.run("DELETE FROM orders WHERE id <= 5")
    shell("run", "m.yaml", "--run-id", "r2")
    shell("repair", "propose", "m.yaml", "--run-id", "r2", "--id", "fix", "--reason", "archived", "-o", "fix.yaml")
    text = (shell.directory / "fix.yaml").read_text()
    assert line in text, text
    (shell.directory / "fix.yaml").write_text(text.replace(line, replacement))
    shell.refused("repair_authority.document_invalid", "repair", "approve", "m.yaml", "fix.yaml", "--owner", "owner", "--key", "k.key")


def test_ddl(shell: Shell) -> None:
    """Render needs no target; verify tells versions apart; upgrade is the owner's."""
    route = shell("ddl", "render", "-m", "m.yaml", "--login", "someone", "--format", "json").json["script"]
    assert route.count("CREATE TABLE") == 1  # by default the part that every table needs
    script = shell("ddl", "render", "-m", "m.yaml", "--login", "someone", "--part", "all", "--format", "json").json["script"]
    assert script.count("CREATE TABLE") == 18 + script.count("dpone_database_token (")
    assert shell("ddl", "render", "-m", "m.yaml", "--login", "someone", "--part", "catalog", "-o", "all.sql").code == 0
    assert "dpone_catalog_version" in (shell.directory / "all.sql").read_text()
    shell.refused("cli.usage", "ddl", "render", "-m", "m.yaml", "--login", "x", "--part", "some")
    shell.refused("cli.usage", "ddl", "render", "-m", "m.yaml", "--login", "x", "--binding-id", "x")
    shell.refused("cli.usage", "ddl", "upgrade", "-m", "m.yaml")
    assert "ADD CONSTRAINT" in shell("ddl", "upgrade", "-m", "m.yaml", "--print").out
    assert "already" in shell("ddl", "upgrade", "-m", "m.yaml", "--owner", "owner").out
    found = shell("registry", "discover", "dwh", "--type", "embedded", "--database", shell.world.target.database, "--format", "json").json
    pins = shell.world.registry().connections["dwh"].connection.database_authorities
    assert pins is not None
    (pin,) = found["fragment"]["connections"]["dwh"]["connection"]["database_authorities"].values()
    assert pin["create_token"] == pins[shell.world.target.database].create_token
    state = shell.world.target.layout("orders").state.schema
    shell.world.target.run(
        f"ALTER TABLE {state}.dpone_load_attempt DROP CONSTRAINT uq_dpone_load_attempt_invocation_digest",
        f"UPDATE {state}.dpone_catalog_version SET version = 1",
    )
    shell.refused("mssql_transaction.catalog_foreign", "ddl", "verify", "-m", "m.yaml")
    shell.refused("mssql_transaction.catalog_foreign", "run", "m.yaml")
    shell.refused("mssql_transaction.permission_denied", "ddl", "upgrade", "-m", "m.yaml", "--owner", "dwh")
    done = shell("ddl", "upgrade", "-m", "m.yaml", "--owner", "owner", "--format", "json")
    assert done.json == {"installed": 1, "version": 2, "changed": True}
    assert shell("run", "m.yaml").code == 0
    shell.world.target.run(f"ALTER TABLE {state}.dpone_campaign ADD COLUMN note text")
    different = shell("ddl", "verify", "-m", "m.yaml")
    assert (different.code, "column note is not of this version" in different.out) == (1, True)


# ---- bad input ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("name: [orders", "DPONE_MANIFEST_SYNTAX"),
        ("name: a\nname: b\n", "DPONE_MANIFEST_SYNTAX"),
        ("name: \x00", "DPONE_MANIFEST_SYNTAX"),
        ("- name: orders\n", "DPONE_MANIFEST_INVALID"),
        ("", "DPONE_MANIFEST_INVALID"),
        ({"surprise": 1}, "DPONE_MANIFEST_UNKNOWN_FIELD"),
        ({"name": None}, "DPONE_MANIFEST_NAME_REQUIRED"),
        ({"sink": {"options": {"lock_timeout_seconds": "soon"}}}, "DPONE_MANIFEST_INVALID"),
        ({"reconciliation": {"enabled": True, "mode": "key_snapshot", "guards": {"max_delete_ratio": 2}}}, "DPONE_MANIFEST_INVALID"),
        ({"reconciliation": {"repair_authority_ref": "fix"}}, "DPONE_REPAIR_AUTHORITY_IN_MANIFEST"),
        ({"source": {"connection_id": "nosuch"}}, "DPONE_REGISTRY_CONNECTION_UNKNOWN"),
        ({"source": {"table": {"name": "nosuch"}}}, "DPONE_POSTGRES_SOURCE_AUTHORITY_REQUIRED"),
        ({"sink": {"table": {"database": "nosuch"}}}, "DPONE_MSSQL_TARGET_DATABASE_AUTHORITY_REQUIRED"),
    ],
)
def test_a_manifest_that_is_refused(shell: Shell, text: Any, code: str) -> None:
    """By every command alike, before anything is opened."""
    if isinstance(text, dict):
        shell.world.manifest_over = text
        text = json.dumps(shell.world.manifest())
    shell.write(text)
    for arguments in (
        ("plan", "m.yaml"),
        ("check", "m.yaml", "--connections"),
        ("run", "m.yaml"),
        ("state", "show", "m.yaml"),
        ("ddl", "verify", "-m", "m.yaml"),
    ):
        done = shell(*arguments)
        assert (done.code, done.out) == (1, "")
        assert f"error: {code}\n" in done.err, done.err
        assert "\nHint: " in done.err


def test_files_that_are_not_there(shell: Shell) -> None:
    shell.refused("DPONE_MANIFEST_UNREADABLE", "run", "nosuch.yaml")
    shell.refused("registry.unreadable", "run", "m.yaml", "--registry", "nosuch.dsse")
    shell.refused("registry.environment_mismatch", "run", "m.yaml", "--environment", "prod")
    shell.environ.delenv("DPONE_CONN_DWH")
    assert "DPONE_CONN_DWH" in shell.refused("DPONE_CONNECTION_UNRESOLVED", "run", "m.yaml")


def test_tables_that_are_not_there(shell: Shell) -> None:
    """A table that went after it was signed: check and run say the same."""
    target = shell.world.target_name
    shell.world.source.run("ALTER TABLE orders RENAME TO gone")
    checked = shell("check", "m.yaml", "--connections", "--format", "json")
    assert checked.code == 1
    assert codes(checked) == {"postgres_source.relation_missing", "postgres_source_authority.relation_mismatch"}
    done = shell("run", "m.yaml", "--format", "json")
    assert done.json["error"]["code"] in codes(checked)
    shell.world.source.run("ALTER TABLE gone RENAME TO orders")
    shell.world.target.run(f"ALTER TABLE {target} RENAME TO gone")
    checked = shell("check", "m.yaml", "--connections", "--format", "json")
    assert codes(checked) == {"DPONE_TARGET_UNSUPPORTED"}
    assert shell("run", "m.yaml", "--format", "json").json["error"]["code"] == "DPONE_TARGET_UNSUPPORTED"


# ---- grants ---------------------------------------------------------------------------------------------------------------
def test_each_missing_grant_is_named(shell: Shell) -> None:
    """One after the other is taken away: check names exactly that one and ends with 1; given back, it is ready."""
    target, layout = shell.world.target, shell.world.target.layout("orders")
    schemas = {"state": layout.state.schema, "dbo": layout.dbo}
    wanted = [(f"{schemas[str(table.schema)]}.{table.name}", granted[-1]) for table, granted in privileges(build_catalog()).items()]
    wanted += [(f"{layout.target.namespace.schema}.orders", name) for name in ("INSERT", "UPDATE")]
    for table, privilege in wanted:
        target.run(f"REVOKE {privilege} ON {table} FROM {WRITER}")
        done = shell("check", "m.yaml", "--connections", "--format", "json")
        told = [f["subject"] for f in done.json["routes"][0]["findings"] if f["subject"].startswith("missing grant")]
        assert (done.code, told) == (1, [f"missing grant: {privilege} on {table}"])
        target.run(f"GRANT {privilege} ON {table} TO {WRITER}")
    target.run(f"REVOKE CREATE ON SCHEMA {layout.staging.schema} FROM {WRITER}")
    assert f"CREATE on schema {layout.staging.schema}" in shell.refused("mssql_transaction.permission_denied", "run", "m.yaml")
    target.run(f"GRANT CREATE ON SCHEMA {layout.staging.schema} TO {WRITER}")
    shell.world.source.run(f"REVOKE SELECT ON orders FROM {READER}")
    done = shell("check", "m.yaml", "--connections")
    assert (done.code, "postgres_source.permission_denied" in done.out, "SELECT" in done.out) == (1, True, True)
    shell.refused("postgres_source.permission_denied", "run", "m.yaml")
    shell.world.source.run(f"GRANT SELECT ON orders TO {READER}")
    assert shell("check", "m.yaml", "--connections").code == 0


# ---- servers and disks ----------------------------------------------------------------------------------------------------
def test_unreachable_servers(shell: Shell) -> None:
    nowhere = shell.directory / "nowhere"
    for name, code, user in (("DWH", "mssql_transaction.unreachable", WRITER), ("SRC", "postgres_source.unreachable", READER)):
        with shell.environ.context() as patch:
            patch.setenv(f"DPONE_CONN_{name}", f"postgresql://{user}:s3cret-writer@/secret-db?host={nowhere}")
            text = shell.refused(code, "run", "m.yaml", exit_code=75)
            assert "secret-db" not in text
            done = shell("check", "m.yaml", "--connections")
            assert (done.code, code in done.out) == (1, True)
    assert shell("run", "m.yaml").code == 0


def test_a_url_that_is_none(shell: Shell) -> None:
    for value in ("s3cret-writer", "postgresql://w:s3cret-writer@h:port/db", "postgresql://w:s3cret-writer@/db?port=x"):
        shell.environ.setenv("DPONE_CONN_DWH", value)
        shell.refused("DPONE_CONNECTION_UNRESOLVED", "run", "m.yaml")


def test_wrong_passwords(shell: Shell) -> None:
    """A refused login is told as one, never retried by itself, and no password is shown."""
    with EmbeddedCluster() as cluster:
        with cluster.connect() as owner:
            for role in (READER, WRITER):
                owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")  # type: ignore[call-overload]
        (cluster.data / "pg_hba.conf").write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        with cluster.connect() as owner:
            owner.execute("SELECT pg_reload_conf(), pg_sleep(0.3)")
        shell.connect("DWH", WRITER, "s3cret-writer", cluster, "postgres")
        shell.refused("mssql_transaction.authentication_failed", "run", "m.yaml")
        shell.connect("DWH", WRITER, "s3cret-writer", shell.world.target.cluster, shell.world.target.database)
        shell.connect("SRC", READER, "s3cret-reader", cluster, shell.world.source.database)
        shell.refused("postgres_source.authentication_failed", "run", "m.yaml")
        done = shell("check", "m.yaml", "--connections")
        assert (done.code, "postgres_source.authentication_failed" in done.out) == (1, True)


def test_a_full_disk(shell: Shell) -> None:
    """Less free space than the floor: refused before anything is extracted or staged."""
    shell.world.manifest_over = {"runtime": {"storage": {"min_free_bytes": 2**62}}}
    shell.write()
    shell.refused("storage.floor", "run", "m.yaml", exit_code=75)
    assert codes(shell("check", "m.yaml", "--connections", "--format", "json")) == {"storage.floor"}
    assert shell.world.staged() == []
    shell.world.manifest_over = {"runtime": {"storage": {"work_dir": "/proc/nosuch"}}}
    shell.write()
    shell.refused("storage.write_failed", "run", "m.yaml")
    assert codes(shell("check", "m.yaml", "--connections", "--format", "json")) == {"storage.write_failed"}


def test_an_empty_run_id_is_no_run_id(shell: Shell) -> None:
    """An unset variable of a script would make every retry new work."""
    done = shell("run", "m.yaml", "--run-id", "")
    assert (done.code, "a run id is not empty" in done.err) == (2, True), done


def codes(done: Outcome) -> set[str]:
    """Codes of the failed findings."""
    return {finding["code"] for finding in done.json["routes"][0]["findings"] if finding["ok"] is False}
