"""The client of the master: calls that are tried again while the master is unreachable, and the heartbeat."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from elasticdl.data import TRAINED_COLUMNS, fingerprints, with_columns
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.json_numbers import to_json
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.model_description import ModelDescription
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import BlockReading, Reading
from elasticdl_core.skips import Skips
from elasticdl_core.task import Task, TaskId
from elasticdl_core.well_formed import well_formed
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime.retry import Attempts
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.telemetry.spans import span
from elasticdl_worker.reporting.accounts import TaskAccount
from elasticdl_worker.reporting.progress import ProgressSnapshot

_log = structlog.get_logger(__name__)
_DEADLINE_S = 5.0
_BACKOFF = Backoff(0.1, 5.0)
SHARDS_PER_CALL = 1000


@dataclass(frozen=True)
class LeasedTask:
    """A task that this worker holds a lease on.

    Attributes:
        task: what to do.
        token: proves the lease.
    """

    task: Task
    token: str


@dataclass(frozen=True)
class Registration:
    """The master's answer to a new worker.

    Attributes:
        spec: the job.
        model_zoo: directory of the model code on this machine.
        job_dir: directory of the job's files.
        ps_addresses: of PS 0, 1, ...
        ps_generation: grows when any PS was replaced.
        heartbeat_s: how often to send heartbeats.
        start_version: the model version that the job began at.
        inspects: whether this worker shall only look at the model, and leave.
    """

    spec: JobSpec
    model_zoo: str
    job_dir: str
    ps_addresses: tuple[str, ...]
    ps_generation: int
    heartbeat_s: float
    start_version: int = 0
    inspects: bool = False


class WorkerDirective(enum.Enum):
    """The master's directive for a worker."""

    CONTINUE = "continue"
    WAIT = "wait"
    DRAIN = "drain"
    FINISHED = "finished"


@dataclass(frozen=True)
class LeaseAnswer:
    """The master's answer to a request for a task.

    Attributes:
        directive: what to do; with ``CONTINUE`` there are tasks.
        tasks: leased tasks.
        wait_s: when to ask again.
    """

    directive: WorkerDirective
    tasks: tuple[LeasedTask, ...] = ()
    wait_s: float = 0.0


@dataclass(frozen=True)
class HeartbeatAnswer:
    """The master's answer to a heartbeat.

    Attributes:
        directive: what to do.
        lost: tokens of leases that this worker no longer holds.
        ps_addresses: of the PS; empty if the answer does not tell.
        ps_generation: grows when any PS was replaced.
        token: a fresh job token, or empty.
    """

    directive: WorkerDirective
    lost: tuple[str, ...] = ()
    ps_addresses: tuple[str, ...] = ()
    ps_generation: int = 0
    token: str = ""


@dataclass(frozen=True)
class TaskReport:
    """A worker's report of a task that is done.

    Attributes:
        records: that the task has.
        result: what the type of task gives.
        version: the highest model version seen.
        account: what became of the records, for a task that works on records.
        trace_trouble: why this worker cannot write traces.
    """

    records: int
    result: Mapping[str, object] | None
    version: int
    account: TaskAccount | None = None
    trace_trouble: str = ""


