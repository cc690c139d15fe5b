"""What an agent is asked for is done in one step; the life of a process, broken off at each await, leaves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.servicer import AgentCaller, AgentServicer
from elasticdl_agent.table import ProcessTable
from elasticdl_agent.table_launcher import TableLauncher
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_proto.v1 import agent_pb2
from elasticdl_runtime.launcher import codec
from tests import rotation
from tests.contract.launcher.conftest import ENDPOINTS
from tests.fakes.cuts import Cut, Moment, places

pytestmark = pytest.mark.contract
JOB = "digits-x7k2p9"
COMMANDS = dict.fromkeys(Role, ("/bin/sh", "-c", "exit 3"))
READS = frozenset({"List", "Watch", "Capacity", "Logs", "Inspect", "Meters"})
IN_THE_GATE = 4


def asked() -> dict[str, Any]:
    process = ProcessId(JOB, Role.WORKER, 0, 1)
    return {
        "Launch": codec.spec_to_message(ProcessSpec(process)),
        "Terminate": agent_pb2.TerminateRequest(id=codec.id_to_message(process), grace_s=0.0),
        "TerminateJob": agent_pb2.TerminateJobRequest(job_id=JOB, grace_s=0.0),
        "Reserve": agent_pb2.ReserveRequest(name="web", slots=1, grace_s=1.0),
        "Release": agent_pb2.ReleaseRequest(name="web"),
    }


async def test_what_changes_the_table_awaits_nothing(directories: AgentDirectories) -> None:
    service = agent_pb2.DESCRIPTOR.services_by_name["Agent"]
    assert set(service.methods_by_name) - READS == set(asked())
    table = ProcessTable(directories, ENDPOINTS, 2, COMMANDS)
    servicer, cut = AgentServicer(TableLauncher(table, directories), directories), Cut()
    for method, request in asked().items():
        await cut.run(getattr(servicer, method)(request, AgentCaller(None)))
        assert cut.awaits == 0, method
    await table.close(grace_s=0.0)


async def left(others: set[psutil.Process]) -> list[psutil.Process]:
    """What is still there of processes, once what ends has ended: zombies, too, which nobody waits for."""
    deadline = time.monotonic() + 60
    while found := [one for one in psutil.Process().children(recursive=True) if one not in others]:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.01)
    return found


async def live(table: ProcessTable, incarnation: int, cut: Cut, at: int, moment: Moment) -> int | None:
    """Launches a process whose life is broken off; returns its exit code."""
    process = ProcessId(JOB, Role.WORKER, 0, incarnation)
    whole = table._live
    table._live = lambda entry: cut.steps(whole(entry), at, moment)  # type: ignore[method-assign]
    cut.awaits, cut.broken = 0, False
    table.launch(ProcessSpec(process, slots=2))
    table._live = whole  # type: ignore[method-assign]
    await asyncio.wait(list(table._runs))
    (status,) = [one for one in table.statuses() if one.id == process]
    assert status.state is ProcessState.EXITED
    assert table.capacity().used == {}
    return status.exit_code


async def sweep(directories: AgentDirectories, most: int | None) -> None:
    table, cut = ProcessTable(directories, ENDPOINTS, 2, COMMANDS), Cut()
    others = set(psutil.Process().children(recursive=True))
    assert await live(table, 1, cut, 0, Moment.WAITING) == 3
    tried: Sequence[tuple[int, Moment]] = places(cut.awaits)
    assert len(tried) > 4
    for number, (at, moment) in enumerate(tried if most is None else rotation.share("life", tried, most)):
        code = await live(table, 2 * number + 2, cut, at, moment)
        assert code == 127 if cut.broken else code == 3
        assert await left(others) == [], (at, str(moment))
        assert await live(table, 2 * number + 3, cut, 0, moment) == 3
    await table.close(grace_s=0.0)


async def test_a_life_that_is_broken_off_leaves_no_process_and_no_slot(directories: AgentDirectories) -> None:
    await sweep(directories, IN_THE_GATE)


@pytest.mark.slow
async def test_a_life_may_be_broken_off_at_each_of_its_awaits(directories: AgentDirectories) -> None:
    await sweep(directories, None)
