"""The scheduler's targets: decisions at scale, and the policies on recorded workloads.

./dev bench scheduler [--data DIR] [--quick] [--jobs 10000] [--nodes 10000]

``DIR`` holds ``pollux/workloads``, ``pollux/traces`` and ``elasticflow``; without it only what needs no data is run.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.harness import Report
from elasticdl_core.job import JobState
from elasticdl_core.scheduling import Capacity, JobView, NodeView, Plan, Resources, Snapshot
from elasticdl_core.scheduling.forecast import Change, what_if
from elasticdl_core.scheduling.policies import GoodputPolicy
from elasticdl_core.scheduling.simulator import Report as Outcome
from elasticdl_core.scheduling.simulator import (
    SimulatedJob,
    SimulationResult,
    SimulationSettings,
    read_applications,
    read_workload,
    simulate,
    summarise,
)
from elasticdl_core.scheduling.simulator.report import percentile
from elasticdl_core.scheduling.simulator.work import CurveWork
from elasticdl_runtime.memory import collector_paused

TIRESIAS = {1: 2473.7, 2: 5145.0, 3: 3876.3, 4: 3280.3, 5: 3501.0}
"""Average completion times that the Pollux artifact publishes for its Tiresias."""

REFERENCE = {
    "gang-backfill": 6368.0,
    "fifo": 5843.0,
    "tiresias": 3655.0,
    "equal-share": 3498.0,
    "simple-marginal": 2986.0,
    "optimus": 5314.0,
}
"""Mean completion time on workloads 1 to 5 that others' rules are known to reach."""

POLLUX_S = 2599.0
OWN_RESCALE_S = 5.0
TRACES = {"cluster10": 4, "cluster01": 16, "cluster05": 4, "cluster02": 32}
"""Machines of four GPUs for each of the simple traces."""

SAMPLED = {"cluster05": 1500, "cluster02": 1500}
"""Of the long traces only the first so many jobs are run."""

ABOUT = """\
Decisions are timed on a cluster of {jobs:,} jobs in 20 teams and 3 priorities, and {nodes:,} machines of 4 slots: a
full plan from nothing but a snapshot, and the plan after one job arrived or ended, from a planner that knows the
snapshot before. The recorded workloads are those of Pollux' artifact: 160 jobs each, 16 machines of 4 GPUs, decisions
every 60 s, 30 s without progress at each change. *Known* policies are told the speed at every size, *learned* ones
see what the job and those of its kind before it showed. All but *as the service* are told the work of jobs that
never ran. The clusters' traces have no speed-up curves; each of their
jobs is lent one of the measured curves by its GPU time. They are decided on at every event. The rules *fifo* and
*equal-share*, which do not look at speeds, give a job at most the workers that its owner asked for; *fair*, which is
an equal share too, gives as many as it can use. On the traces, *goodput* is held against the better of these two."""


