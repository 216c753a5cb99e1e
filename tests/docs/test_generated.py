"""Generated pages are current: whoever changes a table runs ``python docs/generate.py``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", _generator().PAGES)
def test_page_is_current(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == _generator().PAGES[page]()
