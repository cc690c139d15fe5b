"""Runs the background tasks for as long as the application lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from elasticdl_api.background.cluster_history import ClusterHistory
from elasticdl_api.background.housekeeping import Housekeeping
from elasticdl_api.background.leftovers import LeftoverCleanup
from elasticdl_api.background.loop_watch import LoopWatch
from elasticdl_api.background.relay import Relay
from elasticdl_api.background.watchdog import Watchdog
from elasticdl_api.services import Services
from elasticdl_api.store.wakeups import wait
from elasticdl_api.web import telemetry
from elasticdl_core.errors import UnavailableError

EVERY_S = 1.0
HOUSEKEEPING_S = 60.0
"""How often it is asked whose turn it is; the turns are further apart."""
HISTORY_S = 1.0
"""The same of looks at the cluster."""
_log = structlog.get_logger(__name__)


@asynccontextmanager
async def background(services: Services) -> AsyncIterator[None]:
    """Relay, watchdogs, cleanup of left-over processes, housekeeping, and wake-ups, until the block ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(services.wakeups.run(), name="wakeups")]
        tasks.append(group.create_task(LoopWatch().run(), name="loop watch"))
        tidy = Housekeeping(services.settings, services.retention)
        tasks.append(group.create_task(_now_and_then("housekeeping", tidy.step, HOUSEKEEPING_S), name="housekeeping"))
        if services.launcher is not None:
            history = ClusterHistory(services.series, services.jobs, services.launcher)
            name = "cluster history"
            tasks.append(group.create_task(_now_and_then(name, history.step, HISTORY_S), name=name))
            steps: dict[str, Callable[[], Awaitable[None]]] = {
                "relay": Relay(services.intents, services.launcher, services.reaches).step,
                "watchdog": Watchdog(services.intents, services.launcher).step,
                "leftovers": LeftoverCleanup(services.intents, services.launcher).step,
            }
            tasks += [group.create_task(_repeat(services, name, step), name=name) for name, step in steps.items()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _now_and_then(name: str, step: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Takes steps for ever, far apart; the first one not at once, when everything begins."""
    while True:
        await asyncio.sleep(every_s)
        await _take(name, step)


async def _repeat(services: Services, name: str, step: Callable[[], Awaitable[None]]) -> None:
    """Takes steps for ever: at each wake-up, and once a second. A step that fails is tried again."""
    with services.wakeups.waiter() as changed:
        while True:
            await _take(name, step)
            await wait(changed, EVERY_S)
            if name != "relay":
                await asyncio.sleep(0.2)  # a burst of changes is one look


async def _take(name: str, step: Callable[[], Awaitable[None]]) -> None:
    try:
        await step()
    except UnavailableError as error:
        telemetry.BACKGROUND_FAILURES.labels(name).inc()
        _log.warning("a step is put off", task=name, error=error.message)
    except Exception:
        telemetry.BACKGROUND_FAILURES.labels(name).inc()
        _log.exception("a step failed", task=name)
    else:
        telemetry.BACKGROUND_DONE.labels(name).set_to_current_time()
