"""Database authority on the target side: pins, order, spelling, sessions; identity and its decoys; restored and rotated databases."""

from __future__ import annotations

import copy
import functools
import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_dpone_xmin.contracts.errors import CODES, XminError
from airflow_dpone_xmin.contracts.manifest import parse_manifest
from airflow_dpone_xmin.contracts.progress import Cancellation
from airflow_dpone_xmin.contracts.registry import RegistryDocument
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.policy.route import resolve_routes, select_route
from airflow_dpone_xmin.runtime.check import check_connections
from airflow_dpone_xmin.runtime.inspect import state_document
from airflow_dpone_xmin.runtime.provision import discover_databases
from airflow_dpone_xmin.target.authority import ROLES, VerifiedDatabases, observe_pins, verify_database, verify_session_pair
from airflow_dpone_xmin.target.catalog import build_catalog
from airflow_dpone_xmin.target.facts import ObservedDatabase, SessionFacts
from airflow_dpone_xmin.target.ledger import Ledger
from tests.world import MODES, WRITER, Setup, World

COLUMNS = ("id", "qty")
TABLE = ("CREATE TABLE orders (id bigint PRIMARY KEY, qty integer)", "INSERT INTO orders SELECT g, g FROM generate_series(1, 5) g")


@pytest.fixture
def world(worlds: Setup) -> World:
    return worlds(*TABLE, reconciliation=MODES["timestamp_only"])


def no_source(world: World) -> Callable[..., Endpoint]:
    """Endpoints that fail when the source is asked for."""

    def find(entry: str, *, conn_id: str) -> Endpoint:
        assert entry != "src", "the source was opened"
        return world.endpoints(entry, conn_id=conn_id)

    return find


def refused(world: World, code: str, **kw: Any) -> XminError:
    """Refused by *code* before any source I/O."""
    with pytest.raises(XminError) as caught:
        world.run(endpoints=kw.pop("endpoints", None) or no_source(world), **kw)
    assert caught.value.code == code, caught.value
    return caught.value


def resigned(world: World, edit: Callable[[dict[str, Any]], None]) -> RegistryDocument:
    """The registry with its target entry edited and signed again."""
    document = world.registry().model_dump(mode="json", by_alias=True, exclude_unset=True)
    edit(document["connections"]["dwh"]["connection"])
    return RegistryDocument.model_validate(document)


# ---- pins -----------------------------------------------------------------------------------------------------------------
PINS = {"database_id": 1, "create_token": "another", "database_guid": str(uuid.UUID(int=7))}


@pytest.mark.parametrize("pin", PINS)
def test_each_pin(world: World, pin: str) -> None:
    """Any one pin that is not the live one refuses the run before source I/O; check names the same pin."""
    database = world.target.layout(world.table).target.namespace.database

    def edit(facts: dict[str, Any]) -> None:
        facts["database_authorities"][database][pin] = PINS[pin]

    world._registry = resigned(world, edit)
    error = refused(world, "mssql_transaction.target_database_authority_mismatch")
    assert (error.details["role"], error.details["pin"], error.details["expected"]) == ("target", pin, str(PINS[pin]))
    assert error.retryable is False
    wrong = [f for f in check_connections(world.route(), endpoints=world.endpoints).findings if f.ok is False and f.subject == pin]
    assert {f.area for f in wrong} >= {"target"}
    assert {f.expected for f in wrong} == {str(PINS[pin])}


def without(route: Any, role: str, pin: str) -> Any:
    """The route, one pin of one role signed otherwise: on the embedded engine the three databases are one, their roles are not."""
    authority = getattr(route.authorities, role).model_copy(update={pin: uuid.UUID(int=7) if pin == "database_guid" else PINS[pin]})
    return replace(route, authorities=replace(route.authorities, **{role: authority}))


@pytest.mark.parametrize("pin", PINS)
@pytest.mark.parametrize("role", ROLES)
def test_each_pin_of_each_role(world: World, role: str, pin: str) -> None:
    """Role by role and field by field: its own code, before any source I/O; check names that pin of that role and no other."""
    route, code = without(world.route(), role, pin), f"mssql_transaction.{role}_database_authority_mismatch"
    error = refused(world, code, route=route)
    assert (error.details["role"], error.details["pin"], error.details["expected"]) == (role, pin, str(PINS[pin]))
    report = check_connections(route, endpoints=world.endpoints)
    assert [(f.area, f.subject, f.code) for f in report.findings if f.ok is False] == [(role, pin, code)]
    with pytest.raises(XminError) as caught:
        state_document(route, endpoints=world.endpoints)
    assert caught.value.code == code
    assert world.target.rows(f"SELECT count(*) FROM {world.state_name('dpone_run_state')}")[0][0] == 0


