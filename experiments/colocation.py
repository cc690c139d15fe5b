"""Training under a service whose demand rises and falls: who gets the slots, and what it costs whom."""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.report import Report
from elasticdl import Client
from elasticdl.client import Job
from experiments.harness.cluster import command, results_of, simulated_job, temporary_cluster
from experiments.harness.recording import Array, Level, count, mean_over, read_journal, read_steps, workers_of
from experiments.harness.service import Demand, Service

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOTS = 20
MINIBATCH = 4
STEP_S = 0.5
GRACE_S = 10.0
DAY_S = 24 * 3600.0
MEASURED_S = 15.0
JOBS = ("blue", "green")
COLORS = ["#b279a2", "#4c78a8", "#54a24b", "#e45756"]
DATA = Path(__file__).resolve().parent / "data" / "service_demand.csv"
ABOUT = f"""Training jobs fill what a service leaves: the second experiment of the published design, which ran NGINX
under a varying load beside elastic training, and claims a utilisation above 90 %.

Here a local cluster has {SLOTS} worker slots. A service takes slots through a reservation (`elasticdl
reserve`), which goes before all jobs, as its demand says: a day with a quiet night, two humps and five
bursts, one value each ten minutes (`experiments/data/service_demand.csv`; the published curve was never
released as numbers, so this one is made up in its likeness). Two elastic jobs of 1 to {SLOTS}
workers take the rest. Everything is real but the computation: a minibatch takes {STEP_S:g} s by the clock
and next to no core. Utilisation is the share of the slots that the service was granted or that worker
processes held, by the clock of the agent that owns the processes, not sampled. A worker that starts, or
drains, holds its slot."""


@dataclass(frozen=True)
class Day:
    """Results of one run; times in real seconds since its begin.

    Attributes:
        length_s: of the run.
        service: slots that the service was granted.
        wanted: slots that it asked for.
        workers: slots held by each job's workers.
        waits: how long the service waited for each rise of its demand.
        jobs: how the jobs ended.
        records: records of each job, over all epochs.
        trained: records whose minibatches the workers noted.
        training_s: slot seconds of the run that workers spent in minibatches.
        ended_workers: workers that the agent ended because they stayed longer than the grace.
    """

    length_s: float
    service: Level
    wanted: Level
    workers: list[Level]
    waits: list[float]
    jobs: list[Job]
    records: int
    trained: list[float]
    training_s: float
    ended_workers: int

    def used(self, moments: Array) -> Array:
        """Share of the slots in use at each moment."""
        total: Array = sum((level.at(moments) for level in self.workers), self.service.at(moments))
        return total / SLOTS


def main() -> None:
    """Runs a day and writes the report."""
    parser = argparse.ArgumentParser(prog="./dev experiment colocation", description=__doc__)
    parser.add_argument("--minutes", type=float, help="real minutes that the day takes (default 8)")
    parser.add_argument("--quick", action="store_true", help="the afternoon and evening in 75 s")
    parser.add_argument("--keep", action="store_true", help="leave the cluster's directory for a look into it")
    options = parser.parse_args()
    demand = read_demand(DATA)
    scale = (options.minutes or 8.0) * 60.0 / DAY_S
    if options.quick:
        demand, scale = demand.part(14.0 * 3600.0, 21.5 * 3600.0), 0.01 / 3.6
    report = Report(
        "colocation", "Training beside a service", ABOUT, command("colocation"), results_of(options.quick)
    )
    day = run(report, demand, scale, options.keep)
    describe(report, day, scale)
    report.write()


