"""The gRPC service for workers: authenticates, translates requests, calls the task dispatcher, translates replies."""

# The methods are named as in master.proto.
# ruff: noqa: N802
from __future__ import annotations

import asyncio
import hmac
import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from elasticdl_core.errors import ConflictError, InvalidInputError, UnavailableError
from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.ports.launcher import INSPECTOR, Role
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import BlockReading, Reading
from elasticdl_core.skips import Skips
from elasticdl_core.task import LeaseToken, TaskId
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.group_calls import EndedTask, GroupReport, MemberCall, Share
from elasticdl_master.group_service import GroupService
from elasticdl_master.json_forms import check_result, read_description
from elasticdl_master.pending_requests import DispatchedTask
from elasticdl_master.queue.port import Outcome
from elasticdl_master.state import events as ev
from elasticdl_master.state.accounts import RecordAccount
from elasticdl_master.state.lifecycle import Directive
from elasticdl_master.state.stragglers import STEP_PARTS
from elasticdl_master.state.tally import Tallied
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_runtime import tokens
from elasticdl_runtime.telemetry import work
from elasticdl_runtime.telemetry.spans import mark
from elasticdl_runtime.tokens import Claims

_MAX_TASKS = 64
_MAX_TEXT = 100_000
_MAX_ENDPOINT = 4096
_WAIT_S = 0.5
_REGISTER_WAIT_S = 3.0
_REGISTER_STEP_S = 0.1
_RENEW_S = 3600.0
_DIRECTIVES = {
    Directive.CONTINUE: pb.DIRECTIVE_CONTINUE,
    Directive.WAIT: pb.DIRECTIVE_WAIT,
    Directive.DRAIN: pb.DIRECTIVE_DRAIN,
    Directive.FINISHED: pb.DIRECTIVE_FINISHED,
}


def authenticate_worker(secret: str, job_id: str, token: str) -> Claims:
    """Takes a job token of a worker.

    Raises:
        UnauthenticatedError: it is not valid.
        PermissionDeniedError: it is another job's, or not a worker's.
    """
    claims = tokens.verify(secret, token, job_id=job_id)
    claims.require(Role.WORKER)
    return claims


