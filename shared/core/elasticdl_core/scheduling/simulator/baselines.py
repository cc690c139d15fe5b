"""Rules of other schedulers, to compare with. They know nothing of tiers, quotas or the cost of a change.

Each gives its allocations in the order in which they are to be placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elasticdl_core.scheduling.plan import Allocation, Plan, Reason, ReasonCode
from elasticdl_core.scheduling.policies import POLICIES, GangPolicy, Policy
from elasticdl_core.scheduling.snapshot import JobView, Snapshot


def _plan(name: str, sizes: Mapping[str, int]) -> Plan:
    def allocation(workers: int) -> Allocation:
        code = ReasonCode.AT_MAX if workers else ReasonCode.WAITING_FOR_CAPACITY
        return Allocation(workers, workers > 0, Reason(code, f"by the rule of {name}"))

    return Plan(name, {job_id: allocation(workers) for job_id, workers in sizes.items()})


class Tiresias:
    """Least attained service in two queues (Gu et al., NSDI 2019), as simulated for Pollux.

    A job that has used 16 GPU-hours falls to the second queue; within a queue the order is that of entering it. Jobs
    run at the size that they asked for, in that order, as far as they fit; others are stopped. Service counts from
    one decision to the next.
    """

    name = "tiresias"
    _DEMOTED_AT = 16 * 3600

    def __init__(self) -> None:
        self._queues: tuple[list[str], list[str]] = ([], [])
        self._running: set[str] = set()
        self._served: dict[str, int] = {}
        self._seen_at: dict[str, int] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        """Ages the queues and fills the cluster in their order. Not pure: the queues are remembered."""
        now = int(snapshot.now)
        jobs = snapshot.by_id
        first, second = ([job for job in queue if job in jobs] for queue in self._queues)
        known = set(first) | set(second)
        first += [job.id for job in snapshot.jobs if job.id not in known]
        for job_id in [*first, *second]:
            if job_id in self._running:
                self._served[job_id] = self._served.get(job_id, 0) + now - self._seen_at[job_id]
            self._seen_at[job_id] = now
        for job in snapshot.jobs:
            served = self._served.get(job.id, 0) * job.largest
            if job.id in first and served >= self._DEMOTED_AT:
                first.remove(job.id)
                second.append(job.id)
        self._queues = (first, second)
        free = snapshot.capacity.total.slots
        sizes: dict[str, int] = {}
        for job_id in [*first, *second]:
            size = jobs[job_id].largest
            sizes[job_id] = size if size <= free else 0
            free -= sizes[job_id]
        self._running = {job_id for job_id, size in sizes.items() if size}
        return _plan(self.name, sizes)


class Optimus:
    """The next GPU goes where it takes most off a job's remaining time (Peng et al., EuroSys 2018).

    Everybody gets one first. As in the artifact it is told true step times and remaining steps.
    """

    name = "optimus"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Fills greedily."""
        free = int(snapshot.capacity.total.slots)
        sizes: dict[str, int] = {}
        for job in snapshot.jobs:
            sizes[job.id] = 1 if free >= 1 else 0
            free -= sizes[job.id]
        gains = {job.id: self._gain(job, sizes[job.id], free) for job in snapshot.jobs}
        while free > 0 and gains:
            best = max(gains, key=lambda job_id: gains[job_id])
            if gains[best] <= 0:
                break
            sizes[best] += 1
            free -= 1
            gains[best] = self._gain(snapshot.by_id[best], sizes[best], free + 1)
        return _plan(self.name, dict(sorted(sizes.items(), key=lambda item: item[1])))

    @staticmethod
    def _gain(job: JobView, size: int, free: int) -> float:
        rates = job.prior_throughput
        if size == 0 or free < 1 or size + 1 > job.largest or size + 1 not in rates:
            return 0.0
        remaining = job.remaining_records or 0.0
        return remaining / rates[size] - remaining / rates[size + 1]


class EqualShare:
    """Everybody gets the same, up to what they asked for; the earliest first if there are more jobs than GPUs."""

    name = "equal-share"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Levels."""
        free = int(snapshot.capacity.total.slots)
        jobs = sorted(snapshot.jobs, key=lambda job: (job.submitted_at, job.id))[: max(free, 0)]
        sizes = {job.id: 0 for job in snapshot.jobs}
        growing = list(jobs)
        while free > 0 and growing:
            share = max(free // len(growing), 1)
            for job in list(growing):
                more = min(share, job.largest - sizes[job.id], free)
                sizes[job.id] += more
                free -= more
                if sizes[job.id] >= job.largest:
                    growing.remove(job)
        return _plan(self.name, sizes)


class SimpleMarginal:
    """The next GPU goes where it adds most speed, relative to one GPU and divided by the remaining time.

    The rule that ``goodput`` refines; it changes sizes whenever that looks better by anything at all.
    """

    name = "simple-marginal"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Fills greedily."""
        free = int(snapshot.capacity.total.slots)
        sizes: dict[str, int] = {}
        for job in snapshot.jobs:
            sizes[job.id] = 1 if free >= 1 else 0
            free -= sizes[job.id]
        gains = {job.id: self._gain(job, sizes[job.id]) for job in snapshot.jobs}
        while free > 0 and gains:
            best = max(gains, key=lambda job_id: gains[job_id])
            if gains[best] <= 0:
                break
            sizes[best] += 1
            free -= 1
            gains[best] = self._gain(snapshot.by_id[best], sizes[best])
        return _plan(self.name, dict(sorted(sizes.items(), key=lambda item: item[1])))

    @staticmethod
    def _gain(job: JobView, size: int) -> float:
        rates = job.prior_throughput
        if size == 0 or size + 1 > job.largest or size + 1 not in rates:
            return 0.0
        alone = (job.remaining_records or 0.0) / rates[1]
        return (rates[size + 1] - rates[size]) / rates[1] / max(alone, 1.0)


@dataclass(frozen=True)
class BaselinePolicy:
    """A policy in the simulator.

    Attributes:
        make: makes it, anew for each simulation.
        elastic: whether its jobs can have any size, or only the one that their owners asked for.
        asked: whether its elastic jobs get no more than their owners asked for. Rules that do not look at speeds take
            that for what a job can use; those that do find out for themselves.
        pack: how its workers are placed, see ``Machines``.
        knows_speeds: it is given true speeds at every size, as published; others learn them.
    """

    make: Callable[[], Policy]
    elastic: bool = True
    asked: bool = False
    pack: bool = False
    knows_speeds: bool = False


CONTENDERS: Mapping[str, BaselinePolicy] = {
    "goodput": BaselinePolicy(POLICIES["goodput"], pack=True),
    "fair": BaselinePolicy(POLICIES["fair"], pack=True),
    "fifo": BaselinePolicy(POLICIES["fifo"], asked=True, pack=True),
    "gang": BaselinePolicy(POLICIES["gang"], elastic=False),
    "gang-backfill": BaselinePolicy(lambda: GangPolicy(backfill=True, protect_first=False), elastic=False, pack=True),
    "tiresias": BaselinePolicy(Tiresias, elastic=False),
    "optimus": BaselinePolicy(Optimus, knows_speeds=True),
    "equal-share": BaselinePolicy(EqualShare, asked=True),
    "simple-marginal": BaselinePolicy(SimpleMarginal, knows_speeds=True),
}

__all__ = ["CONTENDERS", "BaselinePolicy", "EqualShare", "Optimus", "SimpleMarginal", "Tiresias"]
