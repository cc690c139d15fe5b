"""Raised minimums of running jobs: a wish, which the minimums of peers precede."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl_core.job import JobState
from elasticdl_core.scheduling import POLICIES, Capacity, JobView, Plan, Snapshot, policy_by_name
from elasticdl_core.scheduling.pacing import pace
from elasticdl_core.scheduling.plan import ReasonCode
from tests.unit.scheduling.test_policy_properties import applied, assert_settles, snapshots, used

pytestmark = pytest.mark.unit
NAMES = sorted(POLICIES)


def running(job_id: str, least: int, most: int, has: int, **fields: object) -> JobView:
    known = {"state": JobState.RUNNING, "current_workers": has, "live_workers": has, "started_at": 1.0, **fields}
    return JobView(job_id, min_workers=least, max_workers=most, **known)  # type: ignore[arg-type]


def cluster(slots: int, *jobs: JobView) -> Snapshot:
    return Snapshot(10_000.0, jobs, Capacity.of_slots(slots))


@pytest.mark.parametrize("name", NAMES)
def test_a_raise_evicts_no_peer(name: str) -> None:
    """Four slots: raising the minimum of one job of two to 4 ended the other for good."""
    snapshot = cluster(4, running("a", 4, 4, 2), running("b", 2, 2, 2, started_at=2.0))
    plan = policy_by_name(name).plan(snapshot)
    assert plan.targets() == {"a": 2, "b": 2}
    reason = plan.allocations["a"].reason
    assert (reason.code, reason.blockers) == (ReasonCode.RAISE_WAITS, ("b",))
    assert reason.text == (
        "it goes on with 2 workers until its raised minimum of 4 workers fits: the minimums of b go before it"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_raise_does_not_stop_its_own_job(name: str) -> None:
    """With a less important job on the last slot the job had 0 "until the former users have left"."""
    snapshot = cluster(4, running("a", 4, 4, 3, priority=1), running("b", 1, 1, 1))
    plan = policy_by_name(name).plan(snapshot)
    assert plan.targets() == {"a": 4, "b": 0}
    now = pace(snapshot, plan)
    assert now.targets() == {"a": 3, "b": 0}
    left = dataclasses.replace(snapshot, jobs=(snapshot.jobs[0],))
    assert pace(left, policy_by_name(name).plan(left)).targets() == {"a": 4}


@pytest.mark.parametrize("name", NAMES)
def test_what_can_never_fit_changes_nothing(name: str) -> None:
    """A minimum of 6 on 4 slots stopped the job for good."""
    plan = policy_by_name(name).plan(cluster(4, running("a", 6, 6, 2)))
    assert plan.targets() == {"a": 2}
    assert "more than the whole cluster of 4 slots" in plan.allocations["a"].reason.text


@pytest.mark.parametrize("name", NAMES)
def test_peers_that_wait_go_first_and_less_important_ones_do_not(name: str) -> None:
    waiting = JobView("b", min_workers=3, max_workers=3, submitted_at=5.0)
    plan = policy_by_name(name).plan(cluster(4, running("a", 4, 4, 2), waiting))
    assert plan.targets() == {"a": 2, "b": 0}
    low = dataclasses.replace(waiting, priority=-1)
    assert policy_by_name(name).plan(cluster(4, running("a", 4, 4, 2), low)).targets() == {"a": 4, "b": 0}


def test_surplus_of_peers_makes_room() -> None:
    snapshot = cluster(4, running("a", 2, 2, 1), running("b", 1, 3, 3))
    for name in ("goodput", "fair", "fifo"):
        assert policy_by_name(name).plan(snapshot).targets() == {"a": 2, "b": 2}


@st.composite
def raised(draw: st.DrawFn) -> tuple[Snapshot, Snapshot]:
    """A cluster that is as a policy has left it, and the same with minimums of some jobs raised."""
    before = draw(snapshots())
    before = applied(before, policy_by_name("fair").plan(before))
    jobs = []
    for job in before.jobs:
        if job.current_workers and draw(st.booleans()):
            least = job.current_workers + draw(st.integers(1, 6))
            most = max(least, job.max_workers)
            job = dataclasses.replace(job, min_workers=least, max_workers=most, allowed_sizes=(), step=1)
        jobs.append(job)
    return before, dataclasses.replace(before, jobs=tuple(jobs))


def _evicted(snapshot: Snapshot, plan: Plan) -> set[str]:
    return {job.id for job in snapshot.jobs if job.current_workers and not plan.allocations[job.id].workers}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(states=raised())
def test_nobody_as_important_is_evicted_by_a_raise_nor_the_job_itself(
    name: str, states: tuple[Snapshot, Snapshot]
) -> None:
    before, after = states
    policy = policy_by_name(name)
    plan = policy.plan(after)
    now = pace(after, plan)
    lifted = [new for old, new in zip(before.jobs, after.jobs, strict=True) if old is not new]
    # What is evicted without any raise is not evicted by one: jobs that stay as they are.
    still = tuple(
        dataclasses.replace(new, min_workers=new.current_workers, allowed_sizes=(new.current_workers,))
        if any(new is one for one in lifted)
        else new
        for new in after.jobs
    )
    without = _evicted(before, policy.plan(dataclasses.replace(before, jobs=still)))
    for victim in _evicted(after, plan) - without:
        assert any(one.priority > after.by_id[victim].priority for one in lifted)
    for job in lifted:
        target = plan.allocations[job.id].workers
        assert target in (0, job.current_workers) or target >= job.min_workers
        if plan.allocations[job.id].workers:
            assert now.allocations[job.id].workers >= job.current_workers
    assert used(after, plan.targets()).slots <= after.capacity.total.slots + 1e-6
    assert policy.plan(after).to_mapping() == plan.to_mapping()
    assert_settles(policy, after)
