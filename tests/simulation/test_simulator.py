"""The simulator: readers, placement, known answers, and what holds for every run."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_core.scheduling.simulator import (
    CONTENDERS,
    SimulatedJob,
    SimulationSettings,
    read_applications,
    read_workload,
    simulate,
    summarise,
)
from elasticdl_core.scheduling.simulator.placer import Machines
from elasticdl_core.scheduling.simulator.report import percentile
from elasticdl_core.scheduling.simulator.triangles import Triangulation
from elasticdl_core.scheduling.simulator.work import CurveWork, MeasuredWork

pytestmark = pytest.mark.unit

EVENTS = SimulationSettings(nodes=320, per_node=1, interval_s=0.0, rescale_s=0.0, knowledge="true")


def linear_job(name: str, at: float, requested: int, seconds: float) -> SimulatedJob:
    rates = {n: float(n) for n in range(1, requested + 1)}
    return SimulatedJob(name, at, requested, lambda: CurveWork("linear", rates, seconds * requested))


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """An application whose step takes 1 s of work shared by all workers, and 0.1 s more across machines."""
    folder = tmp_path / "traces" / "toy"
    folder.mkdir(parents=True)
    placements = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "3", "4", "11", "12", "22", "44"):
        for local in (4, 8, 16, 32):
            sync = 0.0 if len(placement) == 1 else 0.1
            placements.append(f"{placement},{local},{local / 32 + sync},{sync}")
    (folder / "placements.csv").write_text("\n".join(placements))
    grid = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    grid += [f"{n},{n * w},{b},{b / 32 + 0.1},0.1" for n in (6, 8) for w in (1, 4) for b in (4, 8, 16, 32)]
    (folder / "scalability.csv").write_text("\n".join(grid))
    for batch in (32, 64):
        rows = ["progress,iteration,metric,grad_sqr,grad_var"]
        # With equal gradient square and variance of nothing, every step is one unit of progress.
        rows += [f"{100.0 * (epoch + 1)},{100 * (epoch + 1)},0.5,1.0,0.0" for epoch in range(3)]
        (folder / f"validation-{batch}.csv").write_text("\n".join(rows))
    return tmp_path / "traces"


def test_interpolation_of_a_plane_is_exact_and_clamped_outside() -> None:
    points = [(float(x), float(y)) for x in range(5) for y in range(7)]
    triangles = Triangulation(points)
    for point in ((0.5, 0.25), (3.7, 5.9), (2.0, 2.0), (0.0, 6.0)):
        value = sum(weight * (3 * x - 2 * y + 1) for (x, y), weight in triangles.weights(point))
        assert value == pytest.approx(3 * point[0] - 2 * point[1] + 1)
    assert triangles.weights((9.0, 9.0)) == [((4.0, 6.0), 1.0)]


def test_a_measured_application_takes_as_long_as_its_steps(traces: Path) -> None:
    application = read_applications(traces)["toy"]
    work = MeasuredWork(application, 32)
    assert work.seconds_left((1,)) == pytest.approx(300.0)
    assert work.seconds_left((4,)) == pytest.approx(75.0)
    assert work.seconds_left((2, 2)) == pytest.approx(105.0)
    assert work.remaining_records() == pytest.approx(300 * 32)
    work.advance((1,), 150.0)
    assert work.remaining_records() == pytest.approx(150 * 32)
    assert work.seconds_left((4,)) == pytest.approx(37.5)
    assert work.most_workers == 8


def test_gradients_are_added_up_where_the_batch_does_not_fit(traces: Path) -> None:
    application = read_applications(traces)["toy"]
    plan = application.divide(64, 1)
    assert (plan.local, plan.passes, plan.batch) == (32, 2, 64)
    assert application.step_seconds((1,), plan) == pytest.approx(2.0)


def test_placements_that_were_not_measured_are_interpolated(traces: Path) -> None:
    application = read_applications(traces)["toy"]
    work = MeasuredWork(application, 64)
    # 64 samples among 7 are 10 each, but 70 is more than the largest batch, so it is 9 each.
    assert work.rate((1,) * 7) == pytest.approx(63 / (9 / 32 + 0.1))


def test_both_formats_are_read_and_others_refused(traces: Path, tmp_path: Path) -> None:
    applications = read_applications(traces)
    pollux = tmp_path / "w.csv"
    pollux.write_text("name,time,application,num_replicas,batch_size\nb,20,toy,2,32\na,10,toy,1,64\n")
    jobs = read_workload(pollux, applications)
    assert [(job.name, job.submitted_at, job.requested) for job in jobs] == [("a", 10.0, 1), ("b", 20.0, 2)]
    unknown = tmp_path / "u.csv"
    unknown.write_text("name,time,application,num_replicas,batch_size\na,10,none,1,64\n")
    with pytest.raises(DataError, match="'none', which has no trace"):
        read_workload(unknown, applications)
    other = tmp_path / "o.csv"
    other.write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match="no known workload"):
        read_workload(other, applications)
    with pytest.raises(DataError, match="holds no traces"):
        read_applications(tmp_path / "nothing")


def test_a_job_of_the_simple_format_lasts_as_recorded_at_its_size(traces: Path, tmp_path: Path) -> None:
    application = read_applications(traces)["toy"]
    lent = dict.fromkeys(("cifar10", "deepspeech2", "yolov3", "imagenet"), application)
    lent_small = {name: dataclasses.replace(app, validation=_any_batch(app)) for name, app in lent.items()}
    path = tmp_path / "simple.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\nj,1000,600,2\nk,1100,36000,64\n")
    jobs = read_workload(path, lent_small)
    assert [job.submitted_at for job in jobs] == [0.0, 100.0]
    for job in jobs:
        work = job.make_work()
        assert work.seconds_left((job.requested,)) == pytest.approx(job.duration)


def _any_batch(application: object) -> dict[int, list[tuple[float, float, float]]]:
    curve = next(iter(application.validation.values()))  # type: ignore[attr-defined]
    return {32: curve, 4096: curve}


def test_small_jobs_are_packed_and_changed_ones_only_are_moved() -> None:
    machines = Machines(3, 4, pack=True)
    machines.assign(["a", "b"], {"a": 3, "b": 6})
    assert machines.placement("a") == (3,)
    assert machines.placement("b") == (4, 2)
    assert machines.assign(["a", "b", "c"], {"a": 3, "b": 6, "c": 1}) == {"c"}
    assert machines.placement("c") == (1,)
    with pytest.raises(ValueError, match="exceeds the capacity"):
        machines.assign(["a", "b", "c"], {"a": 3, "b": 6, "c": 4})


@pytest.mark.parametrize(("policy", "expected"), [("gang", 1300.0), ("fifo", 1010.0)])
def test_two_jobs_that_together_want_more_than_there_is(policy: str, expected: float) -> None:
    jobs = [linear_job(f"job-{i}", 300.0 * i, 175, 650.0) for i in range(2)]
    assert simulate(jobs, policy, EVENTS).makespan_s == pytest.approx(expected)


def test_goodput_ends_two_jobs_no_later_than_the_original() -> None:
    jobs = [linear_job(f"job-{i}", 300.0 * i, 175, 650.0) for i in range(2)]
    report = summarise(simulate(jobs, "goodput", EVENTS))
    assert report.makespan_s <= 1010.0 + 1e-6
    assert report.start_delay_s == 0.0


def test_tiresias_stops_a_job_that_used_sixteen_hours_for_a_newcomer() -> None:
    """At 17 h the long job has had 34 GPU-hours and gives way; the newcomer's hour comes out of its time."""
    settings = SimulationSettings(nodes=1, per_node=2, interval_s=3600.0, rescale_s=0.0)
    jobs = [linear_job("long", 0.0, 2, 20 * 3600.0), linear_job("new", 17 * 3600.0, 2, 3600.0)]
    result = simulate(jobs, "tiresias", settings)
    ended = {r.job.name: r.finished_at for r in result.records}
    # Decisions are made each hour, the first after one hour.
    assert ended == {"new": pytest.approx(18 * 3600.0), "long": pytest.approx(22 * 3600.0)}


