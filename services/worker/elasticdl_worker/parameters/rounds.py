"""Synchronous mode: parameter servers are brought to one version, and gradients into one round."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

from elasticdl_core.errors import ConflictError, UnavailableError
from elasticdl_worker.parameters.codec import ClosedRound, OutgoingPush, PushReply
from elasticdl_worker.parameters.connection import ServerConnection
from elasticdl_worker.parameters.partial_pull import PartialPull
from elasticdl_worker.parameters.pulls import PullMoment
from elasticdl_worker.parameters.waiting import together

_POLL_S = 0.1
PullOne = Callable[[int, PullMoment], Awaitable[PartialPull]]
PushOne = Callable[[ServerConnection, OutgoingPush], Awaitable[PushReply]]


async def align(
    servers: Sequence[ServerConnection], parts: list[PartialPull], pull: PullOne, patience_s: float
) -> list[PartialPull]:
    """Helps PS along that are behind, and pulls again, until all show one version; returns what they show.

    All are pulled from again, also those that seem ahead: what they have answered may be from before they went back
    to a checkpoint, and then nobody would ever catch up with it.

    Args:
        servers: the PS.
        parts: what each has answered.
        pull: pulls from one of them.
        patience_s: for how long they may differ.

    Raises:
        UnavailableError: they differ for longer.
    """
    give_up = time.monotonic() + patience_s
    for attempt in itertools.count():
        if len({part.version for part in parts}) == 1:
            break
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"the parameter servers stay at versions {[part.version for part in parts]}",
                fix="restore all parameter servers from the last checkpoint",
            )
        newest = max(part.version for part in parts)
        behind = [index for index, part in enumerate(parts) if part.version < newest]
        helped = await together([_catch_up(servers, index, parts[index].version) for index in behind if index])
        if attempt and not any(helped):
            # Nobody can help: they are on their way back to a checkpoint.
            await servers[0].pause(_POLL_S)
        first = await pull(0, PullMoment(one_version=True))
        moment = PullMoment(one_version=True, apply=first.round)
        parts = [first, *await together([pull(server.index, moment) for server in servers[1:]])]
    return parts


async def pull_of_round(
    servers: Sequence[ServerConnection], pull: PullOne, wait_for: int, patience_s: float
) -> list[PartialPull]:
    """Pulls from all PS as of one version: from the first, and then from the others as of the round it tells of.

    Args:
        servers: the PS.
        pull: pulls from one of them.
        wait_for: the version that the caller's last gradient is to make with others, if it counted; else 0.
        patience_s: for how long the PS may differ.

    Raises:
        UnavailableError: they differ for longer.
    """
    return await follow(servers, await pull(0, PullMoment(one_version=True, wait_for=wait_for)), pull, patience_s)


async def follow(
    servers: Sequence[ServerConnection], first: PartialPull, pull: PullOne, patience_s: float
) -> list[PartialPull]:
    """Pulls from the other PS what the first has answered for its part; see ``pull_of_round``."""
    moment = PullMoment(one_version=True, apply=first.round)
    parts = [first, *await together([pull(server.index, moment) for server in servers[1:]])]
    return await align(servers, parts, pull, patience_s)


async def prepare(
    servers: Sequence[ServerConnection], pushes: Sequence[OutgoingPush], push_one: PushOne
) -> PushReply | None:
    """Leaves a gradient's parts with all PS but the first, which comes after them; the refusal if one refuses."""
    calls = [push_one(server, push) for server, push in zip(servers[1:], pushes[1:], strict=True)]
    return next((reply for reply in await together(calls) if not reply.accepted), None)


async def pass_on(servers: Sequence[ServerConnection], closed: ClosedRound) -> None:
    """Tells the other PS of a round that the first has closed."""
    await together([_apply_round(server, closed) for server in servers[1:]])


async def _catch_up(servers: Sequence[ServerConnection], index: int, version: int) -> bool:
    """Passes the rounds that the first PS has closed on to one that has not applied them; whether there are any."""
    try:
        rounds = await servers[0].closed_rounds(version)
        for closed in rounds:
            await servers[index].apply_round(closed)
    except ConflictError:
        # One of the two was replaced, and knows nothing of these rounds: the master restores both.
        return False
    return bool(rounds)


async def _apply_round(server: ServerConnection, closed: ClosedRound) -> None:
    try:
        await server.apply_round(closed)
    except ConflictError:
        # It is several rounds behind (the next pull brings it along), or was replaced (the master restores it).
        return
