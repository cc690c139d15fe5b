"""The loop: snapshot, policy, pacing, plan."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog

from elasticdl_core.errors import ElasticDLError, FencedError, UnavailableError
from elasticdl_core.ports.launcher import CapacityInfo, Launcher
from elasticdl_core.scheduling import Plan, Policy, ReasonCode
from elasticdl_core.scheduling.pacing import pace
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.memory import collector_paused
from elasticdl_scheduler.leadership import Leadership
from elasticdl_scheduler.store import PRUNED_AT_ONCE, SchedulerStore, SchedulingPass
from elasticdl_scheduler.waiting import await_schema, first_of, listen

CAPACITY_S = 5.0
"""Deadline of the question for the capacity."""

SETTLE_S = 0.05
"""A burst of changes is gathered for this long into one pass."""

LOOK_S = 1.0
"""Seconds between two looks at the launcher for slots that fell free, or were taken, without a job's changing."""

DRAIN_LOOK_S = 0.25
"""The same while a job waits for slots that are being drained."""

_FAILED_S = 5.0
"""Seconds to the next pass after one that failed for no outage."""

PRUNE_S = 600.0
"""Seconds between two sweeps of the decision log."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Retention:
    """The part of the decision log that is kept.

    Attributes:
        keep_days: age at which a decision is removed.
        keep_decisions: most decisions that are kept.
    """

    keep_days: float = 14.0
    keep_decisions: int = 10_000


class Scheduler:
    """Decides again whenever a job changed, and at least every ``interval_s`` seconds, as long as it leads.

    Args:
        database: Postgres; woken by its notifications.
        leadership: the lease.
        store: reads snapshots and writes plans.
        launcher: tells the capacity.
        policy: decides.
        interval_s: seconds between full passes.
        retention: how much of the decision log is kept.
    """

    def __init__(
        self,
        database: Database,
        leadership: Leadership,
        store: SchedulerStore,
        launcher: Launcher,
        policy: Policy,
        interval_s: float,
        retention: Retention = Retention(),
    ) -> None:
        self._database = database
        self._leadership = leadership
        self._store = store
        self._launcher = launcher
        self._policy = policy
        self._interval_s = interval_s
        self._retention = retention
        self._decided_on: CapacityInfo | None = None
        self._draining = False
        self._prune_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until ``stop``; outages of Postgres or the launcher are waited out, and change nothing.

        So is a database that is not migrated yet.
        """
        await await_schema(self._database, stop)
        if stop.is_set():
            return
        wake = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(listen(self._database, wake, stop), name="listen")
                group.create_task(self._leadership.keep(wake, stop), name="lease")
                group.create_task(self._look(wake, stop), name="look")
                group.create_task(self._decide(wake, stop), name="decide")
        finally:
            try:
                await asyncio.shield(self._leadership.release())
            except UnavailableError as error:
                _log.warning("lease_not_released", error=error.message)

    async def _look(self, wake: asyncio.Event, stop: asyncio.Event) -> None:
        """Sets ``wake`` when the launcher's capacity is not the one that the last pass decided on.

        Postgres tells of jobs that change, but of no slot that falls free a moment later or that others take.
        """
        while not stop.is_set():
            await first_of(DRAIN_LOOK_S if self._draining else LOOK_S, stop)
            if stop.is_set() or self._leadership.epoch is None or self._decided_on is None:
                continue
            try:
                if await self._capacity() != self._decided_on:
                    wake.set()
            except ElasticDLError:
                continue  # The next pass says so.

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
            except Exception:
                _log.exception("pass_failed")
                await first_of(min(_FAILED_S, self._interval_s), stop)
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
        with collector_paused():
            present = await self._store.read(capacity)
            failpoint("scheduler.after_read")
            snapshot = present.snapshot
            plan: Plan = pace(snapshot, self._policy.plan(snapshot))
            changes = await self._store.write(epoch, present, plan)
        seconds = time.monotonic() - started
        await self._store.report(
            epoch, SchedulingPass(snapshot, capacity, self._policy.name, changes, seconds, self._interval_s)
        )
        self._decided_on = capacity
        waits = (one.reason.code is ReasonCode.WAITING_FOR_DRAIN for one in plan.allocations.values())
        self._draining = snapshot.capacity.leaving.slots > 0 or any(waits)
        if changes:
            _log.info(
                "plan",
                changes=changes,
                jobs=len(snapshot.jobs),
                slots=snapshot.capacity.total.slots,
                given=sum(plan.targets().values()),
                seconds=round(seconds, 4),
            )
        await self._prune(epoch)
        return changes > 0

    async def _prune(self, epoch: int) -> None:
        if time.monotonic() < self._prune_at:
            return
        keep = self._retention
        removed = await self._store.prune(epoch, keep_days=keep.keep_days, keep_decisions=keep.keep_decisions)
        self._prune_at = time.monotonic() + (PRUNE_S if removed < PRUNED_AT_ONCE else 0.0)
        if removed:
            _log.info("decisions_removed", number=removed)

    async def _capacity(self) -> CapacityInfo:
        try:
            async with asyncio.timeout(CAPACITY_S):
                return await self._launcher.capacity()
        except TimeoutError:
            raise UnavailableError(
                f"the launcher did not tell its capacity within {CAPACITY_S:.0f} s",
                fix="check the agent of this machine (ELASTICDL_AGENT); no plan is changed meanwhile",
            ) from None
