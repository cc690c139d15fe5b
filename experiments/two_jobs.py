"""Two jobs that together want more than the cluster: all or nothing against elastic."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.report import Report
from elasticdl import Client
from experiments.harness.cluster import LocalCluster, command, finished, results_of, simulated_job, temporary_cluster
from experiments.harness.recording import Level, Stay, Steps, count, mean_over, read_journal, read_steps, workers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOTS, WORKERS = 11, 6
ALONE_S, SECOND_AT_S = 650.0, 300.0
MINIBATCH = 4
STEP_S = 0.25
MEASURED_S = 15.0
"""A job that runs this long has told the scheduler its speed."""
COLORS = ["#4c78a8", "#f58518"]
GANG_S, ORIGINAL_S, IDEAL_S = 1300.0, 1100.0, 1010.0
ABOUT = f"""Two jobs on a cluster that cannot hold both: the first experiment of the published design. There, two jobs
of 175 CPUs each ran on 320 CPUs, each for about 650 s alone; the second was submitted at 300 s. One after
the other they took {GANG_S:.0f} s, and {ORIGINAL_S:.0f} s under the original's elastic scheduling.
{IDEAL_S:.0f} s is the best there is if no job can use more than 175 CPUs and the first job keeps them.

Here a local cluster of {SLOTS} worker slots runs two jobs of at most {WORKERS} workers, which are the same
ratios to 2 %. Everything is real (API, scheduler, masters, parameter servers, worker processes, Postgres,
Redis) but the computation: a minibatch takes {STEP_S:g} s by the clock and next to no core, so that n
workers are n times as fast as one on any machine. Time is scaled: all times are in the paper's seconds
unless they are called real."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of the two jobs under one policy; times in real seconds since the first was submitted.

    Attributes:
        policy: its name.
        ids: of the two jobs.
        submitted: when each was submitted.
        admitted: when each was given workers.
        ended: when each had ended.
        steps: their minibatches, on the clock.
        stays: their processes.
        origin: when the first was submitted, in seconds since the epoch.
    """

    policy: str
    ids: list[str]
    submitted: list[float]
    admitted: list[float]
    ended: list[float]
    steps: list[Steps]
    stays: list[Stay]
    origin: float

    def first_step(self, job: int) -> float:
        """When a job's first minibatch had ended."""
        return self.steps[job].first - self.origin

    def workers(self, job: int) -> Level:
        """A job's workers over time."""
        return count(workers_of(self.stays, self.ids[job]), self.origin)

    def all_workers(self) -> Level:
        """The workers of both."""
        return count([stay for stay in self.stays if stay.role == "worker" and stay.job_id in self.ids], self.origin)


def main() -> None:
    """Runs both policies and writes the report."""
    parser = argparse.ArgumentParser(prog="./dev experiment two_jobs", description=__doc__)
    parser.add_argument("--scale", type=float, help="real seconds a second of the paper's takes (default 0.3)")
    parser.add_argument("--quick", action="store_true", help="a scale of 0.05: a minute and a half in all")
    parser.add_argument("--keep", action="store_true", help="leave the cluster's directory for a look into it")
    options = parser.parse_args()
    scale = options.scale or (0.05 if options.quick else 0.3)
    report = Report("two_jobs", "Two jobs on one cluster", ABOUT, command("two_jobs"), results_of(options.quick))
    report.text(f"One second of the paper's takes {scale:g} s here.")
    outcomes = []
    with temporary_cluster(options.keep) as cluster:
        for policy in ("gang", "goodput"):
            settings = {"ELASTICDL_SCHEDULER_GOODPUT": f'{{"cooldown_s": {60 * scale:g}}}'}
            with cluster.up(SLOTS, policy, settings) as client:
                report.say(f"{policy}: the cluster is up")
                warm_up(client, cluster.directory / "steps")
                outcomes.append(run(report, client, cluster, policy, scale))
    describe(report, outcomes, scale)
    report.write()


def warm_up(client: Client, steps: Path) -> None:
    """Runs a small job to its end: the cluster has seen jobs of this kind, and no run pays for being the first."""
    spec = job("warm-up", steps, round(2 * MEASURED_S / STEP_S) * MINIBATCH, max_workers=2)
    finished(client.wait(client.submit(spec).id, timeout_s=300, poll_s=0.2))


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


