"""Slots that others take: a launcher with slots grants what no worker holds, and starts no worker on the rest."""

from __future__ import annotations

import asyncio
from signal import SIGKILL, SIGTERM

import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_core.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from elasticdl_core.ports.launcher import CapacityInfo, Launcher, ProcessId, ProcessState, Role
from elasticdl_runtime import tokens
from elasticdl_runtime.launcher.client import ProcessLauncher
from tests.contract.launcher.conftest import (
    ENDPOINTS,
    NODE_TOKEN,
    SLOTS,
    STUB_COMMANDS,
    AgentHarness,
    Harness,
    PodHarness,
    until,
)

pytestmark = pytest.mark.contract
JOB = "digits-x7k2p9"


@pytest.fixture(params=["fake_harness", "exec_harness", "zygote_harness", "tls_harness"])
def harness(request: pytest.FixtureRequest) -> Harness:
    """Those that have slots of their own."""
    return request.getfixturevalue(request.param)


async def test_slots_of_a_cluster_are_not_reserved(pod_harness: PodHarness) -> None:
    with pytest.raises(InvalidInputError, match="are not reserved here"):
        await pod_harness.launcher.reserve("evening", 1, grace_s=1.0)


def worker(index: int = 0) -> ProcessId:
    return ProcessId(JOB, Role.WORKER, index, 0)


def granted(capacity: CapacityInfo) -> dict[str, tuple[int, int]]:
    return {one.name: (one.granted, one.slots) for one in capacity.reservations}


async def run_workers(harness: Harness, count: int) -> None:
    for index in range(count):
        await harness.launcher.launch(harness.spec(worker(index), slots=1))
        await harness.ready(worker(index))


async def until_granted(launcher: Launcher, slots: int) -> None:
    async with asyncio.timeout(60):
        while True:
            if sum(one.granted for one in (await launcher.capacity()).reservations) >= slots:
                return


async def test_free_slots_are_granted_at_once_and_are_not_for_jobs(harness: Harness) -> None:
    await harness.launcher.reserve("shop", 1, grace_s=30.0)
    capacity = await harness.launcher.capacity()
    assert granted(capacity) == {"shop": (1, 1)}
    assert capacity.reservations[0].granted_at is not None
    assert (capacity.slots, capacity.for_jobs) == (SLOTS, SLOTS - 1)


async def test_slots_that_workers_hold_are_granted_as_they_leave(harness: Harness) -> None:
    await run_workers(harness, SLOTS)
    await harness.launcher.reserve("shop", 2, grace_s=30.0)
    capacity = await harness.launcher.capacity()
    assert granted(capacity) == {"shop": (0, 2)}
    assert capacity.reservations[0].granted_at is None and capacity.for_jobs == 0
    await harness.launcher.terminate(worker(1), grace_s=20.0)
    await until(harness.launcher, worker(1), ProcessState.EXITED)
    await until_granted(harness.launcher, 1)
    assert granted(await harness.launcher.capacity()) == {"shop": (1, 2)}


async def test_no_worker_starts_on_a_reserved_slot_until_it_is_released(harness: Harness) -> None:
    await harness.launcher.reserve("shop", SLOTS, grace_s=30.0)
    await harness.launcher.launch(harness.spec(worker(), slots=1))
    assert [status.state for status in await harness.launcher.list(JOB)] == [ProcessState.PENDING]
    await harness.launcher.release("shop")
    await harness.ready(worker())
    assert granted(await harness.launcher.capacity()) == {}


async def test_a_freed_slot_goes_to_the_reservation_before_a_pending_worker(harness: Harness) -> None:
    await run_workers(harness, SLOTS)
    await harness.launcher.launch(harness.spec(worker(SLOTS), slots=1))
    await harness.launcher.reserve("shop", 1, grace_s=30.0)
    await harness.launcher.terminate(worker(0), grace_s=20.0)
    await until_granted(harness.launcher, 1)
    states = {status.id: status.state for status in await harness.launcher.list(JOB)}
    assert states[worker(SLOTS)] is ProcessState.PENDING


async def test_a_reservation_can_grow_and_shrink(harness: Harness) -> None:
    await harness.launcher.reserve("shop", SLOTS, grace_s=30.0)
    await harness.launcher.reserve("shop", 1, grace_s=30.0)
    assert granted(await harness.launcher.capacity()) == {"shop": (1, 1)}
    await harness.launcher.launch(harness.spec(worker(), slots=1))
    await harness.ready(worker())


async def test_more_than_there_is_and_unknown_names_are_refused(harness: Harness) -> None:
    await harness.launcher.reserve("shop", 1, grace_s=30.0)
    with pytest.raises(InvalidInputError):
        await harness.launcher.reserve("mail", SLOTS, grace_s=30.0)
    with pytest.raises(InvalidInputError):
        await harness.launcher.reserve("No Name", 1, grace_s=30.0)
    with pytest.raises(NotFoundError):
        await harness.launcher.release("mail")
    assert granted(await harness.launcher.capacity()) == {"shop": (1, 1)}


async def test_a_worker_that_stays_longer_than_the_grace_is_ended(agent_harness: AgentHarness) -> None:
    await run_workers(agent_harness, SLOTS)
    await agent_harness.launcher.reserve("shop", 1, grace_s=0.1)
    status = await until(agent_harness.launcher, worker(SLOTS - 1), ProcessState.EXITED)
    assert status.reason == "terminated" and status.exit_code in (-SIGTERM, -SIGKILL)
    await until_granted(agent_harness.launcher, 1)
    assert (await agent_harness.launcher.list(JOB))[0].state is ProcessState.RUNNING


async def test_reservations_outlive_the_agent(directories: AgentDirectories) -> None:
    for _ in range(2):
        async with (
            Agent(
                directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS, stop_grace_s=0.0, master_grace_s=0.0
            ) as agent,
            ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
        ):
            if not (await launcher.capacity()).reservations:
                await launcher.reserve("shop", 1, grace_s=7.0)
            capacity = await launcher.capacity()
    assert granted(capacity) == {"shop": (1, 1)}
    assert capacity.reservations[0].grace_s == 7.0


async def test_headroom_is_free_of_workers_but_not_of_reservations(directories: AgentDirectories) -> None:
    async with (
        Agent(
            directories, ENDPOINTS, NODE_TOKEN, SLOTS, STUB_COMMANDS, stop_grace_s=0.0, master_grace_s=0.0, headroom=1
        ) as agent,
        ProcessLauncher(agent.address, NODE_TOKEN) as launcher,
    ):
        harness = AgentHarness(launcher, directories, agent)
        await launcher.launch(harness.spec(worker(0), slots=1))
        await harness.ready(worker(0))
        await launcher.launch(harness.spec(worker(1), slots=1))
        assert [status.state for status in await launcher.list(JOB)] == [ProcessState.RUNNING, ProcessState.PENDING]
        assert (await launcher.capacity()).for_jobs == SLOTS - 1
        await launcher.reserve("shop", 1, grace_s=30.0)
        assert granted(await launcher.capacity()) == {"shop": (1, 1)}


async def test_a_master_may_not_reserve(agent_harness: AgentHarness) -> None:
    secret = tokens.derive_job_secret(ENDPOINTS.cluster_secret, JOB)
    token = tokens.issue(secret, JOB, Role.MASTER, 0, 0)
    async with ProcessLauncher(agent_harness.agent.address, token) as master:
        with pytest.raises(PermissionDeniedError):
            await master.reserve("mine", 1, grace_s=1.0)
        with pytest.raises(PermissionDeniedError):
            await master.release("mine")
