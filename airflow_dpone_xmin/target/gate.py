"""The gate: what stops a commit before its first business DML, and what an approval lets through.

Every refusal carries the exact binding that an approver needs (reference "One-shot repair and mass-delete approval"). Imports
contracts, policy and the target's own modules.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_dpone_xmin.contracts.envelope import Payload
from airflow_dpone_xmin.contracts.errors import CODES, XminError
from airflow_dpone_xmin.contracts.repair import RepairAuthority
from airflow_dpone_xmin.contracts.state import Checkpoint, Classification
from airflow_dpone_xmin.policy.guards import GuardVerdict, judge_deletes, observed_ratio
from airflow_dpone_xmin.policy.repair import admit_baseline, admit_deletes, require_bounds
from airflow_dpone_xmin.target.work import Work


class Gate:
    """Judges one classification.

    :param repair: the approval admitted under the lock.
    """

    def __init__(self, work: Work, repair: RepairAuthority | None) -> None:
        self._work, self._repair = work, repair
        self._used = repair is not None and repair.transfer is not None

    def judge(self, before: Classification) -> None:
        """Stop, or let pass and remember that the approval was needed.

        :raises XminError: ``checkpoint.missing``, ``guard.*``, ``repair_authority.bounds_exceeded``, ``repair_authority.unused``,
            ``reconcile.invariant``.
        """
        work, staged = self._work, self._work.staged
        reconciles = work.route.delete_mode.reconciles
        if reconciles and before.keys != staged.keys_count:
            raise XminError("reconcile.invariant", "The classification did not see every key.", details=counts_of(before))
        verdict = judge_deletes(missing=before.missing, active_before=before.active, guards=work.route.guards)
        self._bounds(before, verdict)
        if work.envelope.reason == "repair_authority" and work.position.checkpoint is not None:
            self._used = True  # without it the payload would have been a delta
        if work.position.checkpoint is None and before.active + before.retained > 0:
            self._baseline("checkpoint.missing", "The target has rows but this state key has no checkpoint.", before)
        if staged.keys_count == 0 and (reconciles or work.envelope.payload is Payload.FULL):
            self._empty(before, verdict)
        elif verdict.exceeded:
            limits = ", ".join(verdict.exceeded)
            message = f"{before.missing} of {before.active} active rows are missing at the source; limits exceeded: {limits}."
            self._deletes("guard.deletes_exceeded", message, before, verdict, everything=False)
        if self._repair is not None and not self._used:
            raise XminError(
                "repair_authority.unused",
                "Nothing in this run needed the approval.",
                details={"authority_id": self._repair.authority_id, **counts_of(before)},
            )

    def _bounds(self, before: Classification, verdict: GuardVerdict) -> None:
        if self._repair is None:
            return
        with self._proposable(before):
            require_bounds(self._repair, verdict)

    @contextmanager
    def _proposable(self, seen: Classification) -> Iterator[None]:
        """Bounds that were too small are a stop like any other: a larger approval can be proposed from it."""
        try:
            yield
        except XminError as error:
            binding = binding_of(self._work, seen, repair=self._repair)
            raise approvable(error, binding=binding, run_id=self._work.invocation.run_id) from None

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
        if not admit_baseline(self._repair):
            raise stopped(self._work, code, message, seen, repair=self._repair, baseline=True)
        self._used = True

    def _deletes(self, code: str, message: str, seen: Classification, verdict: GuardVerdict, *, everything: bool) -> None:
        with self._proposable(seen):
            admitted = admit_deletes(self._repair, verdict, everything=everything)
        if not admitted:
            raise stopped(self._work, code, message, seen, repair=self._repair)
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
) -> XminError:
    """A refusal with its binding.

    :param seen: the classification that was judged.
    :param repair: the approval of the stopped run: what it granted is part of what the next one must grant.
    :param baseline: whether a full baseline is what is missing.
    :param now: a later classification, for the details.
    """
    binding = binding_of(work, seen, repair=repair, baseline=baseline)
    return approvable(XminError(code, message, details=counts_of(now or seen)), binding=binding, run_id=work.invocation.run_id)


def binding_of(work: Work, seen: Classification, *, repair: RepairAuthority | None, baseline: bool = False) -> dict[str, Any]:
    """What an approval of this run must be bound to, with what was observed; parameters as :func:`stopped`."""
    binding = {
        **repair_binding(work.route.environment, work.state_key, work.scope_hash, work.position.checkpoint),
        "observed_missing": seen.missing,
        "observed_active": seen.active,
        "observed_ratio": observed_ratio(seen.missing, seen.active),
        "full_baseline": baseline or admit_baseline(repair),
    }
    if repair is not None and repair.transfer is not None:
        binding["transfer"] = repair.transfer.model_dump()
    return binding


def approvable(error: XminError, *, binding: Mapping[str, Any], run_id: str) -> XminError:
    """The same refusal with everything that an approver needs: the binding, and the command that writes the approval."""
    hint = f"{CODES[error.code].hint} `{propose_command(run_id)}` writes the approval for review."
    return XminError(error.code, error.message, hint=hint, details={**error.details, "binding": dict(binding)})


def propose_command(run_id: str) -> str:
    """The command that proposes the approval of a stopped run."""
    return f"dpone-xmin repair propose MANIFEST --run-id {shlex.quote(run_id)} --id ID --reason TEXT -o FILE"


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
