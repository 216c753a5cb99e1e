"""What the log of a stopped run tells an approver: the binding, the numbers and the command, so that nothing needs looking up.

Imports contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_dpone_xmin.contracts.errors import CODES, XminError


def approval_request(error: XminError) -> str | None:
    """The block that is logged once for a stop that an approval admits; None for any other error."""
    binding = error.details.get("binding")
    if binding is None:
        return None
    counts = ", ".join(f"{name} {value}" for name, value in error.details.items() if name not in ("binding", "command"))
    facts = {**_facts(binding), "observed": _observed(binding), "classified": counts}
    lines = [f"{error.code} stopped this run; target, checkpoint and revision are untouched. An approval of it must be bound to:"]
    lines += [f"  {name:<14} {value}" for name, value in facts.items() if value]
    lines += ["This writes it for review:", error.details["command"]]
    return "\n".join(lines)


def without_command(error: XminError) -> XminError:
    """The same refusal for the task's exception: what the log already shows is not repeated."""
    hint = f"{CODES[error.code].hint} The log has the binding and the command that proposes the approval."
    return XminError(error.code, error.message, hint=hint, details=error.details, retryable=error.retryable)


def _facts(binding: Mapping[str, Any]) -> dict[str, Any]:
    transfer = binding.get("transfer")
    return {
        "environment": binding["environment"],
        "state key": binding["state_key"],
        "scope hash": binding["scope_hash"],
        "checkpoint": _checkpoint(binding["checkpoint_xmin"], binding["checkpoint_revision"]),
        "full baseline": "needed" if binding["full_baseline"] else "not needed",
        "old owner": transfer and f"{transfer['state_key']} at {_checkpoint(transfer['xmin'], transfer['revision'])}",
    }


def _observed(binding: Mapping[str, Any]) -> str:
    if "observed_missing" not in binding:
        return "nothing yet: the command reads both sides once, changes neither, and adds the deletes that would follow"
    return f"{binding['observed_missing']} of {binding['observed_active']} active rows missing, ratio {binding['observed_ratio']}"


def _checkpoint(xmin: int | None, revision: int | None) -> str:
    return "none" if revision is None else f"revision {revision}, xmin {xmin}"
