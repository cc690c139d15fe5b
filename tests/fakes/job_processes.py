"""A launcher whose processes are tasks of this event loop: workers and PS that speak real gRPC over real sockets.

The PS keep which records were applied to them, and write that into their checkpoints; the workers lease, apply and
report. No model is involved: what is tested is the master.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from elasticdl_core.errors import ElasticDLError, InvalidInputError, UnavailableError
from elasticdl_core.json_numbers import to_json
from elasticdl_core.ports.launcher import (
    CapacityInfo,
    ProcessId,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    Role,
)
from elasticdl_core.task import TaskId
from elasticdl_proto.v1 import master_pb2, ps_pb2
from elasticdl_runtime import tokens
from elasticdl_runtime.lifecycle import end_all, settle, within
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.service import listen, make_server
from tests.fakes.pulse import Gate, Pulse

PS_SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
INSPECTOR = 10_000
"""Index of the worker that looks at the model; there are no servers yet."""
MASTER_SERVICE = master_pb2.DESCRIPTOR.services_by_name["Master"]


class FakeServer:
    """A PS that keeps counts of records instead of parameters."""

    def __init__(self, index: int, num_ps: int) -> None:
        self.index, self.num_ps = index, num_ps
        self.generation = secrets.token_hex(4)
        self.initialized = False
        self.version = 0
        self.applied: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        self.tally_complete = True
        self.pins: dict[int, int] = {}
        self.refuse_saves = ""
        self.hangs = False

    def __getattr__(self, name: str) -> Any:
        if name in PS_SERVICE.methods_by_name:
            return self._unused
        raise AttributeError(name)

    async def _unused(self, request: Any, caller: Any) -> Any:
        raise InvalidInputError("a master does not call this")

    def stop(self) -> None:
        """Lets nobody wait any more; nobody does."""

    def close(self) -> None:
        """Gives back what it holds; it holds nothing."""

    async def Status(self, request: Any, caller: Any) -> Any:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return ps_pb2.StatusResponse(
            index=self.index,
            num_ps=self.num_ps,
            initialized=self.initialized,
            version=self.version,
            generation=self.generation,
            rows=len(self.applied),
            bytes=8 * len(self.applied),
            records=sum(self.tally.values()),
        )

    async def Tally(self, request: Any, caller: Any) -> Any:
        numbers = [int(number) for key, records in self.tally.items() for number in (*key.split("/"), records)]
        return ps_pb2.TallyResponse(complete=self.tally_complete, counts=numbers)

    async def Pin(self, request: Any, caller: Any) -> Any:
        self.pins[request.pin] = self.version
        return ps_pb2.PinResponse(version=self.version)

    async def Unpin(self, request: Any, caller: Any) -> Any:
        self.pins.pop(request.pin, None)
        return ps_pb2.UnpinResponse()

    async def FlushRound(self, request: Any, caller: Any) -> Any:
        return ps_pb2.FlushRoundResponse()

    async def Save(self, request: Any, caller: Any) -> Any:
        if self.refuse_saves:
            raise InvalidInputError(self.refuse_saves)
        data = json.dumps({"version": self.version, "applied": self.applied, "tally": self.tally}).encode()
        name = f"ps-{self.index}.bin"
        (Path(request.directory) / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        return ps_pb2.SaveResponse(
            version=self.version,
            files=[ps_pb2.SavedFile(name=name, size=len(data), sha256=digest)],
            model="{}",
        )

    async def Restore(self, request: Any, caller: Any) -> Any:
        file = request.files[self.index]
        path = Path(request.directory) / file.name
        data = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise InvalidInputError(f"{path} is damaged", fix="use another checkpoint")
        content = json.loads(data)
        self.version, self.applied = content["version"], Counter(content["applied"])
        self.tally = Counter() if request.other_job else Counter(content["tally"])
        self.initialized, self.pins = True, {}
        return ps_pb2.RestoreResponse(version=self.version, rows=len(self.applied))


class FakeWorker:
    """A worker that applies records to the PS of its job, minibatch by minibatch.

    Args:
        world: its launcher.
        process: who it is.
        environment: what it was launched with.
    """

    def __init__(self, world: JobProcesses, process: ProcessId, environment: dict[str, str]) -> None:
        self.world = world
        self.process = process
        self.token = environment["ELASTICDL_JOB_TOKEN"]
        self.master = RpcClient(environment["ELASTICDL_MASTER"], MASTER_SERVICE, lambda: self.token)
        self.held: dict[str, int] = {}
        self.lost: set[str] = set()
        self.records = self.steps = 0
        self.drain = asyncio.Event()
        self.losses: list[tuple[int, float]] = []
        self.read_version = 0

    async def run(self) -> int:
        beats: list[asyncio.Task[None]] = []
        try:
            return await self.serve_job(beats)
        finally:
            await end_all(*beats)
            await self.master.close()

    async def serve_job(self, beats: list[asyncio.Task[None]]) -> int:
        welcome = await self.call(
            "Register", master_pb2.RegisterRequest(index=self.process.index, incarnation=self.process.incarnation)
        )
        self.spec = json.loads(welcome.spec)
        if welcome.inspects:
            await self.world.pulse.until(lambda: self.world.profile is not None, 60.0)
            profile = json.dumps(self.world.profile)
            await self.call("DescribeSight", master_pb2.DescribeSightRequest(sight=profile))
            return 0
        failure = self.world.fail_at_start.get(self.process.index)
        if failure:
            await self.call("Fail", master_pb2.FailRequest(**failure))
            return 1
        if not self.world.num_ps:
            manifest = Path(self.spec["checkpoint_dir_for_init"]) / "manifest.json"
            self.read_version = int(json.loads(manifest.read_text())["version"])
            self.world.read.append(str(manifest.parent))
        elif not self.world.servers[0].initialized:
            for server in self.world.servers.values():
                server.initialized = True
        await self.call(
            "DescribeModel", master_pb2.DescribeModelRequest(description=json.dumps(self.world.description))
        )
        beats.append(asyncio.create_task(self.beat(welcome.heartbeat_s), name=f"beat of {self.process}"))
        return await self.work()

    async def work(self) -> int:
        while True:
            if self.drain.is_set():
                return 0
            answer = await self.call("Lease", master_pb2.LeaseRequest(max_tasks=1))
            if answer.directive in (master_pb2.DIRECTIVE_DRAIN, master_pb2.DIRECTIVE_FINISHED):
                return 0
            for task in answer.tasks:
                await self.do(task)
            if not answer.tasks:
                with contextlib.suppress(TimeoutError):
                    await within(self.drain.wait(), min(answer.wait_s, 0.05))

    async def do(self, task: Any) -> None:
        id_ = TaskId.parse(task.id)
        self.held[task.token] = id_.start
        result = b""
        if task.type == "training":
            if not await self.train(task, id_):
                self.held.pop(task.token)
                return
        elif task.type == "list_shards":
            await self.list_shards(task)
        else:
            await self.world.pulse.until(lambda: not self.world.holds_back(id_) or self.drain.is_set(), 120.0)
            if self.world.holds_back(id_):
                await self.give_back(task, id_.start)
                self.held.pop(task.token)
                return
            result = self.world.result_of(task, id_)
        await self.call(
            "Report",
            master_pb2.ReportRequest(
                task_id=task.id,
                token=task.token,
                records=id_.records,
                result=result,
                model_version=self.version,
                account=self.world.account_of(id_),
            ),
        )
        self.held.pop(task.token, None)

    async def train(self, task: Any, id_: TaskId) -> bool:
        position = id_.start
        while position < id_.end:
            if task.token in self.lost:
                return False
            await self.world.pulse.until(
                lambda: self.world.gate.is_set() or self.drain.is_set() or task.token in self.lost, 120.0
            )
            failure = self.world.fail_on(id_, position)
            if failure:
                await self.call("Fail", master_pb2.FailRequest(task_id=task.id, token=task.token, **failure))
                return False
            if self.drain.is_set():
                await self.give_back(task, position)
                return False
            end = min(position + self.spec["minibatch_size"], id_.end)
            await self.world.pulse.until(lambda: self.servers_there or task.token in self.lost, 120.0)
            if not self.servers_there:
                return False
            for server in self.world.servers.values():
                server.applied.update(f"{id_.epoch}/{task.shard.name}/{at}" for at in range(position, end))
                server.tally[f"{id_.epoch}/{id_.index}"] += self.world.tallied(id_, end - position)
                server.version += 1
            self.world.trace(self.process, task, position, end)
            self.records, self.steps, position = self.records + end - position, self.steps + 1, end
            self.losses.append((self.version, 1.0 / self.steps))
            self.held[task.token] = position
            await asyncio.sleep(self.world.step_s)
        return task.token not in self.lost

    async def give_back(self, task: Any, position: int) -> None:
        request = master_pb2.ReturnRequest(task_id=task.id, token=task.token, position=position)
        await self.call("Return", request)

    async def list_shards(self, task: Any) -> None:
        purpose = json.loads(task.payload)["purpose"]
        shards = [master_pb2.Shard(name=n, start=s, end=e) for n, s, e in self.world.custom_shards[purpose]]
        for i, shard in enumerate(shards):
            request = master_pb2.ReportShardsRequest(
                task_id=task.id, token=task.token, shards=[shard], first=i, last=i + 1 == len(shards)
            )
            await self.call("ReportShards", request)

    async def beat(self, seconds: float) -> None:
        while True:
            losses, self.losses = self.losses, []
            request = master_pb2.HeartbeatRequest(
                tasks=[master_pb2.TaskProgress(token=t, position=p) for t, p in self.held.items()],
                records=self.records,
                steps=self.steps,
                samples_per_second=10.0,
                model_version=self.version,
                losses=[master_pb2.LossPoint(model_version=v, loss=x) for v, x in losses],
                phase="training" if self.held else "waiting",
                step_p95_s=0.01,
                training_metrics=self.world.training_metrics,
            )
            with contextlib.suppress(UnavailableError):
                answer = await self.master.call("Heartbeat", request, deadline_s=2.0)
                self.lost.update(answer.lost)
                if answer.directive == master_pb2.DIRECTIVE_DRAIN:
                    self.drain.set()
                self.world.pulse.beat()
            await asyncio.sleep(seconds)

    @property
    def servers_there(self) -> bool:
        servers = self.world.servers.values()
        return len(servers) == self.spec["num_ps"] and not any(server.hangs for server in servers)

    @property
    def version(self) -> int:
        return max((server.version for server in self.world.servers.values()), default=self.read_version)

    async def call(self, method: str, request: Any) -> Any:
        while True:
            try:
                return await self.master.call(method, request, deadline_s=5.0)
            except UnavailableError:
                await asyncio.sleep(0.05)


class JobProcesses:
    """Implements the launcher port with tasks.

    Args:
        folder: for sockets; short.
        job_id: the job.
        num_ps: number of its PS; 0 if workers read the checkpoint themselves.
        secret: the job's secret.
        pulse: beats when anything happens.

    Attributes:
        gate: workers train while it is set.
        applied: every trace line: (worker, task, token, shard, start, end).
        holds_back: tasks that are no training and wait, by their id.
        read: the checkpoint of each worker that read one itself.
    """

    def __init__(self, folder: Path, job_id: str, num_ps: int, secret: str, pulse: Pulse, *, slots: int = 8) -> None:
        self.folder, self.job_id, self.num_ps, self.secret = folder, job_id, num_ps, secret
        self.slots = slots
        self.step_s = 0.0
        self.pulse = pulse
        self.gate = Gate(pulse)
        self.statuses: dict[ProcessId, ProcessStatus] = {}
        self.specs: dict[ProcessId, ProcessSpec] = {}
        self.tasks: dict[ProcessId, asyncio.Task[None]] = {}
        self.workers: dict[ProcessId, FakeWorker] = {}
        self.servers: dict[int, FakeServer] = {}
        self.traces: list[tuple[str, str, str, str, int, int]] = []
        self.closing = False
        self.description: dict[str, Any] = {
            "has": {},
            "dense": [],
            "tables": [],
            "dense_bytes": 0,
            "table_bytes": 0,
            "optimizer": None,
            "callbacks": {"max_steps": 0, "early_stopping": None, "saved_model": False},
            "keras": "3.0",
        }
        self.profile: dict[str, Any] | None = {"dense_bytes": 400, "embedding_bytes": 1 << 30, "tables": 1}
        self.custom_shards: dict[str, list[tuple[str, int, int]]] = {}
        self.fail_at_start: dict[int, dict[str, str]] = {}
        self.fail_on: Callable[[TaskId, int], dict[str, str] | None] = lambda task, position: None
        self.output: dict[int, bytes] = {}
        self.metrics: Callable[[int], dict[str, float]] = lambda number: {"accuracy": 0.5}
        self.tallied: Callable[[TaskId, int], int] = lambda task, records: records
        self.account_of: Callable[[TaskId], master_pb2.Account | None] = lambda task: None
        self.training_metrics: dict[str, float] = {}
        self.evaluated_records: Callable[[TaskId], int] = lambda task: task.records
        self.evaluated: list[tuple[str, int]] = []
        self.holds_back: Callable[[TaskId], bool] = lambda task: False
        self.read: list[str] = []
        self.exports: list[dict[str, Any]] = []
        self.away = False
        self._watchers: list[asyncio.Queue[ProcessStatus]] = []
        self._dying: dict[int, list[asyncio.Task[None]]] = {}

    # -- what tests do ---------------------------------------------------------------------------------------------

    def living(self, role: Role) -> list[ProcessId]:
        return sorted(p for p, s in self.statuses.items() if p.role is role and s.state is not ProcessState.EXITED)

    def kill(self, process: ProcessId, code: int = -9, reason: str = "") -> None:
        self._end(process, code, reason)

    def trace(self, process: ProcessId, task: Any, start: int, end: int) -> None:
        self.traces.append((process.owner, task.id, task.token, task.shard.name, start, end))
        self.pulse.beat()

    def result_of(self, task: Any, id_: TaskId) -> bytes:
        if task.type == "evaluation":
            pin = json.loads(task.payload)["pin"]
            assert all(server.pins[pin] == task.model_version for server in self.servers.values())
            self.evaluated.append((task.id, task.model_version))
            states = {"n": {"sum": [id_.records], "kind": "count"}}
            return json.dumps({"states": states, "records": self.evaluated_records(id_)}).encode()
        if task.type == "evaluation_summary":
            payload = json.loads(task.payload)
            metrics = self.metrics(payload["number"])
            return json.dumps({"metrics": {**to_json(metrics), "n": payload["states"]["n"]["sum"][0]}}).encode()
        if task.type == "export":
            payload = json.loads(task.payload)
            self.exports.append(payload)
            return json.dumps(
                {
                    "files": [
                        {
                            "name": "model/model.keras",
                            "path": f"{payload['output']}/model.keras",
                            "size": 3,
                            "sha256": "00",
                        }
                    ]
                }
            ).encode()
        return b""

    async def close(self) -> None:
        """Ends all processes; a server that its event loop outlives has stopped."""
        ending = list(self.tasks.values())
        for process in list(self.tasks):
            self._end(process, -9, "")
        dying = [task for tasks in self._dying.values() for task in tasks]
        await settle(*ending, *dying)

    # -- the port --------------------------------------------------------------------------------------------------

    def address(self, job_id: str, role: Role, index: int) -> str:
        return f"unix:{self.folder}/{role}-{index}.sock"

    async def launch(self, spec: ProcessSpec) -> None:
        self._present()
        if spec.id in self.statuses:
            return
        for other in list(self.statuses):
            if (other.role, other.index) == (spec.id.role, spec.id.index):
                self._end(other, -15, "terminated")
        self.specs[spec.id] = spec
        self._set(ProcessStatus(spec.id, ProcessState.RUNNING))
        run = self._serve(spec.id) if spec.id.role is Role.PS else self._work(spec)
        self.tasks[spec.id] = asyncio.create_task(run, name=str(spec.id))

    async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
        self._present()
        worker = self.workers.get(process)
        if worker is not None and grace_s:
            worker.drain.set()
            self.pulse.beat()
            asyncio.get_running_loop().call_later(grace_s, self._end, process, -9, "terminated")
        else:
            self._end(process, -15, "terminated")

    async def terminate_job(self, job_id: str, *, grace_s: float) -> None:
        for process in list(self.tasks):
            await self.terminate(process, grace_s=grace_s)

    async def list(self, job_id: str | None = None) -> list[ProcessStatus]:
        self._present()
        return list(self.statuses.values())

    async def watch(self, job_id: str) -> AsyncIterator[ProcessStatus]:
        self._present()
        queue: asyncio.Queue[ProcessStatus] = asyncio.Queue()
        self._watchers.append(queue)
        try:
            for status in list(self.statuses.values()):
                yield status
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(queue)

    async def capacity(self) -> CapacityInfo:
        return CapacityInfo(self.slots, {self.job_id: len(self.living(Role.WORKER))}, closing=self.closing)

    async def logs(
        self, job_id: str, role: Role, index: int, *, tail: int | None, follow: bool, since: float | None = None
    ) -> AsyncIterator[bytes]:
        yield self.output.get(index, b"")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _present(self) -> None:
        if self.away:
            raise UnavailableError("the agent is away")

    async def _serve(self, process: ProcessId) -> None:
        # A server that stops removes its socket: it must be gone before the next one listens there.
        await settle(*self._dying.pop(process.index, []))
        servicer = self._make_servicer(process.index)
        server = make_server(
            PS_SERVICE, servicer, lambda token: tokens.verify(self.secret, token, job_id=self.job_id)
        )
        try:
            listen(server, self.address(self.job_id, Role.PS, process.index))
            await server.start()
            self.servers[process.index] = servicer
            self.pulse.beat()
            await asyncio.Event().wait()
        finally:
            if self.servers.get(process.index) is servicer:
                del self.servers[process.index]
            servicer.stop()
            await server.stop(None)
            servicer.close()

    def _make_servicer(self, index: int) -> Any:
        return FakeServer(index, self.num_ps)

    async def _work(self, spec: ProcessSpec) -> None:
        if spec.id.index != INSPECTOR:
            await self.pulse.until(lambda: self.servers or not self.num_ps, 60.0)
        worker = FakeWorker(self, spec.id, dict(spec.environment))
        self.workers[spec.id] = worker
        try:
            code = await worker.run()
        except ElasticDLError:
            code = 70
        self._end(spec.id, code, "")

    def _end(self, process: ProcessId, code: int, reason: str) -> None:
        if self.statuses[process].state is ProcessState.EXITED:
            return
        self.workers.pop(process, None)
        if process.role is Role.PS:
            self.servers.pop(process.index, None)
        task = self.tasks.pop(process, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            if process.role is Role.PS:
                self._dying.setdefault(process.index, []).append(task)
        self._set(ProcessStatus(process, ProcessState.EXITED, code, reason))

    def _set(self, status: ProcessStatus) -> None:
        self.statuses[status.id] = status
        self.pulse.beat()
        for queue in self._watchers:
            queue.put_nowait(status)
