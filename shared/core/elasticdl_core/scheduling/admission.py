"""Admission of jobs: gang minimums by priority tier, with quotas and backfill.

The rules, in the order of the design:

1. A job runs with its minimum (master, PS and smallest size) or not at all.
2. Tiers are served from the most important down, minimums before any surplus, so a less important job that
   runs is evicted only when the minimum of a more important one needs its place.
3. Within a tier: what teams are guaranteed first, minimums before growth, then running jobs, then waiting ones, the
   next always from the team with the smallest weighted dominant share. A running job is never evicted for its own
   tier, except to give a team back what it is guaranteed.
6. For the first job of a tier that does not fit a time is kept: that at which enough minimums will have ended. Others
   of the tier may pass it only if they end before it, or leave enough for it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from elasticdl_core.scheduling.capacity_tracker import CapacityTracker, Obstacle
from elasticdl_core.scheduling.device_reasons import lack_of_devices, too_many_devices
from elasticdl_core.scheduling.plan import Allocation, BlockedJob, Reason, ReasonCode
from elasticdl_core.scheduling.snapshot import NOTHING, ONE_SLOT, JobView, Snapshot
from elasticdl_core.scheduling.victims import claims_of
from elasticdl_core.scheduling.words import amount_of, jobs_of, moment, slots_of, workers_of

MAX_BLOCKERS = 5
"""A reason names at most this many jobs."""

ASSUMED_REST_S = 600.0
"""Seconds that a job of unknown end is taken to need at least, where others may pass who are sure to end before."""

SizeOf = Callable[[JobView], int]
KeyOf = Callable[[JobView], tuple[float | str, ...]]
EtaOf = Callable[[JobView, int], float]
"""Seconds until a job with that many workers ends; ``inf`` if that cannot be told."""


@dataclass
class Admission:
    """The jobs that run.

    Attributes:
        admitted: the jobs that get their minimum, in the order in which they go first.
        refused: the others' allocations (of no workers), with their reasons, by job id.
        first_blocked: the first job that does not fit.
        evicted: ids of the refused ones that ran.
        kept: slots by team that others' minimums left, for its jobs to grow into what it is guaranteed.
    """

    admitted: list[JobView] = field(default_factory=list)
    refused: dict[str, Allocation] = field(default_factory=dict)
    first_blocked: BlockedJob | None = None
    evicted: set[str] = field(default_factory=set)
    kept: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AdmissionRules:
    """Rules of admission.

    Attributes:
        size: the size that a job is admitted with.
        queue_key: waiting jobs of a team and tier go in ascending order of it.
        eta: when jobs end, for backfill.
        backfill: whether others may pass a job that does not fit.
        protect_first: whether the one that does not fit holds back those that would delay it.
        min_runtime_s: a running job is not evicted for a guarantee before it ran this long.
        most: the size up to which a job grows where it may; None where teams are guaranteed minimums alone.
    """

    size: SizeOf
    queue_key: KeyOf
    eta: EtaOf
    backfill: bool = True
    protect_first: bool = True
    min_runtime_s: float = 600.0
    most: SizeOf | None = None


def by_arrival(job: JobView) -> tuple[float | str, ...]:
    """Orders jobs by the time of their submission."""
    return (job.submitted_at, job.id)


def unknown_eta(job: JobView, workers: int) -> float:
    """For policies that look at no speeds."""
    return math.inf


def split_unwanted(snapshot: Snapshot) -> tuple[list[JobView], dict[str, Allocation]]:
    """Parts the jobs that can run from those that hold nothing by their owners' wish."""
    runnable: list[JobView] = []
    unwanted: dict[str, Allocation] = {}
    for job in snapshot.jobs:
        if job.schedulable:
            runnable.append(job)
        else:
            text = f"its owner does not want it to run now (state {job.state})"
            unwanted[job.id] = Allocation(0, False, Reason(ReasonCode.NOT_WANTED, text))
    return runnable, unwanted


@dataclass(frozen=True, slots=True)
class Tier:
    """The jobs of one priority.

    Attributes:
        priority: theirs.
        running: those that have workers, the longest running first.
        waiting: those that have none, in the order of the queue.
        taken: slots that the running jobs' minimums take, by team, where that is known already.
    """

    priority: int
    running: Sequence[JobView]
    waiting: Sequence[JobView]
    taken: Mapping[str, float] | None = None


