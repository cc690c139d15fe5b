"""Reads the workloads: Pollux' (applications) and the simple one (durations of real jobs)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from elasticdl_core.errors import DataError
from elasticdl_core.scheduling.simulator.curves import Application
from elasticdl_core.scheduling.simulator.work import CurveWork, MeasuredWork, SimulatedWork, packed

POLLUX = ("name", "time", "application", "num_replicas", "batch_size")
SIMPLE = ("job_id", "submission_time", "duration", "num_gpu")
N = TypeVar("N", int, float)
MOST = 1_000_000_000
"""The largest number in a workload."""
MOST_BYTES = 64 << 20
"""A workload that is larger is refused: a million jobs take less."""


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
        DataError: it is neither format, too large, a row is wrong, or it names an unknown application.
    """
    header, rows = _read(path)
    try:
        jobs = _jobs(path, header, rows, applications, per_node)
    except ValueError as error:
        raise DataError(f"{path}: {error}", fix="correct the row") from None
    if not jobs:
        raise DataError(f"there is no job in the workload {path}", fix="give a CSV file with a row for each job")
    jobs.sort(key=lambda job: job.submitted_at)
    return jobs[:limit]


def _read(path: Path) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """The header and the rows of a file that is no larger than a workload is; a device may have no end."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise DataError(
                f"the workload {path} is larger than {MOST_BYTES >> 20} MiB", fix="give the jobs of fewer days"
            )
        reader = csv.DictReader(io.StringIO(data.decode(), newline=""))
        return tuple(reader.fieldnames or ()), list(reader)
    except OSError as error:
        raise DataError(f"the workload {path} cannot be read: {error}", fix="check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the workload {path} is no CSV text: {error}", fix="give a CSV file") from None


def _jobs(
    path: Path,
    header: tuple[str, ...],
    rows: list[dict[str, str]],
    applications: Mapping[str, Application],
    per_node: int,
) -> list[SimulatedJob]:
    if set(POLLUX) <= set(header):
        return [_pollux_job(path, row, applications) for row in rows]
    if set(SIMPLE) <= set(header):
        return _simple_jobs(path, rows, applications, per_node)
    raise DataError(
        f"{path} has the columns {', '.join(header)[:200]}, which is no known workload",
        fix=f"give {','.join(POLLUX)} or {','.join(SIMPLE)}",
    )


def _number(row: Mapping[str, str], name: str, kind: type[N]) -> N:
    """A value of a row.

    Raises:
        ValueError: it is no number, or none that a job can have.
    """
    text = row[name] or ""  # a short row lacks some
    try:
        value = kind(text)
    except ValueError:
        value = kind(-1)
    if not 0 <= value < MOST:
        raise ValueError(f"{name} is {text[:40]!r}, which is no number from 0 to {MOST:,}")
    return value


def _pollux_job(path: Path, row: Mapping[str, str], applications: Mapping[str, Application]) -> SimulatedJob:
    application = applications.get(row["application"])
    if application is None:
        raise DataError(
            f"{path}: job {row['name']} is of application {row['application']!r}, which has no trace",
            fix="give --traces with a folder that has it",
        )
    batch = _number(row, "batch_size", int)
    if not application.initial_batch <= batch <= application.largest_batch:
        raise DataError(
            f"{path}: job {row['name']} has batch size {batch}, and {application.name} was measured from "
            f"{application.initial_batch} to {application.largest_batch}",
            fix="correct the batch size",
        )
    requested = _number(row, "num_replicas", int)
    return SimulatedJob(row["name"], _number(row, "time", float), requested, lambda: MeasuredWork(application, batch))


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
    first = min((_number(row, "submission_time", float) for row in rows), default=0.0)
    jobs = []
    for row in rows:
        duration, requested = _number(row, "duration", float), max(_number(row, "num_gpu", int), 1)
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
                _number(row, "submission_time", float) - first,
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
