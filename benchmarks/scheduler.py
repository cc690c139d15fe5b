"""The scheduler's targets: decisions at scale, and the policies on recorded workloads.

    python benchmarks/scheduler.py [--data DIR] [--quick]

``DIR`` holds ``pollux/workloads``, ``pollux/traces`` and ``elasticflow``; without it only what needs no data is run.
Each target is a line ``TARGET <name> <value> <goal> met|missed``.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from elasticdl_core.job import JobState
from elasticdl_core.scheduling import Capacity, JobView, NodeView, Resources, Snapshot, policy_by_name
from elasticdl_core.scheduling.forecast import Change, what_if
from elasticdl_core.scheduling.simulator import (
    Report,
    SimulatedJob,
    SimulationSettings,
    read_applications,
    read_workload,
    simulate,
    summarise,
)
from elasticdl_core.scheduling.simulator.report import percentile
from elasticdl_core.scheduling.simulator.work import CurveWork

TIRESIAS = {1: 2473.7, 2: 5145.0, 3: 3876.3, 4: 3280.3, 5: 3501.0}
"""Average completion times that the Pollux artifact publishes for its Tiresias."""

POLLUX_AVERAGE_S = 2599.0
TRACES = {"cluster10": 4, "cluster01": 16, "cluster05": 4, "cluster02": 32}
"""Machines of four GPUs for each of the simple traces."""


def target(name: str, value: float, goal: str, met: bool, digits: int = 2) -> None:
    print(f"TARGET {name} {value:.{digits}f} {goal} {'met' if met else 'missed'}", flush=True)


def at_most(name: str, value: float, goal: float, digits: int = 2) -> None:
    target(name, value, f"<={goal:g}", value <= goal, digits)


def measure_scale(jobs: int, nodes: int) -> None:
    """A full plan from nothing, full plans of a running cluster, and plans after one arrival."""
    rng = random.Random(1)
    per_node = 4
    capacity = Capacity.of_nodes([NodeView(f"node-{i}", Resources(slots=per_node)) for i in range(nodes)])
    kinds = [{n: 100.0 * n / (1 + rng.uniform(0.01, 0.3) * (n - 1)) for n in (1, 2, 4, 8, 16)} for _ in range(50)]
    views = []
    for i in range(jobs):
        kind = rng.randrange(50)
        views.append(
            JobView(
                id=f"job-{i}",
                team=f"team-{i % 20}",
                priority=rng.choice([0, 0, 0, 5, 10]),
                submitted_at=float(i),
                max_workers=rng.choice([4, 8, 16, 32]),
                prior_throughput=kinds[kind],
                remaining_records=rng.lognormvariate(13, 2),
                kind=str(kind),
            )
        )
    snapshot = Snapshot(float(jobs), tuple(views), capacity)
    policy = policy_by_name("goodput")
    started = time.perf_counter()
    plan = policy.plan(snapshot)
    cold = time.perf_counter() - started
    running = tuple(
        replace(v, state=JobState.RUNNING, current_workers=n, started_at=0.0, last_rescale_at=0.0)
        if (n := plan.allocations[v.id].workers)
        else v
        for v in views
    )
    print(f"{jobs} jobs, {nodes} machines: {sum(plan.targets().values())} workers given; from nothing {cold:.3f} s")
    times: list[float] = []
    gc.collect()
    gc.freeze()
    for i in range(20):
        ended = rng.randrange(jobs)
        changed = [*running[:ended], *running[ended + 1 :]]
        changed.append(replace(views[ended], id=f"new-{i}", submitted_at=snapshot.now + i))
        step = Snapshot(snapshot.now + 300.0 + i, tuple(changed), capacity)
        started = time.perf_counter()
        policy.plan(step)
        times.append(time.perf_counter() - started)
    gc.unfreeze()
    at_most("plan_p99_seconds_10k_jobs_10k_nodes", percentile(times, 0.99), 0.25, 3)
    at_most("one_event_p50_seconds_10k_jobs_10k_nodes", percentile(times, 0.5), 0.02, 3)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    at_most("scheduler_memory_gib", memory, 1.0)
    small = replace(snapshot, jobs=running[:200], capacity=Capacity.of_slots(400))
    started = time.perf_counter()
    what_if(small, policy, Change(priorities={running[0].id: 20}))
    at_most("what_if_seconds_200_jobs", time.perf_counter() - started, 1.0)


def measure_two_jobs() -> None:
    """Two jobs of 175 CPU on 320, the second after 300 s; each would take 650 s alone."""
    rates = {n: float(n) for n in range(1, 176)}
    jobs = [
        SimulatedJob(f"job-{i}", 300.0 * i, 175, lambda: CurveWork("linear", rates, 650.0 * 175)) for i in range(2)
    ]
    settings = SimulationSettings(nodes=320, per_node=1, interval_s=0.0, rescale_s=0.0, knowledge="true")
    for policy in ("gang", "fifo", "goodput"):
        result = simulate(jobs, policy, settings)
        print(f"two jobs of 175 on 320, {policy}: {result.makespan_s:.0f} s")
    at_most("two_jobs_simulated_seconds", result.makespan_s, 1030, 0)


def run_all(workloads: Sequence[Sequence[SimulatedJob]], policy: str, settings: SimulationSettings) -> list[Report]:
    return [summarise(simulate(jobs, policy, settings)) for jobs in workloads]


def mean(reports: Sequence[Report], field: Callable[[Report], float]) -> float:
    return sum(field(r) for r in reports) / len(reports)


def show(name: str, reports: Sequence[Report]) -> None:
    average, p99, makespan, delay, churn, unfair = (
        mean(reports, field)
        for field in (
            lambda r: r.average_s,
            lambda r: r.p99_s / 3600,
            lambda r: r.makespan_s / 3600,
            lambda r: r.start_delay_s,
            lambda r: r.churn,
            lambda r: r.unfair,
        )
    )
    print(
        f"{name:28s} average {average:6.0f} s  p99 {p99:5.2f} h  makespan {makespan:5.2f} h  delay {delay:6.0f} s"
        f"  churn {churn:4.2f}  unfair {unfair:.0%}",
        flush=True,
    )


def measure_pollux(folder: Path, *, quick: bool) -> None:
    """The policies on Pollux' workloads 1 to 5, as in its paper: 64 GPUs, 60 s rounds, 30 s for a change."""
    applications = read_applications(folder / "traces")
    workloads = [read_workload(folder / "workloads" / f"workload-{i}.csv", applications) for i in range(1, 6)]
    settings = SimulationSettings()
    reproduced = run_all(workloads, "tiresias", settings)
    show("tiresias", reproduced)
    for i, report in enumerate(reproduced, 1):
        off = abs(report.average_s / TIRESIAS[i] - 1) * 100
        at_most(f"tiresias_workload_{i}_off_percent", off, 1.0)
    for policy in ("gang", "gang-backfill", "fifo", "optimus", "equal-share", "fair", "simple-marginal"):
        show(policy, run_all(workloads, policy, settings))
    known = run_all(workloads, "goodput", replace(settings, knowledge="true"))
    show("goodput, speeds known", known)
    judge("known", known)
    learned = run_all(workloads, "goodput", settings)
    show("goodput, speeds learned", learned)
    judge("learned", learned)
    cheap = run_all(workloads, "goodput", replace(settings, rescale_s=5.0, knowledge="true"))
    show("goodput, 5 s for a change", cheap)
    at_most("average_seconds_at_5s_rescale", mean(cheap, lambda r: r.average_s), POLLUX_AVERAGE_S, 0)
    if quick:
        return
    seeds = [
        run_all(workloads, "goodput", replace(settings, knowledge="true", error=0.5, seed=seed)) for seed in (1, 2, 3)
    ]
    show("goodput, ±50 % error", [report for reports in seeds for report in reports])
    loss = sum(mean(reports, lambda r: r.average_s) for reports in seeds) / 3 / mean(known, lambda r: r.average_s)
    at_most("loss_percent_at_50_percent_error", (loss - 1) * 100, 8.0)