def test_the_roles_are_proven_in_order(world: World) -> None:
    """With all of them wrong the first one is told; the one before it mended, the next."""
    route = world.route()
    for pin, wrong in itertools.product(PINS, (ROLES, ROLES[1:], ROLES[2:])):
        broken = functools.reduce(lambda found, role: without(found, role, pin), wrong, route)
        assert refused(world, f"mssql_transaction.{wrong[0]}_database_authority_mismatch", route=broken).details["pin"] == pin


def test_the_state_entrys_own_pins(world: World) -> None:
    """Pins of the state database come from the state entry, also where the sink's entry pins a database of the same name."""
    database = world.target.layout(world.table).state.database
    document = world.registry().model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["connections"]["gov"] = copy.deepcopy(document["connections"]["dwh"])
    document["connections"]["gov"]["connection"]["database_authorities"][database]["create_token"] = "another"
    world._registry = RegistryDocument.model_validate(document)
    world.manifest_over = {"state": {"connection_id": "gov"}}

    def endpoints(entry: str, *, conn_id: str) -> Endpoint:
        return no_source(world)("dwh" if entry == "gov" else entry, conn_id=conn_id)

    refused(world, "mssql_transaction.state_database_authority_mismatch", endpoints=endpoints)


def test_order_is_target_then_staging_then_state(world: World) -> None:
    """The first role that does not hold is the one that is told."""
    engine, route, asked = world.engine(), world.route(), []
    session = engine.connect("target", cancel=Cancellation())

    class Watching:
        def observe_database(self, session: Any, name: str) -> ObservedDatabase | None:
            asked.append(name)
            return engine.observe_database(session, name)

    verdicts = observe_pins(Watching(), session, route)  # type: ignore[arg-type]
    layout = route.layout
    assert asked == [layout.target.namespace.database, layout.staging.database, layout.state.database]
    assert list(dict.fromkeys(verdict.role for verdict in verdicts)) == list(ROLES) == ["target", "staging", "state"]
    assert all(verdict.ok for verdict in verdicts)
    session.close()
    engine.close()


GOOD = ObservedDatabase(name="DWH", database_id=7, create_token="t", database_guid=uuid.UUID(int=1))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("seen", "reason", "retryable"),
    [
        (None, "authority_mismatch", False),
        (replace(GOOD, name="dwh"), "authority_mismatch", False),
        (replace(GOOD, database_id=8), "authority_mismatch", False),
        (replace(GOOD, create_token="T"), "authority_mismatch", False),
        (replace(GOOD, database_guid=uuid.UUID(int=2)), "authority_mismatch", False),
        (replace(GOOD, database_guid=None), "authority_mismatch", False),
        (replace(GOOD, online=False), "unavailable", True),
        (replace(GOOD, multi_user=False), "unavailable", True),
        (replace(GOOD, has_access=False), "access_denied", False),
        (
            ObservedDatabase(name="DWH", database_id=0, create_token="", database_guid=None, metadata_visible=False),
            "metadata_permission_denied",
            False,
        ),
    ],
)
def test_codes_of_every_observation(role: Any, seen: ObservedDatabase | None, reason: str, retryable: bool) -> None:
    """What an engine can observe, in every role: a denied VIEW ANY DATABASE is told before the pins it hides."""

    class Seeing:
        def observe_database(self, session: Any, name: str) -> ObservedDatabase | None:
            return seen

    with pytest.raises(XminError) as caught:
        verify_database(Seeing(), None, signed_route(), role=role)  # type: ignore[arg-type]
    assert caught.value.code == f"mssql_transaction.{role}_database_{reason}"
    assert caught.value.retryable is retryable is CODES[caught.value.code].retryable


def test_one_pin_set_per_replica() -> None:
    """Any signed set may match as a whole; a mixture of two sets is no set."""
    sets = [{"database_id": n, "create_token": f"t{n}", "database_guid": str(uuid.UUID(int=n))} for n in (1, 2, 3)]
    route = signed_route(replicas=sets)

    def verify(seen: ObservedDatabase) -> None:
        class Seeing:
            def observe_database(self, session: Any, name: str) -> ObservedDatabase | None:
                return seen

        verify_database(Seeing(), None, route, role="target")  # type: ignore[arg-type]

    for number in (1, 2, 3):
        verify(ObservedDatabase("DWH", number, f"t{number}", uuid.UUID(int=number)))
    for mixed in (ObservedDatabase("DWH", 1, "t2", uuid.UUID(int=1)), ObservedDatabase("DWH", 2, "t2", uuid.UUID(int=3))):
        with pytest.raises(XminError) as caught:
            verify(mixed)
        assert caught.value.code == "mssql_transaction.target_database_authority_mismatch"