def by_start(job: JobView) -> tuple[float, str]:
    """Orders running jobs by the time of their start."""
    return (job.started_at or 0.0, job.id)


def tiers_of(jobs: Iterable[JobView], rules: AdmissionRules) -> list[Tier]:
    """Parts jobs into tiers, the most important first."""
    parts: dict[int, tuple[list[JobView], list[JobView]]] = {}
    for job in jobs:
        parts.setdefault(job.priority, ([], []))[job.current_workers <= 0].append(job)
    return [
        Tier(priority, sorted(parts[priority][0], key=by_start), sorted(parts[priority][1], key=rules.queue_key))
        for priority in sorted(parts, reverse=True)
    ]


def admit(
    snapshot: Snapshot,
    tiers: Sequence[Tier],
    rules: AdmissionRules,
    growth: Mapping[str, float] | None = None,
) -> tuple[Admission, CapacityTracker]:
    """Decides who runs.

    Whoever is evicted joins the waiting jobs, which can change who goes first among them; so each tier is decided
    again with the evicted ones waiting until it evicts nobody more, and only then the next. Carrying it out then
    leads to the same decision.

    Args:
        snapshot: the cluster.
        tiers: its jobs, the most important first.
        rules: of the policy.
        growth: slots by team that are kept for growth into guarantees at most; None for all that teams could use.

    Returns:
        Who runs, and a tracker in which their minimums are booked.
    """
    admitter = _Admitter(snapshot, CapacityTracker(snapshot), rules, growth)
    demoted: set[str] = set()
    for tier in tiers:
        # Of a tier in which nobody runs nobody is evicted.
        before, now_waiting = admitter.copy() if tier.running else admitter, tier
        while evicted := admitter.run(now_waiting):
            demoted |= evicted
            admitter, now_waiting = before.copy(), _without(now_waiting, evicted, rules)
    admitter.result.evicted = demoted & admitter.result.refused.keys()
    return admitter.result, admitter.tracker


def _without(tier: Tier, demoted: Set[str], rules: AdmissionRules) -> Tier:
    """The tier with those that ran waiting."""
    stay = [job for job in tier.running if job.id not in demoted]
    if len(stay) == len(tier.running):
        return tier
    fallen = [job for job in tier.running if job.id in demoted]
    return Tier(tier.priority, stay, sorted([*tier.waiting, *fallen], key=rules.queue_key))


