"""The gate: what stops a commit before its first business DML, and what an approval lets through.

Every refusal carries the exact binding that an approver needs (security.md "Approvals"). Imports contracts, policy and the target's own
modules.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from uuid6 import uuid7

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import CODES, XminError
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.route import Route
from airflow_dpone_xmin.contracts.state import Checkpoint, Classification, Invocation
from airflow_dpone_xmin.policy.repair import (
    BOUNDS,
    GuardVerdict,
    admit_baseline,
    admit_deletes,
    judge_deletes,
    observed_ratio,
    require_bounds,
)
from airflow_dpone_xmin.policy.window import APPROVED, STRICT_STOP
from airflow_dpone_xmin.target.work import Work

DRIFT = "Keys remain whose rows are not in the payload, or rows whose keys are gone."


class Competitor(NamedTuple):
    """Another active owner of the target.

    :param process: its name.
    :param position: its state key, xmin and revision, as a transfer must name them.
    """

    process: str
    position: Mapping[str, Any]


class Gate:
    """Judges one classification.

    :param repair: the approval admitted under the lock.
    :param competing: who owns the target and stays, because no approval ends the ownership.
    """

    def __init__(self, work: Work, repair: RepairAuthority | None, *, competing: Competitor | None = None) -> None:
        self._work, self.repair, self._competing = work, repair, competing
        self._used, self._drift = repair is not None and repair.transfer is not None, False

    def judge(self, before: Classification, *, drift: bool) -> None:
        """Stop, or let pass and remember that the approval was needed.

        :param drift: whether the target lacks rows that the payload does not hold: only a full payload has them.
        :raises XminError: ``target_ownership.conflict``, ``checkpoint.missing``, ``xmin_window.strict_stop``, ``guard.*``,
            ``reconcile.full_repair_required``, ``repair_authority.bounds_exceeded``, ``repair_authority.unused``, ``reconcile.invariant``.
        """
        work, staged = self._work, self._work.staged
        reconciles = work.route.delete_mode.reconciles
        if reconciles and before.keys != staged.keys_count:
            raise XminError("reconcile.invariant", "The classification did not see every key.", details=counts_of(before))
        verdict = _verdict(work, before)
        if self._competing is not None:
            conflict = ownership_conflict(self._competing, work.state_key)
            raise stopped(
                work, conflict.code, conflict.message, before, repair=self.repair, baseline=True, transfer=self._competing.position
            )
        self._drift = drift
        self._bounds(before, verdict)
        if work.envelope.reason == APPROVED:
            self._used = True  # without it the payload would have been a delta
        if work.position.checkpoint is None and before.active + before.retained > 0:
            self._baseline("checkpoint.missing", "The target has rows but this state key has no checkpoint.", before)
        if work.envelope.reason == STRICT_STOP:
            self._baseline("xmin_window.strict_stop", "The strict window crosses an epoch.", before)
        if staged.keys_count == 0 and (reconciles or work.envelope.payload is Payload.FULL):
            self._empty(before, verdict)
        elif verdict.exceeded:
            limits = ", ".join(verdict.exceeded)
            message = f"{before.missing} of {before.active} active rows are missing at the source; limits exceeded: {limits}."
            self._deletes("guard.deletes_exceeded", message, before, verdict, everything=False)
        if drift:
            raise stopped(work, "reconcile.full_repair_required", DRIFT, before, repair=self.repair, baseline=True)
        if self.repair is not None and not self._used:
            raise XminError(
                "repair_authority.unused",
                "Nothing in this run needed the approval.",
                details={"authority_id": self.repair.authority_id, "payload_reason": work.envelope.reason, **counts_of(before)},
            )

    def _bounds(self, before: Classification, verdict: GuardVerdict) -> None:
        if self.repair is None:
            return
        with self._proposable(before):
            require_bounds(self.repair, verdict)

    @contextmanager
    def _proposable(self, seen: Classification) -> Iterator[None]:
        """Bounds that were too small are a stop like any other: a larger approval can be proposed from it."""
        try:
            yield
        except XminError as error:
            raise _approvable(self._work, error, binding_of(self._work, seen, repair=self.repair, baseline=self._drift)) from None

    def _empty(self, before: Classification, verdict: GuardVerdict) -> None:
        """An empty snapshot is a baseline of nothing, or a deletion of everything."""
        message = "The source snapshot holds no rows."
        if before.active == 0 and self._work.envelope.payload is Payload.DELTA:
            return  # a delta of a known position, and both sides are empty already: nothing to guard
        if before.active == 0:
            self._baseline("guard.empty_snapshot", message, before)
        else:
            self._deletes("guard.empty_snapshot", message, before, verdict, everything=True)

    def _baseline(self, code: str, message: str, seen: Classification) -> None:
        if not admit_baseline(self.repair):
            raise stopped(self._work, code, message, seen, repair=self.repair, baseline=True)
        self._used = True

    def _deletes(self, code: str, message: str, seen: Classification, verdict: GuardVerdict, *, everything: bool) -> None:
        with self._proposable(seen):
            admitted = admit_deletes(self.repair, verdict, everything=everything)
        if not admitted:
            raise stopped(self._work, code, message, seen, repair=self.repair, baseline=self._drift)
        self._used = True


def stopped(
    work: Work,
    code: str,
    message: str,
    seen: Classification,
    *,
    repair: RepairAuthority | None,
    baseline: bool = False,
    now: Classification | None = None,
    transfer: Mapping[str, Any] | None = None,
) -> XminError:
    """A refusal with its binding.

    :param seen: the classification that was judged.
    :param repair: the approval of the stopped run: what it granted is part of what the next one must grant.
    :param baseline: whether a full baseline is what is missing.
    :param now: a later classification, for the details.
    :param transfer: position of the owner whose ownership must end.
    """
    binding = binding_of(work, seen, repair=repair, baseline=baseline)
    if transfer is not None:
        binding["transfer"] = dict(transfer)
    return _approvable(work, XminError(code, message, details=counts_of(now or seen)), binding)


def binding_of(work: Work, seen: Classification, *, repair: RepairAuthority | None, baseline: bool = False) -> dict[str, Any]:
    """What an approval of this run must be bound to, with what was observed, so that one covers it all; parameters as :func:`stopped`."""
    bounded = repair is not None and any(getattr(repair.allow, name) is not None for name in BOUNDS)
    binding = {
        **repair_binding(work.route.environment, work.state_key, work.scope_hash, work.position.checkpoint),
        "full_baseline": baseline or admit_baseline(repair),
        "delete_bounds": bool(_verdict(work, seen).exceeded) or (bounded and seen.missing > 0) or _empties(work, seen),
    }
    return observed_binding(binding, missing=seen.missing, active=seen.active, repair=repair)


def observed_binding(binding: Mapping[str, Any], *, missing: int, active: int, repair: RepairAuthority | None) -> dict[str, Any]:
    """A binding with the deletes that were observed, and the transfer that the stopped run's approval granted already."""
    seen = {"observed_missing": missing, "observed_active": active, "observed_ratio": observed_ratio(missing, active)}
    granted = {} if repair is None or repair.transfer is None else {"transfer": repair.transfer.model_dump()}
    return {**binding, **seen, **granted}


