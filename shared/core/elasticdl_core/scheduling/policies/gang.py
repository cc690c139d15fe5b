"""The policy ``gang``: each job gets all the workers that it asked for, or none."""

from __future__ import annotations

from elasticdl_core.scheduling.admission import (
    AdmissionRules,
    admit,
    by_arrival,
    split_unwanted,
    tiers_of,
    unknown_eta,
)
from elasticdl_core.scheduling.plan import Allocation, Plan, Reason, ReasonCode
from elasticdl_core.scheduling.raises import plan_with_raises
from elasticdl_core.scheduling.snapshot import JobView, Snapshot
from elasticdl_core.scheduling.throughput import fit
from elasticdl_core.scheduling.words import workers_of


def eta_from_measurements(job: JobView, workers: int) -> float:
    """Seconds to the job's end with that many workers, from its own or similar jobs' speeds."""
    if job.remaining_records is None or not (job.throughput or job.prior_throughput):
        return float("inf")
    rate = fit(job.sizes, job.throughput, job.prior_throughput).rate(workers)
    return job.remaining_records / rate if rate > 0 else float("inf")


class GangPolicy:
    """All of ``max_workers`` or nothing, by priority, then in order of arrival.

    Args:
        backfill: whether later jobs may pass one that does not fit.
        protect_first: whether they may do so only as long as they do not delay it (EASY backfill); else any
            that fits may.
    """

    def __init__(self, *, backfill: bool = False, protect_first: bool = True) -> None:
        self._backfill = backfill
        self._protect_first = protect_first or not backfill

    @property
    def name(self) -> str:
        """``gang``, or ``gang-backfill``."""
        return "gang-backfill" if self._backfill else "gang"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decides on a target for every job of the snapshot."""
        # A gang that began with what was free has not been raised: it grows as it was to.
        return plan_with_raises(snapshot, self._decide, lambda job: job.smallest)

    def _decide(self, snapshot: Snapshot) -> Plan:
        """Admits jobs at their largest size only."""
        runnable, allocations = split_unwanted(snapshot)
        rules = AdmissionRules(
            size=lambda job: job.largest,
            queue_key=by_arrival,
            eta=eta_from_measurements if self._backfill else unknown_eta,
            backfill=self._backfill,
            protect_first=self._protect_first,
        )
        admission, _ = admit(snapshot, tiers_of(runnable, rules), rules)
        order: dict[str, Allocation] = {}
        for job in admission.admitted:
            text = f"it has all {workers_of(job.largest)} that it asked for"
            order[job.id] = Allocation(job.largest, True, Reason(ReasonCode.AT_MAX, text))
        return Plan(self.name, order | admission.refused | allocations, admission.first_blocked)