def run(report: Report, client: Client, cluster: LocalCluster, policy: str, scale: float) -> Outcome:
    """Submits both jobs and waits for both."""
    steps = cluster.directory / "steps" / policy
    records = round(WORKERS * ALONE_S * scale / STEP_S) * MINIBATCH
    started = time.monotonic()
    jobs = [client.submit(job("first", steps, records, max_workers=WORKERS))]
    time.sleep(max(0.0, SECOND_AT_S * scale - (time.monotonic() - started)))
    jobs.append(client.submit(job("second", steps, records, max_workers=WORKERS)))
    limit = 4 * GANG_S * scale + 300
    ended = [finished(client.wait(one.id, timeout_s=limit, poll_s=0.2)) for one in jobs]
    origin = _seconds(ended[0].created_at)
    done = [one.status.progress.records_done for one in ended]
    if done != [records, records]:
        report.say(f"{policy}: records done {done}, not {records} each")
    admitted = [
        next(_seconds(event.at) for event in client.events(one.id) if event.detail.get("to") == "STARTING")
        for one in jobs
    ]
    report.say(f"{policy}: both jobs ended after {_seconds(ended[1].finished_at) - origin:.1f} s")
    return Outcome(
        policy,
        [one.id for one in jobs],
        [_seconds(one.created_at) - origin for one in ended],
        [at - origin for at in admitted],
        [_seconds(one.finished_at) - origin for one in ended],
        [read_steps(steps, one.id) for one in jobs],
        read_journal(cluster.journal),
        origin,
    )


def _seconds(moment: object) -> float:
    return moment.timestamp()  # type: ignore[attr-defined, no-any-return]


def describe(report: Report, outcomes: list[Outcome], scale: float) -> None:
    """Tables, targets and the plot."""
    rows = []
    for outcome in outcomes:
        end = max(outcome.ended)
        used = mean_over(outcome.all_workers(), 0.0, end) / SLOTS
        waits = [outcome.first_step(k) - outcome.submitted[k] for k in (0, 1)]
        rows.append(
            [
                outcome.policy,
                *(outcome.ended[k] / scale for k in (0, 1)),
                waits[1] / scale,
                waits[0],
                waits[1],
                f"{used:.1%}",
            ]
        )
    waits_of = ["second waits", "first waits, real s", "second waits, real s"]
    names = ["policy", "first ends", "second ends", *waits_of, "slots used"]
    report.text("## What happened")
    report.table(names, rows)
    report.text(
        "A job's wait is the time from its submission to the end of its first minibatch. The first job finds an "
        "empty cluster: its wait is the start of master, parameter server and worker, and one minibatch."
    )
    elastic = outcomes[-1]
    report.target("two_jobs_makespan_s", max(elastic.ended) / scale, 1030, at_least=False)
    wait, start = elastic.first_step(1) - elastic.submitted[1], process_start(elastic)
    report.target("second_job_wait_s", max(0.0, wait - start), 5, at_least=False)
    report.text(
        f"`second_job_wait_s` is in real seconds: {wait:.2f} s from submission to the first minibatch, less the "
        f"{start:.2f} s that the processes of the first job took on the empty cluster from admission to the first "
        "minibatch. Processes start no faster here than in a cluster that is not scaled: in the makespan every real "
        f"second of it counts {1 / scale:g} s. The scheduler's cool-down (60 s) is scaled as time is."
    )
    report.plot("workers", plot(outcomes, scale), "Slots in use by each job over time, under both policies")


def process_start(outcome: Outcome) -> float:
    """Real seconds from the first job's admission to its first minibatch."""
    return outcome.first_step(0) - outcome.admitted[0]


def plot(outcomes: list[Outcome], scale: float) -> Figure:
    """Workers of both jobs over time, stacked, one panel a policy."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    end = max(max(outcome.ended) for outcome in outcomes) / scale * 1.02
    figure, panels = pyplot.subplots(len(outcomes), 1, figsize=(9, 5.5), sharex=True, layout="constrained")
    moments = np.linspace(0, end, 2000)
    for panel, outcome in zip(panels, outcomes, strict=True):
        levels = [outcome.workers(k).at(moments * scale) for k in (0, 1)]
        panel.stackplot(moments, *levels, labels=["first job", "second job"], colors=COLORS, step="post")
        panel.axhline(SLOTS, color="black", linewidth=0.8, linestyle=":")
        panel.axvline(outcome.submitted[1] / scale, color="gray", linewidth=0.8)
        panel.set_title(f"{outcome.policy}: done after {max(outcome.ended) / scale:.0f} s", fontsize=10)
        panel.set_ylabel("slots in use")
        panel.set_ylim(0, SLOTS + 0.5)
    panels[0].legend(loc="upper right")
    panels[-1].set_xlabel("seconds (the paper's)")
    panels[-1].set_xlim(0, end)
    return figure


if __name__ == "__main__":
    main()
