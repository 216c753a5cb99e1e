"""Which servers the cases of a certification ran on; the first life of a route on them."""

from __future__ import annotations

import pytest

from tests.certification.record import Record, record_server
from tests.flavour import flavour
from tests.world import Setup


@pytest.mark.certify("lifecycle")
def test_servers(worlds: Setup, record_property: Record) -> None:
    """Both tell their version; a run between them commits."""
    world = worlds("CREATE TABLE orders (id bigint PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    mssql = world.target.kind == "mssql"
    ((source,),) = world.source.rows("SHOW server_version")
    ((target,),) = world.target.rows("SELECT @@VERSION" if mssql else "SHOW server_version")
    kind = flavour(target) if mssql else "embedded"
    versions = {"source": f"PostgreSQL {source}", "target": target.partition("\n")[0].strip() if mssql else f"PostgreSQL {target}"}
    record_server(record_property, engine=world.target.kind, flavour=kind, versions=versions)
    assert kind != "unknown", f"no server that is known: {target}"
    assert world.run().status == "committed"
