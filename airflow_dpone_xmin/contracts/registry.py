"""The signed registry's document: which databases, principals and relations an environment's owner vouches for.

Closed models (security.md "What is pinned"): an unknown field is refused. Holds no secret. Imports the standard library, pydantic and
contracts only.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, field_validator, model_validator
from pydantic_core import PydanticCustomError

from airflow_dpone_xmin.contracts.canonical import Canonical, digest

PAYLOAD_TYPE = "application/vnd.dpone.registry.v1+json"


_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def _text_time(value: object) -> object:
    if isinstance(value, datetime) or (isinstance(value, str) and _ISO_DATE.match(value)):
        return value  # pydantic alone would also take a number of seconds, as text too
    raise PydanticCustomError("datetime_type", "a time is written as ISO 8601 text")


def in_utc(value: datetime) -> datetime:
    """The instant in UTC; one without a zone, or that no year from 1 to 9999 holds there, is refused."""
    if value.tzinfo is None:
        raise PydanticCustomError("timezone", "a time zone is required")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("timezone", "the time lies outside the years 1 to 9999 in UTC") from None


def _whole_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):  # True and 1.0 equal 1, but are no version
        raise PydanticCustomError("int_type", "a version is written as an integer")
    return value


Oid = Annotated[int, Field(gt=0, lt=2**32, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", strict=True)]
#: No blanks: ``registry discover`` says in words where a database has no token yet, and words are no token.
Token = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\s\x00-\x1f\x7f-\x9f]+$", strict=True)]
UtcTime = Annotated[datetime, AfterValidator(in_utc)]
Instant = Annotated[UtcTime, BeforeValidator(_text_time)]


class Closed(BaseModel):
    """A model that refuses what it does not know and never changes.

    Its own refusals are ``PydanticCustomError`` with a stable type, without names or values in the text: loaders print them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, populate_by_name=False)


class NamedOid(Closed):
    """A catalog name pinned to its OID."""

    canonical_name: Name
    oid: Oid


class Principals(Closed):
    """``current_user`` and ``session_user`` of the runtime session."""

    effective: NamedOid
    session: NamedOid


class RelationPin(Closed):
    """One relation pinned to its OIDs."""

    schema_name: Name = Field(alias="schema")
    relation: Name
    namespace_oid: Oid
    relation_oid: Oid


class SourceAuthority(Closed):
    """``postgres_source_authority``: version 2 ``catalog_identity``, or version 1 ``physical_cluster`` with two more fields."""

    version: Annotated[Literal[1, 2], BeforeValidator(_whole_number)]
    verification_profile: Literal["physical_cluster", "catalog_identity"]
    topology_role: Literal["primary", "standby"]
    database: NamedOid
    principals: Principals
    relations: dict[Name, RelationPin] = Field(min_length=1)
    system_identifier: Annotated[str, Field(pattern=r"^[0-9]{1,20}$")] | None = None
    timeline_id: Annotated[int, Field(gt=0, strict=True)] | None = None

    @model_validator(mode="after")
    def _profile_is_closed(self) -> SourceAuthority:
        physical = self.version == 1
        if (self.verification_profile == "physical_cluster") is not physical:
            raise PydanticCustomError("profile", "version 1 is physical_cluster, version 2 is catalog_identity")
        if physical is not (self.system_identifier is not None) or physical is not (self.timeline_id is not None):
            raise PydanticCustomError("profile", "system_identifier and timeline_id belong to version 1 and only to it")
        for key, pin in self.relations.items():
            if key != f"{pin.schema_name}.{pin.relation}":
                raise PydanticCustomError("relation_key", "a relation's key differs from the schema and relation of its pin")
        _refuse_folds(self.relations)
        return self

    def authority_digest(self, relation_key: str) -> bytes:
        """Digest over the selected pins only: unrelated relations, host, port and alias do not change it.

        :param relation_key: exact ``schema.relation`` key of the selected pin.
        """
        pin = self.relations[relation_key]
        body: dict[str, Canonical] = {
            "v": 1,
            "role": "source",
            "version": self.version,
            "topology_role": self.topology_role,
            "database": [self.database.canonical_name, self.database.oid],
            "effective": [self.principals.effective.canonical_name, self.principals.effective.oid],
            "session": [self.principals.session.canonical_name, self.principals.session.oid],
            "relation": [pin.schema_name, pin.relation, pin.namespace_oid, pin.relation_oid],
        }
        if self.version == 1:
            body["system_identifier"] = str(self.system_identifier)
            body["timeline_id"] = int(self.timeline_id or 0)
        return digest(body)


