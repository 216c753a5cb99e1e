"""Whether a repair authority could be used by the next run: what a sensor waits for and ``repair show`` prints.

A look, not an admission: a run proves the same again before its extraction and under the target lock. Imports everything below runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import EndpointResolver, Route
from airflow_dpone_xmin.policy.repair import RepairBinding, admit_transfer
from airflow_dpone_xmin.runtime.inspect import View, looking
from airflow_dpone_xmin.target.catalog import server_time
from airflow_dpone_xmin.target.repair import RepairSelection, admitted_authority

LOOK_SECONDS = 30.0
"""How long one statement of a look may take; a finalizer holds its locks that long only when it is busy."""

READY = "ready"


@dataclass(frozen=True, slots=True)
class AuthorityStatus:
    """What a run that selects the authority now would meet.

    :param ready: a run could use it.
    :param final: not ready, and waiting cannot change it.
    :param reason: ``ready``, or the code of the refusal.
    :param message: one sentence for a log line.
    :param error: the refusal itself.
    """

    ready: bool
    final: bool
    reason: str
    message: str
    error: XminError | None = None


def authority_status(route: Route, *, endpoints: EndpointResolver, repair: RepairSelection) -> AuthorityStatus:
    """Look at an approval with the runtime's own login and nothing but reads.

    It must exist, prove its digest and signature, be unconsumed and valid by the server's clock, and be bound to this environment, to the
    route's state key, scope and current checkpoint, and to the target's active owner when it transfers ownership.

    :returns: never raises for what a run would be refused by: a lost server is a status too.
    """
    try:
        with looking(route, endpoints, statement_timeout=LOOK_SECONDS) as view:
            authority = _admissible(route, view, repair)
    except XminError as error:
        return refusal_status(error)
    return AuthorityStatus(ready=True, final=False, reason=READY, message=_described(authority))


def refusal_status(error: XminError) -> AuthorityStatus:
    """The status that a refusal stands for, also one that was met before the state database."""
    return AuthorityStatus(ready=False, final=not _may_pass(error), reason=error.code, message=_told(error), error=error)


def _admissible(route: Route, view: View, repair: RepairSelection) -> RepairAuthority:
    """:raises XminError: ``repair_authority.*`` as admission would."""
    ledger, identity = view.ledger, view.identity
    binding = RepairBinding(route.environment, identity.state_key, identity.scope_hash, ledger.read_checkpoint(identity.state_key))
    authority = admitted_authority(ledger, repair, binding, now=server_time(view.session))
    owner = ledger.active_owner(identity.binding.identity)
    old = None if owner is None or owner == identity.state_key else ledger.read_checkpoint(owner)
    admit_transfer(authority, owner=owner, owner_checkpoint=old)
    return authority


def _may_pass(error: XminError) -> bool:
    """Whether waiting may help: a row may appear, a checkpoint or an owner may move, a server may come back. Rows never change, and
    revisions only rise.
    """
    if error.code == "repair_authority.binding_mismatch":
        return _differing(error.details) == ["checkpoint"] and not _passed(error)
    return error.may_pass or error.code.removeprefix("repair_authority.") in ("not_found", "not_yet_valid", "transfer_mismatch")


def _differing(details: Mapping[str, Any]) -> list[str]:
    bound, current = details["bound"], details["current"]
    return [name for name in current if bound[name] != current[name]]


def _told(error: XminError) -> str:
    if error.code != "repair_authority.binding_mismatch" or _differing(error.details) != ["checkpoint"]:
        return error.message
    bound, current = (error.details[side]["checkpoint"] for side in ("bound", "current"))
    text = f"It is bound to another checkpoint: {_checkpoint(bound)}; current is {_checkpoint(current)}."
    if _passed(error):
        text += " The route has moved past it: propose a new one under another id."
    return text


def _passed(error: XminError) -> bool:
    """Whether the route's checkpoint has left the bound one behind."""
    bound, current = (error.details[side]["checkpoint"] for side in ("bound", "current"))
    return current is not None and (bound is None or bound[1] <= current[1])


def _checkpoint(pair: Sequence[int] | None) -> str:
    return "none" if pair is None else f"revision {pair[1]}, xmin {pair[0]}"


def _described(authority: RepairAuthority) -> str:
    allow = authority.allow
    granted = [
        *(["full baseline"] if allow.full_baseline else []),
        *([f"{allow.max_delete_rows} deleted rows"] if allow.max_delete_rows is not None else []),
        *([f"delete ratio {allow.max_delete_ratio.normalize():f}"] if allow.max_delete_ratio is not None else []),
        *(["transfer of ownership"] if authority.transfer is not None else []),
    ]
    until = authority.expires_at.isoformat()
    return f"It is valid until {until}, unconsumed and bound to the current checkpoint; it allows {', '.join(granted)}."
