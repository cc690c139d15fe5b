"""The policy ``fair``: an equal share for every job of a team, and a weighted share for every team."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from elasticdl_core.scheduling.admission import AdmissionRules, admit, by_arrival, split_unwanted, tiers_of
from elasticdl_core.scheduling.capacity_tracker import CapacityTracker
from elasticdl_core.scheduling.plan import Plan
from elasticdl_core.scheduling.policies.gang import eta_from_measurements
from elasticdl_core.scheduling.policies.surplus import explained, next_size
from elasticdl_core.scheduling.raises import plan_with_raises
from elasticdl_core.scheduling.snapshot import JobView, Snapshot


class FairPolicy:
    """Max-min fairness: the next worker goes to the team, then the job, that has least for its weight.

    It looks at no speeds except to place reservations, so it is what a cluster can fall back to.
    """

    name = "fair"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decides on a target for every job of the snapshot."""
        return plan_with_raises(snapshot, self._decide, lambda job: job.smallest)

    def _decide(self, snapshot: Snapshot) -> Plan:
        """Admits with minimums, then levels what is left, tier by tier."""
        runnable, unwanted = split_unwanted(snapshot)
        rules = AdmissionRules(size=lambda job: job.smallest, queue_key=by_arrival, eta=eta_from_measurements)
        admission, tracker = admit(snapshot, tiers_of(runnable, rules), rules)
        sizes = {job.id: job.smallest for job in admission.admitted}
        tiers: dict[int, list[JobView]] = {}
        for job in admission.admitted:
            tiers.setdefault(job.priority, []).append(job)
        for priority in sorted(tiers, reverse=True):
            level(tiers[priority], sizes, tracker)
        granted = explained(admission.admitted, sizes, tracker)
        return Plan(self.name, granted | admission.refused | unwanted, admission.first_blocked)


def level(jobs: Sequence[JobView], sizes: dict[str, int], tracker: CapacityTracker) -> None:
    """Raises the least served team's least served job, one size at a time, while anything fits.

    Among equals the earliest goes first, so a worker left over does not wander.
    """
    queues: dict[str, list[tuple[float, float, str, JobView]]] = {}
    for job in jobs:
        cost = tracker.worker_cost(job)
        entry = (sizes[job.id] * cost, job.submitted_at, job.id, job)
        queues.setdefault(job.team, []).append(entry)
    for queue in queues.values():
        heapq.heapify(queue)
    teams = [(tracker.team_share(team), team) for team in queues]
    heapq.heapify(teams)
    while teams:
        _, team = heapq.heappop(teams)
        if _raise_one(queues[team], sizes, tracker):
            heapq.heappush(teams, (tracker.team_share(team), team))


def _raise_one(
    queue: list[tuple[float, float, str, JobView]], sizes: dict[str, int], tracker: CapacityTracker
) -> bool:
    """Raises the first job of the queue that can grow; those that cannot leave it."""
    while queue:
        _, submitted, job_id, job = heapq.heappop(queue)
        have = sizes[job_id]
        more = next_size(job, have)
        if more is None or tracker.obstacle(job, have, more) is not None:
            continue
        tracker.take(job, have, more)
        sizes[job_id] = more
        heapq.heappush(queue, (more * tracker.worker_cost(job), submitted, job_id, job))
        return True
    return False
