"""Any bytes to any RPC of an agent: a documented status, no process touched by what is refused, and it lives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_proto.v1 import agent_pb2 as pb
from elasticdl_runtime import tokens
from tests.contract.launcher.conftest import ENDPOINTS, NODE_TOKEN, AgentHarness
from tests.fakes.odd_messages import DOCUMENTED, FEW, MANY, Door, OddClient, messages

pytestmark = pytest.mark.contract
SERVICE = pb.DESCRIPTOR.services_by_name["Agent"]
METHODS = sorted(SERVICE.methods_by_name)
MINE, OTHER = "mine-abc123", "other-abc123"
LIVING = ProcessId(OTHER, Role.WORKER, 0, 0)
WORDS = (MINE, OTHER, "master", "ps", "worker", "STUB", "wait", "exit:3", "A", "A=B", "..", ".", "a b", "\n")
NAMED = pb.ProcessId(job_id=MINE, role="worker", index=1, incarnation=0)
GOOD: dict[str, list[Any]] = {
    "Launch": [pb.LaunchRequest(id=NAMED, environment={"STUB": "exit:0"}, memory_mib=64)],
    "Terminate": [pb.TerminateRequest(id=NAMED, grace_s=0.1)],
    "TerminateJob": [pb.TerminateJobRequest(job_id=MINE, grace_s=0.1)],
    "List": [pb.ListRequest(job_id=MINE)],
    "Watch": [pb.WatchRequest(job_id=MINE)],
    "Reserve": [pb.ReserveRequest(name="n", slots=1, grace_s=1.0)],
    "Release": [pb.ReleaseRequest(name="n")],
    "Logs": [pb.LogsRequest(job_id=MINE, role="worker", index=1, tail=-1)],
}


@pytest.fixture
async def harness(exec_harness: AgentHarness) -> AgentHarness:
    await exec_harness.launcher.launch(exec_harness.spec(LIVING))
    await exec_harness.ready(LIVING)
    return exec_harness


@pytest.fixture
async def odd(harness: AgentHarness) -> AsyncIterator[OddClient]:
    """A master of a job sends."""
    secret = tokens.derive_job_secret(ENDPOINTS.cluster_secret, MINE)
    client = OddClient(harness.agent.address, SERVICE, tokens.issue(secret, MINE, Role.MASTER, 0, 0))
    yield client
    await client.close()


async def check(harness: AgentHarness, odd: OddClient, method: str, data: st.DataObject) -> None:
    """Sends one message as a master of one job: that of another job never notices."""
    living = (await harness.launcher.list(OTHER))[0]
    used, mine = await harness.launcher.capacity(), await harness.launcher.list(MINE)
    message = data.draw(messages(Door(SERVICE.methods_by_name[method], None, GOOD.get(method, ()), WORDS)))
    statuses = await odd.send(method, [message], endless=method in ("Watch", "Logs"))
    assert statuses <= DOCUMENTED, (method, statuses, message)
    if not any(status.name == "OK" for status in statuses):
        assert {one.id for one in await harness.launcher.list(MINE)} == {one.id for one in mine}
    assert (await harness.launcher.list(OTHER)) == [living]
    assert (await harness.launcher.capacity()).reservations == used.reservations


@FEW
@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
async def test_any_message_has_a_documented_answer(
    harness: AgentHarness, odd: OddClient, method: str, data: st.DataObject
) -> None:
    await check(harness, odd, method, data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@MANY
@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
async def test_thousands_of_messages_have_a_documented_answer(
    harness: AgentHarness, odd: OddClient, method: str, data: st.DataObject
) -> None:
    await check(harness, odd, method, data)


@FEW
@pytest.mark.parametrize("method", ["Reserve", "Release", "Capacity"])
@given(data=st.data())
async def test_what_the_node_may_ask_for_is_checked_too(
    harness: AgentHarness, odd: OddClient, method: str, data: st.DataObject
) -> None:
    odd.token = NODE_TOKEN
    message = data.draw(messages(Door(SERVICE.methods_by_name[method], None, GOOD.get(method, ()), WORDS)))
    before = (await harness.launcher.capacity()).reservations
    statuses = await odd.send(method, [message])
    assert statuses <= DOCUMENTED, (method, statuses, message)
    if not any(status.name == "OK" for status in statuses):
        assert (await harness.launcher.capacity()).reservations == before
