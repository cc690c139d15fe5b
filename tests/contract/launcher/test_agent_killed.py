"""Nothing outlives an agent, however it ends, and the next one knows what was lost."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import psutil
import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.zygote.client import wanted
from elasticdl_core.errors import UnavailableError
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_runtime.launcher.client import ProcessLauncher
from elasticdl_runtime.lifecycle import within
from tests.contract.launcher.conftest import ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS, printed, until

pytestmark = pytest.mark.contract

JOB = "digits-x7k2p9"
WAYS = ["exec", "zygote"] if wanted("auto") else ["exec"]
IDS = [ProcessId(JOB, Role.MASTER, 0, 1), ProcessId(JOB, Role.PS, 0, 1), ProcessId(JOB, Role.WORKER, 0, 1)]


async def start_agent(directories: AgentDirectories, way: str) -> asyncio.subprocess.Process:
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("stub_agent.py")),
        str(directories.data),
        str(directories.run),
        way,
        stdout=asyncio.subprocess.PIPE,
    )
    assert agent.stdout is not None
    assert await within(agent.stdout.readline(), 60) == b"serving\n"
    return agent


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_nothing_outlives_the_agent(directories: AgentDirectories, number: signal.Signals, way: str) -> None:
    agent = await start_agent(directories, way)
    async with ProcessLauncher(f"unix:{directories.run}/agent.sock", NODE_TOKEN) as launcher:
        for process in IDS:
            await launcher.launch(ProcessSpec(process, {"STUB": "family"}))
        for process in IDS:
            await until(launcher, process, ProcessState.RUNNING)
            await printed(launcher, process, b"ready\n")
        # Three times a shim, the process, its child, its child in another session, and the grandchild.
        children = psutil.Process(agent.pid).children(recursive=True)
        assert len(children) == (15 if way == "exec" else 16)  # and the zygote
        agent.send_signal(number)
        code = await within(agent.wait(), 60)
        assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)
        await asyncio.to_thread(psutil.wait_procs, children, timeout=20)
        assert [child for child in children if child.is_running()] == []
        with pytest.raises(UnavailableError):
            await launcher.list()
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS) as second,
        ProcessLauncher(second.address, NODE_TOKEN) as launcher,
    ):
        found = await launcher.list(JOB)
        assert [(status.id, status.state, status.reason) for status in found] == [
            (process, ProcessState.EXITED, "launcher_lost") for process in IDS
        ]
        await launcher.launch(ProcessSpec(IDS[0], {"STUB": "wait"}))
        assert (await launcher.list(JOB))[0].state is ProcessState.EXITED
