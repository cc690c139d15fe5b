"""Messages between members of a group and their master, without the words of the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.group.member import ReplicaMetadata
from elasticdl_core.task import LeaseToken, TaskId
from elasticdl_master.pending_requests import DispatchedTask
from elasticdl_master.state.accounts import RecordAccount
from elasticdl_master.state.lifecycle import Directive
from elasticdl_master.state.tally import Tallied


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task of the group that ended, or goes back from a position on."""

    task: TaskId
    token: LeaseToken
    position: int
    account: RecordAccount
    model_version: int


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The report of the first member for the group; see ``GroupReport`` in master.proto."""

    version: int
    steps: int
    bytes: int
    last_token: str
    left: int
    ended: Sequence[EndedTask] = ()
    pinned: int = 0
    tally: Tallied | None = None
    records_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """A member's share of a checkpoint, written; or why it could not be."""

    order: int
    rank: int
    size: int
    version: int
    name: str
    bytes: int
    sha256: str
    model: str
    metadata: ReplicaMetadata | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class MemberCall:
    """The request of a member; see ``MeetRequest`` in master.proto."""

    owner: str
    endpoint: bytes
    finished: int
    generation: int
    holds: bool
    leaving: bool
    suspects: tuple[str, ...] = ()
    busy_s: float = 0.0
    seen: int = 0
    report: GroupReport | None = None
    shares: Sequence[Share] = ()
    refused: str = ""
    refused_fix: str = ""


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """The answer to a member; see ``MeetResponse`` in master.proto."""

    revision: int
    generation: int
    members: Sequence[str]
    endpoints: Sequence[bytes]
    base: int
    is_over: bool
    regroup: bool
    dismissed: bool
    foundation: Mapping[str, Any] | None
    directive: Directive
    tasks: Sequence[DispatchedTask] = ()
    solo: Sequence[DispatchedTask] = ()
    acknowledged: Sequence[str] = ()
    drop: bool = False
    pin: int = 0
    save: Mapping[str, Any] | None = None
    tally: bool = False
    limit: int = 0
    pause_at: int = 0
    shares: Sequence[int] = field(default_factory=tuple)
