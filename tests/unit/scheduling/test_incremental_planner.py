"""The incremental planner gives the plan of the pure policy after any course of events."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from elasticdl_core.job import JobState
from elasticdl_core.scheduling import Capacity, JobView, Plan, Quota, Resources, Snapshot
from elasticdl_core.scheduling.policies.goodput import GoodputPolicy

pytestmark = pytest.mark.unit

TEAMS = ("ads", "search", "vision")
CURVES = [{n: 40.0 * n / (1 + bend * (n - 1)) for n in (1, 2, 4, 8, 16)} for bend in (0.0, 0.02, 0.1, 0.4)]


class Cluster:
    """A cluster to which random things happen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.jobs: dict[str, JobView] = {}
        self.capacity = Capacity.of_slots(self.random.choice([6, 24, 60]))
        self.quotas: dict[str, Quota] = {}
        self.made = 0

    def snapshot(self) -> Snapshot:
        return Snapshot(self.now, tuple(self.jobs.values()), self.capacity, self.quotas)

    def arrive(self) -> None:
        rng = self.random
        smallest = rng.choice([1, 1, 1, 2, 4])
        self.made += 1
        job = JobView(
            id=f"job-{self.made:03d}",
            team=rng.choice(TEAMS),
            priority=rng.choice([0, 0, 0, 5]),
            submitted_at=self.now,
            min_workers=smallest,
            max_workers=smallest + rng.choice([0, 2, 8, 14]),
            prior_throughput=rng.choice([{}, *CURVES]),
            remaining_records=rng.choice([None, rng.lognormvariate(10, 2)]),
            rescale_cost_s=rng.choice([5.0, 30.0]),
            worker=Resources(slots=rng.choice([1.0, 1.0, 2.0]), memory=rng.choice([0.0, 100.0])),
            fixed=Resources(slots=rng.choice([0.0, 1.0])),
        )
        self.jobs[job.id] = job

    def change_one(self) -> None:
        if not self.jobs:
            return
        job = self.random.choice(list(self.jobs.values()))
        what = self.random.randrange(6)
        if what == 0:
            del self.jobs[job.id]
        elif what == 1 and job.current_workers:
            measured = {**job.throughput, job.current_workers: 30.0 * job.current_workers**0.8}
            self.jobs[job.id] = replace(job, throughput=measured)
        elif what == 2 and job.remaining_records is not None:
            self.jobs[job.id] = replace(job, remaining_records=job.remaining_records * 0.7)
        elif what == 3:
            self.jobs[job.id] = replace(job, priority=self.random.choice([0, 5]))
        elif what == 4:
            self.jobs[job.id] = replace(job, wanted=not job.wanted)
        else:
            self.jobs[job.id] = replace(job)  # The same again, as another object.

    def change_cluster(self) -> None:
        if self.random.random() < 0.5:
            memory = self.random.choice([0.0, 0.0, 3000.0])
            self.capacity = Capacity(Resources(slots=float(self.random.choice([4, 20, 23, 64])), memory=memory))
        else:
            limit = self.random.choice([None, Resources(slots=9.0)])
            guaranteed = self.random.choice([None, Resources(slots=6.0)])
            self.quotas = {self.random.choice(TEAMS): Quota(self.random.choice([1.0, 2.5]), guaranteed, limit)}

    def carry_out(self, plan: Plan) -> None:
        for job_id, job in list(self.jobs.items()):
            workers = plan.allocations[job_id].workers
            if workers == job.current_workers:
                continue
            self.jobs[job_id] = replace(
                job,
                current_workers=workers,
                state=JobState.RUNNING if workers else JobState.QUEUED,
                started_at=job.started_at if job.current_workers else self.now,
                last_rescale_at=self.now,
            )


@pytest.mark.parametrize("seed", range(20))
def test_a_planner_with_a_past_plans_like_one_without(seed: int) -> None:
    cluster = Cluster(seed)
    policy = GoodputPolicy()
    planner = policy.incremental()
    for _ in range(40):
        for _ in range(cluster.random.choice([0, 1, 1, 2, 5])):
            cluster.random.choice([cluster.arrive, cluster.arrive, cluster.change_one])()
        if cluster.random.random() < 0.1:
            cluster.change_cluster()
        snapshot = cluster.snapshot()
        plan = planner.plan(snapshot)
        expected = policy.plan(snapshot)
        assert list(plan.allocations.items()) == list(expected.allocations.items())
        assert plan == expected
        if cluster.random.random() < 0.8:
            cluster.carry_out(plan)
        cluster.now += cluster.random.choice([0.0, 1.0, 30.0, 90.0, 1000.0])


def test_a_clock_that_was_set_back_leads_to_no_other_plan() -> None:
    cluster = Cluster(1)
    for _ in range(12):
        cluster.arrive()
    policy = GoodputPolicy()
    planner = policy.incremental()
    cluster.carry_out(planner.plan(cluster.snapshot()))
    cluster.now += 500.0
    planner.plan(cluster.snapshot())
    cluster.now -= 490.0
    assert planner.plan(cluster.snapshot()) == policy.plan(cluster.snapshot())


def test_what_did_not_change_is_not_worked_out_again() -> None:
    cluster = Cluster(2)
    cluster.capacity = Capacity.of_slots(60)
    for _ in range(12):
        cluster.arrive()
    planner = GoodputPolicy().incremental()
    cluster.carry_out(planner.plan(cluster.snapshot()))
    first = planner.plan(cluster.snapshot())
    again = planner.plan(cluster.snapshot())
    assert again == first
    for job_id, allocation in again.allocations.items():
        if allocation.admitted:
            assert allocation is first.allocations[job_id]


def test_a_planner_that_failed_starts_anew() -> None:
    cluster = Cluster(1)
    planner = GoodputPolicy().incremental()
    for _ in range(12):
        cluster.arrive()
    planner.plan(cluster.snapshot())
    for _ in range(6):
        cluster.arrive()
    cluster.jobs["job-013"] = replace(cluster.jobs["job-013"], worker=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        planner.plan(cluster.snapshot())
    del cluster.jobs["job-013"]
    cluster.change_one()
    assert planner.plan(cluster.snapshot()) == GoodputPolicy().plan(cluster.snapshot())
