"""Reads the workloads: Pollux' (applications) and the simple one (durations of real jobs)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import DataError
from elasticdl_core.scheduling.simulator.curves import Application
from elasticdl_core.scheduling.simulator.work import CurveWork, MeasuredWork, SimulatedWork, packed

POLLUX = ("name", "time", "application", "num_replicas", "batch_size")
SIMPLE = ("job_id", "submission_time", "duration", "num_gpu")


@dataclass(frozen=True)
class SimulatedJob:
    """One job of a workload.

    Attributes:
        name: unique in the workload.
        submitted_at: seconds from the start.
        requested: workers that its owner asked for, in the recorded, inelastic world.
        make_work: makes its work, anew for each simulation.
        team: whose quota it counts against.
        priority: higher is more important.
        duration: recorded seconds at ``requested`` workers, where the trace has it.
    """

    name: str
    submitted_at: float
    requested: int
    make_work: Callable[[], SimulatedWork]
    team: str = "default"
    priority: int = 0
    duration: float | None = None


def read_workload(
    path: Path, applications: Mapping[str, Application], *, per_node: int = 4, limit: int | None = None
) -> list[SimulatedJob]:
    """Reads a workload in either format, told apart by its header.

    Args:
        path: the CSV file.
        applications: the measured applications. The simple format has no speed-up curves; each of its jobs gets
            that of one of the applications, by its GPU time.
        per_node: workers on a machine, for the curves of the simple format.
        limit: only the first so many jobs.

    Raises:
        DataError: it is neither format, or names an unknown application.
    """
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            header = tuple(reader.fieldnames or ())
            rows = list(reader)
    except OSError as error:
        raise DataError(f"the workload {path} cannot be read: {error}", fix="check the path") from None
    if set(POLLUX) <= set(header):
        jobs = [_pollux_job(path, row, applications) for row in rows]
    elif set(SIMPLE) <= set(header):
        jobs = _simple_jobs(path, rows, applications, per_node)
    else:
        raise DataError(
            f"{path} has the columns {', '.join(header)}, which is no known workload",
            fix=f"give {','.join(POLLUX)} or {','.join(SIMPLE)}",
        )
    jobs.sort(key=lambda job: job.submitted_at)
    return jobs[:limit]


def _pollux_job(path: Path, row: Mapping[str, str], applications: Mapping[str, Application]) -> SimulatedJob:
    application = applications.get(row["application"])
    if application is None:
        raise DataError(
            f"{path}: job {row['name']} is of application {row['application']!r}, which has no trace",
            fix="give --traces with a folder that has it",
        )
    batch = int(row["batch_size"])
    if not application.initial_batch <= batch <= application.largest_batch:
        raise DataError(
            f"{path}: job {row['name']} has batch size {batch}, and {application.name} was measured from "
            f"{application.initial_batch} to {application.largest_batch}",
            fix="correct the batch size",
        )
    return SimulatedJob(
        row["name"], float(row["time"]), int(row["num_replicas"]), lambda: MeasuredWork(application, batch)
    )


GPU_HOUR_CLASSES = (
    (1.0, "cifar10", 1024),
    (10.0, "deepspeech2", 160),
    (100.0, "yolov3", 128),
    (float("inf"), "imagenet", 3200),
)
"""Which curve a job of the simple format gets: up to so many GPU-hours, that application at that batch size."""


def _simple_jobs(
    path: Path, rows: list[dict[str, str]], applications: Mapping[str, Application], per_node: int
) -> list[SimulatedJob]:
    curves: dict[str, dict[int, float]] = {}
    first = min((float(row["submission_time"]) for row in rows), default=0.0)
    jobs = []
    for row in rows:
        duration, requested = float(row["duration"]), max(int(row["num_gpu"]), 1)
        hours = duration * requested / 3600.0
        name, batch = next((n, b) for most, n, b in GPU_HOUR_CLASSES if hours <= most)
        if name not in applications:
            raise DataError(
                f"{path} has no speed-up curves of its own, and there is no trace of {name!r} to lend one",
                fix="give --traces with the folder of measured applications",
            )
        if name not in curves:
            curves[name] = _curve(applications[name], batch, per_node)
        rates = _widened(curves[name], requested)
        kind = name if rates is curves[name] else f"{name}/{requested}"
        work = CurveWork(kind, rates, 0.0)
        records = duration * work.rate((requested,))
        jobs.append(
            SimulatedJob(
                row["job_id"],
                float(row["submission_time"]) - first,
                requested,
                lambda kind=kind, rates=rates, records=records: CurveWork(kind, rates, records),  # type: ignore[misc]
                duration=duration,
            )
        )
    return jobs


def _curve(application: Application, batch: int, per_node: int) -> dict[int, float]:
    """Records/s by worker count on packed machines, made non-decreasing."""
    work = MeasuredWork(application, batch)
    rates: dict[int, float] = {}
    best = 0.0
    for workers in range(1, min(application.most_workers(batch), 64) + 1):
        best = max(best, work.rate(packed(workers, per_node)))
        rates[workers] = best
    return rates


def _widened(rates: Mapping[int, float], requested: int) -> Mapping[int, float]:
    """For a job that ran on more workers than were measured: stretched, so that it speeds up to what it asked for."""
    most = max(rates)
    if requested <= most:
        return rates
    stretch = requested / most
    return {max(round(n * stretch), 1): rate for n, rate in rates.items()} | {1: rates[1] / stretch}
