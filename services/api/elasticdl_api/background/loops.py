"""Runs the background tasks for as long as the application lives."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from elasticdl_api.background.cluster_history import ClusterHistory
from elasticdl_api.background.housekeeping import Housekeeping
from elasticdl_api.background.known_files import is_new
from elasticdl_api.background.leftovers import LeftoverCleanup
from elasticdl_api.background.loop_watch import LoopWatch
from elasticdl_api.background.relay import Relay
from elasticdl_api.background.searches import SearchRounds
from elasticdl_api.background.watchdog import Watchdog
from elasticdl_api.services import Services
from elasticdl_api.store.wakeups import wait
from elasticdl_api.web import telemetry
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError

EVERY_S = 1.0
HOUSEKEEPING_S = 60.0
"""How often it is asked whose turn it is; the turns are further apart."""
HISTORY_S = 1.0
"""The same of looks at the cluster."""
_TOLD_AGAIN = Backoff(10.0, 600.0)
_log = structlog.get_logger(__name__)


class BackgroundStep:
    """A background task's step, taken again and again: whether it fails or not, it has its turn at the same pace.

    The log has the first failure, and where the same one goes on, its count at growing intervals.

    Args:
        name: of the task.
        work: takes the step.
        clock: monotonic seconds.
    """

    def __init__(
        self, name: str, work: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._work = work
        self._clock = clock
        self._failure = ""
        self._times = self._told = 0
        self._quiet_until = 0.0

    async def take(self) -> None:
        """Takes the step once; what goes wrong is counted and told."""
        try:
            await self._work()
        except Exception as error:
            telemetry.BACKGROUND_FAILURES.labels(self.name).inc()
            self._tell(error)
        else:
            telemetry.BACKGROUND_DONE.labels(self.name).set_to_current_time()
            if self._failure:
                _log.info("a step went well again", task=self.name, failures=self._times)
                self._failure = ""

    def _tell(self, error: Exception) -> None:
        what, now = repr(error), self._clock()
        if what != self._failure:
            self._failure, self._times, self._told, self._quiet_until = what, 0, 0, now
        self._times += 1
        if now < self._quiet_until:
            return
        self._told += 1
        pause_s = _TOLD_AGAIN.pause_s(self._told)
        self._quiet_until = now + pause_s
        about = {"task": self.name, "failures": self._times, "told_again_in_s": round(pause_s, 1)}
        if isinstance(error, UnavailableError):
            _log.warning("a step is put off", **about, error=error.message)
        else:
            _log.error("a step failed", **about, exc_info=error)


@asynccontextmanager
async def background(services: Services) -> AsyncIterator[None]:
    """Relay, watchdogs, cleanup of left-over processes, searches, housekeeping, wake-ups, until the block ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(services.wakeups.run(), name="wakeups")]
        tasks.append(group.create_task(LoopWatch().run(), name="loop watch"))
        tidy = Housekeeping(services.settings, services.retention)
        tasks.append(
            group.create_task(
                _now_and_then(BackgroundStep("housekeeping", tidy.step), HOUSEKEEPING_S), name="housekeeping"
            )
        )
        if services.launcher is not None:
            history = ClusterHistory(services.series, services.jobs, services.launcher)
            name = "cluster history"
            tasks.append(group.create_task(_now_and_then(BackgroundStep(name, history.step), HISTORY_S), name=name))
            new = functools.partial(is_new, services.settings.data_dir, services.retention)
            leftovers = LeftoverCleanup(services.intents, services.launcher, is_new=new)
            steps = (
                BackgroundStep("relay", Relay(services.intents, services.launcher, services.reaches).step),
                BackgroundStep("watchdog", Watchdog(services.intents, services.launcher).step),
                BackgroundStep("leftovers", leftovers.step),
                BackgroundStep("searches", SearchRounds(services).step),
            )
            tasks += [group.create_task(_repeat(services, step), name=step.name) for step in steps]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _now_and_then(step: BackgroundStep, every_s: float) -> None:
    """Takes a step for ever, far apart; the first one not at once, when everything begins."""
    while True:
        await asyncio.sleep(every_s)
        await step.take()


async def _repeat(services: Services, step: BackgroundStep) -> None:
    """Takes a step for ever: at each wake-up, and once a second. One that fails is tried again."""
    with services.wakeups.waiter() as changed:
        while True:
            await step.take()
            await wait(changed, EVERY_S)
            if step.name != "relay":
                await asyncio.sleep(0.2)  # a burst of changes is one look
