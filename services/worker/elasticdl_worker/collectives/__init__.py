"""Collectives: sums, exchanges and streams among the members of an AllReduce group."""

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

__all__ = [
    "Collective",
    "CollectiveError",
    "CollectiveTimeoutError",
    "CorruptStateError",
    "GroupAbortedError",
    "GroupPlan",
    "Lobby",
    "MemberLostError",
    "PendingSum",
]
