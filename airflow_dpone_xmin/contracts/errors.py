"""The one error type. Its codes are the table in ``contracts/codes.py``.

No message or detail may hold a business value, a credential, a DSN or a vendor's message text. Imports the standard library and contracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_dpone_xmin.contracts.codes import CODES, ErrorSpec

__all__ = ["CODES", "ErrorSpec", "XminError"]


class XminError(Exception):
    """The only error this product raises on purpose.

    :param code: a key of :data:`CODES`.
    :param message: what was seen and what was expected, without business values.
    :param hint: what to do; defaults to the code's hint.
    :param details: integers, strings, lists and mappings of them, safe to print.
    :param retryable: overrides the table for this occurrence.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        spec = CODES[code]  # a code outside the table is a programming error
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.hint = spec.hint if hint is None else hint
        self.details: dict[str, Any] = dict(details or {})
        self.retryable = spec.retryable if retryable is None else retryable

    def __str__(self) -> str:
        return f"{self.code}: {self.message} Hint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.code, self.message, self.hint, self.details, self.retryable))

    @property
    def may_pass(self) -> bool:
        """Whether somebody who waits may see it gone without doing anything: a registry that cannot be read may just be replaced."""
        return self.retryable or self.code == "registry.unreadable"

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON-ready mapping, for ``--format json`` and evidence."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "details": self.details,
            "retryable": self.retryable,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> XminError:
        """The error that :meth:`to_dict` described, for example after a trigger's event carried it."""
        return _rebuild(
            str(document["code"]), str(document["message"]), str(document["hint"]), document["details"], bool(document["retryable"])
        )


def _rebuild(code: str, message: str, hint: str, details: dict[str, Any], retryable: bool) -> XminError:
    return XminError(code, message, hint=hint, details=details, retryable=retryable)
