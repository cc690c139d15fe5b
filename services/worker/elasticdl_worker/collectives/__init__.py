"""Collectives: sums, exchanges and streams among the members of an AllReduce group."""

from elasticdl_worker.collectives.group_listener import open_listener
from elasticdl_worker.collectives.port import (
    Collective,
    CollectiveError,
    CollectiveTimeoutError,
    CorruptStateError,
    GroupAbortedError,
    GroupListener,
    GroupPlan,
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
    "GroupListener",
    "MemberLostError",
    "PendingSum",
    "SilenceLimits",
    "open_listener",
]
