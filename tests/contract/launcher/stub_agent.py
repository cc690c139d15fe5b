"""An agent in a process of its own whose children are stubs: ``stub_agent.py <data> <run> <exec or zygote>``."""

import asyncio
import sys
from pathlib import Path

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.telemetry.logs import configure_logs

STUB = Path(__file__).with_name("stub_process.py")


async def main(stop: asyncio.Event) -> int:
    directories = AgentDirectories(Path(sys.argv[1]), Path(sys.argv[2]))
    endpoints = Endpoints("cluster-secret-of-the-tests", "http://127.0.0.1:1", "unix:///nowhere/redis.sock")
    forked = sys.argv[3] == "zygote"
    commands = {role: (sys.executable, "-P" if forked else "-S", str(STUB)) for role in Role}
    preloads = {Role.WORKER: "json"} if forked else {}
    async with Agent(
        directories, endpoints, "node-token-of-the-tests", 2, commands, stop_grace_s=0.2, preloads=preloads
    ):
        print("serving", flush=True)
        await stop.wait()
    return 0


if __name__ == "__main__":
    configure_logs(service="agent")
    raise SystemExit(run_service(main))
