"""The process: one master, built from its environment."""

from __future__ import annotations

import asyncio

from elasticdl_master.queue.redis import RedisQueue
from elasticdl_master.runner import JobRunner
from elasticdl_master.settings import MasterSettings, OwnToken
from elasticdl_runtime.items import show_put_off
from elasticdl_runtime.launcher.client import ProcessLauncher
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.telemetry.logs import configure_logs


async def serve(stop: asyncio.Event) -> int:
    """Runs the job's master until the job has ended or the process is told to stop.

    Raises:
        InvalidInputError: a setting is missing or wrong.
    """
    settings = MasterSettings.read()
    configure_logs(role="master", job=settings.job_id, incarnation=settings.incarnation)
    show_put_off()
    async with ProcessLauncher(settings.agent, OwnToken(settings)) as launcher:
        runner = JobRunner(
            settings,
            launcher,
            lambda epoch: RedisQueue(settings.redis_url, settings.job_id, epoch),
            stop,
        )
        return await runner.run()


def main() -> int:
    """Runs the process; returns its exit code."""
    return run_service(serve)