class MasterClient:
    """Calls the master of the job.

    A master that does not answer is tried again, with growing pauses, until ``patience_s`` have passed: it is being
    replaced, and its absence never means that the work is over.

    Args:
        address: of the master.
        token: returns the present job token.
        patience_s: for how long an unreachable master is tried again.
    """

    def __init__(self, address: str, token: Callable[[], str], *, patience_s: float = 600.0) -> None:
        self._rpc = RpcClient(address, pb.DESCRIPTOR.services_by_name["Master"], token)
        self._patience_s = patience_s

    async def register(self, index: int, incarnation: int, pid: int) -> Registration:
        """Registers this worker."""
        request = pb.RegisterRequest(index=index, incarnation=incarnation, pid=pid)
        response = await self._call("Register", request)
        servers = response.parameter_servers
        return Registration(
            spec=read_spec(response.spec),
            model_zoo=response.model_zoo,
            job_dir=response.job_dir,
            ps_addresses=tuple(servers.addresses),
            ps_generation=servers.generation,
            heartbeat_s=response.heartbeat_s or 1.0,
            start_version=response.start_version,
            inspects=response.inspects,
        )

    async def describe_sight(self, profile: Mapping[str, Any]) -> None:
        """Sends what was seen of the model, before the strategy is chosen."""
        await self._call("DescribeSight", pb.DescribeSightRequest(sight=json.dumps(to_json(profile))))

    async def describe_model(self, description: ModelDescription) -> None:
        """Sends the description of the model."""
        await self._call("DescribeModel", pb.DescribeModelRequest(description=json.dumps(to_json(description))))

    async def lease(self) -> LeaseAnswer:
        """Asks for a task."""
        response = await self._call("Lease", pb.LeaseRequest(max_tasks=1))
        return LeaseAnswer(
            to_directive(response.directive), tasks=leased_tasks(response.tasks), wait_s=response.wait_s
        )

    async def heartbeat(self, state: ProgressSnapshot) -> HeartbeatAnswer:
        """Tells how far the worker is; tried once, because the next heartbeat tells the same.

        Raises:
            UnavailableError: the master did not answer.
        """
        request = pb.HeartbeatRequest(
            tasks=[pb.TaskProgress(token=token, position=position) for token, position in state.positions.items()],
            records=state.records,
            steps=state.steps,
            samples_per_second=state.samples_per_second,
            model_version=state.model_version,
            losses=[pb.LossPoint(model_version=version, loss=loss) for version, loss in state.losses],
            phase=state.phase,
            step_p95_s=state.step_p95_s,
            loss=None if state.summary is None else state.summary.mean,
            last_loss=None if state.summary is None else state.summary.last,
            learning_rate=None if state.summary is None else state.summary.learning_rate,
            training_metrics={} if state.summary is None else _by_sendable_names(state.summary.metrics),
            training_metrics_version=0 if state.summary is None else state.summary.metrics_version,
            step=None if state.step is None else pb.StepParts(**asdict(state.step)),
        )
        response = await self._rpc.call("Heartbeat", request, deadline_s=_DEADLINE_S)
        servers = response.parameter_servers
        return HeartbeatAnswer(
            to_directive(response.directive),
            lost=tuple(response.lost),
            ps_addresses=tuple(servers.addresses),
            ps_generation=servers.generation,
            token=response.token,
        )

    async def report(
        self, lease: LeasedTask, done: TaskReport, limit: int = 0
    ) -> tuple[bool, tuple[LeasedTask, ...]]:
        """Reports that a task is done, and asks for up to ``limit`` others.

        Returns:
            Whether the lease was still this worker's, and the tasks.
        """
        request = pb.ReportRequest(
            task_id=str(lease.task.id),
            token=lease.token,
            records=done.records,
            result=json.dumps(to_json(done.result), allow_nan=False).encode() if done.result is not None else b"",
            model_version=done.version,
            max_tasks=limit,
            account=_account(done.account),
            trace_trouble=well_formed(done.trace_trouble),
        )
        response = await self._call("Report", request)
        return bool(response.accepted), leased_tasks(response.tasks)

    async def return_task(
        self, lease: LeasedTask, position: int, account: TaskAccount | None = None, version: int = 0
    ) -> bool:
        """Returns the records of a task from ``position`` on to the queue; those before count as done."""
        request = pb.ReturnRequest(
            task_id=str(lease.task.id),
            token=lease.token,
            position=position,
            account=_account(account),
            model_version=version,
        )
        response = await self._call("Return", request)
        return bool(response.accepted)

    async def fail(self, lease: LeasedTask | None, kind: str, error: ElasticDLError, traceback: str) -> None:
        """Reports that a task failed, or the worker as a whole."""
        request = pb.FailRequest(
            task_id=str(lease.task.id) if lease else "",
            token=lease.token if lease else "",
            kind=kind,
            message=well_formed(error.message),
            fix=well_formed(error.fix),
            traceback=well_formed(traceback),
        )
        await self._call("Fail", request)

    async def report_shards(self, lease: LeasedTask, shards: Sequence[Shard], *, first: int, last: bool) -> bool:
        """Sends part of the list of shards, from number ``first`` on. False if the lease is lost."""
        request = pb.ReportShardsRequest(
            task_id=str(lease.task.id),
            token=lease.token,
            shards=[pb.Shard(name=s.name, start=s.start, end=s.end) for s in shards],
            first=first,
            last=last,
        )
        response = await self._call("ReportShards", request)
        return bool(response.accepted)

    async def call_once(self, method: str, request: Any, deadline_s: float) -> Any:
        """Makes a call that the next one makes good if it fails.

        Raises:
            UnavailableError: the master did not answer.
        """
        return await self._rpc.call(method, request, deadline_s=deadline_s)

    async def close(self) -> None:
        """Closes the channel."""
        await self._rpc.close()

    async def _call(self, method: str, request: Any) -> Any:
        attempts = Attempts(_BACKOFF, self._patience_s)
        async for _ in attempts:
            try:
                with span(f"{method} at the master", "rpc", alone=False):
                    return await self._rpc.call(method, request, deadline_s=_DEADLINE_S)
            except UnavailableError as error:
                last = error
                _log.warning("the master is away", method=method, seconds=round(attempts.seconds, 1))
        raise UnavailableError(
            f"the master did not answer {method} for {attempts.seconds:.0f} s: {last.message}",
            fix="look at the master's log; the job's queue is kept, and another worker goes on",
        ) from last