def read_demand(path: Path) -> Demand:
    """The recorded demand, in slots of this cluster."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return Demand(
        [float(row["hour"]) * 3600.0 for row in rows], [round(float(row["demand"]) * SLOTS) for row in rows]
    )


def run(report: Report, demand: Demand, scale: float, keep: bool) -> Day:
    """Brings up the cluster, starts the jobs, lets the service live its day, and waits for the jobs."""
    settings = {"ELASTICDL_SCHEDULER_GOODPUT": f'{{"cooldown_s": {60 * scale:g}}}'}
    with temporary_cluster(keep) as cluster, cluster.up(SLOTS, "goodput", settings) as client:
        report.say("the cluster is up")
        steps = cluster.directory / "steps"
        warm_up = client.submit(job("warm-up", steps, round(2 * MEASURED_S / STEP_S) * MINIBATCH, max_workers=2))
        client.wait(warm_up.id, timeout_s=300, poll_s=0.2)
        length_s = demand.length_s * scale
        # What the service leaves, and a little more, so that there is work all day; one job may well end early.
        free = (SLOTS * demand.length_s - demand.slot_seconds) * scale
        records = round((1.1 * free + 10.0 * SLOTS) / len(JOBS) / STEP_S) * MINIBATCH
        jobs = [client.submit(job(name, steps, records, max_workers=SLOTS)) for name in JOBS]
        _await_work(client, jobs, report)
        service = Service(client, "shop", GRACE_S)
        report.say(f"the day begins: {length_s:.0f} s, demand from {min(demand.slots)} to {max(demand.slots)} slots")
        begin = service.live(demand, scale, report.say)
        ended = [client.wait(one.id, timeout_s=length_s + 600, poll_s=0.5) for one in jobs]
        report.say("the jobs have ended")
        stays = read_journal(cluster.journal)
        workers = [workers_of(stays, one.id) for one in jobs]
        noted = [read_steps(steps, one.id) for one in jobs]
        return Day(
            length_s,
            service.granted(begin),
            service.wanted(begin),
            [count(group, begin) for group in workers],
            service.waits,
            ended,
            records,
            [float(one.records.sum()) for one in noted],
            sum(one.between(begin, begin + length_s) for one in noted) / MINIBATCH * STEP_S,
            sum(stay.reason == "terminated" and stay.to_s < begin + length_s for group in workers for stay in group),
        )


def job(name: str, steps: Path, records: int, *, max_workers: int) -> dict[str, object]:
    """The specification of one of the jobs."""
    return simulated_job(
        name,
        steps,
        training_data=f"numbers-{records}",
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=4,
        min_workers=1,
        max_workers=max_workers,
        model_params={"step_s": STEP_S},
    )


def _await_work(client: Client, jobs: list[Job], report: Report) -> None:
    """Waits until the jobs fill the cluster."""
    deadline = time.monotonic() + 300.0
    while time.monotonic() < deadline:
        running = [sum(worker["state"] == "running" for worker in client.get(one.id).status.workers) for one in jobs]
        if sum(running) >= SLOTS:
            return
        time.sleep(0.25)
    report.say(f"the jobs run with {running} workers only; beginning all the same")


def describe(report: Report, day: Day, scale: float) -> None:
    """Tables, targets and the plot."""
    moments = np.arange(0.0, day.length_s, 0.01)
    used = day.used(moments)
    held_s = sum(mean_over(level, 0.0, day.length_s) for level in day.workers) * day.length_s
    report.text(f"A day took {DAY_S * scale:.0f} s here; the times below are real seconds.\n\n## What happened")
    changes = len(day.waits)
    rows: list[list[Any]] = [
        ["utilisation, mean", f"{used.mean():.1%}"],
        ["utilisation, 5th percentile of time", f"{np.percentile(used, 5):.1%}"],
        ["utilisation, minimum", f"{used.min():.1%}"],
        ["share of time at 90 % or more", f"{(used >= 0.9).mean():.1%}"],
        ["share of the workers' slot time in minibatches", f"{day.training_s / held_s:.1%}"],
        ["mean demand of the service", f"{day.wanted.at(moments).mean() / SLOTS:.1%}"],
        ["rises of its demand", changes],
        ["wait of the service, median", f"{np.median(day.waits):.2f} s"],
        ["wait of the service, longest", f"{max(day.waits):.2f} s"],
        ["workers ended after the grace", day.ended_workers],
        ["changes of the jobs' workers", sum(len(level.times) for level in day.workers)],
    ]
    report.table(["", ""], rows)
    names = ["job", "state", "records", "done", "trained, with repetitions"]
    table = [
        [name, str(one.state), day.records, one.status.progress.records_done, round(trained)]
        for name, one, trained in zip(JOBS, day.jobs, day.trained, strict=True)
    ]
    report.table(names, table)
    lost = sum(max(0, day.records - one.status.progress.records_done) for one in day.jobs)
    report.target("colocation_mean", float(used.mean()), 0.95)
    report.target("colocation_p5", float(np.percentile(used, 5)), 0.90)
    report.target("service_wait_s", max(day.waits), GRACE_S + 5.0, at_least=False)
    report.target("failed_jobs", sum(one.state != "SUCCEEDED" for one in day.jobs), 0, at_least=False)
    report.target("lost_records", lost, 0, at_least=False)
    report.text(
        f"The service waits from the rise of its demand until all of it is granted; workers have {GRACE_S:g} s to "
        "leave. The scheduler's cool-down is scaled as time is; leases, heartbeats and the start of processes not."
    )
    report.plot(
        "slots", plot(day, scale), "Slots of the service and of each job over the day, and those that are idle"
    )


def plot(day: Day, scale: float) -> Figure:
    """Plots the holders of slots, stacked."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    moments = np.linspace(0.0, day.length_s, 3000)
    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(9, 6), sharex=True, layout="constrained", height_ratios=[3, 1]
    )
    levels = [day.service.at(moments), *(level.at(moments) for level in day.workers)]
    hours = moments / scale / 3600.0
    top.stackplot(hours, *levels, labels=["service", *(f"job {name}" for name in JOBS)], colors=COLORS, step="post")
    top.step(hours, day.wanted.at(moments), where="post", color="black", linewidth=0.8, label="the service's demand")
    top.set_ylabel("slots")
    top.set_ylim(0, SLOTS)
    top.legend(loc="lower left", ncols=4, fontsize=8)
    bottom.step(hours, day.used(moments) * 100, where="post", color=COLORS[3], linewidth=0.8)
    bottom.axhline(90, color="gray", linewidth=0.8, linestyle=":")
    bottom.set_ylabel("utilisation, %")
    bottom.set_ylim(50, 101)
    bottom.set_xlim(hours[0], hours[-1])
    bottom.set_xlabel("hours of the day")
    return figure


if __name__ == "__main__":
    main()
