"""Writes down how the cluster is, every few seconds: slots, who has them, and how many jobs wait."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from elasticdl_api.histories.shown_series import JOBS_SHOWN, OTHER_JOBS
from elasticdl_api.store.jobs import JobStore
from elasticdl_api.store.series import SeriesStore
from elasticdl_core.errors import UnavailableError
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import CapacityInfo, Launcher
from elasticdl_core.series import TIERS, SeriesRecorder

EVERY_S = float(TIERS[0].step_s)


class ClusterHistory:
    """Samples the cluster; of several replicas of the api one does at a time.

    Args:
        store: where the series are.
        jobs: counts jobs.
        launcher: tells the capacity.
        clock: seconds since the epoch.
    """

    def __init__(
        self, store: SeriesStore, jobs: JobStore, launcher: Launcher, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._launcher = launcher
        self._clock = clock
        self._writer = secrets.randbits(62)
        self._recorder = SeriesRecorder()

    async def step(self) -> None:
        """Takes a sample, if it is this replica's turn, and writes what is due.

        Raises:
            UnavailableError: Postgres or the launcher does not answer.
        """
        # A little less than a span, so that none is left out because a step came late.
        if await self._store.take_turn(EVERY_S * 0.9):
            capacity = await self._launcher.capacity()
            counts = await self._jobs.count_by_state(None)
            self._recorder.record(self._clock(), _sample(capacity, counts.get(JobState.QUEUED, 0)))
        rows = self._recorder.take()
        if rows:
            try:
                await self._store.write_cluster(rows, self._writer)
            except UnavailableError:
                self._recorder.give_back(rows)
                raise


def _sample(capacity: CapacityInfo, queue: int) -> dict[str, float | None]:
    used = sorted(capacity.used.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(slots for _, slots in used[JOBS_SHOWN:])
    return {
        "slots.total": capacity.slots,
        "slots.reserved": sum(one.slots for one in capacity.reservations),
        "slots.used": sum(capacity.used.values()),
        "queue": queue,
        **{f"job.{job_id}": slots for job_id, slots in used[:JOBS_SHOWN]},
        **({OTHER_JOBS: rest} if rest else {}),
    }
