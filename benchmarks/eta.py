"""Measures errors of expected ends: forecasts during simulated jobs' lives against the ends that came true.

    python benchmarks/eta.py [--data DIR] [--points N]

``DIR`` holds ``pollux/workloads`` and ``pollux/traces``; without it only the generated workload is run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.report import Report
from elasticdl_core.scheduling import Plan, Policy, Snapshot, policy_by_name
from elasticdl_core.scheduling.explanation import eta
from elasticdl_core.scheduling.forecast import forecast
from elasticdl_core.scheduling.simulator import SimulatedJob, SimulationSettings, read_applications, read_workload
from elasticdl_core.scheduling.simulator.engine import Simulation
from elasticdl_core.scheduling.simulator.work import CurveWork

LIFE = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Parts of a job's life, from its submission to its end, at which its expected end is looked at."""


@dataclass(frozen=True)
class Told:
    """The forecast for a job at one moment.

    Attributes:
        at: when.
        ends_at: the expected end; None if it could not be told.
        earliest: lower bound.
        latest: upper bound.
        basis: how its speed was known.
        running: whether it had workers.
    """

    at: float
    ends_at: float | None
    earliest: float | None
    latest: float | None
    basis: str
    running: bool


@dataclass
class Recorder:
    """A policy that also forecasts, at every so many decisions.

    Attributes:
        policy: decides.
        every: decisions from one forecast to the next.
        told: what was expected, by job.
    """

    policy: Policy
    every: int
    told: dict[str, list[Told]] = field(default_factory=dict)
    _count: int = 0

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, snapshot: Snapshot) -> Plan:
        if self._count % self.every == 0:
            expected = forecast(snapshot, self.policy)
            for job in snapshot.jobs:
                found = eta(job, expected, snapshot.now)
                self.told.setdefault(job.id, []).append(
                    Told(
                        *(snapshot.now, found.ends_at, found.earliest, found.latest),
                        *(found.basis, job.current_workers > 0),
                    )
                )
        self._count += 1
        return self.policy.plan(snapshot)


@dataclass(frozen=True)
class Judged:
    """One expectation beside the truth: what was told, and the end that came true."""

    told: Told
    end: float

    @property
    def error(self) -> float | None:
        """Error of the remaining time relative to the true one; None if no end was told."""
        if self.told.ends_at is None:
            return None
        return abs(self.told.ends_at - self.end) / max(self.end - self.told.at, 1.0)

    @property
    def covered(self) -> bool:
        """Whether the end lay within the bounds."""
        return (
            self.told.earliest is not None
            and self.told.latest is not None
            and self.told.earliest <= self.end <= self.told.latest
        )


def judge(jobs: Sequence[SimulatedJob], settings: SimulationSettings, every: int) -> list[list[Judged]]:
    """Simulates, and gives what was expected of each job at each part of its life.

    Returns:
        One list for each of ``LIFE``.
    """
    recorder = Recorder(policy_by_name("goodput"), every)
    result = Simulation(jobs, recorder, settings).run()
    found: list[list[Judged]] = [[] for _ in LIFE]
    for record in result.records:
        told, end = recorder.told.get(record.job.name, []), record.finished_at
        if not told or end is None:
            continue
        life = end - record.job.submitted_at
        for place, part in zip(found, LIFE, strict=True):
            at = record.job.submitted_at + part * life
            nearest = min(told, key=lambda one: abs(one.at - at))
            if abs(nearest.at - at) <= 0.1 * life and nearest.at < end:
                place.append(Judged(nearest, end))
    return found


