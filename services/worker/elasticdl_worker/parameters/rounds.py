"""Synchronous mode: parameter servers are brought to one version, and gradients into one round."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from elasticdl_core.errors import ConflictError, UnavailableError
from elasticdl_proto.v1 import ps_pb2
from elasticdl_worker.parameters.answers import PartialPull
from elasticdl_worker.parameters.connection import ServerConnection
from elasticdl_worker.parameters.types import PushResult
from elasticdl_worker.parameters.waiting import together


async def align(
    servers: Sequence[ServerConnection],
    parts: list[PartialPull],
    again: Callable[[int], Awaitable[PartialPull]],
    patience_s: float,
) -> None:
    """Pulls again, and helps along, until all PS show one version.

    Args:
        servers: the PS.
        parts: what each has answered; replaced by what it answers later.
        again: pulls from one of them again.
        patience_s: for how long they may differ.

    Raises:
        UnavailableError: they differ for longer.
    """
    give_up = time.monotonic() + patience_s
    while len({part.version for part in parts}) > 1:
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"the parameter servers stay at versions {[part.version for part in parts]}",
                fix="restore all parameter servers from the last checkpoint",
            )
        newest = max(part.version for part in parts)
        behind = [index for index, part in enumerate(parts) if part.version < newest]
        await together([_catch_up(servers, index, parts[index].version) for index in behind if index])
        fresh = await together([again(index) for index in behind])
        for index, part in zip(behind, fresh, strict=True):
            parts[index] = part


async def commit(servers: Sequence[ServerConnection], worker: str, sequence: int, version: int) -> PushResult:
    """Has the first PS count gradients that all PS keep for the present round, and closes it if it is full.

    Args:
        servers: the PS.
        worker: the worker's incarnation.
        sequence: of the push.
        version: of the pull that the gradients were computed from.
    """
    request = ps_pb2.CommitGradientsRequest(member=ps_pb2.Member(worker=worker, sequence=sequence), version=version)
    try:
        answer = await servers[0].call("CommitGradients", request)
    except ConflictError:
        # The first PS was replaced between the two calls: the gradient is lost with it.
        return PushResult(False, version, "generation")
    if answer.HasField("closed"):
        closed = ps_pb2.ApplyRoundRequest(round=answer.closed)
        await together([_apply_round(server, closed) for server in servers[1:]])
    return PushResult(answer.accepted, answer.version, "" if answer.accepted else "stale")


async def _catch_up(servers: Sequence[ServerConnection], index: int, version: int) -> None:
    """Passes the rounds that the first PS has closed on to one that has not applied them."""
    response = await servers[0].call("ClosedRounds", ps_pb2.ClosedRoundsRequest(since=version))
    for round_ in response.rounds:
        await servers[index].call("ApplyRound", ps_pb2.ApplyRoundRequest(round=round_))


async def _apply_round(server: ServerConnection, request: ps_pb2.ApplyRoundRequest) -> None:
    try:
        await server.call("ApplyRound", request)
    except ConflictError:
        # It is several rounds behind (the next pull brings it along), or was replaced (the master restores it).
        return
