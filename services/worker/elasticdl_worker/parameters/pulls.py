"""Pulls from one parameter server: in one message, or in as many as their size asks for."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import UnavailableError
from elasticdl_worker.parameters.codec import (
    ALL_DENSE,
    NO_DENSE,
    ClosedRound,
    OutgoingPull,
    pull_frame,
    read_pull_reply,
)
from elasticdl_worker.parameters.connection import ServerConnection
from elasticdl_worker.parameters.partial_pull import PartialPull
from elasticdl_worker.parameters.placement import ModelPlacement

_POLL_S = 0.1
_Asked = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class PullMoment:
    """The state of a PS that a pull is to see.

    Attributes:
        pin: number of a pin; 0 for the present.
        one_version: whether all messages must be of one version.
        wait_for: a version to wait for while it is likely to come soon (synchronous mode, first PS); 0 for none.
        apply: a round that the first PS has closed, to be applied before (synchronous mode, other PS).
    """

    pin: int = 0
    one_version: bool = False
    wait_for: int = 0
    apply: ClosedRound | None = None


class Puller:
    """Pulls for one client.

    Args:
        wire_dtype: of rows.
        patience_s: for how long a PS may have no model.
        message_bytes: what is larger travels in several messages.
        declare_again: declares the model to a PS that was restored from another job's checkpoint.
    """

    def __init__(
        self,
        wire_dtype: str,
        patience_s: float,
        message_bytes: int,
        declare_again: Callable[[ServerConnection], Awaitable[bool]],
    ) -> None:
        self._wire_dtype = wire_dtype
        self._patience_s = patience_s
        self._message_bytes = message_bytes
        self._declare_again = declare_again

    def prepare(
        self,
        server: ServerConnection,
        moment: PullMoment,
        ids: Sequence[NDArray[np.int64]],
        tables: Sequence[tuple[str, int]],
        *,
        dense: bool,
    ) -> OutgoingPull:
        """The pull from one PS.

        Args:
            server: the PS.
            moment: what of the PS to see.
            ids: each once.
            tables: names of tables, and which ids are wanted of each.
            dense: whether to read dense parameters.
        """
        pinned = bool(moment.pin)
        version = ALL_DENSE if pinned else server.dense_version
        return OutgoingPull(
            version if dense else NO_DENSE,
            moment.pin,
            self._wire_dtype,
            "" if pinned else server.generation,
            moment.wait_for,
            moment.apply,
            tables,
            ids,
        )

    async def pull(
        self, server: ServerConnection, placement: ModelPlacement, asked: _Asked, *, dense: bool, moment: PullMoment
    ) -> PartialPull:
        """Pulls from one PS, waiting while it has no model (it is being restored), or for the end of a round.

        Args:
            server: the PS.
            placement: where everything lies.
            asked: by table, the ids of that PS.
            dense: whether to read dense parameters.
            moment: what of the PS to see.

        Raises:
            UnavailableError: the PS could not be reached, or has no model, for the whole of the patience.
        """
        give_up, declared = time.monotonic() + self._patience_s, False
        while True:
            part = await self._pull_once(server, placement, asked, dense, moment)
            if part.pending:
                # The PS says that it is worth it, and stops saying so when it is not.
                give_up = time.monotonic() + self._patience_s
                continue
            if part.initialised and not part.torn:
                return part
            if part.undeclared and not declared:
                declared = await self._declare_again(server)
                continue
            if time.monotonic() > give_up:
                trouble = "is updated all the time" if part.torn else "has no model"
                raise UnavailableError(
                    f"PS {server.index} at {server.address} {trouble} after {self._patience_s:.0f} s",
                    fix="pull fewer rows at once"
                    if part.torn
                    else "see the job's events for why it was not restored",
                )
            await server.pause(_POLL_S)

    async def _pull_once(
        self, server: ServerConnection, placement: ModelPlacement, asked: _Asked, dense: bool, moment: PullMoment
    ) -> PartialPull:
        part = PartialPull()
        if dense and server.streams_dense:
            wanted = self.prepare(server, moment, (), (), dense=True)
            for frame in await server.pull_dense(pull_frame(wanted)):
                part.add(read_pull_reply(frame), asked)
            if part.pending:
                return part
            dense = False
        groups = placement.group(asked, self._message_bytes)
        for group in groups:
            tables = [(table, index) for index, table in enumerate(group)]
            pull = self.prepare(server, moment, list(group.values()), tables, dense=dense)
            expected = placement.rows_bytes(group) + (server.dense_bytes if dense else 0)
            reply = read_pull_reply(await server.call("Pull", pull_frame(pull), answer_bytes=expected))
            part.add(reply, group)
            part.torn |= moment.one_version and reply.version != part.version
            if part.pending or not part.initialised:
                break
            dense = False
        if len(groups) > 1:
            part.join()
        return part
