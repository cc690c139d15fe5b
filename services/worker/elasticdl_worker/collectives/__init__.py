"""Collectives: sums, exchanges and streams among the members of an AllReduce group."""

from elasticdl_worker.collectives.lobby import open_lobby
from elasticdl_worker.collectives.port import (
    Collective,
    CollectiveError,
    CollectiveTimeoutError,
    CorruptStateError,
    GroupAbortedError,
    GroupPlan,
    Lobby,
    MemberLostError,
    PendingSum,
)
from elasticdl_worker.collectives.security import LinkSecurity
from elasticdl_worker.collectives.waiting import SilenceLimits

__all__ = [
    "Collective",
    "CollectiveError",
    "CollectiveTimeoutError",
    "CorruptStateError",
    "GroupAbortedError",
    "GroupPlan",
    "LinkSecurity",
    "Lobby",
    "MemberLostError",
    "PendingSum",
    "SilenceLimits",
    "open_lobby",
]
