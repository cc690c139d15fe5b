"""What parameter servers answer to pulls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.convert.parameters import array_of, from_bfloat16
from elasticdl_worker.parameters.connection import read_header


@dataclass(slots=True)
class PartialPull:
    """What one PS has answered to a pull.

    Attributes:
        version: its version; of several frames the first's, because that is what has surely arrived.
        generation: its generation.
        initialised: whether it has a model.
        dense: received runs of dense parameters: name, first element, values.
        rows: by table, float32 ``[n, dim]``.
        round: the round that the first PS closed last (synchronous mode).
        pending: whether nothing was read yet, because it is worth waiting for the end of a round.
        torn: whether frames are of different versions where they must not be (synchronous mode).
    """

    torn: bool = False
    pending: bool = False
    round: ps_pb2.RoundMembers | None = None
    version: int = -1
    generation: str = ""
    initialised: bool = False
    dense: list[tuple[str, int, NDArray[Any]]] = field(default_factory=list)
    rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    _earlier: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)

    def take(self, frame: bytes, asked: Mapping[str, NDArray[np.int64]]) -> int:
        """Adds a frame of the answer, which has rows for the ids ``asked``; returns its version."""
        response = ps_pb2.PullResponse()
        buffers = read_header(frame, response)
        return self.add(response, buffers, asked)

    def add(
        self, response: ps_pb2.PullResponse, buffers: list[memoryview], asked: Mapping[str, NDArray[np.int64]]
    ) -> int:
        """Adds a decoded answer; returns its version."""
        if self.version < 0:
            self.version = response.version
        self.generation, self.initialised = response.generation, response.initialized
        self.pending = response.pending
        if response.HasField("round"):
            self.round = response.round
        for part in response.dense:
            name, start = part.name, part.start
            self.dense.append((name, start, array_of(buffers, part.buffer, part.dtype, part.stop - start, name)))
        for entry in response.rows:
            table = entry.table
            count = len(asked[table])
            if entry.dtype == "bfloat16":
                rows = from_bfloat16(np.frombuffer(buffers[entry.values], np.uint16))
            else:
                rows = np.frombuffer(buffers[entry.values], np.float32)
            if table in self.rows:
                self._earlier.setdefault(table, []).append(self.rows[table])
            self.rows[table] = rows.reshape(count, -1) if count else rows.reshape(0, 0)
        version: int = response.version
        return version

    def join(self) -> None:
        """Puts rows that came in several frames together."""
        for table, earlier in self._earlier.items():
            self.rows[table] = np.concatenate([*earlier, self.rows[table]])
        self._earlier.clear()
