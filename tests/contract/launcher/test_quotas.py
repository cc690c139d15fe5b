"""What a job takes of disk and shared memory is bounded; who takes too much is ended, and nobody else is."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.quotas import LEFT_S, Quotas
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, ProcessStatus, Role
from elasticdl_runtime.launcher.client import ProcessLauncher
from tests.contract.launcher.conftest import ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS, printed, until

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc and /dev/shm are Linux'"),
]
DISK_MIB, SHARED_MIB = 24, 8
FILLED = {
    "folder": "too_much_disk",
    "run": "too_much_disk",
    "nameless": "too_much_disk",
    "deep": "too_much_disk",
    "shared": "too_much_shared_memory",
}


async def test_a_job_that_fills_disk_or_shared_memory_is_ended_and_others_live_on(
    directories: AgentDirectories,
) -> None:
    agent = Agent(
        directories,
        ENDPOINTS,
        NODE_TOKEN,
        SLOTS,
        STUB_COMMANDS,
        stop_grace_s=0.0,
        master_grace_s=0.0,
        job_disk_mib=DISK_MIB,
        job_shared_memory_mib=SHARED_MIB,
    )
    async with agent, ProcessLauncher(agent.address, NODE_TOKEN) as launcher:

        async def run(job: str, behaviour: str) -> ProcessStatus:
            process = ProcessId(job, Role.WORKER, 0, 0)
            await launcher.launch(ProcessSpec(process, {"STUB": behaviour}))
            return await until(launcher, process, ProcessState.EXITED)

        modest = ProcessId("modest", Role.WORKER, 0, 0)
        await launcher.launch(ProcessSpec(modest, {"STUB": f"fill:shared:{SHARED_MIB - 1}"}))
        await printed(launcher, modest, b"ready")
        ended = await asyncio.gather(*(run(where, f"fill:{where}:{DISK_MIB + 8}") for where in FILLED))
        assert {status.id.job_id: status.reason for status in ended} == FILLED
        assert {status.exit_code for status in ended} == {-9}
        said = await printed(launcher, ended[0].id, b"may have")
        assert f"and may have {DISK_MIB} MiB".encode() in said
        (living,) = await launcher.list("modest")
        assert living.state is ProcessState.RUNNING


def _put(folder: Path, mebibytes: int) -> Path:
    made = folder / "segment"
    made.write_bytes(os.urandom(mebibytes << 20))
    return made


def test_what_a_namespaces_user_has_in_shared_memory_counts_although_nobody_holds_it(
    directories: AgentDirectories, tmp_path: Path
) -> None:
    quotas = Quotas(directories, disk_mib=100, shared_memory_mib=2, shared_memory=tmp_path)
    _put(tmp_path, 3)
    over = quotas.look("a-1", [], os.getuid())
    assert over is not None and over.reason == "too_much_shared_memory"
    assert quotas.look("a-1", [], os.getuid() + 1) is None
    assert quotas.look("a-1", [], None) is None


def test_shared_memory_of_a_user_none_of_whose_processes_lives_is_freed(
    directories: AgentDirectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user is asked for among all processes: this test's own is one that the agent did not start."""
    quotas = Quotas(directories, shared_memory=tmp_path)
    left, own = _put(tmp_path, 1), os.getuid()
    (tmp_path / "folder").mkdir()
    later = time.time() + 2 * LEFT_S
    quotas.clear_shared_memory(range(own, own + 1), later)
    assert left.exists()
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(()))
    quotas.clear_shared_memory(range(own + 1, own + 9), later)
    quotas.clear_shared_memory(range(own, own + 1), time.time())
    assert left.exists()
    quotas.clear_shared_memory(range(own, own + 1), later)
    assert list(tmp_path.iterdir()) == []