class MasterServicer:
    """Implements the ``Master`` service.

    Args:
        dispatcher: serves requests.
        job_id: the job.
        secret: signs the job's tokens.
        model_zoo: directory of the model code.
        job_dir: directory of the job's files.
        servers: addresses of the PS.
        group_service: answers the members of a group; None if the job has PS.
    """

    def __init__(
        self,
        dispatcher: TaskDispatcher,
        job_id: str,
        secret: str,
        model_zoo: str,
        job_dir: str,
        servers: Sequence[str],
        group_service: GroupService | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._machine = dispatcher.machine
        self._job_id = job_id
        self._secret = secret
        self._model_zoo = model_zoo
        self._job_dir = job_dir
        self._servers = list(servers)
        self._group_service = group_service
        self._group_secret = hmac.digest(secret.encode(), b"group", "sha256")

    def authenticate(self, token: str) -> Claims:
        """Takes a worker's job token.

        Raises:
            UnauthenticatedError: it is not valid.
            PermissionDeniedError: it is another job's, or not a worker's.
        """
        return authenticate_worker(self._secret, self._job_id, token)

    async def Register(self, request: pb.RegisterRequest, caller: Claims) -> pb.RegisterResponse:
        """Registers a worker; it waits while the PS are being restored, so that it cannot push a model before."""
        if (request.index, request.incarnation) != (caller.index, caller.incarnation):
            raise InvalidInputError("a worker can only register itself", fix="use the token's index and incarnation")
        if caller.index == INSPECTOR:
            raise ConflictError("the strategy of the job is chosen", fix="leave")
        waited = 0.0
        while self._group_service is None and self._machine.recovery.restoring and not self._machine.lifecycle.ending:
            if waited >= _REGISTER_WAIT_S:
                raise UnavailableError("the parameter servers are being restored", fix="it is tried again")
            await asyncio.sleep(_REGISTER_STEP_S)
            waited += _REGISTER_STEP_S
        await self._dispatcher.tell(ev.WorkerRegistered(caller.index, caller.incarnation))
        return pb.RegisterResponse(
            spec=json.dumps(self._machine.spec.to_mapping()),
            model_zoo=self._model_zoo,
            job_dir=self._job_dir,
            parameter_servers=self._parameter_servers(),
            heartbeat_s=self._machine.limits.heartbeat_s,
            master_epoch=self._machine.setup.epoch,
            start_version=self._machine.version.start,
        )

    async def DescribeSight(self, request: pb.DescribeSightRequest, caller: Claims) -> pb.DescribeSightResponse:
        """Takes what is told too late: the strategy is chosen."""
        return pb.DescribeSightResponse()

    async def DescribeModel(self, request: pb.DescribeModelRequest, caller: Claims) -> pb.DescribeModelResponse:
        """Takes the description of the model."""
        await self._dispatcher.tell(ev.ModelDescribed(caller.owner, read_description(request.description)))
        return pb.DescribeModelResponse()

    async def Lease(self, request: pb.LeaseRequest, caller: Claims) -> pb.LeaseResponse:
        """Leases tasks."""
        limit = max(1, min(request.max_tasks, _MAX_TASKS))
        handed, directive = await self._dispatcher.lease(caller.owner, limit)
        return pb.LeaseResponse(
            tasks=[self._task(one) for one in handed],
            directive=_DIRECTIVES[directive],
            wait_s=_WAIT_S if directive is Directive.WAIT else 0.0,
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, caller: Claims) -> pb.HeartbeatResponse:
        """Takes a heartbeat, which extends the worker's leases."""
        beat = ev.WorkerHeartbeat(
            caller.index,
            caller.incarnation,
            {str(LeaseToken.parse(task.token)): task.position for task in request.tasks},
            request.records,
            request.steps,
            request.samples_per_second,
            request.model_version,
            tuple((point.model_version, point.loss) for point in request.losses),
            request.phase[:100],
            request.step_p95_s,
            request.loss if request.HasField("loss") else None,
            request.last_loss if request.HasField("last_loss") else None,
            request.learning_rate if request.HasField("learning_rate") else None,
            dict(request.training_metrics),
            _step_parts(request.step) if request.HasField("step") else {},
            request.training_metrics_version,
        )
        directive, lost = await self._dispatcher.heartbeat(beat, caller.owner)
        return pb.HeartbeatResponse(
            directive=_DIRECTIVES[directive],
            lost=lost,
            parameter_servers=self._parameter_servers(),
            token=self._fresh_token(caller),
        )

    async def Report(self, request: pb.ReportRequest, caller: Claims) -> pb.ReportResponse:
        """Takes the report of a done task, and leases others if they are asked for."""
        check_result(request.result)
        if request.trace_trouble and not self._machine.conditions.traces:
            await self._dispatcher.tell(ev.TracesFailed(caller.owner, request.trace_trouble[:_MAX_TEXT]))
        answer = await self._dispatcher.report(
            TaskId.parse(request.task_id),
            LeaseToken.parse(request.token),
            caller.owner,
            result=_account(request, request.records).within(request.result),
            model_version=request.model_version,
            limit=max(0, min(request.max_tasks, _MAX_TASKS)),
        )
        mark(f"reported: {answer.outcome}", "task", partial(_told, request, caller.owner))
        return pb.ReportResponse(
            accepted=answer.outcome is not Outcome.LOST,
            replay=answer.outcome is Outcome.REPLAY,
            tasks=[self._task(one) for one in answer.leased],
        )

    async def Return(self, request: pb.ReturnRequest, caller: Claims) -> pb.ReturnResponse:
        """Takes a task, or the rest of it, back."""
        task = TaskId.parse(request.task_id)
        given = _account(request, max(0, request.position - task.start)).within(b"")
        outcome = await self._dispatcher.give_back(
            task,
            LeaseToken.parse(request.token),
            caller.owner,
            request.position,
            given,
            model_version=request.model_version,
        )
        mark(f"returned: {outcome}", "task", partial(_told, request, caller.owner))
        return pb.ReturnResponse(accepted=outcome is not Outcome.LOST)

    async def Fail(self, request: pb.FailRequest, caller: Claims) -> pb.FailResponse:
        """Takes a failure: the worker cannot go on with a task, or at all."""
        if request.kind not in ("user_code", "nan", "data", "infrastructure"):
            raise InvalidInputError(
                f"{request.kind!r} is no kind of failure", fix="give user_code, nan, data or infrastructure"
            )
        await self._dispatcher.fail(
            caller.owner,
            request.kind,
            request.message[:_MAX_TEXT],
            request.fix[:_MAX_TEXT],
            request.traceback[-_MAX_TEXT:],
            TaskId.parse(request.task_id) if request.task_id else None,
            request.token,
        )
        return pb.FailResponse()

    async def ReportShards(self, request: pb.ReportShardsRequest, caller: Claims) -> pb.ReportShardsResponse:
        """Takes a piece of the list of shards that the user's own reader made."""
        accepted = await self._dispatcher.list_shards(
            TaskId.parse(request.task_id),
            LeaseToken.parse(request.token),
            caller.owner,
            [Shard(shard.name, shard.start, shard.end) for shard in request.shards],
            first=max(0, request.first),
            last=request.last,
        )
        return pb.ReportShardsResponse(accepted=accepted)

    async def Meet(self, request: pb.MeetRequest, caller: Claims) -> pb.MeetResponse:
        """Hears how a member of the group is, and tells it what the group shall do."""
        if self._group_service is None:
            raise InvalidInputError("this job has no group", fix="its strategy is ParameterServerStrategy")
        if len(request.endpoint) > _MAX_ENDPOINT:
            raise InvalidInputError("that is no endpoint", fix=f"give at most {_MAX_ENDPOINT} bytes")
        answer = await self._group_service.meet(_member_call(request, caller.owner))
        return pb.MeetResponse(
            revision=answer.revision,
            generation=answer.generation,
            members=answer.members,
            endpoints=answer.endpoints,
            base=answer.base,
            is_over=answer.is_over,
            regroup=answer.regroup,
            dismissed=answer.dismissed,
            secret=self._group_secret,
            foundation="" if answer.foundation is None else json.dumps(answer.foundation),
            tasks=[self._task(one) for one in answer.tasks],
            solo=[self._task(one) for one in answer.solo],
            acknowledged=answer.acknowledged,
            drop=answer.drop,
            pin=answer.pin,
            save="" if answer.save is None else json.dumps(answer.save),
            tally=answer.tally,
            limit=answer.limit,
            pause_at=answer.pause_at,
            directive=_DIRECTIVES[answer.directive],
            shares=answer.shares,
        )

    def _task(self, handed: DispatchedTask) -> pb.Task:
        task = handed.task
        return pb.Task(
            id=str(task.id),
            type=str(task.id.type),
            shard=pb.Shard(name=task.shard.name, start=task.shard.start, end=task.shard.end),
            model_version=task.model_version,
            payload=task.payload,
            token=str(handed.lease.token),
            lease_s=self._machine.limits.lease_s,
            reading=None if task.reading is None else _reading(task.reading),
            fingerprints=task.fingerprints,
        )

    def _parameter_servers(self) -> pb.ParameterServers:
        return pb.ParameterServers(addresses=self._servers, generation=self._machine.servers.generation)

    def _fresh_token(self, caller: Claims, clock: Callable[[], float] = time.time) -> str:
        if caller.expires_at - clock() > _RENEW_S:
            return ""
        return tokens.issue(self._secret, self._job_id, Role.WORKER, caller.index, caller.incarnation)


def _told(request: pb.ReportRequest | pb.ReturnRequest, owner: str) -> dict[str, str | int | float]:
    """The attributes of a task that comes back, in a trace."""
    lease = work.number_of(request.token)
    return {"task": request.task_id, "lease": lease, "worker": owner, "version": request.model_version}


def _reading(reading: Reading) -> pb.Reading:
    ranges = reading.from_sources
    names = {name: number for number, name in enumerate(dict.fromkeys(one.name for one in ranges))}
    message = pb.Reading(
        first=reading.first,
        names=list(names),
        ranges=[number for one in ranges for number in (names[one.name], one.start, one.end)],
    )
    if isinstance(reading, BlockReading):
        message.key = reading.key
        return message
    message.key, message.block, message.readers = reading.pool, reading.block, reading.readers
    message.bases.extend(reading.bases)
    message.numbers.extend(reading.numbers)
    return message


def _member_call(request: pb.MeetRequest, owner: str) -> MemberCall:
    """The request of a member, from the wire.

    Raises:
        InvalidInputError: it names tasks, tokens or reasons that nobody knows, or its JSON is none.
    """
    return MemberCall(
        owner=owner,
        endpoint=request.endpoint,
        finished=request.finished,
        generation=request.generation,
        holds=request.holds,
        leaving=request.leaving,
        suspects=tuple(request.suspects),
        busy_s=request.busy_s,
        seen=request.seen,
        report=_group_report(request.report) if request.HasField("report") else None,
        shares=[_share(share) for share in request.shares],
        refused=request.refused[:_MAX_TEXT],
        refused_fix=request.refused_fix[:_MAX_TEXT],
    )


def _group_report(told: pb.GroupReport) -> GroupReport:
    counts = {(told.tally[at], told.tally[at + 1]): told.tally[at + 2] for at in range(0, len(told.tally) - 2, 3)}
    return GroupReport(
        version=told.version,
        steps=told.steps,
        bytes=told.bytes,
        last_token=str(LeaseToken.parse(told.last_token)) if told.last_token else "",
        left=told.left,
        ended=[_ended(one) for one in told.ended],
        pinned=told.pinned,
        tally=Tallied(counts) if told.tallied else None,
        records_per_second=told.records_per_second,
    )


def _ended(told: pb.TaskEnd) -> EndedTask:
    task = TaskId.parse(told.task_id)
    account = _account(told, max(0, told.position - task.start))
    return EndedTask(task, LeaseToken.parse(told.token), told.position, account, told.model_version)


def _share(told: pb.CheckpointShare) -> Share:
    return Share(
        order=told.order,
        rank=told.rank,
        size=told.size,
        version=told.version,
        name=told.name,
        bytes=told.bytes,
        sha256=told.sha256,
        model=told.model,
        metadata=ReplicaMetadata.parse(told.book) if told.book else None,
        trouble=told.trouble[:_MAX_TEXT],
    )


def _account(request: pb.ReportRequest | pb.ReturnRequest | pb.TaskEnd, records: int) -> RecordAccount:
    """The account of a task's records that came with a request; empty if all is as expected.

    Raises:
        InvalidInputError: it passed records over for a reason that nobody knows.
    """
    if not request.HasField("account"):
        return RecordAccount()
    told = request.account
    try:
        entries = [{"reason": one.reason, "records": one.records, "example": one.example} for one in told.skipped]
        skips = Skips.from_json(entries)
    except ValueError as error:
        raise InvalidInputError(str(error), fix="use this version's worker") from None
    return RecordAccount(skips, None if told.fed == skips.rows_of(records) else told.fed)


def _step_parts(told: pb.StepParts) -> dict[str, float]:
    """The parts of a worker's time for a minibatch; what is no time is left out."""
    parts = {name: float(getattr(told, name)) for name in STEP_PARTS}
    return {name: seconds if 0 <= seconds < math.inf else 0.0 for name, seconds in parts.items()}
