"""The numbers of a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elasticdl_core.scheduling.simulator.engine import JobHistory, SimulationResult
from elasticdl_core.scheduling.simulator.work import packed


@dataclass(frozen=True)
class Report:
    """Measures of a run; averages hide the trade-off, so all are reported together.

    Attributes:
        policy: its name.
        jobs: how many ended.
        average_s: mean seconds from submission to end.
        median_s: the middle one.
        p99_s: 99th percentile.
        makespan_s: from the first submission to the last end.
        start_delay_s: mean seconds from submission to the first worker.
        start_delay_p99_s: its 99th percentile.
        utilisation: share of the cluster's worker-seconds, from first to last, that were given out.
        churn: changes of a job after its first start, on average.
        unfair: share of jobs that took longer than with an equal share of the cluster (finish-time fairness > 1).
        worst_fairness: 99th percentile of the ratio to an equal share.
    """

    policy: str
    jobs: int
    average_s: float
    median_s: float
    p99_s: float
    makespan_s: float
    start_delay_s: float
    start_delay_p99_s: float
    utilisation: float
    churn: float
    unfair: float
    worst_fairness: float

    def to_mapping(self) -> dict[str, Any]:
        """The report as JSON data."""
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float:
    """The linearly interpolated percentile (0 to 1) of unsorted values; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summarise(result: SimulationResult) -> Report:
    """Computes the report of a run."""
    records = [r for r in result.records if r.finished_at is not None]
    completions = [r.completion_s for r in records]
    delays = [(r.started_at or 0.0) - r.job.submitted_at for r in records]
    fairness = [_fairness(r, result) for r in records]
    count = max(len(records), 1)
    return Report(
        policy=result.policy,
        jobs=len(records),
        average_s=sum(completions) / count,
        median_s=percentile(completions, 0.5),
        p99_s=percentile(completions, 0.99),
        makespan_s=result.makespan_s,
        start_delay_s=sum(delays) / count,
        start_delay_p99_s=percentile(delays, 0.99),
        utilisation=result.given / max(result.settings.slots * result.makespan_s, 1e-9),
        churn=sum(r.restarts for r in records) / count,
        unfair=sum(ratio > 1.0 for ratio in fairness) / count,
        worst_fairness=percentile(fairness, 0.99),
    )


def _fairness(record: JobHistory, result: SimulationResult) -> float:
    """Completion time over that with an equal share of the cluster among the jobs that were there."""
    share = result.settings.slots / max(record.crowd, 1.0)
    workers = min(max(int(share), 1), record.work.most_workers)
    work = record.job.make_work()
    equal = work.seconds_left(packed(workers, result.settings.per_node)) / min(share, 1.0)
    return record.completion_s / max(equal + result.settings.rescale_s, 1e-9)