def generated(number: int, slots: int, seed: int = 7) -> list[SimulatedJob]:
    """Jobs of eight kinds, from minutes to hours, that keep the cluster busy and make jobs wait now and then."""
    rng = random.Random(seed)
    kinds = []
    for i in range(8):
        slope = rng.uniform(0.01, 0.25)
        most = rng.choice((4, 8, 16))
        kinds.append((f"kind-{i}", {n: 100.0 * n / (1 + slope * (n - 1)) for n in range(1, most + 1)}))
    jobs, now = [], 0.0
    for i in range(number):
        name, rates = rng.choice(kinds)
        alone_s = min(max(rng.lognormvariate(8.3, 1.2), 300.0), 100_000.0)
        now += rng.expovariate(1.0) * alone_s / (0.95 * slots)
        records = alone_s * rates[1]
        jobs.append(
            SimulatedJob(
                f"job-{i}",
                now,
                1,
                lambda name=name, rates=rates, records=records: CurveWork(name, rates, records),  # type: ignore[misc]
            )
        )
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with recorded workloads")
    parser.add_argument("--points", type=int, default=60, help="forecasts a workload, about")
    options = parser.parse_args()
    report = Report(
        "eta",
        "Expected ends",
        "The default policy runs simulated workloads; now and then it is played forward on what it knows then, as "
        "`explain` does. The error is that of the remaining time, relative to the true one; jobs that are submitted "
        "later, and speeds that are learned on the way, are not known to the forecast. Speeds are learned from "
        "the job itself and from earlier jobs of its kind.",
    )
    workloads = {"generated": generated(200, 32), "generated, told with 20 % error": generated(200, 32)}
    if options.data is not None:
        applications = read_applications(options.data / "pollux" / "traces")
        for path in sorted((options.data / "pollux" / "workloads").glob("*.csv")):
            workloads[path.stem] = read_workload(path, applications)
    rows, everything = [], []
    for name, jobs in workloads.items():
        report.say(f"{name}: {len(jobs)} jobs")
        settings = SimulationSettings(
            nodes=8 if name.startswith("generated") else 16,
            interval_s=60.0,
            rescale_s=30.0,
            error=0.2 if "error" in name else 0.0,
        )
        span = jobs[-1].submitted_at - jobs[0].submitted_at + 3600.0
        found = judge(jobs, settings, max(int(span / settings.interval_s / options.points), 1))
        rows.append([name, *(median_error(part) for part in found), *summary(one for part in found for one in part)])
        everything.extend(one for part in found for one in part)
    report.text("## Median error at parts of a job's life")
    report.table(
        ["workload", *(f"{part:.0%}" for part in LIFE), "all", "90th percentile", "no end told", "within bounds"],
        rows,
    )
    report.text("## By how the speed is known")
    groups: dict[tuple[str, str], list[Judged]] = {}
    for one in everything:
        groups.setdefault((one.told.basis, "runs" if one.told.running else "waits"), []).append(one)
    report.table(
        ["speed", "job", "number", "median error", "80th percentile", "no end told", "within bounds"],
        [
            [basis, state, len(group), median_error(group), quantile(group, 0.8), *summary(group)[2:]]
            for (basis, state), group in sorted(groups.items())
        ],
    )
    report.target("eta_median_error", median_error(everything), 0.25, at_least=False)
    told = [one for one in everything if one.error is not None]
    report.target("eta_within_bounds", sum(one.covered for one in told) / len(told), 0.8)
    report.write()


def errors(judged: Iterable[Judged]) -> list[float]:
    """The errors of those for which an end was told, ascending."""
    return sorted(one.error for one in judged if one.error is not None)


def median_error(judged: Iterable[Judged]) -> float:
    """The median error."""
    found = errors(judged)
    return statistics.median(found) if found else float("nan")


def quantile(judged: Iterable[Judged], part: float) -> float:
    """A quantile of the error."""
    found = errors(judged)
    return found[min(int(part * len(found)), len(found) - 1)] if found else float("nan")


def summary(judged: Iterable[Judged]) -> list[str | float]:
    """Median, 90th percentile, part without an end, part within the bounds."""
    listed = list(judged)
    told = [one for one in listed if one.error is not None]
    return [
        median_error(listed),
        quantile(listed, 0.9),
        f"{1 - len(told) / max(len(listed), 1):.0%}",
        f"{sum(one.covered for one in told) / max(len(told), 1):.0%}",
    ]


if __name__ == "__main__":
    main()
