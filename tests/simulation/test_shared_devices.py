"""Jobs that share devices, planned by each policy and placed as the agent places them, until all are done.

Time goes in rounds. A job works while its least number of workers run; drained workers keep their slot and device
for a round more. What is checked each round: no device is given out beyond its whole, and no slot twice. In the end:
every job that fits on the empty cluster has run to its end, so nobody starves in the pieces that others leave.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from elasticdl_core.devices import WHOLE, DevicePool, Place, parse_request
from elasticdl_core.job import JobState
from elasticdl_core.job.life import Desired
from elasticdl_core.ports.launcher import CapacityInfo, DeviceInfo, DeviceUse
from elasticdl_core.scheduling import POLICIES, Plan, ReasonCode, Snapshot, policy_by_name
from elasticdl_core.scheduling.pacing import pace
from elasticdl_runtime.scheduling import snapshot_of

pytestmark = pytest.mark.unit

ROUND_S = 120.0


@dataclasses.dataclass
class Worker:
    index: int
    order: int
    place: Place | None = None
    leaving: bool = False


@dataclasses.dataclass
class Job:
    id: str
    request: str
    least: int
    most: int
    work: int
    priority: int
    arrives: int
    state: JobState = JobState.QUEUED
    desired: Desired = Desired.RUN
    target: int = 0
    workers: list[Worker] = dataclasses.field(default_factory=list)
    started_at: float | None = None
    changed_at: float | None = None

    @property
    def share(self) -> int:
        return parse_request(self.request)


class World:
    """A cluster of one machine: its jobs, and an agent that gives out slots and devices first come, first served."""

    def __init__(self, policy: str, slots: int, devices: int, jobs: list[Job]) -> None:
        self.policy = policy_by_name(policy)
        self.slots, self.devices = slots, devices
        self.jobs = jobs
        self.round = self._orders = 0

    @property
    def now(self) -> float:
        return 1e6 + self.round * ROUND_S

    def present(self) -> list[Job]:
        return [job for job in self.jobs if job.arrives <= self.round and job.state is not JobState.SUCCEEDED]

    def held(self) -> list[tuple[int, Place]]:
        return [(job.share, worker.place) for job in self.jobs for worker in job.workers if worker.place is not None]

    def snapshot(self) -> Snapshot:
        used = {job.id: len(job.workers) for job in self.jobs if job.workers}
        uses = [
            DeviceUse(job.id, worker.index, worker.place, job.share)
            for job in self.jobs
            for worker in job.workers
            if worker.place and job.share
        ]
        infos = tuple(DeviceInfo(f"gpu{number}", declared=True) for number in range(self.devices))
        capacity = CapacityInfo(self.slots, used, devices=infos, device_uses=tuple(uses))
        return snapshot_of(self.now, [self._row(job) for job in self.present()], {}, capacity, {})

    def _row(self, job: Job) -> dict[str, Any]:
        status = {"progress": {"records_total": 1000.0, "records_done": 500.0}, "throughput": {"1": 1.0}}
        return {
            "id": job.id,
            "namespace": "default",
            "priority": job.priority,
            "submitted_at": 1e6 + job.arrives * ROUND_S,
            "state": job.state,
            "desired": job.desired,
            "min_workers": job.least,
            "max_workers": job.most,
            "target_workers": job.target,
            "status": status if job.state is JobState.RUNNING else {},
            "kind": "k",
            "last_rescale_at": job.changed_at,
            "started_at": job.started_at,
            "worker_resource_request": job.request,
        }

    def step(self) -> Plan:
        for job in self.jobs:
            job.workers = [worker for worker in job.workers if not worker.leaving]
            if job.desired is Desired.EVICT and not job.workers:
                job.state, job.desired = JobState.QUEUED, Desired.RUN
        self._start()
        plan = pace(snapshot := self.snapshot(), self.policy.plan(snapshot))
        for job in self.present():
            self._apply(job, plan)
        self._start()
        for job in self.present():
            running = sum(worker.place is not None for worker in job.workers)
            if job.state is JobState.RUNNING and running >= job.least:
                job.work -= 1
                if job.work <= 0:
                    job.state, job.target = JobState.SUCCEEDED, 0
                    for worker in job.workers:
                        worker.leaving = True
        self.check()
        self.round += 1
        return plan

    def _apply(self, job: Job, plan: Plan) -> None:
        allocation = plan.allocations[job.id]
        if job.desired is Desired.EVICT:
            return
        if job.state is JobState.QUEUED:
            if not allocation.admitted:
                return
            job.state, job.started_at = JobState.RUNNING, self.now
        if not allocation.admitted:
            job.desired = Desired.EVICT
        if allocation.workers != job.target:
            job.target, job.changed_at = allocation.workers, self.now
        staying = sorted((one for one in job.workers if not one.leaving), key=lambda one: one.index)
        for worker in staying[job.target :]:
            worker.leaving = True
            if worker.place is None:
                job.workers.remove(worker)
        taken = {worker.index for worker in job.workers}
        for _ in range(job.target - len(staying)):
            index = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(index)
            self._orders += 1
            job.workers.append(Worker(index, self._orders))

    def _start(self) -> None:
        pool = DevicePool([WHOLE] * self.devices)
        for share, place in self.held():
            if share:
                pool.take(share, place)
        free = self.slots - len(self.held())
        waiting = [(worker.order, job, worker) for job in self.jobs for worker in job.workers if worker.place is None]
        devices_open = True
        for _, job, worker in sorted(waiting, key=lambda row: row[0]):
            if free <= 0:
                return
            free -= 1
            place: Place | None = ()
            if job.share:
                place = pool.find(job.share) if devices_open else None
                devices_open = place is not None
            if place is not None:
                worker.place = place
                if job.share:
                    pool.take(job.share, place)

    def check(self) -> None:
        left = DevicePool([WHOLE] * self.devices)
        for share, place in self.held():
            if share:
                left.take(share, place)
        assert all(free >= 0 for free in left.free), left.free
        assert len(self.held()) <= self.slots


def make_jobs(rng: random.Random, devices: int, number: int) -> list[Job]:
    requests = ["", "gpu=0.5", "gpu=0.5", "gpu=0.25", "gpu=0.3", "gpu=0.7", "gpu=1"] + ["gpu=2"] * (devices > 1)
    jobs = []
    for i in range(number):
        least = rng.choice([1, 1, 1, 2])
        request = rng.choice(requests)
        while DevicePool([WHOLE] * devices).room(parse_request(request) or 1) < least:
            request = rng.choice(requests)
        most = least + rng.choice([0, 1, 3])
        jobs.append(
            Job(f"job-{i}", request, least, most, rng.randint(1, 5), rng.choice([0, 0, 0, 3]), rng.randint(0, 20))
        )
    return jobs


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(12))
def test_all_jobs_end_and_no_device_is_given_twice(policy: str, seed: int) -> None:
    rng = random.Random(f"{policy} {seed}")
    devices, slots = rng.choice([1, 2, 3, 4]), rng.choice([4, 6, 8])
    jobs = make_jobs(rng, devices, 14)
    if policy.startswith("gang"):
        for job in jobs:
            job.most = job.least  # all or nothing must fit, else it is rightly impossible
    world = World(policy, slots, devices, jobs)
    for _ in range(400):
        world.step()
        if all(job.state is JobState.SUCCEEDED for job in jobs):
            return
    left = [job for job in jobs if job.state is not JobState.SUCCEEDED]
    pytest.fail(f"still there: {left}")


@pytest.mark.parametrize("policy", POLICIES)
def test_two_halves_run_together_and_a_third_waits_by_name(policy: str) -> None:
    jobs = [Job(f"job-{name}", "gpu=0.5", 1, 1, 3 + i, 0, 0) for i, name in enumerate("abc")]
    world = World(policy, 8, 1, jobs)
    plan = world.step()
    waiting = [job for job in jobs if not plan.allocations[job.id].admitted]
    running = sorted(job.id for job in jobs if job not in waiting)
    assert len(waiting) == 1
    reason = plan.allocations[waiting[0].id].reason
    assert reason.code is ReasonCode.WAITING_FOR_CAPACITY
    assert f"waits for 0.5 of a GPU: 1 of 1 in use by {running[0]}, {running[1]}" in reason.text
    assert sorted(reason.blockers) == running
    for _ in range(20):
        world.step()
    assert all(job.state is JobState.SUCCEEDED for job in jobs)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "gang"])
def test_who_waits_for_a_device_holds_back_nobody_who_needs_none(policy: str) -> None:
    jobs = [Job(f"job-{name}", "gpu=1", 1, 1, 30, 0, 0) for name in "ab"] + [Job("plain", "", 1, 2, 3, 0, 1)]
    world = World(policy, 4, 1, jobs)
    for _ in range(6):
        world.step()
    assert [job.state for job in jobs] == [JobState.RUNNING, JobState.QUEUED, JobState.SUCCEEDED]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_more_important_whole_device_moves_a_half_that_fits_beside_another(policy: str) -> None:
    """Two halves live on two devices: the one that gives way comes back beside the other, though nothing ended."""
    halves = [Job(f"half-{name}", "gpu=0.5", 1, 1, 60, 0, 0) for name in "ab"]
    fillers = [Job(f"fill-{name}", "gpu=0.5", 1, 1, 2, 0, 0) for name in "cd"]
    whole = Job("whole", "gpu=1", 1, 1, 5, 9, 6)
    world = World(policy, 8, 2, [halves[0], fillers[0], halves[1], fillers[1], whole])
    world.jobs.sort(key=lambda job: job.arrives)
    for _ in range(3):
        world.step()
    spread = {worker.place for job in halves for worker in job.workers}
    for _ in range(20):
        world.step()
    assert whole.state is JobState.SUCCEEDED
    assert spread, "the halves ran before"
    assert all(job.state is JobState.RUNNING for job in halves)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_devices_such_a_job_is_told_so_and_holds_up_nobody(policy: str) -> None:
    wanting, plain = Job("wanting", "gpu=0.5", 1, 1, 1, 5, 0), Job("plain", "", 1, 2, 2, 0, 0)
    world = World(policy, 4, 0, [wanting, plain])
    plan = world.step()
    reason = plan.allocations["wanting"].reason
    assert reason.code is ReasonCode.IMPOSSIBLE
    assert "this cluster has no GPU" in reason.text and "--devices" in reason.text
    for _ in range(10):
        world.step()
    assert plain.state is JobState.SUCCEEDED and wanting.state is JobState.QUEUED


def test_more_than_the_whole_machine_is_impossible() -> None:
    world = World("goodput", 8, 2, [Job("wide", "gpu=0.7", 3, 3, 1, 0, 0)])
    reason = world.step().allocations["wide"].reason
    assert reason.code is ReasonCode.IMPOSSIBLE
    assert "0.7 of a GPU for each of 3 workers, and this cluster has 2 GPUs" in reason.text