def test_a_change_costs_its_pause() -> None:
    settings = SimulationSettings(nodes=1, per_node=1, interval_s=60.0, rescale_s=30.0)
    result = simulate([linear_job("a", 60.0, 1, 100.0)], "goodput", settings)
    (record,) = result.records
    assert record.started_at == 60.0
    assert record.finished_at == pytest.approx(60.0 + 30.0 + 100.0)
    assert record.restarts == 0


@pytest.mark.parametrize("policy", sorted(CONTENDERS))
def test_all_jobs_end_and_nobody_gets_more_than_there_is(policy: str) -> None:
    jobs = [linear_job(f"job-{i:02d}", 97.0 * i, 1 + i % 5, 200.0 + 40 * (i % 7)) for i in range(25)]
    settings = SimulationSettings(nodes=3, per_node=4, interval_s=60.0, timeline=True)
    result = simulate(jobs, policy, settings)
    report = summarise(result)
    assert report.jobs == 25
    assert all(sum(sizes.values()) <= 12 for _, sizes in result.timeline)
    assert 0 < report.utilisation <= 1
    for record in result.records:
        assert record.service >= 1.0
        assert record.work.remaining_records() == pytest.approx(0.0, abs=1e-6)
        assert record.completion_s >= record.job.make_work().seconds_left((record.work.most_workers,)) - 1e-6
    again = summarise(simulate(jobs, policy, settings))
    assert again == report


