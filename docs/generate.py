"""Writes the generated reference pages and the JSON Schemas: ``python docs/generate.py``. A test fails when one is not current."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import _docs_reference as reference  # beside this file; pytest's pythonpath names the folder
import _docs_schemas
from _docs_benchmarks import benchmarks_page
from _docs_reference import NOTICE as _NOTICE
from _docs_reference import markdown as _markdown

from airflow_dpone_xmin.contracts.errors import CODES
from airflow_dpone_xmin.policy.types import table

HERE = Path(__file__).parent

_TYPES = """\
# Types

Every PostgreSQL type is decided in one table, `policy/types.py`; `dpone-xmin types` prints it.

* **carried**: the values arrive as they are, in the type beside it. A value outside the guard stops the run before anything is staged
  (`DPONE_POSTGRES_MSSQL_SOURCE_VALUE_UNREPRESENTABLE`); the error names column, type and rule, never the value.
* **text contract**: `check` and `run` refuse the column by name (`DPONE_TYPE_UNSUPPORTED`) until the manifest says
  `schema_contract: {columns: {<name>: {type: string}}}`; then PostgreSQL's own text lands in `nvarchar(max)`, under pinned settings:
  `::text` of a built-in type, and what the output function writes of any other, since a cast may be anybody's. So a domain over `inet` or
  `boolean` reads as `10.0.0.1` or `t`, where the type itself reads as `10.0.0.1/32` or `true`.
* **refused**: no contract admits it.

`(p,s)` and `n` are the declared precision, scale and length. Non-key text is sized `2n`, because a character may take two UTF-16 units.
A key has at most 900 bytes on SQL Server and binary collation. A type whose text follows names in other catalogs makes every payload
full, because a renamed object changes the text and not the row. How a changed column reaches the target:
[schema evolution](schema-evolution.md).

The round trip of every type, edge values and generated ones, is a test (`tests/runtime/test_types_roundtrip.py`), and the tables say where
it was proven: on the embedded engine, on Babelfish (a stand-in that speaks T-SQL; without `numeric(38,38)`, whose sum it cannot send), on
SQL Server. SQL Server has not been run here: with `DPONE_TEST_MSSQL_URL` the test proves it on yours. Decided, but
`not_run` on every engine of the tests: `xml` (the embedded server is built without libxml) and the types of extensions other than
`citext` and `hstore`, PostGIS among them; their text lands like any other, under a contract.
"""


def _round_trips(name: str) -> str:
    """Where the round trip of a type was proven, as the test last found it."""
    found = json.loads((HERE / "type-matrix.json").read_text(encoding="utf-8"))[name]
    proven = [title for engine, title in _ENGINES.items() if found.get(engine) == "proven"]
    return ", ".join(proven) or "refused" * (found["embedded"] == "refused") or "not_run"


_ENGINES = {"embedded": "embedded", "mssql-babelfish": "Babelfish", "mssql": "SQL Server"}


def types_page() -> str:
    """``reference/types.md``."""
    rows = [{**row, "round trip": _round_trips(row["type"])} for row in table()]
    parts = [_NOTICE, _TYPES]
    carried = ("type", "mssql", "embedded", "wire", "guard", "key", "comparison", "round trip", "note")
    heads = ("PostgreSQL", "SQL Server", "embedded engine", "wire form", "values must be", "key", "changed", "round trip", "note")
    built_in = [row for row in rows if row["group"] == "pg_catalog"]
    parts += ["\n## Carried\n\n", _markdown(heads, [[row[name] for name in carried] for row in built_in if row["verdict"] == "carried"])]
    for title, verdict in (("Text contract", "text contract"), ("Refused", "refused")):
        chosen = [[row["type"], row["round trip"], row["note"]] for row in built_in if row["verdict"] == verdict]
        parts += [f"\n## {title}\n\n", _markdown(("PostgreSQL", "round trip", "why"), chosen)]
    kinds = [[row["type"], row["verdict"], row["round trip"], row["note"]] for row in rows if row["group"] == "kind"]
    parts += ["\n## Kinds of types\n\n", _markdown(("kind", "verdict", "round trip", "note"), kinds)]
    return "".join(parts)


_ERRORS = """\
# Errors

Every refusal and fault has one of these codes; they are stable. `area.reason` is raised at run time, `DPONE_…` by what can be known
before. A retryable error may simply be tried again: the command line ends with exit code 75, an Airflow task with an ordinary failure
that its retries may mend; all others need somebody to act, and fail the task at once.

"""


def runbook() -> dict[str, list[str]]:
    """Anchor → codes of every procedure of the runbook."""
    text = (HERE / "runbook.md").read_text(encoding="utf-8")
    return {anchor: re.findall("`(.+?)`", codes) for anchor, codes in re.findall(r"^## .*\{#(.+)\}\n\nCodes: ((?:.+\n)+)", text, re.M)}


def _breakable(code: str) -> str:
    """A code that a narrow column breaks between its words only, and that a link can name."""
    words = re.sub("([._])", r"\1<wbr>", code)
    return f'<a id="{code}"></a><code>{words}</code>'


def errors_page() -> str:
    """``reference/errors.md``."""
    procedures = {code: f" [Runbook](../runbook.md#{anchor})." for anchor, codes in runbook().items() for code in codes}
    rows = [
        [_breakable(code), spec.meaning, spec.hint + procedures.get(code, ""), "yes" if spec.retryable else ""]
        for code, spec in CODES.items()
    ]
    return _NOTICE + _ERRORS + _markdown(("code", "meaning", "what to do", "retryable"), rows)


def schema_file(name: str) -> str:
    """``schemas/<name>.schema.json``."""
    return json.dumps(_docs_schemas.schema_document(name), indent=2, ensure_ascii=False) + "\n"


_SCHEMAS = """\
# Schemas

JSON Schemas (draft 2020-12) of the documents that the product prints and writes. Objects are closed: a document with one field more or less
does not pass. The tests validate real outputs against them. None of these documents holds a business value, a credential or an address.

"""


def schemas_page() -> str:
    """``schemas/index.md``."""
    rows = [[f"[{name}]({name}.schema.json)", title] for name, (title, _) in _docs_schemas.DOCUMENTS.items()]
    return _NOTICE + _SCHEMAS + _markdown(("schema", "document"), rows)


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/types.md": types_page,
    "reference/errors.md": errors_page,
    "reference/cli.md": reference.cli_page,
    "reference/manifest.md": reference.manifest_page,
    "reference/registry.md": reference.registry_page,
    "reference/catalog.md": reference.catalog_page,
    "reference/airflow.md": reference.airflow_page,
    "explanation/benchmarks.md": benchmarks_page,
    "schemas/index.md": schemas_page,
    **{f"schemas/{name}.schema.json": functools.partial(schema_file, name) for name in _docs_schemas.DOCUMENTS},
}
"""Page → its text."""


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(page(), encoding="utf-8")
