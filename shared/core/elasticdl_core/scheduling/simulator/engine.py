"""The simulator: the same policies, with a clock that is turned by events."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobState
from elasticdl_core.scheduling.expected_work import LATEST, expected_work
from elasticdl_core.scheduling.policies import Policy
from elasticdl_core.scheduling.simulator.baselines import CONTENDERS
from elasticdl_core.scheduling.simulator.placer import Machines
from elasticdl_core.scheduling.simulator.work import SimulatedWork, packed
from elasticdl_core.scheduling.simulator.workload import SimulatedJob
from elasticdl_core.scheduling.snapshot import Capacity, JobView, Snapshot
from elasticdl_core.scheduling.throughput import mean_curve

Knowledge = Literal["learned", "history", "true"]
_HISTORY_COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class SimulationSettings:
    """The simulated world.

    Attributes:
        nodes: machines.
        per_node: workers on each.
        interval_s: seconds between decisions; 0 decides at every arrival and end.
        revisit_s: with ``interval_s`` 0, a decision is also made after this long without one.
        rescale_s: seconds without progress after a start or a change.
        knowledge: what policies know of speeds. ``learned``: what the job itself and earlier jobs of its kind showed
            in this simulation; ``history``: also a kind's speeds at 1, 2, 4, ... workers, from jobs before it;
            ``true``: at every count.
        oracle: whether policies are told the true work of jobs that never ran. Else they know what the service knows:
            what a job's master counted once it had started, and before that the mean of jobs of its kind.
        error: speeds and remaining work are told with factors drawn from 1 - error to 1 + error.
        seed: of these factors.
        timeline: whether to keep the course of every job.
    """

    nodes: int = 16
    per_node: int = 4
    interval_s: float = 60.0
    revisit_s: float = 300.0
    rescale_s: float = 30.0
    knowledge: Knowledge = "learned"
    oracle: bool = False
    error: float = 0.0
    seed: int = 0
    timeline: bool = False

    @property
    def slots(self) -> int:
        """Workers that fit the cluster."""
        return self.nodes * self.per_node


@dataclass
class JobHistory:
    """The history of a job.

    Attributes:
        job: from the workload.
        work: its work.
        started_at: when it first had workers.
        admitted_at: since when it has workers; None while it waits.
        finished_at: when it ended.
        changes: starts and changes of its workers.
        pause_s: seconds until it makes progress again.
        service: worker-seconds received.
        rescaled_at: when it last changed.
        measured: observed records/s by worker count.
        crowd: integral over its life of the number of jobs in the cluster, for fairness.
        fair_s: seconds it would take with an equal share; set at its end.
    """

    job: SimulatedJob
    work: SimulatedWork
    started_at: float | None = None
    admitted_at: float | None = None
    finished_at: float | None = None
    changes: int = 0
    pause_s: float = 0.0
    service: float = 0.0
    rescaled_at: float | None = None
    measured: dict[int, float] = field(default_factory=dict)
    crowd: float = 0.0
    alone_s: float = 0.0

    @property
    def completion_s(self) -> float:
        """Seconds from submission to the end."""
        return (self.finished_at or math.inf) - self.job.submitted_at

    @property
    def restarts(self) -> int:
        """Changes after the first start."""
        return max(self.changes - 1, 0)


@dataclass
class SimulationResult:
    """The course of a simulation.

    Attributes:
        policy: the name given to it.
        settings: the world.
        records: every job's record, in the order of submission.
        makespan_s: from the first submission to the last end.
        given: integral of workers given, in worker-seconds.
        timeline: (seconds, workers by job) after each decision that changed anything, if it was asked for.
        decisions: how often the policy was asked.
    """

    policy: str
    settings: SimulationSettings
    records: list[JobHistory]
    makespan_s: float = 0.0
    given: float = 0.0
    timeline: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    decisions: int = 0


class Simulation:
    """One run of one policy on one workload.

    Args:
        jobs: the workload.
        policy: decides.
        settings: the world.
        name: of the policy in reports.
        elastic: whether jobs can have any size, or only the one asked for.
        asked: whether elastic jobs get at most the size asked for; else as many as they can use.
        pack: how workers are placed.
        knows_speeds: whether the policy is given true speeds, whatever the settings say.
    """

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        policy: Policy,
        settings: SimulationSettings,
        *,
        name: str = "",
        elastic: bool = True,
        asked: bool = False,
        pack: bool = True,
        knows_speeds: bool = False,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._elastic = elastic
        self._asked = asked
        self._knowledge: Knowledge = "true" if knows_speeds else settings.knowledge
        self._machines = Machines(settings.nodes, settings.per_node, pack=pack)
        self._waiting = [JobHistory(job, job.make_work()) for job in sorted(jobs, key=lambda j: j.submitted_at)]
        self._unfinished: dict[str, JobHistory] = {}
        self._result = SimulationResult(name or policy.name, settings, list(self._waiting))
        self._now = 0.0
        self._random = random.Random(settings.seed)
        self._factors: dict[tuple[str, int], float] = {}
        self._kinds: dict[str, list[dict[int, float]]] = {}
        self._curves: dict[str, dict[int, float]] = {}
        self._capacity = Capacity.of_slots(settings.slots)
        self._dirty: set[str] = set()
        self._work: dict[str, deque[float]] = {}

    def run(self, progress: Callable[[float, int, int], None] | None = None) -> SimulationResult:
        """Runs to the end of the last job.

        Args:
            progress: called now and then with the simulated seconds, the ended jobs and all jobs.

        Raises:
            InvalidInputError: the policy leaves a job waiting for ever.
        """
        total = len(self._result.records)
        first = self._result.records[0].job.submitted_at if total else 0.0
        ended = 0
        idle_rounds = 0
        while self._waiting or self._unfinished:
            until = self._next_decision()
            finished = self._advance(until)
            ended += finished
            self._admit_arrivals()
            if self._unfinished:
                changed = self._decide()
                moved = changed or finished or any(self._machines.count(j) for j in self._unfinished)
                idle_rounds = 0 if moved else idle_rounds + 1
                if idle_rounds > 1000 and not self._waiting:
                    stuck = ", ".join(list(self._unfinished)[:5])
                    raise InvalidInputError(
                        f"the policy {self._result.policy} never starts {stuck}",
                        fix="a job may ask for more than the cluster has: give --nodes more machines",
                    )
            if progress is not None and self._result.decisions % 200 == 0:
                progress(self._now, ended, total)
        last = max((r.finished_at or 0.0 for r in self._result.records), default=0.0)
        self._result.makespan_s = last - first
        return self._result

    def _next_decision(self) -> float:
        settings = self._settings
        if settings.interval_s > 0:
            at = self._now + settings.interval_s
            if not self._unfinished and self._waiting:
                rounds = math.ceil((self._waiting[0].job.submitted_at - self._now) / settings.interval_s)
                at = self._now + max(rounds, 1) * settings.interval_s
            return at
        candidates = [self._waiting[0].job.submitted_at] if self._waiting else []
        for job_id, record in self._unfinished.items():
            placement = self._machines.placement(job_id)
            if placement:
                candidates.append(self._now + record.pause_s + record.work.seconds_left(placement))
        if self._unfinished:
            candidates.append(self._now + settings.revisit_s)
        return max(min(candidates), self._now)

    def _advance(self, until: float) -> int:
        """Turns the clock; returns how many jobs ended on the way."""
        finished = []
        crowd = len(self._unfinished)
        for job_id, record in self._unfinished.items():
            record.crowd += crowd * (until - self._now)
            placement = self._machines.placement(job_id)
            if not placement:
                continue
            workers = sum(placement)
            seconds = until - self._now
            pause = min(record.pause_s, seconds)
            record.pause_s -= pause
            seconds -= pause
            worked = 0.0
            if seconds > 0:
                left = record.work.seconds_left(placement)
                worked = min(left, seconds)
                record.work.advance(placement, worked)
                self._observe(record, workers, record.work.rate(placement))
                if left <= seconds + 1e-6:
                    record.finished_at = self._now + pause + worked
                    finished.append(job_id)
            self._result.given += workers * (pause + worked)
            record.service += workers * (pause + worked)
        self._now = until
        for job_id in finished:
            record = self._unfinished.pop(job_id)
            record.crowd /= max(self._now - record.job.submitted_at, 1e-9)
        return len(finished)

    def _observe(self, record: JobHistory, workers: int, rate: float) -> None:
        if workers not in record.measured:
            record.measured[workers] = rate * self._factor(record.job.name, workers)
            kind = record.work.kind
            if len(record.measured) == 1:
                self._kinds.setdefault(kind, []).append(record.measured)
            self._dirty.add(kind)

    def _factor(self, name: str, what: int) -> float:
        """The error with which a number is told; always the same for the same number."""
        if self._settings.error <= 0:
            return 1.0
        key = (name, what)
        if key not in self._factors:
            self._factors[key] = 1.0 + self._settings.error * (2 * self._random.random() - 1)
        return self._factors[key]

    def _admit_arrivals(self) -> None:
        while self._waiting and self._waiting[0].job.submitted_at <= self._now + 1e-9:
            record = self._waiting.pop(0)
            record.alone_s = record.work.seconds_left((1,))
            self._unfinished[record.job.name] = record

    def _decide(self) -> bool:
        self._result.decisions += 1
        snapshot = Snapshot(self._now, tuple(self._view(r) for r in self._unfinished.values()), self._capacity)
        plan = self._policy.plan(snapshot)
        targets = plan.targets()
        changed = self._machines.assign(list(targets), targets)
        # Those that ended hold nothing any more; ``assign`` has freed them as they are in no plan.
        for job_id in changed:
            record = self._unfinished[job_id]
            if targets[job_id]:
                record.changes += 1
                record.pause_s = self._settings.rescale_s
                if record.started_at is None:
                    record.started_at = self._now
                    told = self._work.setdefault(record.work.kind, deque(maxlen=LATEST))
                    told.appendleft(record.work.remaining_records() * self._factor(record.job.name, -1))
                if record.admitted_at is None:
                    record.admitted_at = self._now
            else:
                record.admitted_at = None
            record.rescaled_at = self._now
        if self._settings.timeline and changed:
            self._result.timeline.append((self._now, {j: n for j, n in targets.items() if n}))
        return bool(changed)

    def _view(self, record: JobHistory) -> JobView:
        job = record.job
        workers = self._machines.count(job.name)
        most = min(record.work.most_workers, self._settings.slots) if self._elastic else job.requested
        if self._asked:
            most = max(min(most, job.requested), 1)
        remaining, error = self._remaining(record)
        return JobView(
            id=job.name,
            team=job.team,
            priority=job.priority,
            submitted_at=job.submitted_at,
            state=JobState.RUNNING if workers else JobState.QUEUED,
            min_workers=1 if self._elastic else most,
            max_workers=most,
            current_workers=workers,
            throughput=record.measured if self._knowledge != "true" else {},
            prior_throughput=self._prior(record),
            remaining_records=remaining,
            work_error=error,
            rescale_cost_s=self._settings.rescale_s,
            last_rescale_at=record.rescaled_at,
            started_at=record.admitted_at,
            attained_service=record.service,
            kind=record.work.kind,
        )

    def _remaining(self, record: JobHistory) -> tuple[float | None, float]:
        if self._settings.oracle or record.started_at is not None:
            return record.work.remaining_records() * self._factor(record.job.name, -1), 0.0
        known = expected_work(tuple(self._work.get(record.work.kind, ())))
        return (None, 0.0) if known is None else (known.records, known.spread)

    def _prior(self, record: JobHistory) -> dict[int, float]:
        kind = record.work.kind
        if self._knowledge == "learned":
            if kind in self._dirty:
                self._dirty.discard(kind)
                self._curves[kind] = mean_curve(self._kinds[kind])
            return self._curves.get(kind, {})
        if kind not in self._curves:
            most = min(record.work.most_workers, self._settings.slots)
            counts = range(1, most + 1) if self._knowledge == "true" else _HISTORY_COUNTS
            self._curves[kind] = {
                n: record.work.rate(packed(n, self._settings.per_node)) * self._factor(kind, n)
                for n in counts
                if n <= most
            }
        return self._curves[kind]


def simulate(
    jobs: Sequence[SimulatedJob],
    policy: str,
    settings: SimulationSettings,
    progress: Callable[[float, int, int], None] | None = None,
) -> SimulationResult:
    """Runs a policy by name.

    Raises:
        InvalidInputError: there is no policy of that name, or it never starts some job.
    """
    if policy not in CONTENDERS:
        raise InvalidInputError(
            f"there is no scheduling policy {policy!r}", fix=f"choose one of {', '.join(CONTENDERS)}"
        )
    contender = CONTENDERS[policy]
    return Simulation(
        jobs,
        contender.make(),
        settings,
        name=policy,
        elastic=contender.elastic,
        asked=contender.asked,
        pack=contender.pack,
        knows_speeds=contender.knows_speeds,
    ).run(progress)
