"""What the log of a stopped run tells an approver: the binding, the numbers and the command, so that nothing needs looking up.

Imports contracts only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from airflow_dpone_xmin.contracts.errors import CODES, XminError
from airflow_dpone_xmin.contracts.state import Invocation


def approval_request(error: XminError, *, manifest: object, table: str | None, invocation: Invocation) -> str | None:
    """The block that is logged once for a stop that an approval admits; None for any other error.

    :param manifest: path of the manifest, or the mapping itself.
    :param table: the selected one of several tables.
    """
    binding = error.details.get("binding")
    if binding is None:
        return None
    counts = ", ".join(f"{name} {value}" for name, value in error.details.items() if name != "binding")
    facts = {**_facts(binding), "observed": _observed(binding), "classified": counts}
    lines = [f"{error.code} stopped this run; target, checkpoint and revision are untouched. An approval of it must be bound to:"]
    lines += [f"  {name:<14} {value}" for name, value in facts.items() if value]
    lines += ["The command that writes it for review:", f"  {_command(manifest, table=table, invocation=invocation)}"]
    if isinstance(manifest, Mapping):
        lines += ["with this manifest saved as MANIFEST:", f"  {json.dumps(manifest, default=str)}"]
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


def _observed(binding: Mapping[str, Any]) -> str | None:
    if "observed_missing" not in binding:
        return None
    return f"{binding['observed_missing']} of {binding['observed_active']} active rows missing, ratio {binding['observed_ratio']}"


def _checkpoint(xmin: int | None, revision: int | None) -> str:
    return "none" if revision is None else f"revision {revision}, xmin {xmin}"


def _command(manifest: object, *, table: str | None, invocation: Invocation) -> str:
    words = ["dpone-xmin", "repair", "propose", "MANIFEST" if isinstance(manifest, Mapping) else str(manifest)]
    words += ["--table", table] if table else []
    words += ["--run-id", invocation.run_id]
    words += ["--map-index", str(invocation.map_index)] if invocation.map_index >= 0 else []
    return f"{shlex.join(words)} --id ID --reason TEXT -o FILE"