def test_a_replica_list_on_a_real_server(world: World) -> None:
    """The digest covers the list, so that adding a replica is a rotation; the live set of it admits the run."""
    world.run()
    before = world.route().authorities.digests["target"]
    database = world.target.layout(world.table).target.namespace.database

    def edit(facts: dict[str, Any]) -> None:
        live = facts["database_authorities"][database]
        facts["database_authorities"][database] = {"replicas": [dict(PINS), live]}

    world._registry = resigned(world, edit)
    assert world.route().authorities.digests["target"] != before
    assert world.run().receipt.payload_reason == "target_authority_rotated"


def test_a_case_only_alias_of_a_database(world: World) -> None:
    """The manifest may spell the database in another ASCII case; signed and live spelling decide, and must be one."""
    database = world.target.layout(world.table).target.namespace.database
    state = world.target.layout(world.table).state.database
    world.manifest_over = {"sink": {"table": {"database": database.upper()}}, "state": {"database": state.title()}}
    assert world.route().layout.target.namespace.database == database
    assert world.run().status == "committed"

    def shout(facts: dict[str, Any]) -> None:
        facts["database"] = facts["staging"]["database"] = database.upper()
        facts["database_authorities"] = {database.upper(): facts["database_authorities"][database]}

    if len(set(world.registry().connections["dwh"].connection.database_authorities or {})) == 1:
        world._registry = resigned(world, shout)
        world.manifest_over = {"state": {"database": database.upper()}}
        assert world.route().layout.target.namespace.database == database.upper()
        with pytest.raises(XminError):
            world.run(endpoints=no_source(world))
        session = (engine := world.engine()).connect("target", cancel=Cancellation())
        with pytest.raises(XminError) as caught:
            verify_database(engine, session, world.route(), role="target")
        assert caught.value.code == "mssql_transaction.target_database_authority_mismatch"
        assert (caught.value.details["expected"], caught.value.details["observed"]) == (database.upper(), database)
        session.close()
        engine.close()


def test_a_unicode_look_alike_is_no_alias(world: World) -> None:
    database = world.target.layout(world.table).target.namespace.database
    world.manifest_over = {"sink": {"table": {"database": database.replace("d", "ｄ", 1)}}}
    with pytest.raises(XminError) as caught:
        world.route()
    assert caught.value.code == "DPONE_MSSQL_TARGET_DATABASE_AUTHORITY_REQUIRED"


