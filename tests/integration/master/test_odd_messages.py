"""Any bytes to any RPC of a master: a documented status, nothing changed by what is refused, and it lives."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.tokens import issue
from tests.fakes.odd_messages import DOCUMENTED, FEW, MANY, Door, OddClient, messages
from tests.integration.master.conftest import SECRET, Job

pytestmark = pytest.mark.integration
SERVICE = pb.DESCRIPTOR.services_by_name["Master"]
METHODS = sorted(SERVICE.methods_by_name)
EARLY = {"monitor": "loss", "patience": 2, "mode": "min", "min_delta": 0.0}
DESCRIPTIONS = (
    *("{}", "[]", "3", "null", "NaN", "1e999", '"x"', "{", '{"a":' * 1200, "[" * 5000, '{"\\ud800": 1}'),
    *(json.dumps({"has": {}, "callbacks": one}) for one in (None, 3, [], "x", {}, {"max_steps": "x"})),
    *(json.dumps({"callbacks": {"max_steps": number}}) for number in (-1, 1.5, 1e300, 10**30, [1], None)),
    *(json.dumps({"callbacks": {"early_stopping": one}}) for one in (3, "x", {}, [1], {"monitor": 3})),
    *(
        json.dumps({"callbacks": {"early_stopping": {**EARLY, key: value}}})
        for key in EARLY
        for value in (None, "x", [], -1, 10**400)
    ),
)
# Kinds of failures that are the job's end are no odd messages: the job would be over.
WORDS = (
    "infrastructure",
    "training",
    "starting",
    "corrupt",
    "nan",
    "t:0:0:0:10",
    "e:1:0:0:5",
    "x:0:0:0:0",
    *DESCRIPTIONS,
)


@dataclass
class MasterDoor:
    """A running master with a worker that has a task in hand."""

    job: Job
    task: pb.Task
    client: RpcClient
    odd: OddClient

    def kept(self) -> tuple[Any, ...]:
        """All that a refused call must leave as it is."""
        machine = self.job.runners[-1].machine
        accounts = machine.epochs.accounts.to_mapping()
        return machine.epochs.records_done, machine.plans.to_mapping(), accounts, machine.gate.description

    def good(self, method: str) -> list[Any]:
        """Messages that the master would take."""
        account = pb.Account(fed=10, applied=10, skipped=[pb.Skip(reason="corrupt", records=1, example="x")])
        named = {"task_id": self.task.id, "token": self.task.token}
        found: dict[str, list[Any]] = {
            "Register": [pb.RegisterRequest(index=0, incarnation=0, pid=1)],
            "DescribeModel": [pb.DescribeModelRequest(description=json.dumps(self.job.processes.description))],
            "DescribeSight": [pb.DescribeSightRequest(sight="{}")],
            "Lease": [pb.LeaseRequest(max_tasks=1)],
            "Heartbeat": [pb.HeartbeatRequest(tasks=[pb.TaskProgress(token=self.task.token)], phase="training")],
            "Report": [pb.ReportRequest(**named, records=10, account=account)],
            "Return": [pb.ReturnRequest(**named, position=self.task.shard.start, account=account)],
            "Fail": [pb.FailRequest(**named, kind="infrastructure", message="m")],
            "Meet": [pb.MeetRequest(endpoint=b"e", finished=1, report=pb.GroupReport(ended=[pb.TaskEnd(**named)]))],
            "ReportShards": [pb.ReportShardsRequest(**named, shards=[pb.Shard(name="s", start=0, end=10)])],
        }
        return found[method]


@pytest.fixture
async def door(make_job: Any) -> AsyncIterator[MasterDoor]:
    job: Job = await make_job(num_epochs=1000)
    job.processes.gate.clear()
    job.start_master()
    # Its master tells the api later than it gives the first task away.
    await job.api.pulse.until(
        lambda: job.api.state is JobState.RUNNING and any(one.held for one in job.processes.workers.values())
    )
    (process,) = job.processes.living(Role.WORKER)
    token = issue(SECRET, job.api.job_id, Role.WORKER, process.index, process.incarnation)
    address = f"unix:{job.folder}/master-0.sock"
    async with contextlib.AsyncExitStack() as stack:
        client, odd = RpcClient(address, SERVICE, token), OddClient(address, SERVICE, token)
        stack.push_async_callback(client.close)
        stack.push_async_callback(odd.close)
        leased = await client.call("Lease", pb.LeaseRequest(max_tasks=1), deadline_s=20)
        yield MasterDoor(job, leased.tasks[0], client, odd)


async def check(door: MasterDoor, method: str, data: st.DataObject) -> None:
    """Sends one message."""
    words = (*WORDS, *DESCRIPTIONS, door.task.id, door.task.token, str(door.job.folder / "data.csv"))
    message = data.draw(messages(Door(SERVICE.methods_by_name[method], None, door.good(method), words)))
    before = door.kept()
    statuses = await door.odd.send(method, [message])
    assert statuses <= DOCUMENTED, (method, statuses, message)
    if not any(status.name == "OK" for status in statuses):
        assert door.kept() == before
    assert not door.job.masters[-1].done()
    assert door.job.api.state is JobState.RUNNING
    answer = await door.client.call("Heartbeat", pb.HeartbeatRequest(), deadline_s=20)
    assert answer.directive


@FEW
@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
async def test_any_message_has_a_documented_answer(door: MasterDoor, method: str, data: st.DataObject) -> None:
    await check(door, method, data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@MANY
@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
async def test_thousands_of_messages_have_a_documented_answer(
    door: MasterDoor, method: str, data: st.DataObject
) -> None:
    await check(door, method, data)