class DatabasePins(Closed):
    """The three pinned fields of one physical database.

    On the embedded engine: database OID; an owner-written token row; uuid5(system identifier, OID).
    """

    database_id: Annotated[int, Field(gt=0, strict=True)]
    create_token: Token
    database_guid: UUID

    def canonical(self) -> list[Canonical]:
        """The pins as a canonical list."""
        return [self.database_id, self.create_token, str(self.database_guid)]


class DatabaseAuthority(Closed):
    """One database's pins, or one set per replica of an availability group."""

    database_id: Annotated[int, Field(gt=0, strict=True)] | None = None
    create_token: Token | None = None
    database_guid: UUID | None = None
    replicas: tuple[DatabasePins, ...] = ()

    @model_validator(mode="after")
    def _one_form(self) -> DatabaseAuthority:
        fields = (self.database_id, self.create_token, self.database_guid)
        single = all(field is not None for field in fields)
        none = all(field is None for field in fields)
        if single is bool(self.replicas) or not (single or none):
            raise PydanticCustomError(
                "pin_set", "exactly database_id, create_token and database_guid, or a list of such sets under replicas"
            )
        return self

    @property
    def pin_sets(self) -> tuple[DatabasePins, ...]:
        """All signed pin sets, one unless an availability group is pinned."""
        if self.replicas:
            return self.replicas
        return (
            DatabasePins.model_validate(
                {"database_id": self.database_id, "create_token": self.create_token, "database_guid": self.database_guid}
            ),
        )

    def authority_digest(self, *, role: Literal["target", "staging", "state"], database: str) -> bytes:
        """Digest over role, canonical database name and the whole list of pin sets."""
        return digest({"v": 1, "role": role, "database": database, "pins": sorted((p.canonical() for p in self.pin_sets), key=str)})


class StagingDefault(Closed):
    """Where staging tables live when the manifest does not say."""

    database: Name | None = None
    schema_name: Name | None = Field(default=None, alias="schema")


class ConnectionFacts(Closed):
    """Facts about one endpoint that its owner signs; credentials stay with the scheduler."""

    host: Name | None = None
    port: Annotated[int, Field(gt=0, lt=65536, strict=True)] | None = None
    database: Name
    schema_name: Name | None = Field(default=None, alias="schema")
    multi_subnet_failover: StrictBool = False
    staging: StagingDefault | None = None
    postgres_source_authority: SourceAuthority | None = None
    database_authorities: dict[Name, DatabaseAuthority] | None = None

    @field_validator("database_authorities")
    @classmethod
    def _no_folds(cls, value: dict[str, DatabaseAuthority] | None) -> dict[str, DatabaseAuthority] | None:
        _refuse_folds(value or {})
        return value


class RegistryConnection(Closed):
    """One entry of the registry.

    ``type`` chooses the engine of a target: ``mssql`` (SQL Server) or ``embedded`` (PostgreSQL standing in for it).
    """

    type: Literal["postgres", "mssql", "embedded"]
    airflow_conn_id: Name | None = None
    connection: ConnectionFacts

    @model_validator(mode="after")
    def _facts_fit_type(self) -> RegistryConnection:
        facts = self.connection
        if self.type != "postgres" and facts.postgres_source_authority is not None:
            raise PydanticCustomError("misplaced", "postgres_source_authority belongs to a postgres connection")
        if self.type == "postgres" and facts.database_authorities is not None:
            raise PydanticCustomError("misplaced", "database_authorities belongs to a target or state connection")
        return self


class RepairApprovals(Closed):
    """Whether one-shot repair authorities must carry a signature of a trusted key."""

    signed: StrictBool = True


class RegistryDocument(Closed):
    """One environment's signed facts.

    :param serial: strictly rising with every publication; a lower one than already accepted is a rollback.
    """

    kind: Literal["dpone.registry.v1"]
    environment: Name
    serial: Annotated[int, Field(gt=0, lt=2**63, strict=True)]
    not_before: Instant
    not_after: Instant
    repair_approvals: RepairApprovals = RepairApprovals()
    connections: dict[Name, RegistryConnection] = Field(min_length=1)

    @model_validator(mode="after")
    def _window(self) -> RegistryDocument:
        if self.not_before >= self.not_after:
            raise PydanticCustomError("validity", "not_before must lie before not_after")
        _refuse_folds(self.connections)
        return self


def ascii_fold(name: str) -> str:
    """Fold ASCII A–Z only; every other character keeps its identity."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


def _refuse_folds(names: dict[str, object] | dict[str, RelationPin] | dict[str, DatabaseAuthority] | dict[str, RegistryConnection]) -> None:
    folded = [ascii_fold(name) for name in names]
    if len(set(folded)) != len(folded):
        raise PydanticCustomError("duplicate_fold", "two names differ only by ASCII case")