class Cluster:
    """A large cluster to which one thing happens at a time."""

    def __init__(self, jobs: int, nodes: int) -> None:
        self.random = rng = random.Random(1)
        machines = [NodeView(f"node-{i}", Resources(slots=4.0)) for i in range(nodes)]
        self.capacity = Capacity.of_nodes(machines)
        self._speeds = [
            {n: 100.0 * n / (1 + rng.uniform(0.01, 0.3) * (n - 1)) for n in (1, 2, 4, 8, 16)} for _ in range(50)
        ]
        self._made = 0
        self.now = float(jobs)
        self.jobs = [self._job(float(i)) for i in range(jobs)]

    def _job(self, at: float) -> JobView:
        rng = self.random
        kind = rng.randrange(50)
        self._made += 1
        return JobView(
            id=f"job-{self._made}",
            team=f"team-{self._made % 20}",
            priority=rng.choice([0, 0, 0, 5, 10]),
            submitted_at=at,
            max_workers=rng.choice([4, 8, 16, 32]),
            prior_throughput=self._speeds[kind],
            remaining_records=rng.lognormvariate(13, 2),
            kind=str(kind),
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(self.now, tuple(self.jobs), self.capacity)

    def event(self) -> None:
        """A job ends, another arrives, or a machine goes or comes back."""
        what = self.random.randrange(3)
        if what == 0:
            self.jobs.pop(self.random.randrange(len(self.jobs)))
        elif what == 1:
            self.jobs.append(self._job(self.now))
        else:
            total = self.capacity.total
            self.capacity = replace(
                self.capacity, total=replace(total, slots=total.slots + self.random.choice([-4, 4]))
            )
        self.now += 1.0

    def carry_out(self, plan: Plan) -> None:
        for i, job in enumerate(self.jobs):
            workers = plan.allocations[job.id].workers
            if workers != job.current_workers:
                self.jobs[i] = replace(
                    job,
                    current_workers=workers,
                    state=JobState.RUNNING if workers else JobState.QUEUED,
                    started_at=job.started_at if job.current_workers else self.now,
                    last_rescale_at=self.now,
                )


def timed(function: Callable[[], Plan]) -> tuple[float, Plan]:
    """A decision as the scheduler makes it."""
    started = time.perf_counter()
    with collector_paused():
        plan = function()
    return time.perf_counter() - started, plan


def measure_decisions(jobs: int, nodes: int, events: int) -> tuple[list[float], list[float]]:
    """Seconds of full plans, and of plans after one event."""
    cluster = Cluster(jobs, nodes)
    policy = GoodputPolicy()
    _, plan = timed(lambda: policy.plan(cluster.snapshot()))
    cluster.carry_out(plan)
    cluster.now += 400.0
    gc.collect()
    gc.freeze()
    full = []
    planner = policy.incremental()
    cluster.carry_out(planner.plan(cluster.snapshot()))
    planner.plan(cluster.snapshot())
    single = []
    for i in range(events):
        cluster.event()
        snapshot = cluster.snapshot()
        seconds, plan = timed(lambda snapshot=snapshot: planner.plan(snapshot))  # type: ignore[misc]
        single.append(seconds)
        if i % 5 == 0:
            seconds, pure = timed(lambda snapshot=snapshot: policy.plan(snapshot))  # type: ignore[misc]
            full.append(seconds)
            if pure != plan:
                raise AssertionError("the incremental planner gave another plan than the policy")
        cluster.carry_out(plan)
    gc.unfreeze()
    return full, single


def measure_scale(report: Report, jobs: int, nodes: int, *, quick: bool) -> None:
    report.text("## Decisions at scale")
    rows = []
    for share in (0.01, 0.1, 1.0):
        count = max(int(jobs * share), 10)
        report.say(f"{count} jobs")
        full, single = measure_decisions(count, max(int(nodes * share), 10), 25 if quick else 150)
        rows.append((count, *(1000 * percentile(v, q) for v in (full, single) for q in (0.5, 0.99))))
    report.table(["jobs", "full p50, ms", "full p99, ms", "one event p50, ms", "one event p99, ms"], rows)
    report.target("plan_10k_p99_ms", rows[-1][2], 250.0, at_least=False)
    report.target("event_10k_ms", rows[-1][3], 20.0, at_least=False)
    report.target("plan_10k_memory_gb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1.0, at_least=False)
    figure, axes = new_figure("jobs", "milliseconds")
    counts = [row[0] for row in rows]
    for label, column in (("full plan, p99", 2), ("after one event, p50", 3)):
        axes.loglog(counts, [row[column] for row in rows], marker="o", label=label)
    axes.legend()
    report.plot("decisions", figure, "Time of a decision over the number of jobs")
    cluster = Cluster(200, 100)
    policy = GoodputPolicy()
    cluster.carry_out(policy.plan(cluster.snapshot()))
    change = Change(priorities={cluster.jobs[0].id: 20})
    times = []
    for _ in range(3):
        started = time.perf_counter()
        what_if(cluster.snapshot(), policy, change)
        times.append(time.perf_counter() - started)
    report.target("what_if_s", percentile(times, 0.5), 1.0, at_least=False)


def measure_two_jobs(report: Report) -> None:
    """Two jobs of 175 CPU on 320, the second after 300 s; each would take 650 s alone."""
    rates = {n: float(n) for n in range(1, 176)}
    jobs = [
        SimulatedJob(f"job-{i}", 300.0 * i, 175, lambda: CurveWork("linear", rates, 650.0 * 175)) for i in range(2)
    ]
    settings = SimulationSettings(nodes=320, per_node=1, interval_s=0.0, rescale_s=0.0, knowledge="true")
    ends = {policy: simulate(jobs, policy, settings).makespan_s for policy in ("gang", "fifo", "goodput")}
    report.text("## Two jobs of 175 on 320, the second after 300 s (simulated)")
    report.table(["policy", "both done after, s"], list(ends.items()))
    report.target("two_jobs_s", ends["goodput"], 1030.0, at_least=False)


class Side:
    """One policy in one world on all workloads."""

    def __init__(self, results: Sequence[SimulationResult]) -> None:
        self.outcomes = [summarise(result) for result in results]
        self.completions = [r.completion_s for result in results for r in result.records]

    def mean(self, field: Callable[[Outcome], float]) -> float:
        return sum(field(outcome) for outcome in self.outcomes) / len(self.outcomes)

    @property
    def average_s(self) -> float:
        return self.mean(lambda o: o.average_s)

    def row(self) -> tuple[float | str, ...]:
        return (
            self.average_s,
            self.mean(lambda o: o.median_s),
            self.mean(lambda o: o.p99_s / 3600),
            self.mean(lambda o: o.makespan_s / 3600),
            self.mean(lambda o: o.start_delay_s),
            f"{self.mean(lambda o: o.utilisation):.0%}",
            self.mean(lambda o: o.churn),
            f"{self.mean(lambda o: o.unfair):.0%}",
        )


HEADER = ["policy", "JCT, s", "p50, s", "p99, h", "makespan, h", "start delay, s", "in use", "churn", "unfair"]


def run_side(
    report: Report, jobs: Sequence[Sequence[SimulatedJob]], policy: str, settings: SimulationSettings
) -> Side:
    report.say(f"{policy}, {settings.knowledge}")
    return Side([simulate(one, policy, settings) for one in jobs])


def judge(report: Report, side: Side, suffix: str) -> None:
    report.target(f"jct_pollux{suffix}", side.average_s, 2865.0, at_least=False)
    report.target(f"p99_pollux{suffix}", side.mean(lambda o: o.p99_s / 3600), 12.2, at_least=False)
    report.target(f"makespan_pollux{suffix}", side.mean(lambda o: o.makespan_s / 3600), 18.2, at_least=False)
    report.target(f"churn{suffix}", side.mean(lambda o: o.churn), 2.0, at_least=False)


def measure_pollux(report: Report, folder: Path, *, quick: bool) -> None:
    """The policies on Pollux' workloads 1 to 5."""
    applications = read_applications(folder / "traces")
    workloads = [read_workload(folder / "workloads" / f"workload-{i}.csv", applications) for i in range(1, 6)]
    settings = SimulationSettings(oracle=True)  # as those whose results are known here
    told = replace(settings, knowledge="true")
    sides: dict[str, Side] = {}
    others = ("tiresias", "optimus", "equal-share", "fair", "fifo", "gang", "gang-backfill", "simple-marginal")
    for policy in others[:3] if quick else others:
        sides[policy] = run_side(report, workloads, policy, settings)
    sides["goodput, known"] = run_side(report, workloads, "goodput", told)
    sides["goodput, learned"] = run_side(report, workloads, "goodput", settings)
    sides["goodput, as the service"] = run_side(report, workloads, "goodput", replace(settings, oracle=False))
    sides["goodput, known, own cost"] = run_side(report, workloads, "goodput", replace(told, rescale_s=OWN_RESCALE_S))
    seeds = (1,) if quick else (1, 2, 3)
    wrong = [run_side(report, workloads, "goodput", replace(told, error=0.5, seed=seed)) for seed in seeds]
    report.text("## Pollux' workloads 1 to 5, means over the workloads")
    report.table(HEADER, [(name, *side.row()) for name, side in sides.items()])
    known = sides["goodput, known"]
    for i, outcome in enumerate(sides["tiresias"].outcomes, 1):
        report.target(f"tiresias_row_{i}", abs(outcome.average_s / TIRESIAS[i] - 1), 0.01, at_least=False)
    judge(report, known, "")
    judge(report, sides["goodput, learned"], "_learned")
    apart = sides["goodput, as the service"].average_s / sides["goodput, learned"].average_s - 1
    report.target("service_vs_oracle", apart, 0.03, at_least=False)
    report.target("jct_pollux_own_rescale", sides["goodput, known, own cost"].average_s, POLLUX_S, at_least=False)
    loss = sum(side.average_s for side in wrong) / len(wrong) / known.average_s - 1
    report.target("error_50", loss, 0.08, at_least=False)
    rows = [(name, sides[name].average_s, value) for name, value in REFERENCE.items() if name in sides]
    report.text("Others' rules here, and the same rules' known results:")
    report.table(["rule", "here, s", "known, s"], rows)
    show_completions(report, sides)


def show_completions(report: Report, sides: Mapping[str, Side]) -> None:
    figure, axes = new_figure("", "average completion, s")
    axes.bar(list(sides), [side.average_s for side in sides.values()])
    axes.tick_params(axis="x", rotation=60)
    report.plot("jct", figure, "Average completion time by policy")
    figure, axes = new_figure("completion, s", "share of jobs")
    for name, side in sides.items():
        ordered = sorted(side.completions)
        axes.semilogx(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=name)
    axes.legend(fontsize=7)
    report.plot("cdf", figure, "Distribution of completion times")


def new_figure(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.0, 3.6))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def measure_traces(report: Report, folder: Path, applications: Path, *, quick: bool) -> None:
    """The simple traces: real arrivals and durations."""
    curves = read_applications(applications)
    report.text(
        "## Clusters' traces, with speed-up curves lent by GPU-time class\n\nOf the long ones only the first are "
        "run: " + ", ".join(f"{count} of {name}" for name, count in SAMPLED.items()) + "."
    )
    for name, nodes in list(TRACES.items())[: 1 if quick else None]:
        jobs = read_workload(folder / f"{name}.csv", curves, limit=SAMPLED.get(name))
        settings = SimulationSettings(nodes=nodes, interval_s=0.0, revisit_s=3600.0, oracle=True)
        policies = ("tiresias", "optimus", "equal-share", "fair", "goodput")
        sides = {policy: run_side(report, [jobs], policy, settings) for policy in policies}
        report.table([f"{name}: {HEADER[0]}", *HEADER[1:]], [(policy, *side.row()) for policy, side in sides.items()])
        for other, allowed in (("tiresias", 1.0), ("optimus", 1.0), ("equal-share", 1.03)):
            best = sides[other].average_s
            if other == "equal-share":
                best = min(best, sides["fair"].average_s)
            ratio = sides["goodput"].average_s / best
            report.target(f"trace_{name}_vs_{other.replace('-', '_')}", ratio, allowed, at_least=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, help="folder with pollux/ and elasticflow/")
    parser.add_argument("--quick", action="store_true", help="a short run: fewer policies, seeds and traces")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    options = parser.parse_args()
    about = ABOUT.format(jobs=options.jobs, nodes=options.nodes)
    report = Report("scheduler", "Scheduling jobs", about, "./dev bench scheduler --data DIR")
    measure_two_jobs(report)
    measure_scale(report, options.jobs, options.nodes, quick=options.quick)
    if options.data is None:
        report.text("Without `--data` the recorded workloads are left out.")
    else:
        measure_pollux(report, options.data / "pollux", quick=options.quick)
        traces = options.data / "pollux" / "traces"
        measure_traces(report, options.data / "elasticflow", traces, quick=options.quick)
    report.write()


if __name__ == "__main__":
    main()
