"""The loop: snapshot, policy, pacing, plan."""

from __future__ import annotations

import asyncio
import time

import structlog

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_core.ports.launcher import CapacityInfo, Launcher
from elasticdl_core.scheduling import Plan, Policy
from elasticdl_core.scheduling.pacing import paced
from elasticdl_scheduler.database import Database, first_of
from elasticdl_scheduler.leadership import Leadership
from elasticdl_scheduler.store import SchedulerStore

CAPACITY_S = 5.0
"""Deadline of the question for the capacity."""

SETTLE_S = 0.05
"""A burst of changes is gathered for this long into one pass."""

_log = structlog.get_logger(__name__)


class Scheduler:
    """Decides again whenever a job changed, and at least every ``interval_s`` seconds, as long as it leads.

    Args:
        database: Postgres; woken by its notifications.
        leadership: the lease.
        store: reads snapshots and writes plans.
        launcher: tells the capacity.
        policy: decides.
        interval_s: seconds between full passes.
    """

    def __init__(
        self,
        database: Database,
        leadership: Leadership,
        store: SchedulerStore,
        launcher: Launcher,
        policy: Policy,
        interval_s: float,
    ) -> None:
        self._database = database
        self._leadership = leadership
        self._store = store
        self._launcher = launcher
        self._policy = policy
        self._interval_s = interval_s

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until ``stop``; outages of Postgres or the launcher are waited out, and change nothing."""
        wake = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._database.listen(wake, stop), name="listen")
                group.create_task(self._leadership.keep(wake, stop), name="lease")
                group.create_task(self._decide(wake, stop), name="decide")
        finally:
            try:
                await asyncio.shield(self._leadership.release())
            except UnavailableError as error:
                _log.warning("lease_not_released", error=error.message)

    async def _decide(self, wake: asyncio.Event, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await first_of(self._interval_s, wake, stop)
            if stop.is_set():
                return
            await first_of(SETTLE_S, stop)
            wake.clear()
            try:
                again = await self.decide_once()
            except FencedError as error:
                _log.warning("fenced", error=error.message)
            except UnavailableError as error:
                _log.warning("pass_skipped", error=error.message)
                await first_of(min(1.0, self._interval_s), stop)
            else:
                if again:
                    wake.set()

    async def decide_once(self) -> bool:
        """One pass, if this process leads.

        Returns:
            Whether anything changed.

        Raises:
            FencedError: another scheduler took over; nothing was written.
            UnavailableError: Postgres or the launcher does not answer.
        """
        epoch = self._leadership.epoch
        if epoch is None:
            return False
        capacity = await self._capacity()
        started = time.monotonic()
        present = await self._store.read(capacity)
        plan: Plan = paced(present.snapshot, self._policy.plan(present.snapshot))
        changes = await self._store.write(epoch, present, plan)
        if changes:
            _log.info(
                "plan",
                changes=changes,
                jobs=len(present.snapshot.jobs),
                slots=present.snapshot.capacity.total.slots,
                given=sum(plan.targets().values()),
                seconds=round(time.monotonic() - started, 4),
            )
        return changes > 0

    async def _capacity(self) -> CapacityInfo:
        try:
            async with asyncio.timeout(CAPACITY_S):
                return await self._launcher.capacity()
        except TimeoutError:
            raise UnavailableError(
                f"the launcher did not tell its capacity within {CAPACITY_S:.0f} s",
                fix="check the agent of this machine (ELASTICDL_AGENT); no plan is changed meanwhile",
            ) from None
