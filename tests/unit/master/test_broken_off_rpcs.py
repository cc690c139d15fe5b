"""Each RPC of a master, broken off at each of its awaits: the next try leaves what one call would have left."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.group_service import GroupService
from elasticdl_master.queue.port import Contents
from elasticdl_master.servicer import MasterServicer
from elasticdl_master.state import events as ev
from elasticdl_master.state.agreement import contradiction
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.setup import Setup
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime.tokens import Claims
from tests.fakes.broken_calls import FarQueue
from tests.fakes.cuts import Cut, Moment, places
from tests.fakes.memory_queue import MemoryQueue, MemoryStore
from tests.fakes.sim_faults import make_spec
from tests.unit.master.test_json_forms import DESCRIPTION

pytestmark = pytest.mark.unit
JOB, SECRET, RECORDS = "sim-1", "s" * 32, 14
WORKER = Claims(JOB, Role.WORKER, 0, 0, 1e12)
Called = Callable[[], Awaitable[object]]


class Master:
    """A master without a network whose queue is far away; its servers hold a model, and it has one worker.

    Args:
        by_group: whether the worker is the only member of a group, in the place of servers.
        lists: whether the worker lists the shards.
    """

    def __init__(self, *, by_group: bool = False, lists: bool = False) -> None:
        servers: dict[str, Any] = {"num_ps": 1}
        if by_group:
            servers = {"num_ps": 0, "distribution_strategy": "AllReduceStrategy"}
        spec = make_spec(min_workers=1, max_workers=2, num_epochs=1, **servers)
        self.by_group, self.lists = by_group, lists
        self.posted: list[str] = []
        self.store = MemoryStore(lambda: 0.0)
        queue: Any = FarQueue(MemoryQueue(self.store, 1))
        self.queue = queue
        self.machine = JobMachine(Setup(spec, 1, lists_by_worker=lists))
        self.dispatcher = TaskDispatcher(
            self.machine, queue, lambda instruction: self.posted.append(type(instruction).__name__), lambda: 0.0
        )
        self.group_service = GroupService(self.dispatcher) if by_group else None
        self.servicer = MasterServicer(self.dispatcher, JOB, SECRET, "/zoo", "/job", ["ps"], self.group_service)

    async def start(self, *, registered: bool = True) -> None:
        tell = self.dispatcher.tell
        await self.queue.rebuild(Contents(), 60.0)
        await tell(ev.Started())
        if not self.lists:
            await tell(ev.ShardsListed(TaskType.TRAINING, [Shard("a", 0, RECORDS)], last=True))
        if registered:
            await tell(ev.WorkerRegistered(0, 0))
        await tell(ev.ProcessChanged(ProcessStatus(ProcessId(JOB, Role.PS, 0, 0), ProcessState.RUNNING)))
        await tell(ev.ServerSeen(0, 0, not self.by_group, 0))

    async def found(self) -> None:
        """The group is formed, holds the model, and has tasks."""
        assert self.group_service is not None
        await self.dispatcher.tell(ev.GroupAllowed())
        await self.servicer.Meet(pb.MeetRequest(endpoint=b"here"), WORKER)
        await self.servicer.Meet(pb.MeetRequest(endpoint=b"here", generation=1, holds=True), WORKER)
        await self.dispatcher.tell(ev.ServerSeen(0, 0, True, 0))
        await self.group_service.look()

    async def lease(self) -> pb.Task:
        (task,) = (await self.servicer.Lease(pb.LeaseRequest(max_tasks=1), WORKER)).tasks
        return task

    async def read(self) -> dict[str, Any]:
        """All that a call may change; the queue and the machine must agree on it."""
        await self.dispatcher.forget([])  # what was begun is done
        assert contradiction(self.machine, await self.queue.counts()) == ""
        machine = self.machine
        return {
            "todo": list(map(str, self.store.todo)),
            "done": list(map(str, self.store.done)),
            "records": machine.epochs.records_done,
            "plan": machine.plans.main.records,
            "workers": [worker.owner for worker in machine.workers.running if worker.registered],
            "description": machine.gate.description,
            "failures": dict(machine.failures._failures),
            "notes": sorted(self.posted),
            "acknowledged": self.group_service is not None and self.group_service.refused,
        }


Prepare = Callable[[Master], Awaitable[Called]]
PREPARED: dict[str, tuple[Prepare, dict[str, Any]]] = {}


def call(method: str, **how: Any) -> Callable[[Prepare], Prepare]:
    def add(prepare: Prepare) -> Prepare:
        PREPARED[method] = (prepare, how)
        return prepare

    return add


@call("Register")
async def _register(master: Master) -> Called:
    await master.start(registered=False)
    return lambda: master.servicer.Register(pb.RegisterRequest(index=0, incarnation=0), WORKER)


@call("DescribeModel")
async def _describe(master: Master) -> Called:
    await master.start()
    request = pb.DescribeModelRequest(description=json.dumps(DESCRIPTION))
    return lambda: master.servicer.DescribeModel(request, WORKER)


@call("DescribeSight")
async def _profile(master: Master) -> Called:
    await master.start()
    return lambda: master.servicer.DescribeSight(pb.DescribeSightRequest(), WORKER)


@call("Heartbeat")
async def _heartbeat(master: Master) -> Called:
    await master.start()
    task = await master.lease()
    request = pb.HeartbeatRequest(tasks=[pb.TaskProgress(token=task.token, position=1)], records=1)
    return lambda: master.servicer.Heartbeat(request, WORKER)


@call("Lease")
async def _lease(master: Master) -> Called:
    """Who asks again gets another task; the first one comes back when its lease is over."""
    await master.start()

    async def lease() -> None:
        if not master.store.doing:
            await master.lease()

    return lease


@call("Report")
async def _report(master: Master) -> Called:
    await master.start()
    task = await master.lease()
    request = pb.ReportRequest(task_id=task.id, token=task.token, records=6, trace_trouble="no room")
    return lambda: master.servicer.Report(request, WORKER)


@call("Return")
async def _return(master: Master) -> Called:
    await master.start()
    task = await master.lease()
    request = pb.ReturnRequest(task_id=task.id, token=task.token, position=2)
    return lambda: master.servicer.Return(request, WORKER)


@call("Fail")
async def _fail(master: Master) -> Called:
    await master.start()
    task = await master.lease()
    request = pb.FailRequest(task_id=task.id, token=task.token, kind="user_code", message="no")
    return lambda: master.servicer.Fail(request, WORKER)


@call("ReportShards", lists=True)
async def _report_shards(master: Master) -> Called:
    await master.start()
    task = await master.lease()
    shards = [pb.Shard(name="a", start=0, end=RECORDS)]
    request = pb.ReportShardsRequest(task_id=task.id, token=task.token, shards=shards, last=True)
    return lambda: master.servicer.ReportShards(request, WORKER)


@call("Meet", by_group=True)
async def _meet(master: Master) -> Called:
    await master.start()
    await master.found()
    first, second = master.machine.workers.group_leases[:2]
    report = pb.GroupReport(version=2, steps=2, left=1, last_token=str(second.token))
    report.ended.add(task_id=str(first.task), token=str(first.token), position=first.task.end)
    report.ended.add(task_id=str(second.task), token=str(second.token), position=second.task.start + 2)
    request = pb.MeetRequest(endpoint=b"here", generation=1, holds=True, report=report)
    return lambda: master.servicer.Meet(request, WORKER)


def test_each_rpc_is_broken_off() -> None:
    assert set(pb.DESCRIPTOR.services_by_name["Master"].methods_by_name) == set(PREPARED)


async def make(method: str, cut: Cut, at: int, moment: Moment) -> dict[str, Any]:
    """Makes a call, or breaks it off and makes it again; what there is then."""
    prepare, how = PREPARED[method]
    master = Master(**how)
    called = await prepare(master)
    await cut.run(called(), at, moment)
    if cut.broken:
        await master.dispatcher.forget([])
        await called()
    return await master.read()


@pytest.mark.parametrize("method", sorted(PREPARED))
async def test_an_rpc_may_be_broken_off_at_each_of_its_awaits(method: str) -> None:
    cut = Cut()
    wanted = await make(method, cut, 0, Moment.WAITING)
    assert cut.awaits or method == "DescribeSight"
    for at, moment in places(cut.awaits):
        found = await make(method, cut, at, moment)
        assert found == wanted, (at, str(moment))
