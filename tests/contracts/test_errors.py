"""The error table: every code is raised somewhere, survives a process border and hides nothing it should not."""

from __future__ import annotations

import ast
import json
import pickle
import re
from pathlib import Path

import pytest

import airflow_dpone_xmin
from airflow_dpone_xmin.contracts.errors import CODES, XminError

PACKAGE = Path(airflow_dpone_xmin.__file__).parent
#: Codes whose issue is still to come; the list may only become shorter.
PLANNED: set[str] = set()


def _texts() -> list[str]:
    """Every string of the package outside the table, f-strings with ``{}`` for what is inserted."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "errors.py" and path.parent.name == "contracts":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
    return found


def test_every_code_is_raised_somewhere() -> None:
    """A code that nothing raises is a promise that nobody keeps."""
    texts = {text for text in _texts() if "\n" not in text and len(text) < 120}
    literal = {text for text in texts if "{}" not in text}
    patterns = [
        re.compile(re.escape(text).replace(r"\{\}", r"[a-zA-Z_]+"))
        for text in texts
        if "{}" in text and ("." in text or text.startswith("DPONE_"))
    ]
    unused = {code for code in CODES if code not in literal and not any(pattern.fullmatch(code) for pattern in patterns)}
    assert unused - PLANNED == set()


def test_every_raised_code_is_in_the_table() -> None:
    """Every literal first argument of ``XminError(…)`` is a code of the table."""
    raised = [
        (path.name, node.args[0].value)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "XminError"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    assert raised
    unknown = {f"{name}: {code}" for name, code in raised if code not in CODES}
    assert unknown == set()


@pytest.mark.parametrize("code", CODES)
def test_codes_have_a_form_a_meaning_and_a_hint(code: str) -> None:
    """``area.reason`` or ``DPONE_…``; meaning and hint are sentences."""
    assert re.fullmatch(r"DPONE_[A-Z0-9_]+|[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*", code)
    assert CODES[code].meaning.endswith(".")
    assert CODES[code].hint.endswith(".")


def test_errors_pickle() -> None:
    """An error crosses a process border whole."""
    error = XminError("checkpoint.conflict", "Seen.", details={"a": [1, {"b": "c"}]}, hint="Do.", retryable=False)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.to_dict(), str(again), again.args) == (XminError, error.to_dict(), str(error), error.args)


def test_errors_are_json() -> None:
    """An error is JSON-ready, and its defaults come from the table."""
    error = XminError("checkpoint.conflict", "Seen.")
    assert json.loads(json.dumps(error.to_dict())) == {
        "code": "checkpoint.conflict",
        "message": "Seen.",
        "hint": CODES["checkpoint.conflict"].hint,
        "details": {},
        "retryable": True,
    }


def test_a_code_outside_the_table_is_a_programming_error() -> None:
    """No code is invented at run time."""
    with pytest.raises(KeyError):
        XminError("no.such_code", "x")
