"""Generated pages are current: whoever changes a table runs ``python docs/generate.py``."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from airflow_dpone_xmin.contracts.errors import CODES

ROOT = Path(__file__).parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", _generator().PAGES)
def test_page_is_current(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == _generator().PAGES[page]()


def test_the_runbook_names_codes_that_exist() -> None:
    """Every procedure lists its codes, each code has one procedure, and the errors page links to it."""
    procedures = _generator().runbook()
    assert len(procedures) == (DOCS / "runbook.md").read_text(encoding="utf-8").count("\n## ")
    named = [code for codes in procedures.values() for code in codes]
    assert set(named) <= set(CODES)
    assert len(named) == len(set(named))


def test_a_parameter_refers_to_inline_parameters_only_where_there_are_some() -> None:
    """Operators share the meanings of parameters with the same name."""
    sections = (DOCS / "reference/airflow.md").read_text(encoding="utf-8").split("\n## ")
    referring = [section for section in sections if "inline parameters below" in section]
    assert referring and [section.split()[0] for section in referring if "| `source_table` |" not in section] == []


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", [README, *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Files too, which the site's own check leaves out."""
    for link in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)):
        if "://" not in link:
            assert (page.parent / link).exists(), link


MODULE = re.compile(r"`((?:contracts|policy|artifacts|source|target|registry|runtime|operators|sensors|triggers|hooks|cli|demo)/\w+\.py)`")
CITED = re.compile(r'\b([\w-]+\.md) "([^"]+)"')
PACKAGE = ROOT / "airflow_dpone_xmin"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    for module in MODULE.findall(page.read_text(encoding="utf-8")):
        assert (PACKAGE / module).is_file(), module


def test_sections_that_the_code_cites_exist() -> None:
    """A docstring gives its source as ``page.md "Section"``; nothing that is not published is a source."""
    cited = set()
    for file in PACKAGE.rglob("*.py"):
        cited |= set(CITED.findall(re.sub(r"\s+", " ", file.read_text(encoding="utf-8"))))
    assert len(cited) > 5
    for name, section in cited:
        (page,) = DOCS.rglob(name)
        assert f"## {section}\n" in page.read_text(encoding="utf-8"), (name, section)
