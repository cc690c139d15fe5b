"""Raised minimums of running jobs: a wish, which the minimums of peers precede.

A running job's claim is the workers that it has. When its minimum is raised above them it goes on with these until
the new one fits beside the minimums of all jobs that are as important as it or more; less important ones, and what is
above minimums, make room for it. So a raise evicts no peer, and never the job itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from elasticdl_core.scheduling.plan import Allocation, Plan, Reason, ReasonCode
from elasticdl_core.scheduling.snapshot import JobView, Snapshot
from elasticdl_core.scheduling.words import workers_of

SizeOf = Callable[[JobView], int]
_WAITS = frozenset({ReasonCode.WAITING_FOR_CAPACITY, ReasonCode.WAITING_BEHIND, ReasonCode.EVICTED})
"""Why a peer does not run that a raise must not go before."""
_MOST_NAMED = 5


def plan_with_raises(snapshot: Snapshot, decide: Callable[[Snapshot], Plan], size: SizeOf) -> Plan:
    """Decides, where running jobs have fewer workers than they are to have at least.

    Args:
        snapshot: the cluster.
        decide: the policy, for jobs that have an allowed size or none.
        size: the size that a job is admitted with.
    """
    raised = {job.id: job for job in snapshot.jobs if is_raised(job, size)}
    if not raised:
        return decide(snapshot)
    held = {job_id: _as_it_is(job) for job_id, job in raised.items()}
    plan = decide(_with(snapshot, held))
    refusals: dict[str, Allocation] = {}
    for job in sorted(raised.values(), key=lambda job: (-job.priority, job.started_at or 0.0, job.id)):
        if not plan.allocations[job.id].admitted:
            continue  # more important minimums take even what it has
        peers = _waiting_peers(job, snapshot, plan)
        if not peers:
            others = {job_id: view for job_id, view in held.items() if job_id != job.id}
            tried = decide(_with(snapshot, others))
            if _spares_peers(job, snapshot, plan, tried):
                plan, held = tried, others
                continue
            refusals[job.id] = tried.allocations[job.id]
            peers = _harmed(job, snapshot, plan, tried) or list(refusals[job.id].reason.blockers)
        refusals[job.id] = _goes_on(job, size(job), peers, refusals.get(job.id))
    allocations = {job_id: refusals.get(job_id, allocation) for job_id, allocation in plan.allocations.items()}
    return replace(plan, allocations=allocations)


def is_raised(job: JobView, size: SizeOf) -> bool:
    """Whether a job runs with fewer workers than it is to have at least."""
    return 0 < job.current_workers < size(job) and job.schedulable


def _as_it_is(job: JobView) -> JobView:
    """The job with what it has as its only size."""
    return replace(
        job,
        min_workers=job.current_workers,
        max_workers=job.current_workers,
        step=1,
        allowed_sizes=(job.current_workers,),
    )


def _with(snapshot: Snapshot, views: Mapping[str, JobView]) -> Snapshot:
    return replace(snapshot, jobs=tuple(views.get(job.id, job) for job in snapshot.jobs))


def _peers(job: JobView, snapshot: Snapshot) -> Iterable[JobView]:
    return (other for other in snapshot.jobs if other.id != job.id and other.priority >= job.priority)


def _waiting_peers(job: JobView, snapshot: Snapshot, plan: Plan) -> list[str]:
    """The jobs whose minimums wait for room, and would wait longer."""
    return [
        other.id
        for other in _peers(job, snapshot)
        if not plan.allocations[other.id].admitted and plan.allocations[other.id].reason.code in _WAITS
    ]


def _harmed(job: JobView, snapshot: Snapshot, before: Plan, after: Plan) -> list[str]:
    """The jobs that would run without the raise, and not with it."""
    return [
        other.id
        for other in _peers(job, snapshot)
        if before.allocations[other.id].admitted and not after.allocations[other.id].admitted
    ]


def _spares_peers(job: JobView, snapshot: Snapshot, before: Plan, after: Plan) -> bool:
    return after.allocations[job.id].admitted and not _harmed(job, snapshot, before, after)


def _goes_on(job: JobView, wanted: int, peers: list[str], refused: Allocation | None) -> Allocation:
    """The allocation that it has, with the reason why not more."""
    have = job.current_workers
    if refused is not None and refused.reason.code in (ReasonCode.IMPOSSIBLE, ReasonCode.WAITING_FOR_QUOTA):
        why = refused.reason.text
    elif peers:
        named = ", ".join(peers[:_MOST_NAMED]) + (", ..." if len(peers) > _MOST_NAMED else "")
        why = f"the minimums of {named} go before it"
    else:
        why = "it does not fit beside the minimums that go before it"
    text = f"it goes on with {workers_of(have)} until its raised minimum of {workers_of(wanted)} fits: {why}"
    data: dict[str, float | str] = {"workers": have, "min_workers": wanted}
    return Allocation(have, True, Reason(ReasonCode.RAISE_WAITS, text, tuple(peers[:_MOST_NAMED]), data))
