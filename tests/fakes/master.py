"""A master that hands out tasks over real gRPC and remembers what it heard."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskId, TaskType
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime.rpc.service import Server, listen, make_server


class FakeMaster:
    """Serves one job.

    Args:
        spec: the job.
        job_dir: directory of the job's files.
        ps_addresses: of the parameter servers.
        finish: whether to say that the job is over when there are no tasks left; else workers wait.
    """

    def __init__(
        self, spec: JobSpec, job_dir: Path, ps_addresses: Sequence[str] = (), *, finish: bool = True
    ) -> None:
        self.spec = spec
        self.job_dir = job_dir
        self.ps_addresses = list(ps_addresses)
        self.finish = finish
        self.todo: deque[pb.Task] = deque()
        self.doing: dict[str, pb.Task] = {}
        self.reports: list[pb.ReportRequest] = []
        self.returns: list[pb.ReturnRequest] = []
        self.failures: list[pb.FailRequest] = []
        self.shards: list[Shard] = []
        self.heartbeats: list[pb.HeartbeatRequest] = []
        self.description: dict[str, Any] = {}
        self.drain = False
        self.lost: list[str] = []
        self.changed = asyncio.Condition()
        self.address = ""
        self._counter = 0
        self._server: Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> str:
        self._server = make_server(pb.DESCRIPTOR.services_by_name["Master"], self, lambda token: token)
        self.address = listen(self._server, address)
        await self._server.start()
        return self.address

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.1)

    def add(
        self, kind: TaskType, shard: Shard, *, epoch: int = 0, index: int = 0, payload: dict[str, Any] | None = None
    ) -> TaskId:
        task_id = TaskId(kind, epoch, index, shard.start, shard.end)
        self._counter += 1
        self.todo.append(
            pb.Task(
                id=str(task_id),
                type=str(kind),
                shard=pb.Shard(name=shard.name, start=shard.start, end=shard.end),
                model_version=-1,
                payload=json.dumps(payload) if payload is not None else "",
                token=f"1.{self._counter}.{self._counter:016x}",
                lease_s=30,
            )
        )
        return task_id

    async def until(self, predicate: Any) -> None:
        async with self.changed:
            await self.changed.wait_for(predicate)

    async def _note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def Register(self, request: pb.RegisterRequest, caller: str) -> pb.RegisterResponse:
        return pb.RegisterResponse(
            spec=json.dumps(self.spec.to_mapping()),
            model_zoo=self.spec.model_zoo,
            job_dir=str(self.job_dir),
            parameter_servers=pb.ParameterServers(addresses=self.ps_addresses, generation=1),
            heartbeat_s=0.05,
            master_epoch=1,
        )

    async def DescribeModel(self, request: pb.DescribeModelRequest, caller: str) -> pb.DescribeModelResponse:
        self.description = json.loads(request.description)
        await self._note()
        return pb.DescribeModelResponse()

    async def Lease(self, request: pb.LeaseRequest, caller: str) -> pb.LeaseResponse:
        if self.drain:
            return pb.LeaseResponse(directive=pb.DIRECTIVE_DRAIN)
        if self.todo:
            task = self.todo.popleft()
            self.doing[task.token] = task
            await self._note()
            return pb.LeaseResponse(tasks=[task], directive=pb.DIRECTIVE_CONTINUE)
        if self.finish and not self.doing:
            return pb.LeaseResponse(directive=pb.DIRECTIVE_FINISHED)
        return pb.LeaseResponse(directive=pb.DIRECTIVE_WAIT, wait_s=0.05)

    async def Heartbeat(self, request: pb.HeartbeatRequest, caller: str) -> pb.HeartbeatResponse:
        self.heartbeats.append(request)
        await self._note()
        return pb.HeartbeatResponse(
            directive=pb.DIRECTIVE_DRAIN if self.drain else pb.DIRECTIVE_CONTINUE,
            lost=self.lost,
            parameter_servers=pb.ParameterServers(addresses=self.ps_addresses, generation=1),
        )

    async def Report(self, request: pb.ReportRequest, caller: str) -> pb.ReportResponse:
        accepted = self.doing.pop(request.token, None) is not None
        if accepted:
            self.reports.append(request)
        tasks = [self.todo.popleft() for _ in range(min(request.max_tasks if accepted else 0, len(self.todo)))]
        self.doing.update((task.token, task) for task in tasks)
        await self._note()
        return pb.ReportResponse(accepted=accepted, tasks=tasks)

    async def Return(self, request: pb.ReturnRequest, caller: str) -> pb.ReturnResponse:
        accepted = self.doing.pop(request.token, None) is not None
        self.returns.append(request)
        await self._note()
        return pb.ReturnResponse(accepted=accepted)

    async def Fail(self, request: pb.FailRequest, caller: str) -> pb.FailResponse:
        self.doing.pop(request.token, None)
        self.failures.append(request)
        await self._note()
        return pb.FailResponse()

    async def Meet(self, request: pb.MeetRequest, caller: str) -> pb.MeetResponse:
        raise NotImplementedError("this master leads no group")

    async def DescribeSight(self, request: pb.DescribeSightRequest, caller: str) -> pb.DescribeSightResponse:
        raise NotImplementedError("this master has no model inspected")

    async def ReportShards(self, request: pb.ReportShardsRequest, caller: str) -> pb.ReportShardsResponse:
        self.shards += [Shard(s.name, s.start, s.end) for s in request.shards]
        await self._note()
        return pb.ReportShardsResponse(accepted=request.token in self.doing)
