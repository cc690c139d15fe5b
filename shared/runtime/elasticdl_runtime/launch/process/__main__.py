"""The agent: ``python -m elasticdl_runtime.launch.process``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from elasticdl_runtime.launch.process.agent import PRELOADS, Agent
from elasticdl_runtime.launch.process.environment import Endpoints
from elasticdl_runtime.launch.process.layout import Layout
from elasticdl_runtime.launch.process.zygote_client import wanted as zygote_wanted
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.settings import Environment
from elasticdl_runtime.telemetry.logs import configure_logs

_log = structlog.get_logger(__name__)


async def main(stop: asyncio.Event) -> int:
    """Serves until told to stop, then ends all processes; returns the exit code."""
    settings = Environment()
    layout = Layout(Path(settings.text("ELASTICDL_DATA_DIR")), Path(settings.text("ELASTICDL_RUN_DIR")))
    endpoints = Endpoints(
        settings.text("ELASTICDL_CLUSTER_SECRET"),
        settings.text("ELASTICDL_API_URL"),
        settings.text("ELASTICDL_REDIS_URL"),
    )
    headroom = settings.integer("ELASTICDL_HEADROOM", 0)
    agent = Agent(
        layout,
        endpoints,
        settings.text("ELASTICDL_NODE_TOKEN"),
        settings.integer("ELASTICDL_SLOTS"),
        headroom=headroom,
        preloads=PRELOADS if zygote_wanted(settings.text("ELASTICDL_ZYGOTE", "auto")) else {},
    )
    async with agent:
        _log.info("agent serves", address=agent.address)
        await stop.wait()
        _log.info("agent stops")
    return 0


if __name__ == "__main__":
    configure_logs(service="agent")
    raise SystemExit(run_service(main))