def approvable(error: XminError, *, binding: Mapping[str, Any], route: Route, invocation: Invocation) -> XminError:
    """The same refusal with everything that an approver needs: the binding, and the command that writes the approval."""
    name = f"repair-{uuid7().hex[:12]}"  # the millisecond of the stop
    reason = f"{error.code} stopped run {invocation.run_id}"
    words = ["dpone-xmin", "repair", "propose", *route.command_words, "--run-id", invocation.run_id]
    words += ["--map-index", str(invocation.map_index)] if invocation.map_index >= 0 else []
    command = shlex.join([*words, "--id", name, "--reason", reason, "-o", f"{name}.yaml"])
    if route.inline_manifest is not None:
        command = f"cat > {shlex.quote(route.command_words[0])} <<'MANIFEST'\n{route.inline_manifest}\nMANIFEST\n{command}"
    hint = f"{CODES[error.code].hint} The command in the details writes the approval for review."
    return XminError(error.code, error.message, hint=hint, details={**error.details, "binding": dict(binding), "command": command})


def _approvable(work: Work, error: XminError, binding: Mapping[str, Any]) -> XminError:
    return approvable(error, binding=binding, route=work.route, invocation=work.invocation)


def ownership_conflict(owner: Competitor, state_key: bytes, *, binding: Mapping[str, Any] | None = None) -> XminError:
    """The refusal that names the old owner.

    :param binding: of the refused run, as far as it is known.
    """
    return XminError(
        "target_ownership.conflict",
        f"Process {owner.process} (state key {owner.position['state_key'][:16]}…) owns the target; this run's state key is"
        f" {state_key.hex()[:16]}….",
        details={"binding": {**(binding or {}), "transfer": owner.position}},
    )


def _verdict(work: Work, seen: Classification) -> GuardVerdict:
    return judge_deletes(missing=seen.missing, active_before=seen.active, guards=work.route.guards)


def _empties(work: Work, seen: Classification) -> bool:
    """Whether the snapshot is empty and would empty the target; what a route that never deletes sees of it is a full payload."""
    complete = work.route.delete_mode.reconciles or work.envelope.payload is Payload.FULL
    return complete and work.staged.keys_count == 0 and seen.active > 0


def repair_binding(environment: str, state_key: bytes, scope_hash: bytes, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """What an approval of this run must be bound to; a full baseline unless deletes alone were judged."""
    return {
        "environment": environment,
        "state_key": state_key.hex(),
        "scope_hash": scope_hash.hex(),
        "checkpoint_xmin": checkpoint.xmin if checkpoint else None,
        "checkpoint_revision": checkpoint.revision if checkpoint else None,
        "full_baseline": True,
    }


def counts_of(seen: Classification) -> dict[str, int]:
    """The classification for details."""
    return {name: getattr(seen, name) for name in ("matched", "missing", "absent", "tombstoned", "retained")}
