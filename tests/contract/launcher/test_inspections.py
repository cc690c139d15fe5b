"""Processes are asked what they do: those that answer, those that hang, and those that would harm who asks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_core.errors import InvalidInputError, PermissionDeniedError
from elasticdl_core.meters import read_meters
from elasticdl_core.ports.launcher import Inquiry, InspectedProcess, ProcessId, ProcessState, Role
from elasticdl_core.stacks import read_stacks
from elasticdl_proto.v1 import agent_pb2
from elasticdl_runtime.launcher.client import SERVICE, ProcessLauncher
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.tokens import derive_job_secret, issue
from tests.contract.launcher.conftest import (
    ENDPOINTS,
    NODE_TOKEN,
    SLOTS,
    AgentHarness,
    Harness,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="states of processes come from /proc")
JOB = "asked-a1b2"
PROGRAM = Path(__file__).with_name("asked_process.py")


@pytest.fixture
async def asked(directories: AgentDirectories) -> AsyncIterator[AgentHarness]:
    """An agent whose processes can be asked."""
    commands = {role: (sys.executable, "-P", str(PROGRAM)) for role in Role}
    async with (
        Agent(directories, ENDPOINTS, NODE_TOKEN, SLOTS, commands, stop_grace_s=0.0, master_grace_s=0.0) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        yield AgentHarness(launcher, directories, agent)


async def started(harness: AgentHarness, *behaviours: str) -> list[ProcessId]:
    ids = [ProcessId(JOB, Role.PS, index, 0) for index in range(len(behaviours))]
    for process, behaviour in zip(ids, behaviours, strict=True):
        spec = harness.spec(process, behaviour)
        await harness.launcher.launch(
            replace(spec, environment={**spec.environment, "PYTHONPATH": str(Path(__file__).parents[3])})
        )
    for process in ids:
        await harness.ready(process)
    return ids


async def ask(harness: AgentHarness, inquiry: Inquiry = Inquiry.STACKS) -> dict[ProcessId, InspectedProcess]:
    async with asyncio.timeout(60):
        return {one.id: one for one in await harness.launcher.inspect(JOB, inquiry)}


@pytest.mark.timeout(60)
async def test_a_process_says_where_its_threads_and_tasks_are(asked: AgentHarness) -> None:
    (process,) = await started(asked, "wait")

    stacks = read_stacks((await ask(asked))[process])

    threads = {one.name: one for one in stacks.threads}
    assert stacks.error == ""
    assert "stop_later" in [frame.function for frame in threads["training"].frames]
    assert threads["MainThread"].waits_for == "idle event loop"
    assert any("main" in [frame.function for frame in one.frames] for one in stacks.threads if "task" in one.name)


@pytest.mark.timeout(60)
async def test_processes_that_cannot_answer_have_stacks_all_the_same(asked: AgentHarness) -> None:
    hanging, holding = await started(asked, "hang", "hold")

    found = await ask(asked)

    for process, function in ((hanging, "hold_the_loop"), (holding, "hold_the_interpreter")):
        stacks = read_stacks(found[process])
        assert not found[process].answer
        assert function in [frame.function for one in stacks.threads for frame in one.frames], stacks
        assert stacks.threads[0].name == "MainThread"


@pytest.mark.timeout(60)
async def test_of_a_stopped_process_there_is_what_the_system_says(asked: AgentHarness) -> None:
    (process,) = await started(asked, "stop")
    while (await ask(asked))[process].state != "stopped":
        pass

    stacks = read_stacks((await ask(asked))[process])

    assert stacks.waits_for == "stopped (SIGSTOP)"
    assert stacks.threads
    assert stacks.error


@pytest.mark.timeout(60)
async def test_what_a_process_puts_in_the_place_of_its_file_harms_nobody(asked: AgentHarness) -> None:
    ids = await started(asked, "pipe", "link", "flood", "wait")

    found = await ask(asked)

    for process in ids[:2]:
        assert (found[process].answer, found[process].dump) == (b"", b"")
    assert Path("/etc/passwd").read_text().startswith("root")
    read_stacks(found[ids[2]])
    assert read_stacks(found[ids[3]]).error == ""


@pytest.mark.timeout(60)
async def test_a_recording_holds_the_spans_of_its_time(asked: AgentHarness) -> None:
    (process,) = await started(asked, "wait")

    await asked.launcher.inspect(JOB, Inquiry.TRACE, seconds=30.0)
    recorded = json.loads((await ask(asked, Inquiry.RECORDED))[process].answer)
    again = json.loads((await ask(asked, Inquiry.RECORDED))[process].answer)

    assert [one[0] for one in recorded["spans"]] == ["a step"]
    assert again["spans"] == []


@pytest.mark.timeout(60)
async def test_numbers_of_a_process(asked: AgentHarness) -> None:
    (process,) = await started(asked, "wait")

    values = json.loads((await ask(asked, Inquiry.METRICS))[process].answer)["values"]

    assert {"elasticdl_process_cpu_seconds_total", "elasticdl_process_resident_memory_bytes"} <= {
        name for name, _, _ in values
    }


@pytest.mark.timeout(60)
async def test_the_numbers_of_all_jobs_are_asked_for_together_and_one_that_hangs_delays_nobody(
    asked: AgentHarness,
) -> None:
    processes = [ProcessId(job_id, Role.PS, 0, 0) for job_id in (JOB, "other-a1b2", "hanging-a1b2")]
    for process, behaviour in zip(processes, ("wait", "wait", "hang"), strict=True):
        spec = asked.spec(process, behaviour)
        root = str(Path(__file__).parents[3])
        await asked.launcher.launch(replace(spec, environment={**spec.environment, "PYTHONPATH": root}))
    for process in processes:
        await asked.ready(process)

    async with asyncio.timeout(60):
        found = {one.id: one for one in await asked.launcher.inspect(None, Inquiry.METRICS)}

    assert [bool(read_meters(found[process].answer)) for process in processes] == [True, True, False]
    own = await asked.launcher.meters()
    assert own["elasticdl_agent_processes", "running"] == 3
    assert own["elasticdl_agent_launches_total", ""] == 3
    assert own["elasticdl_data_disk_size_bytes", ""] > own["elasticdl_data_disk_free_bytes", ""] > 0
    with pytest.raises(InvalidInputError, match="too much"):
        await asked.launcher.inspect(None, Inquiry.STACKS)


@pytest.mark.timeout(60)
async def test_a_process_that_knows_nothing_of_questions_goes_on(harness: Harness) -> None:
    process = ProcessId(JOB, Role.PS, 0, 0)
    await harness.launcher.launch(harness.spec(process))
    await harness.ready(process)

    for inquiry in Inquiry:
        (found,) = await harness.launcher.inspect(JOB, inquiry)
        assert (found.id, found.answer) == (process, b"")

    (status,) = await harness.launcher.list(JOB)
    assert status.state is ProcessState.RUNNING
    assert read_stacks(found).error


async def test_a_job_without_processes_answers_nothing(harness: Harness) -> None:
    assert list(await harness.launcher.inspect("nothing-a1b2", Inquiry.STACKS)) == []


async def test_a_master_asks_its_own_job_only_and_for_what_there_is(asked: AgentHarness) -> None:
    token = issue(derive_job_secret(ENDPOINTS.cluster_secret, JOB), JOB, Role.MASTER, 0, 0)
    client = RpcClient(asked.agent.address, SERVICE, token)
    try:
        with pytest.raises(PermissionDeniedError):
            [_ async for _ in client.stream("Inspect", agent_pb2.InspectRequest(job_id="other"), deadline_s=20)]
        with pytest.raises(PermissionDeniedError):
            everything = agent_pb2.InspectRequest(job_id="", ask="metrics")
            [_ async for _ in client.stream("Inspect", everything, deadline_s=20)]
        with pytest.raises(PermissionDeniedError):
            await client.call("Meters", agent_pb2.MetersRequest(), deadline_s=20)
        with pytest.raises(InvalidInputError, match="secrets"):
            request = agent_pb2.InspectRequest(job_id=JOB, ask="secrets")
            [_ async for _ in client.stream("Inspect", request, deadline_s=20)]
    finally:
        await client.close()