class _Admitter:
    def __init__(
        self,
        snapshot: Snapshot,
        tracker: CapacityTracker,
        rules: AdmissionRules,
        growth: Mapping[str, float] | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._growth = growth
        self._kept: dict[str, float] = {}
        self.tracker = self._tracker = tracker
        self._rules = rules
        self.result = self._result = Admission()
        self._held: dict[tuple[float, ...], JobView] = {}
        self._held_above: dict[tuple[float, ...], JobView] = {}
        self._reserve_nothing()
        self._guarantees = any(q.guaranteed is not None for q in snapshot.quotas.values())
        self._blockers: tuple[str, ...] | None = None
        self._largest: tuple[int, tuple[str, ...]] = (-1, ())
        self._ends: dict[str, tuple[float, bool]] = {}
        self._no_rooms: dict[tuple[object, ...], Reason] = {}
        self._turned_away: dict[tuple[int, str], Reason] = {}

    def copy(self) -> _Admitter:
        """One that goes on from here without changing this one."""
        other = _Admitter(self._snapshot, self._tracker.copy(), self._rules, self._growth)
        mine = self._result
        other.result = other._result = Admission([*mine.admitted], {**mine.refused}, mine.first_blocked)
        other._kept = other._result.kept = {**self._kept}
        other._held, other._held_above, other._ends = {**self._held}, self._held_above, self._ends
        other._first_blocked, other._extra = self._first_blocked, self._extra
        other._shadow_at, other._shadow_known = self._shadow_at, self._shadow_known
        return other

    def _reserve_nothing(self) -> None:
        self._first_blocked: JobView | None = None
        self._shadow_at, self._shadow_known = math.inf, False
        self._extra: list[float] = []

    def run(self, tier: Tier) -> set[str]:
        """Admits jobs of the next tier; returns which running ones are evicted."""
        self._held_above, self._held = self._held_above | self._held, {}
        self._blockers = None
        self._turned_away.clear()
        if self._rules.backfill:
            self._reserve_nothing()  # What can be evicted for those that wait above delays its peers only.
        running, waiting = tier.running, tier.waiting
        owed = self._owed(running, waiting) if self._guarantees else frozenset()
        young = self._young(running) if self._guarantees else frozenset()
        taken = tier.taken
        if owed or young:
            taken = None
            self._kept = {}  # Neither a minimum that is guaranteed nor who just began leaves for anybody's growth.
            for ids in (owed, young - owed):
                for job in self._claims([job for job in running if job.id in ids]):
                    self._consider(job, waits=False)
            for job in self._fairly([job for job in waiting if job.id in owed]):
                self._consider(job, waits=True)
            running = [job for job in running if job.id not in owed | young]
            waiting = [job for job in waiting if job.id not in owed]
        self._keep_for_growth()
        if not self._kept and self._tracker.take_all(self._taken(running) if taken is None else taken):
            self._result.admitted.extend(running)
        else:
            for job in self._claims(running):
                self._consider(job, waits=False)
        for job in self._fairly(waiting):
            self._consider(job, waits=True)
        return self._result.evicted

    def _claims(self, running: Sequence[JobView]) -> Iterable[JobView]:
        """Running jobs, those last that are to leave; nobody leaves for one that cannot stay anyway."""
        size = self._rules.size
        running = sorted(running, key=by_start)
        can = [job for job in running if self._tracker.possible(job, size(job)) is None]
        can_not = [job for job in running if self._tracker.possible(job, size(job)) is not None]
        free = self._tracker.free[0] - math.fsum(self._kept.values())
        return (*can_not, *claims_of(can, free, size, self._rules.eta))

    def _taken(self, jobs: Sequence[JobView]) -> dict[str, float]:
        """Slots that the minimums take, by team."""
        amounts: dict[str, list[float]] = {}
        for job in jobs:
            amounts.setdefault(job.team, []).append(job.fixed.slots + self._rules.size(job) * job.worker.slots)
        return {team: math.fsum(team_amounts) for team, team_amounts in amounts.items()}

    def _owed(self, running: Sequence[JobView], waiting: Sequence[JobView]) -> frozenset[str]:
        """The jobs whose minimums lie within what more important ones have left of their teams' guarantees."""
        used = self._used_of_guarantees()
        owed = set()
        for job in itertools.chain(running, waiting):
            guaranteed = self._tracker.quota(job.team).guaranteed
            if guaranteed is None:
                continue
            need = job.demand(self._rules.size(job)).vector()
            have = used.setdefault(job.team, [0.0] * len(need))
            most = guaranteed.vector()
            if all(h + n <= m + 1e-9 for h, n, m in zip(have, need, most, strict=True) if m > 0):
                used[job.team] = [h + n for h, n in zip(have, need, strict=True)]
                owed.add(job.id)
        return frozenset(owed)

    def _young(self, running: Sequence[JobView]) -> frozenset[str]:
        """The jobs that no guarantee evicts yet."""
        now, least = self._snapshot.now, self._rules.min_runtime_s
        return frozenset(
            job.id for job in running if job.started_at is not None and 0 <= now - job.started_at < least
        )

    def _used_of_guarantees(self) -> dict[str, list[float]]:
        """The part of teams' guarantees that admitted minimums take."""
        used: dict[str, list[float]] = {}
        for job in self._result.admitted:
            if self._tracker.quota(job.team).guaranteed is not None:
                need = job.demand(self._rules.size(job)).vector()
                have = used.setdefault(job.team, [0.0] * len(need))
                used[job.team] = [h + n for h, n in zip(have, need, strict=True)]
        return used

    def _keep_for_growth(self) -> None:
        """Keeps what jobs that run could grow by within their teams' guarantees: other minimums do not get it."""
        most, size = self._rules.most, self._rules.size
        if most is None or not self._guarantees:
            return
        growth: dict[str, float] = {}
        for job in self._result.admitted:
            if self._tracker.quota(job.team).guaranteed is not None:
                more = max(most(job) - size(job), 0) * job.worker.slots
                growth[job.team] = growth.get(job.team, 0.0) + more
        used = self._used_of_guarantees()
        self._kept = {}
        for team, amount in growth.items():
            guaranteed = self._tracker.quota(team).guaranteed
            rest = guaranteed.slots - used[team][0] if guaranteed is not None else 0.0
            kept = min(rest, amount, amount if self._growth is None else self._growth.get(team, 0.0))
            if kept > 0:
                self._kept[team] = kept
        self._result.kept = self._kept

    def _kept_from(self, job: JobView) -> float:
        """Slots that are kept for other teams."""
        return math.fsum(kept for team, kept in self._kept.items() if team != job.team) if self._kept else 0.0

    def _obstacle(self, job: JobView, size: int) -> Obstacle | None:
        obstacle = self._tracker.obstacle(job, 0, size)
        if obstacle is None and (kept := self._kept_from(job)):
            lacks = job.demand(size).slots > self._tracker.free[0] - kept + 1e-9
            return Obstacle.CAPACITY if lacks else None
        return obstacle

    def _fairly(self, waiting: Sequence[JobView]) -> Iterable[JobView]:
        """Yields the next job of the team that has least for its weight, while the tracker fills."""
        queues: dict[str, list[JobView]] = {}
        for job in waiting:
            queues.setdefault(job.team, []).append(job)
        if len(queues) <= 1:
            yield from waiting
            return
        places = dict.fromkeys(queues, 0)
        heap = [(self._tracker.team_share(team), team) for team in queues]
        heapq.heapify(heap)
        while heap:
            _, team = heapq.heappop(heap)
            yield queues[team][places[team]]
            places[team] += 1
            if places[team] < len(queues[team]):
                heapq.heappush(heap, (self._tracker.team_share(team), team))

    def _consider(self, job: JobView, *, waits: bool) -> None:
        size = self._rules.size(job)
        plain = waits and not job.current_workers and job.worker is ONE_SLOT and job.fixed is NOTHING
        if plain and (known := self._turned_away.get((size, job.team))):
            self._refuse(job, known)
            return
        obstacle = self._obstacle(job, size)
        if obstacle is None and waits:
            reason = self._held_back(job, size)
            if reason is not None:
                self._refuse(job, reason)
                return
        if obstacle is None:
            self._tracker.take(job, 0, size)
            self._result.admitted.append(job)
            self._turned_away.clear()
            if job.team in self._kept:
                self._keep_for_growth()
            return
        if not waits:
            self._result.evicted.add(job.id)
        first = self._first_blocked
        self._turn_away(job, size, obstacle)
        if plain and first is self._first_blocked:
            self._turned_away[size, job.team] = self._result.refused[job.id].reason

    def _turn_away(self, job: JobView, size: int, obstacle: Obstacle) -> None:
        if self._tracker.possible(job, size) is not None:
            self._refuse(job, self._impossible(job, size))
        elif obstacle is Obstacle.LIMIT:
            self._refuse(job, self._over_limit(job, size))
        elif self._tracker.lacks_what_is_set_aside(job, size):
            self._refuse(job, self._set_aside(job, size))
        else:
            if self._first_blocked is None:
                self._block_first(job, size)
            self._refuse(job, self._no_room(job, size, obstacle))

    def _held_back(self, job: JobView, size: int) -> Reason | None:
        """Why a job that fits must still wait for the first one that does not, or None."""
        if not self._rules.protect_first:
            return None
        blocked, more_important = self._first_blocked, self._goes_before(job, size)
        if blocked is None or more_important is not None:
            return more_important
        if self._rules.backfill:
            if self._snapshot.now + self._rules.eta(job, size) <= self._shadow_at < math.inf:
                return None
            need = self._tracker.change(job, 0, size)
            if all(n <= e + 1e-9 for n, e in zip(need, self._extra, strict=True)):
                self._extra = [e - n for e, n in zip(self._extra, need, strict=True)]
                return None
        when = f", expected at {moment(self._shadow_at)}" if self._shadow_known else ""
        text = (
            f"its {workers_of(size)} would fit, but would delay {blocked.id}, which came first and waits for "
            f"{workers_of(self._rules.size(blocked))}{when}"
        )
        self._held.setdefault(self._tracker.change(job, 0, size), job)
        return Reason(ReasonCode.WAITING_BEHIND, text, (blocked.id,), {"need": size, **self._expected_at(bool(when))})

    def _goes_before(self, job: JobView, size: int) -> Reason | None:
        """Why a job must wait for a more important one that is held back, and would fit in its place, or None."""
        place = self._tracker.change(job, 0, size)
        for need, other in self._held_above.items():
            if all(n <= p + 1e-9 for n, p in zip(need, place, strict=True)):
                text = f"its {workers_of(size)} would fit, but {other.id} is more important, needs no more, and waits"
                return Reason(ReasonCode.WAITING_BEHIND, text, (other.id,), {"need": size})
        return None

    def _block_first(self, job: JobView, size: int) -> None:
        """Finds when enough minimums will have ended for the job to fit, and what is left over then."""
        self._first_blocked = job
        need = self._tracker.change(job, 0, size)
        free = list(self._tracker.free)
        free[0] -= self._kept_from(job)
        pool = self._tracker.pool.copy() if self._tracker.pool is not None and job.worker.gpu else None
        endings = sorted((*self._end_of(other), other.id, other) for other in self._result.admitted)
        known = True
        for at, is_known, _, other in endings:
            known = known and is_known
            back = self._tracker.change(other, 0, self._rules.size(other))
            free = [f + b for f, b in zip(free, back, strict=True)]
            if pool is not None:
                for place in self._tracker.places_of(other):
                    pool.give_back(other.device_share, place)
            placed = pool is None or pool.room(job.device_share) >= size
            if placed and all(n <= f + 1e-9 for n, f in zip(need, free, strict=True)):
                self._shadow_at, self._shadow_known = at, known
                if known:
                    self._extra = [f - n for f, n in zip(free, need, strict=True)]
                break
        if not self._extra:
            self._extra = self._tracker.beyond(need)
            self._extra[0] = max(self._extra[0] - self._kept_from(job), 0.0)
        if self._result.first_blocked is None:
            self._result.first_blocked = BlockedJob(job.id, self._shadow_at if self._shadow_known else None)

    def _end_of(self, job: JobView) -> tuple[float, bool]:
        """When a job ends, and whether that is known: else it is taken to run as long again as it has."""
        if job.id not in self._ends:  # each tier asks again
            now, eta = self._snapshot.now, self._rules.eta(job, max(job.current_workers, self._rules.size(job)))
            known = not math.isinf(eta)
            rest = eta if known else max(now - (job.started_at or now), ASSUMED_REST_S)
            self._ends[job.id] = (now + rest, known)
        return self._ends[job.id]

    def _refuse(self, job: JobView, reason: Reason) -> None:
        self._result.refused[job.id] = Allocation(0, False, reason)

    def _no_room(self, job: JobView, size: int, obstacle: Obstacle) -> Reason:
        """Why its minimum does not fit; shared by all for whom the same numbers hold."""
        is_first = self._first_blocked is job
        state = (
            tuple(self._tracker.free),
            self._kept_from(job),
            len(self._result.admitted),
            is_first,
            job.current_workers > 0,
            obstacle,
        )
        key = (size, job.worker, job.fixed, job.priority, state)
        reason = self._no_rooms.get(key)
        if reason is None:
            make = self._no_device_now if obstacle is Obstacle.DEVICES else self._no_room_now
            reason = self._no_rooms[key] = make(job, size)
        return reason

    def _no_device_now(self, job: JobView, size: int) -> Reason:
        text, holders = lack_of_devices(job, size, self._tracker)
        data: dict[str, float | str] = {"gpu": job.worker.gpu * size, "min_workers": size}
        if job.current_workers > 0:
            return Reason(ReasonCode.EVICTED, f"evicted for more important minimums: it {text}", holders, data)
        when = self._expected_to_fit(job)
        data |= self._expected_at(bool(when))
        return Reason(ReasonCode.WAITING_FOR_CAPACITY, f"it {text}{when}", holders, data)

    def _expected_to_fit(self, job: JobView) -> str:
        first = self._result.first_blocked  # Of lower tiers nothing is told, as who waits above may take the place.
        if self._first_blocked is not job or not self._shadow_known or first is None or first.job_id != job.id:
            return ""
        return f"; expected to fit at {moment(self._shadow_at)}"

    def _expected_at(self, told: bool) -> dict[str, float]:
        """The time that a reason names, for programs."""
        return {"expected_at": self._shadow_at} if told else {}

    def _no_room_now(self, job: JobView, size: int) -> Reason:
        short = self._tracker.short_of(job, 0, size) or "slots"
        free = max(self._tracker.free_of(short) - (self._kept_from(job) if short == "slots" else 0.0), 0.0)
        need = getattr(job.demand(size), short)
        blockers = self._holders()
        when = self._expected_to_fit(job)
        data: dict[str, float | str] = {"need": need, "free": free, "min_workers": size}
        if job.current_workers > 0:
            why = self._why_evicted(job)
            text = f"evicted: {why} {amount_of(short, free)}, and its minimum of {workers_of(size)} needs {need:g}"
            return Reason(ReasonCode.EVICTED, text, blockers, data)
        text = (
            f"its minimum of {workers_of(size)} needs {amount_of(short, need)}, and {free:g} "
            f"{'is' if free == 1 else 'are'} left {self._beside(job)}{when}"
        )
        return Reason(ReasonCode.WAITING_FOR_CAPACITY, text, blockers, data | self._expected_at(bool(when)))

    def _beside(self, job: JobView) -> str:
        """The jobs that go before one that does not fit."""
        first = len(self._result.admitted)
        if self._kept_from(job):
            teams = ", ".join(sorted(self._kept.keys() - {job.team}))
            return f"beside {jobs_of(first)} that go before it and what team {teams} is guaranteed"
        if first == 1:
            return "beside the minimum of the job that goes before it"
        return f"beside the minimums of {jobs_of(first)} that go before it" if first else "now"

    def _why_evicted(self, job: JobView) -> str:
        """The jobs to which a running one gives its slots; asked once for all for whom the same numbers hold."""
        starting = [one for one in self._result.admitted if one.current_workers < self._rules.size(one)]
        if any(one.priority > job.priority for one in starting):
            return "more important minimums leave"
        if self._kept_from(job):
            teams = ", ".join(sorted(self._kept.keys() - {job.team}))
            return f"team {teams} grows into what it is guaranteed, which leaves"
        peers = sorted({one.team for one in starting if one.priority == job.priority})
        if peers and self._guarantees:
            return f"team {', '.join(peers)} takes back what it is guaranteed, which leaves"
        return f"jobs may take {slots_of(self._tracker.total[0])} now{self._tracker.aside_in_words()}, which leaves"

    def _set_aside(self, job: JobView, size: int) -> Reason:
        need = job.demand(size).slots
        text = (
            f"its minimum of {workers_of(size)} needs {slots_of(need)}, and jobs may take {self._tracker.total[0]:g} "
            f"now{self._tracker.aside_in_words()}"
        )
        code = ReasonCode.EVICTED if job.current_workers > 0 else ReasonCode.WAITING_FOR_CAPACITY
        return Reason(code, text, (), {"need": need, "min_workers": size, "total": self._tracker.total[0]})

    def _holders(self) -> tuple[str, ...]:
        """The admitted jobs that hold most; the same for all that wait in a tier, and in others without one more."""
        admitted = self._result.admitted
        if self._blockers is None:
            if self._largest[0] != len(admitted):
                size = self._rules.size
                rows = ((-job.fixed.slots - size(job) * job.worker.slots, job.id) for job in admitted)
                order = heapq.nsmallest(MAX_BLOCKERS, rows)
                self._largest = (len(admitted), tuple(job_id for _, job_id in order))
            self._blockers = self._largest[1]
        return self._blockers

    def _over_limit(self, job: JobView, size: int) -> Reason:
        text = (
            f"its minimum of {workers_of(size)} would take team {job.team} over its limit; the team uses "
            f"{slots_of(self._tracker.team_cost(job.team))}"
        )
        blockers = tuple(other.id for other in self._result.admitted if other.team == job.team)[:MAX_BLOCKERS]
        return Reason(ReasonCode.WAITING_FOR_QUOTA, text, blockers, {"need": job.demand(size).slots})

    def _impossible(self, job: JobView, size: int) -> Reason:
        need = job.demand(size).slots
        if self._tracker.possible(job, size) is Obstacle.DEVICES:
            data: dict[str, float | str] = {"gpu": job.worker.gpu * size, "total": self._tracker.total_of("gpu")}
            return Reason(ReasonCode.IMPOSSIBLE, too_many_devices(job, size, self._tracker), (), data)
        what, total = "slots", self._tracker.installed
        if self._tracker.possible(job, size) is Obstacle.LIMIT:
            where = f"the limit of team {job.team}"
        else:
            what, need, total = self._tracker.too_much_of(job, size)
            where = f"the whole cluster of {amount_of(what, total)}"
        lower = "worker_memory_mib, ps_memory_mib or min_workers" if what == "memory" else "min_workers"
        text = f"its minimum of {workers_of(size)} ({amount_of(what, need)}) is more than {where}; lower {lower}"
        return Reason(ReasonCode.IMPOSSIBLE, text, (), {"need": need, "total": total})
