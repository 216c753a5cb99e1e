"""A source database for tests: an owner's connection, a least-privilege reader, and the route's source half around one relation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from airflow_dpone_xmin.artifacts.reader import ArtifactStream
from airflow_dpone_xmin.contracts.envelope import Envelope, Prior, SourceIdentity, SourceRequest
from airflow_dpone_xmin.contracts.progress import Cancellation, Listener, silent
from airflow_dpone_xmin.contracts.registry import SourceAuthority
from airflow_dpone_xmin.contracts.route import Endpoint
from airflow_dpone_xmin.demo.cluster import EmbeddedCluster
from airflow_dpone_xmin.registry.discover import discover_source
from airflow_dpone_xmin.source.extract import extract
from airflow_dpone_xmin.source.session import Session


@dataclass
class SourceDb:
    """One fresh database on a real cluster.

    :param reader: role with LOGIN and nothing else but what a test grants.
    """

    cluster: EmbeddedCluster
    name: str
    reader: str
    work: Path
    owner: psycopg.Connection[tuple[Any, ...]]
    _attempts: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("src", str(self.cluster.socket), None, self.name, self.reader)

    def run(self, *statements: str) -> None:
        """Run trusted statements as the owner, each in its own transaction."""
        for statement in statements:
            self.owner.execute(statement)  # type: ignore[call-overload]

    def value(self, query: str) -> Any:
        """First column of the first row, as the owner."""
        row = self.owner.execute(query).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return row[0]

    def second(self, *, autocommit: bool = False) -> psycopg.Connection[tuple[Any, ...]]:
        """Another owner's connection for concurrent transactions; the test closes it."""
        return self.cluster.connect(self.name, autocommit=autocommit)

    def grant(self, relation: str = "public.t") -> None:
        schema, name = relation.split(".", 1)
        grant = sql.SQL("GRANT SELECT ON {} TO {}")
        self.owner.execute(grant.format(sql.Identifier(schema, name), sql.Identifier(self.reader)))

    def authority(self, relation: str = "public.t", *, version: int = 2) -> SourceAuthority:
        with Session(self.endpoint) as session:
            found = discover_source(session.rows, [relation], physical_cluster=version == 1)
        return SourceAuthority.model_validate(found.fragment)

    def request(self, relation: str = "public.t", *, key: tuple[str, ...] = ("id",), **changes: Any) -> SourceRequest:
        directory = self.work / f"attempt-{next(self._attempts)}"
        directory.mkdir(mode=0o700)
        authority = changes.pop("authority", None) or self.authority(relation)
        schema, name = relation.split(".", 1)
        settings: dict[str, Any] = {
            "identity": SourceIdentity("src", self.name, schema, name),
            "authority": authority,
            "relation_key": relation,
            "key": key,
            "work_dir": directory,
            "min_free_bytes": 1,
            "lock_timeout_seconds": 10.0,
            "deadline_seconds": 60.0,
        }
        return SourceRequest(**(settings | changes))

    def extract(
        self,
        request: SourceRequest | None = None,
        prior: Prior | None = None,
        *,
        progress: Listener = silent,
        cancel: Cancellation | None = None,
    ) -> Envelope:
        return extract(self.endpoint, request or self.request(), prior or Prior(), progress=progress, cancel=cancel or Cancellation())


def after(envelope: Envelope, **changes: Any) -> Prior:
    """What a commit of *envelope* leaves for the next run."""
    facts: dict[str, Any] = {"xmin": envelope.horizons.safe, "projection_fingerprint": envelope.projection.fingerprint}
    return Prior(**(facts | changes))


def rows_of(envelope: Envelope) -> list[dict[str, Any]]:
    """Payload rows, ordered by their representation."""
    return _ordered(ArtifactStream(envelope.rows_artifact).reader.read_all())


def keys_of(envelope: Envelope) -> list[dict[str, Any]]:
    """Rows of the key snapshot."""
    assert envelope.keys_artifact is not None
    return _ordered(ArtifactStream(envelope.keys_artifact).reader.read_all())


def ids(rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> list[Any]:
    return sorted(row["id"] for row in rows)


def _ordered(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)
