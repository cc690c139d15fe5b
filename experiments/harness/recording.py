"""Recorded events, read off the agent's journal and the workers' notes: exact times, nothing sampled."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stay:
    """The time during which a process existed.

    Attributes:
        job_id: whose process.
        role: master, ps or worker.
        index: which.
        launched_at: when the launcher was asked for it, in seconds since the epoch.
        from_s: when it started; infinite if it never did.
        to_s: when it ended; infinite while it lives.
        reason: why the launcher ended it, or empty.
        exit_code: how it ended; None while it lives.
    """

    job_id: str
    role: str
    index: int
    launched_at: float
    from_s: float = float("inf")
    to_s: float = float("inf")
    reason: str = ""
    exit_code: int | None = None


def read_journal(path: Path) -> list[Stay]:
    """The stays of all processes of a cluster, in the order of their launches."""
    lives: dict[tuple[str, str, int, int], dict[str, object]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        life = lives.setdefault((data["job"], data["role"], data["index"], data["incarnation"]), {})
        at = float(data["at"])
        life.setdefault("launched_at", at)
        if data["state"] == "running":
            life.setdefault("from_s", at)
        elif data["state"] == "exited":
            life.setdefault("to_s", at)
            life["reason"], life["exit_code"] = data["reason"], data["exit_code"]
    return [Stay(job, role, index, **life) for (job, role, index, _), life in lives.items()]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Level:
    """A number that changes in steps.

    Attributes:
        times: when it changes, ascending, in seconds.
        values: what it is from then on; before the first time it is 0.
    """

    times: Sequence[float]
    values: Sequence[float]

    def at(self, moments: Array) -> Array:
        """Its value at each moment."""
        padded = np.concatenate([[0.0], np.asarray(self.values, dtype=np.float64)])
        found: Array = padded[np.searchsorted(np.asarray(self.times, dtype=np.float64), moments, side="right")]
        return found


def count(stays: Iterable[Stay], origin: float = 0.0) -> Level:
    """The number of processes that ran, by time since ``origin``."""
    changes: dict[float, int] = {}
    for stay in stays:
        if stay.from_s < float("inf"):
            changes[stay.from_s] = changes.get(stay.from_s, 0) + 1
            if stay.to_s < float("inf"):
                changes[stay.to_s] = changes.get(stay.to_s, 0) - 1
    times = sorted(changes)
    return Level([time - origin for time in times], list(np.cumsum([changes[time] for time in times])))


def workers_of(stays: Iterable[Stay], job_id: str) -> list[Stay]:
    """The workers of a job."""
    return [stay for stay in stays if stay.role == "worker" and stay.job_id == job_id]


@dataclass(frozen=True)
class Steps:
    """The minibatches of a simulated job.

    Attributes:
        times: when each ended, ascending, in seconds since the epoch.
        records: records of each.
    """

    times: Array
    records: Array

    @property
    def first(self) -> float:
        """When the first one ended."""
        return float(self.times[0])

    def between(self, start: float, end: float) -> float:
        """Records processed in a span of time."""
        low, high = bisect.bisect_left(self.times, start), bisect.bisect_right(self.times, end)
        return float(self.records[low:high].sum())


def read_steps(directory: Path, job_id: str) -> Steps:
    """Reads the steps that the workers of a simulated job noted."""
    rows = [
        [float(number) for number in line.split(",")]
        for path in sorted(directory.glob(f"{job_id}.*.csv"))
        for line in path.read_text().splitlines()
    ]
    rows.sort()
    array = np.asarray(rows, dtype=np.float64).reshape(-1, 2)
    return Steps(array[:, 0], array[:, 1])


def mean_over(level: Level, start: float, end: float) -> float:
    """Mean of a level over a span of time."""
    inside = [time for time in level.times if start < time < end]
    edges = np.asarray([start, *inside, end])
    return float(np.sum(level.at(edges[:-1]) * np.diff(edges)) / (end - start))
