"""Builds the scheduler's objects and runs it."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.items import show_put_off
from elasticdl_runtime.launcher.client import ProcessLauncher
from elasticdl_runtime.lifecycle import announce_ready, run_service
from elasticdl_runtime.telemetry.logs import configure_logs
from elasticdl_scheduler.leadership import Leadership
from elasticdl_scheduler.loop import Retention, Scheduler
from elasticdl_scheduler.settings import SchedulerSettings
from elasticdl_scheduler.store import SchedulerStore

_log = structlog.get_logger(__name__)


async def serve(settings: SchedulerSettings, stop: asyncio.Event) -> int:
    """Runs the scheduler until ``stop`` is set."""
    async with contextlib.AsyncExitStack() as stack:
        launcher = ProcessLauncher(settings.agent, settings.node_token)
        stack.push_async_callback(launcher.close)
        database = Database(settings.database_url, application="elasticdl-scheduler", size=4, overflow=0)
        stack.push_async_callback(database.close)
        show_put_off()
        leadership = Leadership(database, settings.lease_s)
        scheduler = Scheduler(
            database,
            leadership,
            SchedulerStore(database, leadership, settings.quotas),
            launcher,
            settings.make_policy(),
            settings.interval_s,
            Retention(settings.keep_days, settings.keep_decisions),
        )
        _log.info("started", policy=settings.policy, holder=leadership.holder)
        await asyncio.to_thread(announce_ready, f"policy {settings.policy}")
        await scheduler.run(stop)
    _log.info("stopped")
    return 0


def main() -> int:
    """Runs the service until it is told to stop; returns its exit code."""
    configure_logs(role="scheduler")

    async def body(stop: asyncio.Event) -> int:
        return await serve(SchedulerSettings.read(), stop)

    return run_service(body)
