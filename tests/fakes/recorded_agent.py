"""An agent in a process of its own whose processes only wait, and that says which slots are taken as was recorded.

``recorded_agent.py <data directory> <run directory> <slots>``: logs are read from the data directory, reservations
and inspections work. ``used.json`` there tells how many slots each job takes, and ``devices.json`` who holds which
of the devices that it names.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_agent.table import ProcessTable
from elasticdl_core.ports.launcher import CapacityInfo, Role
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.scheduling import devices_from_json
from elasticdl_runtime.telemetry.logs import configure_logs

NODE_TOKEN = "node-token-of-recorded-states"
USED = "used.json"
DEVICES = "devices.json"
WAITING = Path(__file__).with_name("inspected_process.py")


async def main(stop: asyncio.Event) -> int:
    data = Path(sys.argv[1])
    counted = ProcessTable.capacity

    def capacity(table: ProcessTable) -> CapacityInfo:
        used = json.loads((data / USED).read_text()) if (data / USED).is_file() else {}
        told = json.loads((data / DEVICES).read_text()) if (data / DEVICES).is_file() else {}
        devices, uses = devices_from_json(told)
        return replace(counted(table), used=used, devices=devices, device_uses=uses)

    ProcessTable.capacity = capacity
    endpoints = Endpoints("cluster-secret-of-recorded-states", "http://127.0.0.1:1", "unix:///nowhere/redis.sock")
    directories = AgentDirectories(data, Path(sys.argv[2]))
    commands = {role: (sys.executable, str(WAITING)) for role in Role}
    async with Agent(directories, endpoints, NODE_TOKEN, int(sys.argv[3]), commands, preloads={}, stop_grace_s=0.2):
        print("serving", flush=True)
        await stop.wait()
    return 0


if __name__ == "__main__":
    configure_logs(service="agent")
    raise SystemExit(run_service(main))
