"""Streams of the agent that are cut before, at and after their first byte leave nothing behind."""

from __future__ import annotations

import pytest

from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_proto.v1 import agent_pb2 as pb
from tests.contract.launcher.conftest import NODE_TOKEN, AgentHarness
from tests.fakes.cut_streams import CutStreams, leaves_nothing, streaming

pytestmark = pytest.mark.contract
JOB = "digits-x7k2p9"
CALLS = {
    "Watch": ([pb.WatchRequest(job_id=JOB).SerializeToString()], True),
    "Logs": ([pb.LogsRequest(job_id=JOB, role="worker", index=0, tail=-1, follow=True).SerializeToString()], True),
    "Inspect": ([pb.InspectRequest(job_id=JOB, ask="metrics", seconds=0.01).SerializeToString()], True),
}


@pytest.mark.parametrize("times", [3, pytest.param(200, marks=pytest.mark.slow)])
async def test_streams_of_the_agent_leave_nothing(exec_harness: AgentHarness, times: int) -> None:
    assert set(CALLS) == streaming("Agent")
    process = ProcessId(JOB, Role.WORKER, 0, 1)
    await exec_harness.launcher.launch(exec_harness.spec(process))
    await exec_harness.ready(process)
    methods = sorted(CALLS) if times < 200 else ["Logs", "Watch"]  # an inquiry waits for the process' answer
    async with CutStreams(exec_harness.agent.address, "elasticdl.v1.Agent", NODE_TOKEN, CALLS) as streams:
        await leaves_nothing(streams, methods, times, memory=times == 200)