def test_what_policies_are_told_can_be_wrong_but_the_truth_stays() -> None:
    jobs = [linear_job(f"job-{i}", 50.0 * i, 4, 500.0) for i in range(6)]
    settings = SimulationSettings(nodes=2, per_node=4, error=0.5, seed=3)
    report = summarise(simulate(jobs, "goodput", settings))
    assert report.jobs == 6
    assert report.average_s >= 500.0


def test_a_job_that_never_fits_is_named() -> None:
    settings = SimulationSettings(nodes=1, per_node=2)
    with pytest.raises(InvalidInputError, match="never starts huge"):
        simulate([linear_job("huge", 0.0, 8, 10.0)], "gang", settings)
    with pytest.raises(InvalidInputError, match="no scheduling policy 'none'"):
        simulate([], "none", settings)


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.75) == 1.75
    assert math.isnan(percentile([], 0.5))


def test_policies_know_the_work_of_jobs_as_the_service_does() -> None:
    """They were told the truth of jobs that never ran, so that the shortest went first however new it was."""

    def job(name: str, kind: str, at: float, seconds: float) -> SimulatedJob:
        return SimulatedJob(name, at, 1, lambda: CurveWork(kind, {1: 1.0}, seconds))

    jobs = [
        *(job("long", "long", 0.0, 7200.0), job("unknown", "new", 1.0, 9000.0), job("first", "short", 2.0, 60.0)),
        *(job("short", "short", 16_210.0, 60.0), job("later", "long", 16_209.0, 7200.0)),
    ]
    settings = dataclasses.replace(EVENTS, nodes=1)

    def order(**changes: bool) -> list[str]:
        result = simulate(jobs, "goodput", dataclasses.replace(settings, **changes))
        return [r.job.name for r in sorted(result.records, key=lambda r: r.started_at or 0.0)]

    assert order() == ["long", "unknown", "first", "short", "later"]
    assert order(oracle=True) == ["long", "first", "unknown", "short", "later"]


@pytest.mark.parametrize("policy", ["fifo", "equal-share"])
def test_rules_that_know_no_speeds_give_no_more_than_was_asked_for(policy: str) -> None:
    rates = {n: float(n) for n in range(1, 9)}
    jobs = [SimulatedJob("small", 0.0, 2, lambda: CurveWork("linear", rates, 800.0))]
    settings = dataclasses.replace(EVENTS, nodes=8, timeline=True)
    assert simulate(jobs, policy, settings).timeline[0] == (0.0, {"small": 2})
    assert simulate(jobs, "goodput", settings).timeline[0] == (0.0, {"small": 8})


def test_gang_with_backfill_lets_any_job_pass_that_fits() -> None:
    jobs = [
        linear_job("first", 0.0, 3, 100.0),
        linear_job("large", 1.0, 4, 100.0),
        linear_job("long", 2.0, 1, 500.0),
    ]
    settings = dataclasses.replace(EVENTS, nodes=4)
    records = {r.job.name: r for r in simulate(jobs, "gang-backfill", settings).records}
    assert records["long"].started_at == pytest.approx(2.0)
    assert records["large"].started_at == pytest.approx(502.0)