def judge(how: str, reports: Sequence[Report]) -> None:
    at_most(f"average_seconds_speeds_{how}", mean(reports, lambda r: r.average_s), 2865, 0)
    at_most(f"p99_hours_speeds_{how}", mean(reports, lambda r: r.p99_s) / 3600, 12.2)
    at_most(f"makespan_hours_speeds_{how}", mean(reports, lambda r: r.makespan_s) / 3600, 18.2)
    at_most(f"churn_speeds_{how}", mean(reports, lambda r: r.churn), 2.0)


def measure_traces(folder: Path, applications: Path, *, quick: bool) -> None:
    """The simple traces: real arrivals and durations, with speed-up curves lent by GPU-time class."""
    curves = read_applications(applications)
    for name, nodes in list(TRACES.items())[: 2 if quick else 4]:
        jobs = read_workload(folder / f"{name}.csv", curves)
        settings = SimulationSettings(nodes=nodes, interval_s=0.0, revisit_s=3600.0)
        averages = {}
        for policy in ("tiresias", "optimus", "equal-share", "goodput"):
            report = summarise(simulate(jobs, policy, settings))
            averages[policy] = report.average_s
            show(f"{name}, {policy}", [report])
        for other, allowed in (("tiresias", 1.0), ("optimus", 1.0), ("equal-share", 1.03)):
            at_most(f"{name}_average_over_{other}", averages["goodput"] / averages[other], allowed, 3)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with pollux/ and elasticflow/")
    parser.add_argument("--quick", action="store_true", help="leave out the long traces and the error seeds")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    options = parser.parse_args(arguments)
    measure_two_jobs()
    measure_scale(options.jobs, options.nodes)
    if options.data is None:
        print("no --data: the recorded workloads are left out")
        return 0
    measure_pollux(options.data / "pollux", quick=options.quick)
    measure_traces(options.data / "elasticflow", options.data / "pollux" / "traces", quick=options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
