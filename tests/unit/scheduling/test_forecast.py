"""ETA and what-if."""

from __future__ import annotations

import random
import statistics

import pytest

from elasticdl_core.errors import NotFoundError
from elasticdl_core.job import JobState
from elasticdl_core.scheduling import Capacity, JobView, Plan, Policy, Snapshot, policy_by_name
from elasticdl_core.scheduling import forecast as module
from elasticdl_core.scheduling.forecast import Change, forecast, what_if

pytestmark = pytest.mark.unit

LINEAR = {n: 10.0 * n for n in range(1, 9)}


def job(name: str, records: float | None, **fields: object) -> JobView:
    values: dict[str, object] = {
        "max_workers": 4,
        "prior_throughput": LINEAR,
        "remaining_records": records,
        "rescale_cost_s": 0.0,
    }
    return JobView(id=name, **(values | fields))  # type: ignore[arg-type]


def test_a_lone_job_ends_when_its_records_are_done_at_its_speed() -> None:
    snapshot = Snapshot(1000.0, (job("a", 4000.0),), Capacity.of_slots(4))
    expected = forecast(snapshot, policy_by_name("goodput"))
    assert expected.plan.targets() == {"a": 4}
    assert expected.starts == {"a": 1000.0}
    assert expected.ends == {"a": pytest.approx(1100.0)}


def test_a_waiting_job_starts_when_the_one_before_it_ends() -> None:
    running = job(
        "a", 4000.0, min_workers=4, current_workers=4, state=JobState.RUNNING, started_at=900.0, last_rescale_at=900.0
    )
    snapshot = Snapshot(1000.0, (running, job("b", 400.0, min_workers=2)), Capacity.of_slots(4))
    expected = forecast(snapshot, policy_by_name("goodput"))
    assert expected.starts["b"] == pytest.approx(1100.0)
    assert expected.ends["b"] == pytest.approx(1110.0)


def test_what_cannot_be_told_is_not_told() -> None:
    jobs = (job("unknown-work", None, min_workers=4), job("behind-it", 400.0, submitted_at=1.0))
    expected = forecast(Snapshot(0.0, jobs, Capacity.of_slots(4)), policy_by_name("fifo"))
    assert expected.ends == {"unknown-work": None, "behind-it": None}
    assert expected.starts["behind-it"] is None


@pytest.mark.parametrize("policy", ["goodput", "fair", "fifo", "gang"])
@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e300])
def test_speeds_that_no_job_has_stop_nobody(policy: str, rate: float) -> None:
    """Nor the scheduler, which asks the same policies: what a job reports is its owner's to choose."""
    odd = job("odd", 1e15, throughput={1: rate}, prior_throughput={1: rate}, current_workers=1, started_at=1.0)
    snapshot = Snapshot(10.0, (odd, job("b", 400.0)), Capacity.of_slots(8))
    assert forecast(snapshot, policy_by_name(policy)).plan.targets()["b"] >= 1


def test_what_if_compares_and_changes_nothing() -> None:
    snapshot = Snapshot(0.0, (job("a", 4000.0), job("b", 4000.0)), Capacity.of_slots(4))
    before = snapshot.to_mapping()
    answer = what_if(
        snapshot, policy_by_name("goodput"), Change(add=[job("c", 10_000.0, min_workers=2, priority=5)], slots=8)
    )
    assert answer.before.plan.targets() == {"a": 2, "b": 2}
    assert answer.after.plan.targets()["c"] == 4
    more = what_if(snapshot, policy_by_name("goodput"), Change(remove=["b"]))
    assert more.after.ends["a"] == pytest.approx(100.0)
    assert more.before.ends["a"] == pytest.approx(200.0)
    assert snapshot.to_mapping() == before


def test_what_if_refuses_jobs_that_do_not_exist() -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        what_if(Snapshot(0.0, (), Capacity.of_slots(1)), policy_by_name("fair"), Change(priorities={"nobody": 3}))


class Counted:
    """A policy that counts for how many jobs it is asked, over all decisions."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name
        self.asked = 0

    def plan(self, snapshot: Snapshot) -> Plan:
        self.asked += len(snapshot.jobs)
        return self._policy.plan(snapshot)


def crowd(jobs: int) -> Snapshot:
    """Jobs whose lengths spread over six orders of magnitude, on a cluster that half of them fill."""
    rng = random.Random(7)
    many = tuple(job(f"job-{i:04d}", rng.lognormvariate(9, 2.5), submitted_at=float(i)) for i in range(jobs))
    return Snapshot(float(jobs), many, Capacity.of_slots(jobs // 2))


@pytest.mark.parametrize("jobs", [500, 1000, 2000])
def test_the_work_of_a_forecast_hardly_grows_with_the_jobs(jobs: int) -> None:
    policy = Counted(policy_by_name("fifo"))
    expected = forecast(crowd(jobs), policy)
    assert None not in expected.ends.values() and None not in expected.starts.values()
    assert policy.asked <= 40_000


def test_a_coarse_forecast_of_many_jobs_tells_about_the_ends_of_a_fine_one(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, policy = crowd(400), policy_by_name("goodput")
    coarse = forecast(snapshot, policy).ends
    monkeypatch.setattr(module, "GROUPED", 0.01)
    monkeypatch.setattr(module, "CROWD", 1_000_000)
    fine = forecast(snapshot, policy).ends
    off = [abs((coarse[name] or 0.0) - (end or 0.0)) / ((end or 0.0) - snapshot.now) for name, end in fine.items()]
    assert statistics.median(off) < 0.05
    assert statistics.quantiles(off, n=10)[-1] < 0.25