# ---- sessions -------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("embedded_only")
def test_a_state_entry_with_another_login(world: World) -> None:
    """Target and state sessions must act as one principal: one transaction holds both."""
    with world.target.cluster.connect(world.target.database) as owner:
        owner.execute("DO $$ BEGIN CREATE ROLE other_writer LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    document = world.registry().model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["connections"]["gov"] = document["connections"]["dwh"]
    world._registry = RegistryDocument.model_validate(document)
    world.manifest_over = {"state": {"connection_id": "gov"}}

    def endpoints(user: str) -> Callable[..., Endpoint]:
        def find(entry: str, *, conn_id: str) -> Endpoint:
            return replace(world.target.endpoint(), user=user) if entry == "gov" else world.endpoints(entry, conn_id=conn_id)

        return find

    refused(world, "mssql_transaction.principal_mismatch", endpoints=endpoints("other_writer"))
    findings = check_connections(world.route(), endpoints=endpoints("other_writer")).findings
    assert [f.code for f in findings if f.ok is False] == ["mssql_transaction.principal_mismatch"]
    assert world.run(endpoints=endpoints(WRITER)).status == "committed"


def test_another_server() -> None:
    here = SessionFacts(topology="a", principal="w/w", database="x", session="1")
    verify_session_pair(here, replace(here, database="y", session="2"))
    with pytest.raises(XminError) as caught:
        verify_session_pair(here, replace(here, topology="b"))
    assert caught.value.code == "mssql_transaction.topology_mismatch"


def test_nothing_reads_the_ledger_without_a_proof(world: World) -> None:
    """A ledger takes a proof, and only the verification makes one."""
    with pytest.raises(TypeError):
        Ledger(None, build_catalog(), object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        VerifiedDatabases(object())
    with pytest.raises(TypeError):
        VerifiedDatabases()  # type: ignore[call-arg]


# ---- identity -------------------------------------------------------------------------------------------------------------
def identity_refused(world: World, code: str) -> XminError:
    error = refused(world, code)
    assert code in {f.code for f in check_connections(world.route(), endpoints=world.endpoints).findings if f.ok is False}
    return error


def test_no_identity_row(worlds: Setup) -> None:
    world = worlds(*TABLE)
    table = world.dbo_name("dpone_target_identity")
    if world.target.kind != "embedded":
        pytest.skip("not provable on this flavour: the immutability trigger is switched off by PostgreSQL's own means")
    world.target.run(f"ALTER TABLE {table} DISABLE TRIGGER ALL", f"DELETE FROM {table}", f"ALTER TABLE {table} ENABLE TRIGGER ALL")
    identity_refused(world, "target_identity.missing")


def test_the_identity_row_is_immutable(world: World) -> None:
    table = world.dbo_name("dpone_target_identity")
    for statement in (f"UPDATE {table} SET table_name = 'x'", f"DELETE FROM {table}"):
        with pytest.raises(Exception, match="never change"):
            world.target.run(statement)


@pytest.mark.usefixtures("embedded_only")
@pytest.mark.parametrize(
    "decoy",
    [
        'CREATE TABLE {s}."Orders" (id int)',
        'CREATE VIEW {s}."ORDERS" AS SELECT 1 AS id',
        'CREATE TABLE {s}."orderS" (id int) PARTITION BY LIST (id)',
    ],
)
def test_a_neighbour_that_differs_by_case(world: World, decoy: str) -> None:
    world.target.run(decoy.format(s=world.target.layout(world.table).target.namespace.schema))
    error = identity_refused(world, "target_identity.ambiguous")
    assert len(error.details["decoys"]) == 1


@pytest.mark.usefixtures("embedded_only")
@pytest.mark.parametrize("names", [("landing", "Orders"), ("Landing", "orders")])
def test_an_identity_row_that_differs_by_case(world: World, names: tuple[str, str]) -> None:
    world.target.run(f"INSERT INTO {world.dbo_name('dpone_target_identity')} VALUES ('{uuid.uuid4()}', '{names[0]}', '{names[1]}', now())")
    identity_refused(world, "target_identity.ambiguous")


@pytest.mark.usefixtures("embedded_only")
def test_a_column_that_differs_by_case(world: World) -> None:
    world.target.run(f'ALTER TABLE {world.target_name} ADD COLUMN "QTY" integer')
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "DPONE_TARGET_UNSUPPORTED"
    assert caught.value.details["differences"] == ["column QTY has the name of one of this route's under some collation"]


@pytest.mark.usefixtures("embedded_only")
def test_a_view_is_no_target(world: World) -> None:
    name = world.target_name
    schema = world.target.layout(world.table).target.namespace.schema
    world.target.run(
        f"ALTER TABLE {name} RENAME TO hidden", f"CREATE VIEW {name} AS SELECT * FROM {schema}.hidden", f"GRANT ALL ON {name} TO {WRITER}"
    )
    identity_refused(world, "DPONE_TARGET_UNSUPPORTED")


# ---- restored and rotated -------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("embedded_only")
def test_an_older_copy_of_the_target_is_noticed(world: World) -> None:
    """Rows and head of an older backup under a newer checkpoint: a delta would leave a silent gap, so the payload is full."""
    world.run()
    head = world.dbo_name("dpone_target_head")
    world.target.run(
        f"CREATE TABLE public.kept AS SELECT * FROM {world.target_name}", f"CREATE TABLE public.kept_head AS SELECT * FROM {head}"
    )
    world.source.run("UPDATE orders SET qty = 100 WHERE id = 1", "DELETE FROM orders WHERE id = 2", "INSERT INTO orders VALUES (6, 6)")
    world.run()
    world.target.run(
        f"DELETE FROM {world.target_name}",
        f"INSERT INTO {world.target_name} SELECT * FROM public.kept",
        f"DELETE FROM {head}",
        f"INSERT INTO {head} SELECT * FROM public.kept_head",
    )
    receipt = world.run().receipt
    assert (receipt.payload.value, receipt.payload_reason, receipt.new_revision) == ("full", "target_state_diverged", 3)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)
    assert world.run().receipt.payload_reason == "delta"


@pytest.mark.usefixtures("embedded_only")
def test_an_older_copy_of_the_state_is_noticed(world: World) -> None:
    """The checkpoint goes back, the head does not: full payload, and a revision above both."""
    world.run()
    table = world.state_name("dpone_source_state")
    world.target.run(f"CREATE TABLE public.kept AS SELECT * FROM {table}")
    world.source.run("DELETE FROM orders WHERE id = 2")
    world.run()
    world.target.run(f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM public.kept")
    receipt = world.run().receipt
    assert (receipt.payload_reason, receipt.new_revision) == ("target_state_diverged", 3)
    assert world.source_rows(COLUMNS) == world.target_rows(COLUMNS)


@pytest.mark.usefixtures("embedded_only")
def test_a_database_without_a_token_cannot_be_signed(world: World) -> None:
    """``discover`` proposes words in its place, for a human to replace; no registry takes them as they are."""
    world.target.run("DROP TABLE dbo.dpone_database_token")
    database = world.target.database
    proposed = discover_databases(world.target.endpoint(owner=True), engine="embedded", databases=[database])[database]
    assert "ddl render" in proposed["create_token"]
    with pytest.raises(ValueError, match="create_token"):
        resigned(world, lambda facts: facts["database_authorities"].update({database: proposed}))


@pytest.mark.usefixtures("embedded_only")
def test_rotation_of_the_target_authority(world: World) -> None:
    """The owner renews the token: refused until it is signed; then a started invocation may not go on, and a new one is full."""
    world.run("one")
    world.target.run("UPDATE dbo.dpone_database_token SET token = 'renewed'")
    refused(world, "mssql_transaction.target_database_authority_mismatch")
    world.forget_pins()
    world.serial = 2
    refused(world, "invocation.route_changed", run_id="one")
    receipt = world.run("two").receipt
    assert (receipt.payload_reason, receipt.counts.unchanged) == ("target_authority_rotated", 5)
    assert world.run().receipt.payload_reason == "delta"
    world.serial = 1
    refused(world, "registry.rollback")


def test_rotation_of_the_source_authority(world: World) -> None:
    """The source table is created anew: refused until its OID is signed; then the payload is full and xmin may even fall."""
    world.run("one")
    world.source.run(
        "ALTER TABLE orders RENAME TO kept",
        "CREATE TABLE orders (LIKE kept INCLUDING ALL)",
        "INSERT INTO orders SELECT * FROM kept",
        "GRANT SELECT ON orders TO dpone_reader",
    )
    with pytest.raises(XminError) as caught:
        world.run()
    assert caught.value.code == "postgres_source_authority.relation_mismatch"
    world.forget_pins()
    world.serial = 2
    refused(world, "invocation.route_changed", run_id="one")
    receipt = world.run("two").receipt
    assert (receipt.payload_reason, receipt.counts.unchanged, receipt.new_revision) == ("authority_rotated", 5, 2)
    assert world.run().receipt.payload_reason == "delta"


def signed_documents(**pins: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Registry and manifest of a route whose three databases are one signed DWH."""
    authority = pins or {"database_id": 7, "create_token": "t", "database_guid": str(uuid.UUID(int=1))}
    principal = {"canonical_name": "r", "oid": 10}
    source = {
        "version": 2,
        "verification_profile": "catalog_identity",
        "topology_role": "primary",
        "database": {"canonical_name": "shop", "oid": 5},
        "principals": {"effective": principal, "session": principal},
        "relations": {"public.orders": {"schema": "public", "relation": "orders", "namespace_oid": 2200, "relation_oid": 16384}},
    }
    registry: dict[str, Any] = {
        "kind": "dpone.registry.v1",
        "environment": "test",
        "serial": 1,
        "not_before": "2020-01-01T00:00:00Z",
        "not_after": "2100-01-01T00:00:00Z",
        "connections": {
            "src": {"type": "postgres", "connection": {"database": "shop", "postgres_source_authority": source}},
            "dwh": {
                "type": "mssql",
                "connection": {"database": "DWH", "staging": {"schema": "staging"}, "database_authorities": {"DWH": authority}},
            },
        },
    }
    manifest: dict[str, Any] = {
        "name": "orders",
        "source": {"connection_id": "src", "table": {"name": "orders"}},
        "sink": {"type": "mssql", "connection_id": "dwh", "strategy": {"unique_key": "id"}},
        "state": {"type": "mssql"},
    }
    return registry, manifest


def signed_route(**pins: Any) -> Any:
    """The route of :func:`signed_documents`."""
    registry, manifest = signed_documents(**pins)
    return select_route(resolve_routes(parse_manifest(manifest), RegistryDocument.model_validate(registry)), None)
