"""Plans by the policy ``goodput``, keeping between snapshots what did not change.

A plan depends on its snapshot alone: a planner that was told a hundred snapshots before gives the plan that a new one
gives. What is kept is keyed by all that it depends on: a job's candidate by its view (until time thaws it), a
market's division by its members and its budget, a reason by its numbers. So one event costs a walk over the jobs and
the work of the markets that it touches.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter

from elasticdl_core.job.life import SCHEDULABLE_STATES
from elasticdl_core.scheduling.admission import Admission, AdmissionRules, Tier, admit
from elasticdl_core.scheduling.capacity_tracker import CapacityTracker, Obstacle
from elasticdl_core.scheduling.device_reasons import lack_of_devices
from elasticdl_core.scheduling.plan import Allocation, Plan, Reason, ReasonCode
from elasticdl_core.scheduling.policies.candidate import Candidate, GoodputSettings, weigh
from elasticdl_core.scheduling.policies.marginal import Market, MarketDivision
from elasticdl_core.scheduling.policies.reasons import allocation_of
from elasticdl_core.scheduling.policies.surplus import (
    MAX_BLOCKERS,
    allowed_at_most,
    grow_as_far_as_possible,
    next_size,
)
from elasticdl_core.scheduling.quota import held_for_guarantees, team_budgets
from elasticdl_core.scheduling.raises import is_raised, plan_with_raises
from elasticdl_core.scheduling.snapshot import JobView, Snapshot

_MarketKey = tuple[int, str]
_MOST_TRIES = 4
"""Divisions of one snapshot, each with as much kept for growth into guarantees as the one before took."""
_COARSE = 1.5
"""Steps of the scale on which the work present is told."""

_smallest = attrgetter("smallest")
_ORDER = attrgetter("order")
_ID = attrgetter("job.id")


class _MarketOutcome:
    """A market's outcome in the plan that is being made.

    Attributes:
        market: the jobs.
        sizes: their workers, as booked.
        division: what the market gave.
        short: its budget, if that is less than its jobs could use beside other teams.
        holders: the jobs with most workers above their minimum, with how many less than that, the most first.
        allocations: the members', by id.
        explained_by: what the allocations were explained by.
    """

    __slots__ = ("allocations", "division", "explained_by", "holders", "market", "short", "sizes")

    def __init__(self, market: Market) -> None:
        self.market = market
        self.sizes: list[int] = []
        self.division: MarketDivision | None = None
        self.short: float | None = None
        self.holders: list[tuple[int, str]] = []
        self.allocations: dict[str, Allocation] = {}
        self.explained_by: object = None

    def settle(self, division: MarketDivision, sizes: list[int]) -> None:
        """Takes over the sizes as booked."""
        if self.division is division and self.sizes == sizes:
            return
        self.division, self.sizes, self.explained_by = division, sizes, None
        self.rank_holders()

    def rank_holders(self) -> None:
        """Finds who holds most."""
        rows = (
            (c.curve.sizes[0] - size, c.job.id)
            for c, size in zip(self.market.members, self.sizes, strict=True)
            if size > c.curve.sizes[0]
        )
        self.holders = heapq.nsmallest(MAX_BLOCKERS + 1, rows)


class _Pool:
    """The jobs of one team and priority.

    Attributes:
        running: those with workers, the longest running first.
        jobs: their views.
        minimum: slots that their minimums take.
        waiting: those without.
        work: slot-seconds that all of them still need, one worker at a time.
    """

    __slots__ = ("jobs", "minimum", "running", "waiting", "work")

    def __init__(self) -> None:
        self.running: list[Candidate] = []
        self.jobs: list[JobView] = []
        self.minimum = 0.0
        self.waiting: list[Candidate] = []
        self.work = 0.0

    def replace(self, gone: set[Candidate], come: list[Candidate]) -> None:
        """Takes some out and others in."""
        self.waiting = [c for c in self.waiting if c not in gone]
        self.waiting += [c for c in come if not c.current]
        self.running = [c for c in self.running if c not in gone]
        self.running += [c for c in come if c.current]
        self.running.sort(key=_ORDER)
        self.jobs = [c.job for c in self.running]
        self.minimum = math.fsum([c.minimum for c in self.running])
        self.work = math.fsum([c.remaining_s * c.cost for c in (*self.running, *self.waiting)])


class GoodputPlanner:
    """Makes plans of successive snapshots; for unchanged jobs give it the same ``JobView`` objects again.

    Args:
        settings: the policy's numbers.
    """

    name = "goodput"

    def __init__(self, settings: GoodputSettings) -> None:
        self._settings = settings
        self._forget()

    def _forget(self) -> None:
        self._now = float("-inf")
        self._costs: tuple[float, ...] = ()
        self._seen: dict[int, JobView] = {}
        self._candidates: dict[str, Candidate] = {}
        self._thaws: list[tuple[float, str]] = []
        self._unwanted: dict[str, Allocation] = {}
        self._pools: dict[_MarketKey, _Pool] = {}
        self._outcomes: dict[_MarketKey, _MarketOutcome] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decides on a target for every job of the snapshot."""
        return plan_with_raises(snapshot, self._plan, _smallest)

    def _plan(self, snapshot: Snapshot) -> Plan:
        try:
            admission, tracker = self._decide(snapshot)
            self._explain(tracker, self._explore(tracker))
        except BaseException:
            # What is kept may be half of this snapshot's and half of the one before.
            self._forget()
            raise
        allocations: dict[str, Allocation] = {}
        for outcome in self._outcomes.values():
            allocations |= outcome.allocations
        allocations |= admission.refused
        allocations |= dict(sorted(self._unwanted.items()))
        return Plan(self.name, allocations, admission.first_blocked)

    def targets(self, snapshot: Snapshot) -> dict[str, int]:
        """The plan's targets alone, for those who need no reasons."""
        if any(is_raised(job, _smallest) for job in snapshot.jobs):
            return self.plan(snapshot).targets()
        admission, tracker = self._decide(snapshot)
        for key in self._explore(tracker):
            self._outcomes[key].division = None
        targets = dict.fromkeys(self._unwanted, 0)
        for outcome in self._outcomes.values():
            outcome.explained_by = None
            targets |= zip([c.job.id for c in outcome.market.members], outcome.sizes, strict=True)
        return targets | dict.fromkeys(admission.refused, 0)

    def _decide(self, snapshot: Snapshot) -> tuple[Admission, CapacityTracker]:
        """Admits jobs and divides the surplus."""
        basis = CapacityTracker(snapshot)
        if snapshot.now < self._now or basis.cost_basis != self._costs:
            self._forget()
        self._now, self._costs = snapshot.now, basis.cost_basis
        self._refresh(snapshot, basis)
        candidates = self._candidates
        rules = AdmissionRules(
            size=lambda job: candidates[job.id].curve.sizes[0],
            queue_key=lambda job: _response_ratio(candidates[job.id], snapshot.now),
            eta=lambda job, workers: _eta(candidates[job.id], workers),
            min_runtime_s=self._settings.min_runtime_s,
            most=lambda job: candidates[job.id].curve.corners[candidates[job.id].top],
        )
        tiers = self._tiers(snapshot.now)
        drain_s = self._drain_s(snapshot.capacity.total.slots)
        growth: Mapping[str, float] | None = None
        for _ in range(_MOST_TRIES):
            admission, tracker = admit(snapshot, tiers, rules, growth)
            self._form_markets(tiers, admission, drain_s)
            self._divide(tracker)
            grown = self._grown(admission.kept)
            if not admission.refused or all(grown[team] >= kept - 1e-9 for team, kept in admission.kept.items()):
                break
            growth = grown  # What is not grown into does not stand idle while others wait.
        else:
            admission, tracker = admit(snapshot, tiers, rules, {})
            self._form_markets(tiers, admission, drain_s)
            self._divide(tracker)
        self._keep(tracker)
        self._use_rest(tracker)
        return admission, tracker

    def _grown(self, kept: Mapping[str, float]) -> dict[str, float]:
        """Slots above minimums by team, of those for which some were kept."""
        grown = dict.fromkeys(kept, 0.0)
        for (_, team), outcome in self._outcomes.items():
            if team in grown:
                rows = zip(outcome.market.members, outcome.sizes, strict=True)
                grown[team] += math.fsum((size - c.curve.sizes[0]) * c.job.worker.slots for c, size in rows)
        return grown

    def _refresh(self, snapshot: Snapshot, tracker: CapacityTracker) -> None:
        """Brings candidates and pools up to date with the jobs that changed and those whom time thawed."""
        # Identities tell in a moment which few of many jobs changed; ``_seen`` keeps the old ones from being reused.
        present = dict(zip(map(id, snapshot.jobs), snapshot.jobs, strict=True))
        left = [self._seen[ref] for ref in self._seen.keys() - present.keys()]
        news = map(present.__getitem__, present.keys() - self._seen.keys()) if self._seen else snapshot.jobs
        come = {job.id: job for job in news}
        self._seen = present
        gone: set[Candidate] = set()
        for job in left:
            c = self._candidates.get(job.id)
            now = come.get(job.id)
            # Of the fields of a running job, this one changes most; comparing all of them takes long.
            alike = c is not None and now is not None and now.remaining_records == job.remaining_records
            if alike and now == job:
                del come[job.id]
                continue
            self._unwanted.pop(job.id, None)
            if c is not None:
                gone.add(self._candidates.pop(job.id))
        while self._thaws and self._thaws[0][0] <= snapshot.now:
            _, job_id = heapq.heappop(self._thaws)
            c = self._candidates.get(job_id)
            if c is not None and c.frozen and c.thaws_at <= snapshot.now:
                gone.add(self._candidates.pop(job_id))
                come[job_id] = c.job
        groups: dict[_MarketKey, list[Candidate]] = {c.group: [] for c in gone}
        for job in come.values():
            if not (job.wanted and job.state in SCHEDULABLE_STATES):
                text = f"its owner does not want it to run now (state {job.state})"
                self._unwanted[job.id] = Allocation(0, False, Reason(ReasonCode.NOT_WANTED, text))
                continue
            c = weigh(job, tracker.worker_cost(job), self._settings, snapshot.now)
            self._candidates[job.id] = c
            groups.setdefault(c.group, []).append(c)
            if c.frozen:
                heapq.heappush(self._thaws, (c.thaws_at, job.id))
        for group, members in groups.items():
            pool = self._pools.setdefault(group, _Pool())
            pool.replace(gone, members)
            if not pool.running and not pool.waiting:
                del self._pools[group]

    def _tiers(self, now: float) -> list[Tier]:
        """The jobs by priority; within it team by team, and those that wait in the order of the queue."""
        keys: dict[int, list[str]] = {}
        for priority, team in sorted(self._pools):
            keys.setdefault(priority, []).append(team)
        tiers = []
        for priority in sorted(keys, reverse=True):
            pools = {team: self._pools[priority, team] for team in keys[priority]}
            queue = sorted([(*_response_ratio(c, now), c.job) for pool in pools.values() for c in pool.waiting])
            running: list[JobView] = []
            for pool in pools.values():
                running += pool.jobs
            taken = {team: pool.minimum for team, pool in pools.items() if pool.running}
            tiers.append(Tier(priority, running, [row[-1] for row in queue], taken))
        return tiers

    def _drain_s(self, slots: float) -> float:
        """Seconds in which all slots together could do all work present, coarsely, so that it seldom moves."""
        work = math.fsum([pool.work for pool in self._pools.values()])
        if work <= 0 or slots <= 0:
            return math.inf
        return _COARSE ** round(math.log(work / slots, _COARSE))

    def _form_markets(self, tiers: Sequence[Tier], admission: Admission, drain_s: float) -> None:
        """Gathers who shares slots; where that is who did before, what was worked out for them stands."""
        evicted, refused, candidates = admission.evicted, admission.refused, self._candidates
        started: dict[_MarketKey, list[Candidate]] = {}
        for tier in tiers:
            for job in tier.waiting:
                if job.id not in refused:
                    c = candidates[job.id]
                    started.setdefault(c.group, []).append(c)
        short_of = {candidates[job_id].group for job_id in evicted}
        outcomes: dict[_MarketKey, _MarketOutcome] = {}
        for key in sorted(self._pools, key=lambda key: (-key[0], key[1])):
            members = self._pools[key].running
            if key in short_of:
                members = [c for c in members if c.job.id not in evicted]
            if key in started:
                members = members + sorted(started[key], key=_ID)
            if not members:
                continue
            outcome = self._outcomes.get(key)
            if outcome is None or not outcome.market.holds(members, drain_s):
                outcome = _MarketOutcome(Market(members, self._settings, drain_s))
            outcomes[key] = outcome
        self._outcomes = outcomes

    def _divide(self, tracker: CapacityTracker) -> None:
        """Gives each team its budget of the surplus, and each team's jobs what serves them best, tier by tier."""
        tiers: dict[int, list[str]] = {}
        for priority, team in self._outcomes:
            tiers.setdefault(priority, []).append(team)
        later: dict[str, float] = {}
        for (_, team), outcome in self._outcomes.items():
            if tracker.quota(team).guaranteed is not None:
                later[team] = later.get(team, 0.0) + outcome.market.demand
        for priority in sorted(tiers, reverse=True):
            demands = {team: self._outcomes[priority, team].market.demand for team in tiers[priority]}
            for team in later.keys() & demands.keys():
                later[team] -= demands[team]
            self._divide_tier(priority, demands, tracker, held_for_guarantees(tracker, demands, later))

    def _divide_tier(
        self, priority: int, demands: Mapping[str, float], tracker: CapacityTracker, held: float
    ) -> None:
        teams = list(demands)
        budgets = team_budgets(tracker, demands, held)
        for team in teams:
            outcome = self._outcomes[priority, team]
            short = budgets[team] if len(teams) > 1 and budgets[team] < demands[team] else None
            if short != outcome.short:
                outcome.short, outcome.explained_by = short, None
            division = outcome.market.divide(budgets[team])
            if tracker.take_surplus(team, division.surplus):
                outcome.settle(division, division.sizes)
            else:
                outcome.settle(division, _booked_singly(outcome.market.members, division.sizes, tracker))

    def _keep(self, tracker: CapacityTracker) -> None:
        """Leaves running jobs what nobody else took, the most important first, unless fewer pay for the change."""
        for outcome in self._outcomes.values():
            kept = list(outcome.sizes)
            for position, c in enumerate(outcome.market.members):
                have = kept[position]
                if not have < c.current or not (c.frozen or c.value(have) - c.value(c.current) <= c.penalty):
                    continue
                if tracker.obstacle(c.job, have, c.current) is None:
                    tracker.take(c.job, have, c.current)
                    kept[position] = c.current
            if kept != outcome.sizes:
                outcome.sizes, outcome.division, outcome.explained_by = kept, None, None
                outcome.rank_holders()

    def _use_rest(self, tracker: CapacityTracker) -> None:
        """Gives jobs what fits beside all others, where several resources are counted.

        Shares are counted by the resource of which a worker takes most, so some are used up while there is room.
        """
        if tracker.slots_only:
            return
        keys = sorted(self._outcomes, key=lambda key: (-key[0], tracker.team_share(key[1]), key[1]))
        for outcome in map(self._outcomes.__getitem__, keys):
            sizes = list(outcome.sizes)
            order = sorted(range(len(sizes)), key=lambda i: -outcome.market.members[i].unit)
            for position in order:
                c, have = outcome.market.members[position], sizes[position]
                want = _more_that_fits(c, have, tracker)
                if want > have:
                    tracker.take(c.job, have, want)
                    sizes[position] = want
            if sizes != outcome.sizes:
                outcome.sizes, outcome.division, outcome.explained_by = sizes, None, None
                outcome.rank_holders()

    def _explore(self, tracker: CapacityTracker) -> set[_MarketKey]:
        """Lets jobs try more workers on slots that would stand idle, where their speed was never measured.

        An estimate that says that a job gains nothing from growing is never put right while it does not grow. Each
        size is tried once, and a job at most doubles at a time; the longest job first.

        Returns:
            The markets in which that changed a size.
        """
        if tracker.free_cost() < 1.0:
            return set()
        eager = [
            (-c.remaining_s, c.job.id, position, outcome)
            for outcome in self._outcomes.values()
            for position, c in enumerate(outcome.market.members)
            if c.curious and not c.frozen and max(c.job.throughput) <= outcome.sizes[position]
        ]
        changed = set()
        for _, job_id, position, outcome in sorted(eager, key=lambda row: row[:2]):
            c, have = outcome.market.members[position], outcome.sizes[position]
            if have not in c.job.throughput or c.penalty >= c.value(c.current):
                continue
            booked = {job_id: have}
            _book(c, allowed_at_most(c.job, 2 * have), booked, tracker)
            if booked[job_id] != have:
                if c.group not in changed:
                    changed.add(c.group)
                    outcome.sizes = list(outcome.sizes)
                outcome.sizes[position] = booked[job_id]
        for key in changed:
            self._outcomes[key].rank_holders()
        return changed

    def _explain(self, tracker: CapacityTracker, changed: set[_MarketKey]) -> None:
        """Gives every admitted job its allocation, where anything in it may have changed."""
        rows = [row for outcome in self._outcomes.values() for row in outcome.holders]
        holders = tuple(job_id for _, job_id in heapq.nsmallest(MAX_BLOCKERS + 1, rows))
        for key, outcome in self._outcomes.items():
            basis = None if key in changed or not tracker.slots_only else holders
            if basis is not None and outcome.explained_by == basis:
                continue
            ideal = outcome.division.ideal if outcome.division is not None else outcome.sizes
            allocations = {}
            limited, lack, short, short_of = False, None, outcome.short, "slots"
            for c, workers, best in zip(outcome.market.members, outcome.sizes, ideal, strict=True):
                if not tracker.slots_only:
                    limited, lack = _held_by(c.job, workers, tracker)
                    useful = c.larger(workers)
                    short_of = (useful and tracker.short_of(c.job, workers, useful)) or ""
                    best = best if short_of else max(best, useful or 0)
                allocations[c.job.id] = allocation_of(
                    c,
                    workers,
                    best,
                    short=short,
                    limited=limited,
                    holders=holders,
                    lack=lack,
                    short_of=short_of,
                )
            outcome.allocations, outcome.explained_by = allocations, basis
            if key in changed:
                outcome.division = None  # Settled anew next time, as exploring is decided anew.


