"""Pulls from one parameter server: in one message, or in as many as their size asks for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import UnavailableError
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.framing import encode_frame
from elasticdl_worker.parameters.answers import PartialPull
from elasticdl_worker.parameters.connection import ServerConnection
from elasticdl_worker.parameters.placement import ModelPlacement

ALL_DENSE, NO_DENSE = -1, -2
"""Dense parameters that are asked for, where it is not those that are newer than a version."""
_POLL_S = 0.1
_Asked = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Moment:
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
    apply: ps_pb2.RoundMembers | None = None


class Pulls:
    """Pulls of one client.

    Args:
        wire_dtype: of rows.
        patience_s: for how long a PS may have no model.
        message_bytes: what is larger travels in several messages.
    """

    def __init__(self, wire_dtype: str, patience_s: float, message_bytes: int) -> None:
        self._wire_dtype = wire_dtype
        self._patience_s = patience_s
        self._message_bytes = message_bytes
        self._row_headers: dict[tuple[str, ...], bytes] = {}

    async def pull(
        self, server: ServerConnection, placement: ModelPlacement, asked: _Asked, *, dense: bool, moment: Moment
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
        give_up = time.monotonic() + self._patience_s
        while True:
            part = await self._once(server, placement, asked, dense, moment)
            if part.pending:
                # The PS says that it is worth it, and stops saying so when it is not.
                give_up = time.monotonic() + self._patience_s
                continue
            if part.initialised and not part.torn:
                return part
            if time.monotonic() > give_up:
                trouble = "is updated all the time" if part.torn else "has no model"
                raise UnavailableError(
                    f"PS {server.index} at {server.address} {trouble} after {self._patience_s:.0f} s",
                    fix="pull fewer rows at once"
                    if part.torn
                    else "see the job's events for why it was not restored",
                )
            await server.pause(_POLL_S)

    async def _once(
        self, server: ServerConnection, placement: ModelPlacement, asked: _Asked, dense: bool, moment: Moment
    ) -> PartialPull:
        request = self._request(server, dense, moment)
        part = PartialPull()
        if dense and server.streams_dense:
            for frame in await server.pull_dense(encode_frame(request.SerializeToString())):
                part.take(frame, asked)
            if part.pending:
                return part
            request.dense_version = NO_DENSE
        groups = placement.groups(asked, self._message_bytes)
        for group in groups:
            # Encoded messages may be joined: the fields of both count.
            header = request.SerializeToString() + self._rows_header(group)
            expected = placement.rows_bytes(group)
            if request.dense_version != NO_DENSE:
                expected += server.dense_bytes
            answer = await server.call("Pull", encode_frame(header, list(group.values())), answer_bytes=expected)
            version = part.take(answer, group)
            part.torn |= moment.one_version and version != part.version
            if part.pending or not part.initialised:
                break
            request.dense_version = NO_DENSE
        if len(groups) > 1:
            part.join()
        return part

    def _request(self, server: ServerConnection, dense: bool, moment: Moment) -> ps_pb2.PullRequest:
        pin = moment.pin
        return ps_pb2.PullRequest(
            dense_version=(ALL_DENSE if pin else server.dense_version) if dense else NO_DENSE,
            pin=pin,
            dtype=self._wire_dtype,
            generation="" if pin else server.generation,
            wait_for=moment.wait_for,
            apply=moment.apply,
        )

    def _rows_header(self, tables: Mapping[str, Any]) -> bytes:
        """The encoded ``rows`` of a pull, the same for the same tables."""
        names = tuple(tables)
        if names not in self._row_headers:
            rows = [ps_pb2.Rows(table=table, ids=index) for index, table in enumerate(names)]
            self._row_headers[names] = ps_pb2.PullRequest(rows=rows).SerializeToString()
        return self._row_headers[names]
