"""Builds the agent's objects and runs it."""

from __future__ import annotations

import asyncio

import structlog

from elasticdl_agent.agent import PRELOADS, Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.agent import KubernetesAgent
from elasticdl_agent.kubernetes.settings import KubernetesSettings
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_agent.processes.isolation import parse_uids
from elasticdl_agent.settings import KUBERNETES, AgentSettings, LauncherSettings
from elasticdl_agent.zygote.client import wanted
from elasticdl_runtime.items import show_put_off
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.telemetry.logs import configure_logs

_log = structlog.get_logger(__name__)


async def serve(stop: asyncio.Event) -> int:
    """Serves until ``stop`` is set, and ends all processes that are this machine's; returns the exit code."""
    show_put_off()
    if LauncherSettings.read().launcher == KUBERNETES:
        async with KubernetesAgent(KubernetesSettings.read()) as launching:
            _log.info("agent serves", address=launching.address)
            await stop.wait()
            return 0
    settings = AgentSettings.read()
    agent = Agent(
        AgentDirectories(settings.data_dir, settings.run_dir),
        Endpoints(
            settings.cluster_secret, settings.api_url, settings.redis_url, settings.ca_file, settings.transport
        ),
        settings.node_token,
        settings.slots,
        headroom=settings.headroom,
        devices=settings.devices,
        device_turns=settings.device_turns,
        isolation=settings.isolation,
        uids=parse_uids(settings.uids),
        certificate_hours=settings.certificate_hours,
        keep_ended=settings.keep_processes,
        job_disk_mib=settings.job_disk_mib,
        job_shared_memory_mib=settings.job_shared_memory_mib,
        preloads=PRELOADS if wanted(settings.zygote) else {},
    )
    async with agent:
        _log.info("agent serves", address=agent.address)
        await stop.wait()
        _log.info("agent stops")
    return 0


def main() -> int:
    """Runs the agent until it is told to stop; returns its exit code."""
    configure_logs(role="agent")
    return run_service(serve)
