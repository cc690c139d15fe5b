"""Series as they are shown: bounded in points and in names, read once for all who look at the same.

What was read is kept for as long as it takes until the next row may be there, so that hundreds of open pages of one
job cost the database what one does.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic_core import to_json

from elasticdl_api.store.job_views import ShownJobs
from elasticdl_api.store.series import LossStretch, ReadSeries, SeriesStore
from elasticdl_core import json_numbers
from elasticdl_core.series import MOST_NAMES, Point, points_of, resolution_of

By = Literal["time", "version"]
KEPT_S = 2.0
"""Seconds for which an answer is given again."""
KEPT_MOST = 256
JOBS_SHOWN = 20
"""Jobs whose slots are shown apart."""
OTHER_JOBS = "job.other"
_VERSION = "model_version"
_UNITS = {
    "samples_per_second": "records/s",
    "records_done": "records",
    "eta_seconds": "s",
    "workers.target": "workers",
    "workers.running": "workers",
    "ps.bytes": "bytes",
    "ps.rows": "rows",
    "queue": "jobs",
}


@dataclass(frozen=True)
class SeriesQuery:
    """A request for series.

    Attributes:
        since: the beginning, as the points lie: seconds since the epoch, or a version; None for the first there is.
        until: the end; None for the last there is.
        points: at most about that many of each series.
        names: only these; None for all.
        by: along what they lie.
    """

    since: float | None = None
    until: float | None = None
    points: int = 300
    names: tuple[str, ...] | None = None
    by: By = "time"

    def wants(self, name: str) -> bool:
        """Whether a series is wanted."""
        return self.names is None or name in self.names


class SeriesViews:
    """Shows series. Every method may raise UnavailableError.

    Args:
        store: reads them.
        jobs: tells which jobs a reader sees.
    """

    def __init__(self, store: SeriesStore, jobs: ShownJobs) -> None:
        self._store = store
        self._jobs = jobs
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Task[bytes]]] = OrderedDict()

    async def of_job(self, job_id: str, query: SeriesQuery) -> bytes:
        """Series of a job that the reader may see."""
        return await self._shared(("job", job_id, query), lambda: self._read_job(job_id, query))

    async def of_cluster(self, namespace: str | None, query: SeriesQuery) -> bytes:
        """Series of the cluster, with the jobs of one namespace, or of all."""
        return await self._shared(("cluster", namespace, query), lambda: self._read_cluster(namespace, query))

    async def _shared(self, key: Hashable, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Shares a reading: one from a moment ago, one under way, or else a new one."""
        now = time.monotonic()
        known = self._kept.get(key)
        if known is None or now - known[0] > KEPT_S or (known[1].done() and known[1].exception() is not None):
            task = asyncio.ensure_future(read())
            known = self._kept[key] = (now, task)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_MOST:
                self._kept.popitem(last=False)
        # Whoever goes away takes nothing from the others.
        return await asyncio.shield(known[1])

    async def _read_job(self, job_id: str, query: SeriesQuery) -> bytes:
        by_version = query.by == "version"
        names = None if query.names is None else (*query.names, _VERSION)
        span = (None, None) if by_version else (query.since, query.until)
        read = await self._store.read(job_id, since=span[0], until=span[1], points=query.points, names=names)
        resolution = resolution_of(read.since, read.until, query.points)
        found = points_of(read.rows, resolution, along=_VERSION if by_version else "")
        found.pop(_VERSION, None)
        if by_version:
            found = {name: _within(points, query) for name, points in found.items()}
        found |= await self._evaluations(job_id, query)
        if query.wants("loss"):
            found |= await self._losses(job_id, query, read)
        return _body(query, read, resolution, {name: found[name] for name in sorted(found) if query.wants(name)})

    async def _losses(self, job_id: str, query: SeriesQuery, read: ReadSeries) -> dict[str, list[Point]]:
        since, until = (query.since, query.until) if query.by == "version" else (read.since, read.until)
        stretches = await self._store.read_losses(
            job_id, by_version=query.by == "version", since=since, until=until, points=query.points
        )
        return {"loss": [_loss_point(one) for one in stretches]} if stretches else {}

    async def _evaluations(self, job_id: str, query: SeriesQuery) -> dict[str, list[Point]]:
        if query.names is not None and not any(name.startswith("evaluation.") for name in query.names):
            return {}
        found: dict[str, list[Point]] = {}
        for version, at, metrics in await self._store.read_evaluations(job_id, 1000):
            x = float(version) if query.by == "version" else round(at, 1)
            for name, value in metrics.items():
                number = json_numbers.from_json(value)
                if isinstance(number, int | float) and not isinstance(number, bool):
                    found.setdefault(f"evaluation.{name}", []).append([x, *[float(number)] * 3])
        within = {name: _within(points, query) for name, points in found.items()}
        return {name: points for name, points in within.items() if points}

    async def _read_cluster(self, namespace: str | None, query: SeriesQuery) -> bytes:
        read = await self._store.read(None, since=query.since, until=query.until, points=query.points)
        resolution = resolution_of(read.since, read.until, query.points)
        found = points_of(read.rows, resolution)
        jobs = {name: found.pop(name) for name in list(found) if name.startswith("job.")}
        seen = await self._seen(namespace, [name.removeprefix("job.") for name in jobs])
        shown = sorted((name for name in jobs if name in seen), key=lambda name: (-_area(jobs[name]), name))[
            :JOBS_SHOWN
        ]
        rest = [jobs[name] for name in jobs if name not in shown]
        found |= {name: jobs[name] for name in shown} | ({OTHER_JOBS: _sum(rest)} if rest else {})
        return _body(query, read, resolution, found)

    async def _seen(self, namespace: str | None, job_ids: Sequence[str]) -> frozenset[str]:
        """The names of the series of jobs that a reader of that namespace sees."""
        seen = await self._jobs.list_seen(job_ids, namespace=namespace)
        return frozenset(f"job.{job_id}" for job_id in seen) - {OTHER_JOBS}


def _body(query: SeriesQuery, read: ReadSeries, resolution: int, found: Mapping[str, Sequence[Point]]) -> bytes:
    series = [{"name": name, "unit": _unit(name), "points": points} for name, points in found.items()][:MOST_NAMES]
    places = [point[0] for one in found.values() for point in one]
    begin, end = (read.since, read.until) if query.by == "time" else (min(places, default=0), max(places, default=0))
    body = {"by": query.by, "from": begin, "to": end, "resolution_s": resolution, "series": series}
    return to_json(json_numbers.to_json(body))


def _unit(name: str) -> str:
    if name.startswith("step."):
        return "s"
    if name.startswith(("slots.", "job.")):
        return "slots"
    return "records/s" if name.startswith("worker.") else _UNITS.get(name, "")


def _loss_point(stretch: LossStretch) -> Point:
    return [round(stretch.x, 1), stretch.mean, stretch.least, stretch.largest]


def _within(points: Sequence[Point], query: SeriesQuery) -> list[Point]:
    begin = -math.inf if query.since is None else query.since
    end = math.inf if query.until is None else query.until
    return [point for point in points if begin <= point[0] <= end]


def _area(points: Sequence[Point]) -> float:
    return sum(point[1] for point in points)


def _sum(several: Sequence[Sequence[Point]]) -> list[Point]:
    """Several series as one; where one of them has nothing it counts as nothing."""
    totals: dict[float, Point] = {}
    for points in several:
        for x, *values in points:
            known = totals.setdefault(x, [x, 0.0, 0.0, 0.0])
            for place, value in enumerate(values, 1):
                known[place] += value
    return [totals[x] for x in sorted(totals)]
