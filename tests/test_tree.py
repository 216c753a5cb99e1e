"""The package as a tree of files: what keeps it readable is counted, not hoped for."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

import airflow_dpone_xmin

ROOT = Path(airflow_dpone_xmin.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MOST_LINES, MOST_SOURCE_LINES = 400, 12_000


def source_lines(text: str) -> int:
    """Logical lines: statements and headers, however many physical lines a formatter gives them; neither comments nor docstrings."""
    documentation = sum(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for node in ast.walk(ast.parse(text))
    )
    ends = sum(token.type == tokenize.NEWLINE for token in tokenize.generate_tokens(io.StringIO(text).readline))
    return ends - documentation


def test_source_lines_are_counted_as_they_are_described() -> None:
    assert source_lines('"""Why."""\n# how\nx = [\n    1,\n    2,\n]\n\n\ndef f() -> int:\n    """What."""\n    return 1; y = 2\n') == 3


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_a_module_can_be_read_in_one_go_and_says_why_it_exists(module: Path) -> None:
    text = module.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert not text.strip() or ast.get_docstring(ast.parse(text))
    assert "from __future__ import annotations" in text or source_lines(text) <= 1


def test_the_package_stays_small() -> None:
    assert sum(source_lines(module.read_text()) for module in MODULES) < MOST_SOURCE_LINES
