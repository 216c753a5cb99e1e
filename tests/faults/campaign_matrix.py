"""The fault matrix of a campaign's four transactions: opening, one chunk, publication, abandonment.

Every boundary of the whole phase is found by recording it; what is broken there leaves everything old or everything new, readers find a
table, and the same step without a fault converges.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.progress import Progress
from airflow_dpone_xmin.target.engine import Event
from airflow_dpone_xmin.target.repair import RepairSelection
from tests.approvals import Owner
from tests.campaigns import COLUMNS, Phase, Step, incremental, opened, refusal, sibling
from tests.children import die, start
from tests.faults.matrix import Boundary, Counting, Kind, Matrix, from_the_last_lock, its_turn, observing
from tests.world import World

APPROVAL = RepairSelection("fix", open_envelope=None)
"""Of replacing the old rows; as a value that crosses into a child."""
Facts = dict[str, tuple[Any, ...]]
DONE, ENDED = "status NOT IN ('pending', 'leased')", "status = 'abandoned'"


@dataclass
class CampaignMatrix(Matrix):
    """One phase of a one-chunk campaign.

    :param phase: the step that is broken.
    :param another: makes another world, where a state does not begin as a copy: a table is replaced once only.
    :param owner: approves that the old rows are replaced.
    """

    phase: Phase = "open"
    another: Callable[[], World] = field(kw_only=True)
    owner: Owner = field(kw_only=True)
    before: Facts = field(default_factory=dict)
    after: Facts = field(default_factory=dict)

    def prepare(self) -> None:
        """The step under test begins here. Records its boundaries from one healthy step."""
        self.world.route()
        self.ground.keep(self.world, self.pend)
        self.reset()
        self.before = self.facts("before")
        counting = Counting()
        with observing(counting):
            self.step().run(progress=counting.progress)
        self.after = self.facts("healthy")
        assert self.after != self.before
        self.boundaries = counting.seen

    def pend(self) -> None:
        """Everything before the step: the opening is stopped at the old rows and approved."""
        if self.generation:
            self.world = self.another()
        self.generation += 1
        refusal(opened, self.world, "stopped")
        self.owner.admit(self.world, "stopped")
        before: dict[Phase, tuple[Phase, ...]] = {"open": (), "lane": ("open",), "publish": ("open", "lane"), "abandon": ("open",)}
        for phase in before[self.phase]:
            self.step(phase).run()

    def reset(self) -> None:
        """The step is to be taken."""
        self.ground.reset(self.world, self.pend)

    def step(self, phase: Phase | None = None) -> Step:
        return Step.of(self.world, phase or self.phase, "fault", ttl=60.0, repair=APPROVAL)

    def facts(self, name: str) -> Facts:
        """What must move together, without what differs from try to try: ids, times, leases, and indexes that nobody uses yet."""
        self.ground.wait_until_quiet(self.world, name)
        world = self.world
        state = world.state_name
        campaigns = world.target.rows(f"SELECT campaign_key, shadow_name FROM {state('dpone_campaign')}")
        keys, shadows = [bytes(row[0]).hex()[:12] for row in campaigns], [row[1] for row in campaigns]

        def plain(table: str) -> str:
            # the keys of two worlds' campaigns differ, and some flavours keep the last letters only
            for key in keys:
                table = table.replace(key, "key").replace(key[4:], "key")
            return table

        def one_if(condition: str) -> str:
            return f"CASE WHEN {condition} THEN 1 ELSE 0 END"

        proofs, seeds = "dpone_load_receipt", "dpone_commit_receipt"
        anchored = f"- (SELECT anchor_xmin FROM {state('dpone_campaign')})"
        queries = {
            "live": f"SELECT {', '.join(COLUMNS)}, {one_if('__dpone__deleted_at IS NULL')} FROM {world.target_name} ORDER BY id",
            "campaign": f"SELECT status, chunk_count FROM {state('dpone_campaign')}",
            "chunks": f"SELECT {one_if(DONE)}, {one_if(ENDED)}, rows_count, {one_if('receipt_id IS NOT NULL')}"
            f" FROM {state('dpone_campaign_chunk')} ORDER BY chunk_no",
            "fence": f"SELECT {one_if('owner IS NULL')} FROM {state('dpone_target_fence')}",
            "proofs": f"SELECT kind, rows_count FROM {state(proofs)} ORDER BY 1",
            "chunk receipt": f"SELECT 1 FROM {state(proofs)} AS r JOIN {state('dpone_campaign_chunk')} AS c ON c.receipt_id = r.receipt_id",
            "receipts": f"SELECT kind, new_revision, new_xmin {anchored}, inserted_count FROM {state(seeds)} ORDER BY 2",
            "state": f"SELECT revision, safe_xmin {anchored}, superseded_at_utc FROM {state('dpone_source_state')}",
            "seeded": f"SELECT 1 FROM {state('dpone_source_state')} AS s JOIN {state(seeds)} AS r ON r.receipt_id = s.receipt_id",
            "consumed": f"SELECT authority_id FROM {state('dpone_repair_authority_consumption')}",
            "head": f"SELECT revision FROM {world.dbo_name('dpone_target_head')}",
        }
        found = {key: tuple(tuple(row) for row in world.target.rows(query)) for key, query in queries.items()}
        indexes = world.indexes()
        found["tables"] = tuple((plain(table), None if table in shadows else len(indexes[table])) for table in sorted(indexes, key=plain))
        found["indexes"] = tuple((name,) for name in indexes.get(world.table, []))
        for table in set(indexes) - {world.table}:
            rows = world.target.rows(f"SELECT {', '.join(COLUMNS)} FROM {sibling(world, table)} ORDER BY id")
            found[f"rows of {plain(table)}"] = tuple(tuple(row) for row in rows)
        return found

    @property
    def scenario(self) -> str:
        return f"campaign, {self.phase}"

    def attempt(self, boundary: Boundary, kind: Kind) -> None:
        """One state: break the step, judge what is left, take the step again, judge again."""
        name = f"{self.phase}, {kind}: {boundary}"
        self.reset()
        if kind == "process":
            child = start(step_and_die, self.step(), boundary)
            child.join(90)
            assert child.exitcode == -signal.SIGKILL, f"{name} was not hit: exit code {child.exitcode}"
        else:
            self._break_here(boundary, self.act_of(kind), name)
        left = self.facts(name)
        self.states[kind] += 1
        if left not in (self.before, self.after):
            self.divergent.append(f"{name}: {[key for key in left if left[key] not in (self.before.get(key), self.after.get(key))]}")
            return
        try:
            self.step().run()
        except XminError as error:
            # What has been abandoned cannot be abandoned again.
            assert self.phase == "abandon" and left == self.after and error.code == "campaign.not_open", f"{name}: {error}"
        if self.facts(name) != self.after:
            self.divergent.append(f"{name}, after its retry")

    def _break_here(self, boundary: Boundary, act: Callable[[Event | Progress], None], name: str) -> None:
        counting = Counting(boundary, act)
        with observing(counting):
            try:
                self.step().run(progress=counting.progress)
            except XminError:
                pass
            except Exception as error:
                raise AssertionError(f"{name}: {type(error).__name__} instead of a typed error") from error
        assert counting.hit, f"{name} was not hit"

    def finish(self) -> None:
        """From the last state on: everything else of the campaign, and parity."""
        for phase in ("open", "lane", "publish"):
            Step.of(self.world, phase, "rest", ttl=60.0, repair=APPROVAL).run()  # type: ignore[arg-type]
        incremental(self.world)
        self.world.run()
        assert self.world.target_rows(COLUMNS) == self.world.source_rows(COLUMNS)
        assert self.world.staged() == []


def step_and_die(step: Step, boundary: Boundary) -> None:
    """Body of a child: the step, killed at *boundary*."""
    counting = Counting(boundary, lambda _: die())
    with observing(counting):
        step.run(progress=counting.progress)


def thinned(boundaries: list[Boundary], kind: Kind) -> list[Boundary]:
    """The states of the default run: every sixth step from the last lock to the commit, every fortieth of what only reads before it,
    and both sides of every commit; the slower kinds take half of that. Which ones, changes from day to day.
    """
    commits = [b for b in boundaries if b.label == "transaction.commit"]
    if kind == "lost_ack":
        return [b for b in commits if b.phase == "after"]
    after = from_the_last_lock(boundaries)
    outside = its_turn([b for b in boundaries[: -len(after)] if b.phase == "before"], 40)
    inside = [b for b in after if b.phase == "before" and b.label not in ("clock", "shadow.replay", "transaction.commit")]
    return [*outside, *its_turn(inside, 6), *commits] if kind == "raised" else [*its_turn(inside, 12), *commits[-2:]]
