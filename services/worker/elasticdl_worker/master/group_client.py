"""Messages between a member of a group and its master."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.group.member import TaskEnd
from elasticdl_core.group.rendezvous import Orders
from elasticdl_core.skips import SkipReason, Skips
from elasticdl_core.well_formed import well_formed
from elasticdl_proto.v1 import master_pb2 as pb
from elasticdl_worker.master.client import (
    LeasedTask,
    MasterClient,
    WorkerDirective,
    leased_tasks,
    skips_told,
    to_directive,
)

_DEADLINE_S = 5.0


@dataclass(frozen=True)
class SpokenReport:
    """The report of the first member for the group."""

    version: int
    steps: int
    size_bytes: int
    last_token: str
    left: int
    ended: Sequence[TaskEnd]
    pinned: int
    tally: Mapping[tuple[int, int], int] | None
    records_per_second: float


@dataclass(frozen=True)
class WrittenShare:
    """This member's share of a checkpoint."""

    order: int
    rank: int
    size: int
    version: int
    name: str = ""
    size_bytes: int = 0
    sha256: str = ""
    model: str = ""
    metadata: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class MemberStatus:
    """The state of a member."""

    endpoint: bytes
    finished: int
    generation: int
    holds: bool
    leaving: bool
    suspects: Sequence[str] = ()
    busy_s: float = 0.0
    seen: int = 0
    report: SpokenReport | None = None
    shares: Sequence[WrittenShare] = ()
    refused: str = ""
    refused_fix: str = ""


@dataclass(frozen=True)
class GroupDirective:
    """The directive of the master to a member."""

    revision: int
    orders: Orders
    endpoints: Sequence[bytes]
    secret: bytes
    dismissed: bool
    directive: WorkerDirective
    foundation: Mapping[str, Any] | None = None
    tasks: Sequence[LeasedTask] = ()
    solo: Sequence[LeasedTask] = ()
    acknowledged: Sequence[str] = ()
    drop: bool = False
    pin: int = 0
    save: Mapping[str, Any] | None = None
    tally: bool = False
    limit: int = 0
    pause_at: int = 0
    shares: Sequence[int] = field(default_factory=tuple)


async def meet(master: MasterClient, standing: MemberStatus) -> GroupDirective:
    """Tells the master how this member is; tried once, because the next time tells the same.

    Raises:
        UnavailableError: the master did not answer.
    """
    request = pb.MeetRequest(
        endpoint=standing.endpoint,
        finished=standing.finished,
        generation=standing.generation,
        holds=standing.holds,
        leaving=standing.leaving,
        suspects=standing.suspects,
        busy_s=standing.busy_s,
        seen=standing.seen,
        report=None if standing.report is None else _report(standing.report),
        shares=[_share(share) for share in standing.shares],
        refused=well_formed(standing.refused),
        refused_fix=well_formed(standing.refused_fix),
    )
    response = await master.call_once("Meet", request, _DEADLINE_S)
    return GroupDirective(
        revision=response.revision,
        orders=Orders(
            response.generation, tuple(response.members), response.base, response.is_over, response.regroup
        ),
        endpoints=tuple(response.endpoints),
        secret=response.secret,
        dismissed=response.dismissed,
        directive=to_directive(response.directive),
        foundation=json.loads(response.foundation) if response.foundation else None,
        tasks=leased_tasks(response.tasks),
        solo=leased_tasks(response.solo),
        acknowledged=tuple(response.acknowledged),
        drop=response.drop,
        pin=response.pin,
        save=json.loads(response.save) if response.save else None,
        tally=response.tally,
        limit=response.limit,
        pause_at=response.pause_at,
        shares=tuple(response.shares),
    )


def _report(report: SpokenReport) -> pb.GroupReport:
    tally = report.tally or {}
    return pb.GroupReport(
        version=report.version,
        steps=report.steps,
        bytes=report.size_bytes,
        last_token=report.last_token,
        left=report.left,
        ended=[_end(end) for end in report.ended],
        pinned=report.pinned,
        tally=[number for task, rows in sorted(tally.items()) for number in (*task, rows)],
        tallied=report.tally is not None,
        records_per_second=report.records_per_second,
    )


def _end(end: TaskEnd) -> pb.TaskEnd:
    skips = Skips.from_json(end.account["skips"])
    fed = int(end.account["fed"])
    account = pb.Account(
        fed=fed,
        applied=fed - skips.count(SkipReason.NAN),
        skipped=skips_told(skips),
    )
    return pb.TaskEnd(
        task_id=str(end.task), token=end.token, position=end.position, account=account, model_version=end.version
    )


def _share(share: WrittenShare) -> pb.CheckpointShare:
    return pb.CheckpointShare(
        order=share.order,
        rank=share.rank,
        size=share.size,
        version=share.version,
        name=share.name,
        bytes=share.size_bytes,
        sha256=share.sha256,
        model=share.model,
        book=share.metadata,
        trouble=well_formed(share.trouble),
    )