def _response_ratio(candidate: Candidate, now: float) -> tuple[float, float, str]:
    """Waiting jobs go by (waiting + running time) / running time: short ones first, but nobody waits for ever."""
    job = candidate.job
    waited = max(now - job.submitted_at, 0.0)
    return (-(1.0 + waited / candidate.alone_s), job.submitted_at, job.id)


def _eta(candidate: Candidate, workers: int) -> float:
    """Seconds to the end; unknown unless both speed and remaining work are."""
    rate = candidate.job.speed(workers)
    return (
        float("inf")
        if candidate.job.remaining_records is None or not rate
        else candidate.job.remaining_records / rate
    )


def _held_by(job: JobView, workers: int, tracker: CapacityTracker) -> tuple[bool, tuple[str, tuple[str, ...]] | None]:
    """Whether its team's limit forbids a job one more size, or what that lacks of the devices."""
    more = next_size(job, workers)
    obstacle = None if more is None else tracker.obstacle(job, workers, more)
    if more is None or obstacle is not Obstacle.DEVICES:
        return obstacle is Obstacle.LIMIT, None
    return False, lack_of_devices(job, more - workers, tracker)


def _more_that_fits(c: Candidate, have: int, tracker: CapacityTracker) -> int:
    """The most valuable size from ``have`` to the top that fits, and pays for the change if it is one."""
    best = have
    for size in c.curve.sizes[bisect_right(c.curve.sizes, have) :]:
        if size > c.curve.corners[c.top] or tracker.obstacle(c.job, have, size) is not None:
            break
        pays = not c.current or size <= c.current or (not c.frozen and c.value(size) - c.value(c.current) > c.penalty)
        if pays and c.value(size) > c.value(best):
            best = size
    return best


def _booked_singly(members: Sequence[Candidate], sizes: Sequence[int], tracker: CapacityTracker) -> list[int]:
    """Books job by job, as another resource than slots, or the team's limit, may end first."""
    booked = {c.job.id: c.curve.sizes[0] for c in members}
    for c, wanted in zip(members, sizes, strict=True):
        _book(c, wanted, booked, tracker)
    return [booked[c.job.id] for c in members]


def _book(candidate: Candidate, wanted: int, sizes: dict[str, int], tracker: CapacityTracker) -> None:
    job, have = candidate.job, sizes[candidate.job.id]
    if wanted <= have:
        return
    if tracker.obstacle(job, have, wanted) is None:
        tracker.take(job, have, wanted)
        sizes[job.id] = wanted
    else:
        grow_as_far_as_possible(job, sizes, tracker, wanted)
