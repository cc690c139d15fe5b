"""Builds the agent's objects and runs it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from elasticdl_agent.agent import PRELOADS, Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_agent.zygote.client import wanted
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.settings import Environment
from elasticdl_runtime.telemetry.logs import configure_logs

_log = structlog.get_logger(__name__)


async def serve(stop: asyncio.Event) -> int:
    """Serves until ``stop`` is set, then ends all processes; returns the exit code."""
    settings = Environment()
    data, run = Path(settings.text("ELASTICDL_DATA_DIR")), Path(settings.text("ELASTICDL_RUN_DIR"))
    endpoints = Endpoints(
        settings.text("ELASTICDL_CLUSTER_SECRET"),
        settings.text("ELASTICDL_API_URL"),
        settings.text("ELASTICDL_REDIS_URL"),
    )
    headroom = settings.integer("ELASTICDL_HEADROOM", 0)
    agent = Agent(
        AgentDirectories(data, run),
        endpoints,
        settings.text("ELASTICDL_NODE_TOKEN"),
        settings.integer("ELASTICDL_SLOTS"),
        headroom=headroom,
        preloads=PRELOADS if wanted(settings.text("ELASTICDL_ZYGOTE", "auto")) else {},
    )
    async with agent:
        _log.info("agent serves", address=agent.address)
        await stop.wait()
        _log.info("agent stops")
    return 0


def main() -> int:
    """Runs the agent until it is told to stop; returns its exit code."""
    configure_logs(service="agent")
    return run_service(serve)
