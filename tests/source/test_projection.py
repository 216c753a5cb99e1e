"""The projection fingerprint, one ingredient at a time: what can change content without changing xmin changes it, nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.source.describe import describe
from tests.source.support import SourceDb, after, rows_of

SETUP = [
    "CREATE SCHEMA other",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN small AS int CHECK (VALUE < 10)",
    "CREATE DOMAIN inner_d AS mood",
    "CREATE TYPE pair AS (a int, b inner_d)",
    "CREATE TYPE level AS ENUM ('low', 'high')",
    "CREATE TYPE levels AS RANGE (subtype = level)",
    "CREATE TYPE deep AS ENUM ('one', 'two')",
    "CREATE DOMAIN deep_d AS deep CHECK (VALUE <> 'two')",
    "CREATE TYPE deep_c AS (d deep_d)",
    "CREATE DOMAIN deep_list AS deep_c[]",
    "CREATE COLLATION mine (provider = libc, locale = 'C')",
    "CREATE TABLE seat (n int)",
    "CREATE TYPE bill AS (amount money)",
    "CREATE EXTENSION hstore VERSION '1.7'",
    "CREATE TYPE made",
    "CREATE FUNCTION made_in(cstring) RETURNS made LANGUAGE internal IMMUTABLE STRICT AS 'textin'",
    "CREATE FUNCTION made_out(made) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'",
    "CREATE TYPE made (INPUT = made_in, OUTPUT = made_out, LIKE = text)",
    """CREATE TABLE t (
        id int NOT NULL, s seat[], b bill[], o made, hs hstore[], v varchar(10), m mood, d small, p pair, a mood[], r int4range, l levels,
        ml levels_multirange, x deep_list, c varchar(10) COLLATE mine, q numeric(10,2) DEFAULT 1,
        g int GENERATED ALWAYS AS (id + 1) STORED, h int GENERATED ALWAYS AS (id + 1) VIRTUAL, PRIMARY KEY (id))""",
    "INSERT INTO t (id, v, m) VALUES (1, 'x', 'ok')",
]
STRINGS = frozenset(["s", "b", "o", "hs", "m", "d", "p", "a", "r", "l", "ml", "x"])


@pytest.fixture
def db(source_db: SourceDb) -> SourceDb:
    source_db.run(*SETUP)
    source_db.grant()
    return source_db


def fingerprint(db: SourceDb, strings: frozenset[str] = STRINGS, **contract: Any) -> bytes:
    described = describe(db.endpoint, db.request(string_columns=strings, **contract))
    assert described.findings == ()
    assert described.projection is not None
    return described.projection.fingerprint


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        "ALTER TYPE mood ADD VALUE 'great'",
        "ALTER TABLE t ADD COLUMN w int DEFAULT 5",
        "ALTER TABLE t ADD COLUMN w int",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "ALTER TABLE t ALTER COLUMN v TYPE varchar(20)",
        'ALTER TABLE t ALTER COLUMN v TYPE varchar(10) COLLATE "C"',
        "ALTER TABLE t ALTER COLUMN v SET NOT NULL",
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t ALTER COLUMN h SET EXPRESSION AS (id + 2)",
        "ALTER TABLE t ALTER COLUMN g SET EXPRESSION AS (id + 2)",
        "ALTER TABLE t ALTER COLUMN g DROP EXPRESSION",
        "ALTER DOMAIN small DROP CONSTRAINT small_check",
        "ALTER DOMAIN small ADD CONSTRAINT more CHECK (VALUE > -5)",
        "ALTER TYPE mood RENAME TO humour",
        "ALTER TYPE pair RENAME ATTRIBUTE a TO z",
        "ALTER TYPE pair ADD ATTRIBUTE c text",
        "ALTER TYPE pair DROP ATTRIBUTE b; ALTER TYPE pair ADD ATTRIBUTE b inner_d",
        "ALTER TABLE seat DROP COLUMN n; ALTER TABLE seat ADD COLUMN n int",
        "CREATE OR REPLACE FUNCTION made_out(made) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'byteaout'",
        "ALTER FUNCTION made_out(made) SET extra_float_digits = 0",
        "ALTER EXTENSION hstore UPDATE TO '1.8'",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lc_monetary = %L', current_database(), 'POSIX'); END $$",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD UNIQUE (id)",
        "ALTER TABLE t ADD UNIQUE (id) INCLUDE (v)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN v varchar(10)",
        "ALTER TABLE t ALTER COLUMN q TYPE numeric(12,2)",
        "ALTER TYPE mood ADD VALUE 'between' BEFORE 'ok'",
        "ALTER TYPE mood SET SCHEMA other",
        "ALTER TYPE level RENAME VALUE 'low' TO 'lower'",
        "ALTER TYPE levels RENAME TO ranks",
        "ALTER TYPE levels_multirange RENAME TO rankss",
        "ALTER TYPE deep RENAME VALUE 'one' TO 'eins'",
        "ALTER DOMAIN deep_d DROP CONSTRAINT deep_d_check",
        "ALTER TYPE deep_c RENAME ATTRIBUTE d TO e",
        "DELETE FROM t; ALTER DOMAIN deep_list SET NOT NULL",
        "DELETE FROM t; ALTER DOMAIN small SET NOT NULL",
        "UPDATE pg_collation SET collversion = 'another' WHERE collname = 'mine'",
        "UPDATE pg_database SET datcollversion = 'another' WHERE datname = current_database()",
        # there and back again: rows that were read in between have another text
        "ALTER TYPE deep RENAME VALUE 'one' TO 'eins'; ALTER TYPE deep RENAME VALUE 'eins' TO 'one'",
        "ALTER TYPE pair ADD ATTRIBUTE c text; ALTER TYPE pair DROP ATTRIBUTE c",
        "ALTER FUNCTION made_out(made) SET extra_float_digits = 0; ALTER FUNCTION made_out(made) RESET ALL",
    ],
)
def test_what_changes_content_changes_the_fingerprint(db: SourceDb, ddl: str) -> None:
    before = fingerprint(db)
    assert fingerprint(db) == before
    db.run(ddl)
    assert fingerprint(db) != before


@pytest.mark.parametrize(
    "ddl",
    [
        "INSERT INTO t (id) VALUES (2)",
        "VACUUM (FULL, FREEZE) t",
        "ANALYZE t",
        "CREATE INDEX ON t (v)",
        "CREATE UNIQUE INDEX ON t (v)",
        "CREATE UNIQUE INDEX ON t (id) WHERE id > 5",
        "ALTER TABLE t ALTER COLUMN v SET DEFAULT 'x'",
        "ALTER TABLE t SET (fillfactor = 50)",
        "ALTER TABLE t RENAME CONSTRAINT t_pkey TO other",
        "COMMENT ON TABLE t IS 'x'",
        "CREATE TYPE unrelated AS ENUM ('a')",
        "ALTER TABLE t ADD CHECK (id > 0)",
    ],
)
def test_what_does_not_does_not(db: SourceDb, ddl: str) -> None:
    before = fingerprint(db)
    db.run(ddl)
    assert fingerprint(db) == before


@pytest.mark.parametrize("contract", [{"strings": STRINGS | {"q"}}, {"type_overrides": {"q": "decimal(20,4)"}}])
def test_how_a_column_lands_is_part_of_it(db: SourceDb, contract: dict[str, Any]) -> None:
    assert fingerprint(db, **contract) != fingerprint(db)
    assert fingerprint(db, **contract) == fingerprint(db, **contract)


def test_a_contract_that_changes_nothing_does_not(db: SourceDb) -> None:
    """Text is text with a contract or without."""
    assert fingerprint(db, STRINGS | {"v"}, type_overrides={"q": "numeric(10, 2)"}) == fingerprint(db)


AWAY, BACK = "ALTER TABLE t DETACH PARTITION t1; ", "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (10)"


@pytest.mark.parametrize(
    "ddl",
    [
        "VACUUM (FULL) t1",  # writes the missing value into the rows of this leaf
        "ALTER TABLE t1 ALTER COLUMN g SET EXPRESSION AS (id + 3)",
        "ALTER TABLE t1 ALTER COLUMN h SET EXPRESSION AS (id + 3)",
        AWAY + "ALTER TABLE t1 RENAME a TO c; ALTER TABLE t1 RENAME b TO a; ALTER TABLE t1 RENAME c TO b; " + BACK,
        AWAY + "ALTER TABLE t1 DROP COLUMN b; ALTER TABLE t1 ADD COLUMN b int; " + BACK,
    ],
)
def test_one_leaf_counts(source_db: SourceDb, ddl: str) -> None:
    """A leaf has missing values, generation expressions and column numbers of its own; every other ingredient stays."""
    db = source_db
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED, h int GENERATED ALWAYS AS (id + 1) VIRTUAL,"
        " a int, b int) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t (id, a, b) VALUES (1, 2, 3), (11, 2, 3)",
        "ALTER TABLE t ADD COLUMN w int DEFAULT 5",
    )
    db.grant()
    before = fingerprint(db, frozenset())
    db.run(ddl)
    assert fingerprint(db, frozenset()) != before


@pytest.mark.parametrize("ml", ["levels_multirange", "levels_multirange[]", "spans"])
def test_a_multirange_alone_is_made_of_its_range(source_db: SourceDb, ml: str) -> None:
    """The label below is found from there, too."""
    source_db.run(
        "CREATE TYPE level AS ENUM ('low', 'high')",
        "CREATE TYPE levels AS RANGE (subtype = level, multirange_type_name = levels_multirange)",
        "CREATE TYPE spans AS (m levels_multirange)",
        f"CREATE TABLE t (id int PRIMARY KEY, ml {ml})",
    )
    source_db.grant()
    before = fingerprint(source_db, frozenset({"ml"}))
    source_db.run("ALTER TYPE level RENAME VALUE 'low' TO 'lower'")
    assert fingerprint(source_db, frozenset({"ml"})) != before


def test_an_extension_may_live_in_pg_catalog(source_db: SourceDb) -> None:
    """Whose type it is decides, not where it is: under a contract it lands, inside of others too."""
    db = source_db
    db.run("CREATE EXTENSION citext", "CREATE EXTENSION hstore SCHEMA pg_catalog", "CREATE TYPE pair AS (c citext, h hstore)")
    db.run("CREATE TABLE t (id int PRIMARY KEY, c citext, h hstore[], p pair)", "INSERT INTO t VALUES (1, 'Aa', '{a=>1}', '(b,b=>2)')")
    db.grant()
    strings = frozenset({"c", "h", "p"})
    before = db.extract(db.request(string_columns=strings))
    db.run("ALTER EXTENSION citext SET SCHEMA pg_catalog")
    found = db.extract(db.request(string_columns=strings), after(before))
    wanted = [{"id": 1, "c": "Aa", "h": '{"\\"a\\"=>\\"1\\""}', "p": '(b,"""b""=>""2""")'}]
    assert rows_of(before) == rows_of(found) == wanted
    (refused,) = describe(db.endpoint, db.request(string_columns=strings - {"c"})).findings
    assert (refused.code, refused.details["column"]) == ("DPONE_TYPE_UNSUPPORTED", "c")


def test_virtual_columns_make_every_payload_full(source_db: SourceDb) -> None:
    """They are computed while they are read, from rules that may change without the table: here a dictionary, elsewhere a time zone."""
    db = source_db
    db.run(
        "CREATE TEXT SEARCH CONFIGURATION public.my (COPY = pg_catalog.simple)",
        "CREATE TABLE t (id int PRIMARY KEY, body text, hit boolean"
        " GENERATED ALWAYS AS (to_tsvector('public.my', body) @@ 'dog'::tsquery) VIRTUAL)",
        "INSERT INTO t VALUES (1, 'The running dogs')",
    )
    db.grant()
    first = db.extract()
    assert [row["hit"] for row in rows_of(first)] == [False]
    db.run("ALTER TEXT SEARCH CONFIGURATION public.my ALTER MAPPING FOR asciiword WITH english_stem")
    second = db.extract(prior=after(first))
    assert [row["hit"] for row in rows_of(second)] == [True]
    assert (second.payload, second.reason) == (Payload.FULL, "projection_volatile")


def test_volatile_types_are_a_flag_and_no_ingredient(source_db: SourceDb) -> None:
    """The fingerprint stays, so that a change of the source is still told; the flag makes every payload full, wherever it hides."""
    db = source_db
    db.run("CREATE TYPE named AS (r regclass)", "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
    db.grant()
    first = db.extract()
    assert not first.projection.volatile
    assert db.extract(prior=after(first)).payload is Payload.DELTA
    for column in ("regtype", "named", "named[]", "aclitem"):
        db.run(f"ALTER TABLE t ADD COLUMN n {column}")
        request = {"string_columns": frozenset({"n"})}
        first = db.extract(db.request(**request))
        second = db.extract(db.request(**request), after(first))
        assert (first.projection.volatile, second.projection.volatile) == (True, True)
        assert second.projection.fingerprint == first.projection.fingerprint
        assert (second.payload, second.reason) == (Payload.FULL, "projection_volatile")
        db.run("ALTER TABLE t DROP COLUMN n")


def test_partitions_are_part_of_it(source_db: SourceDb) -> None:
    db = source_db
    db.run(
        f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'{name} int' for name in sorted(STRINGS))}) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
    )
    db.grant()
    seen = [fingerprint(db)]
    for ddl in (
        "CREATE TABLE t2a PARTITION OF t2 FOR VALUES FROM (10) TO (15)",
        "ALTER TABLE t ADD COLUMN w int DEFAULT 1",
        "ALTER TABLE t DETACH PARTITION t1",
    ):
        db.run(ddl)
        seen.append(fingerprint(db))
    db.run("CREATE TABLE t3 PARTITION OF t2 FOR VALUES FROM (15) TO (20) PARTITION BY RANGE (id)")
    assert fingerprint(db) == seen[-1]  # no leaf, no rows
    assert len(set(seen)) == len(seen)


def test_renamed_enum_label_makes_the_payload_full(db: SourceDb) -> None:
    first = db.extract(db.request(string_columns=STRINGS))
    db.run("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    second = db.extract(db.request(string_columns=STRINGS), after(first))
    assert (second.payload, second.reason) == (Payload.FULL, "projection_changed")
    assert [row["m"] for row in rows_of(second)] == ["fine"]


def test_a_not_null_that_is_not_validated_may_still_hide_nulls(source_db: SourceDb) -> None:
    source_db.run("CREATE TABLE t (id int)", "INSERT INTO t VALUES (NULL)", "ALTER TABLE t ADD CONSTRAINT n NOT NULL id NOT VALID")
    source_db.grant()
    with pytest.raises(XminError) as caught:
        source_db.extract()
    assert caught.value.code == "DPONE_KEY_INVALID"


def test_dropped_columns_leave_gaps(source_db: SourceDb) -> None:
    source_db.run("CREATE TABLE t (gone int, id int PRIMARY KEY, also text, v text)", "ALTER TABLE t DROP COLUMN gone, DROP COLUMN also")
    source_db.run("INSERT INTO t VALUES (1, 'x')")
    source_db.grant()
    envelope = source_db.extract()
    assert rows_of(envelope) == [{"id": 1, "v": "x"}]
    assert [column.ordinal for column in envelope.projection.columns] == [0, 1]


def test_all_problems_are_found_at_once(source_db: SourceDb) -> None:
    source_db.run("CREATE UNLOGGED TABLE t (id int, n numeric)", "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    source_db.run(f"GRANT SELECT (id) ON t TO {source_db.reader}")
    described = describe(source_db.endpoint, source_db.request())
    assert [error.code for error in described.findings] == [
        "postgres_source.permission_denied",
        "DPONE_RELATION_UNSUPPORTED",
        "postgres_source.row_security",
        "DPONE_TYPE_UNSUPPORTED",
    ]
    assert described.missing_grants == ("SELECT (xmin, n) on public.t",)
    assert described.projection is None
    assert described.horizons is not None


def test_a_healthy_source_has_no_findings(db: SourceDb) -> None:
    described = describe(db.endpoint, db.request(string_columns=STRINGS))
    assert (described.findings, described.missing_grants, described.partitioned, described.standby) == ((), (), False, False)
    assert described.identity.relation == "t"
    assert all(row.ok for row in described.pins)


def test_a_missing_relation_is_described(db: SourceDb) -> None:
    request = db.request(string_columns=STRINGS)
    db.run("DROP TABLE t")
    described = describe(db.endpoint, request)
    assert [error.code for error in described.findings] == [
        "postgres_source.relation_missing",
        "postgres_source_authority.relation_mismatch",
    ]


@pytest.mark.parametrize("how", ["WITH FUNCTION numeric_text(numeric)", "WITHOUT FUNCTION"])
def test_a_cast_of_somebodys_own_is_not_canonical_text(source_db: SourceDb, how: str) -> None:
    """Two values could become one text, and the function may change without any row changing."""
    source_db.run(
        "CREATE FUNCTION numeric_text(numeric) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'x' $$",
        "CREATE TABLE t (id int PRIMARY KEY, m numeric)",
    )
    source_db.grant()
    request = source_db.request(string_columns=frozenset({"m"}))
    assert describe(source_db.endpoint, request).findings == ()
    source_db.run(f"CREATE CAST (numeric AS text) {how}")
    (finding,) = describe(source_db.endpoint, request).findings
    assert (finding.code, finding.details["column"]) == ("DPONE_TYPE_UNSUPPORTED", "m")


@pytest.mark.parametrize("declared", ["mood", "outer_mood", "outer_mood[]", "mood[]", "pair", "outer_pair"])
def test_a_cast_of_somebodys_own_never_reads_a_users_type(source_db: SourceDb, declared: str) -> None:
    """PostgreSQL casts a domain as what lies below all of its domains; the output function gives the text, whoever made a cast."""
    value = "(ok)" if declared.endswith("pair") else "{ok}" if declared.endswith("[]") else "ok"
    source_db.run(
        "CREATE TYPE mood AS ENUM ('ok', 'bad')",
        "CREATE DOMAIN inner_mood AS mood",
        "CREATE DOMAIN outer_mood AS inner_mood",
        "CREATE TYPE pair AS (m mood)",
        "CREATE DOMAIN outer_pair AS pair",
        "CREATE FUNCTION mood_text(mood) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'x' $$",
        "CREATE FUNCTION pair_text(pair) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'x' $$",
        "CREATE CAST (mood AS text) WITH FUNCTION mood_text(mood)",
        "CREATE CAST (pair AS text) WITH FUNCTION pair_text(pair)",
        f"CREATE TABLE t (id int PRIMARY KEY, m {declared})",
        f"INSERT INTO t VALUES (1, '{value}'), (2, NULL)",
    )
    source_db.grant()
    found = source_db.extract(source_db.request(string_columns=frozenset({"m"})))
    assert [row["m"] for row in rows_of(found)] == [value, None]


@pytest.mark.parametrize("declared", ["bill", "bill[]", "nested", "costs", "costmultirange", "costs[]", "paid"])
@pytest.mark.parametrize(("part", "codes"), [("oidvector", ["DPONE_TYPE_UNSUPPORTED"]), ("float8", [])])
def test_what_no_contract_admits_is_refused_inside_every_type(source_db: SourceDb, declared: str, part: str, codes: list[str]) -> None:
    """What is no application data by itself is none in a row or a range either."""
    source_db.run(
        f"CREATE TYPE bill AS (n integer, amount {part}, label text)",
        "CREATE TYPE nested AS (n integer, b bill[])",
        f"CREATE TYPE costs AS RANGE (subtype = {part}, multirange_type_name = costmultirange)",
        "CREATE DOMAIN paid AS nested",
        f"CREATE TABLE t (id int PRIMARY KEY, m {declared})",
    )
    source_db.grant()
    described = describe(source_db.endpoint, source_db.request(string_columns=frozenset({"m"})))
    assert [finding.code for finding in described.findings] == codes