def leased_tasks(messages: Iterable[pb.Task]) -> tuple[LeasedTask, ...]:
    """Reads tasks."""
    return tuple(LeasedTask(_task(message), message.token) for message in messages)


def _task(message: pb.Task) -> Task:
    shard = Shard(message.shard.name, message.shard.start, message.shard.end)
    reading = _reading(message.reading) if message.HasField("reading") else None
    known = dict(message.fingerprints)
    fingerprints.expect(known)
    return Task(TaskId.parse(message.id), shard, message.model_version, message.payload, reading, known)


def _reading(message: pb.Reading) -> Reading:
    numbers, names = message.ranges, message.names
    ranges = tuple(Shard(names[numbers[i]], numbers[i + 1], numbers[i + 2]) for i in range(0, len(numbers), 3))
    if not message.block:
        return BlockReading(message.first, message.key, ranges)
    places = tuple(message.bases), tuple(message.numbers)
    return MixedReading(message.first, message.key, message.block, ranges, *places, message.readers)


def _account(account: TaskAccount | None) -> pb.Account | None:
    if account is None:
        return None
    return pb.Account(fed=account.fed, applied=account.applied, skipped=skips_told(account.skips))


def skips_told(skips: Skips) -> list[pb.Skip]:
    """Skipped records as a message; their examples name files."""
    return [pb.Skip(**to_json(entry)) for entry in skips.to_json()]


def _by_sendable_names(metrics: Mapping[str, float]) -> dict[str, float]:
    return {well_formed(name): value for name, value in metrics.items()}


def read_spec(text: str) -> JobSpec:
    """Reads the job as its master tells it, with more columns of its model than a user may give."""
    mapping = json.loads(text)
    params = dict(mapping.get("data_reader_params") or {})
    columns = params.pop(TRAINED_COLUMNS, None)
    spec = JobSpec.from_mapping({**mapping, "data_reader_params": params})
    return spec if columns is None else replace(spec, data_reader_params=with_columns(params, columns))


def to_directive(value: int) -> WorkerDirective:
    """Reads a directive; an unknown one says nothing."""
    known: dict[int, WorkerDirective] = {
        pb.DIRECTIVE_WAIT: WorkerDirective.WAIT,
        pb.DIRECTIVE_DRAIN: WorkerDirective.DRAIN,
        pb.DIRECTIVE_FINISHED: WorkerDirective.FINISHED,
    }
    return known.get(value, WorkerDirective.CONTINUE)
