"""The answer of one parameter server to a pull, in one frame or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elasticdl_worker.parameters.codec import ClosedRound, PullReply


@dataclass(slots=True)
class PartialPull:
    """The answer of one PS to a pull.

    Attributes:
        version: its version; of several frames the first's, because that is what has surely arrived.
        generation: its generation.
        initialised: whether it has a model.
        dense: received runs of dense parameters: name, first element, values.
        rows: by table, float32 ``[n, dim]``.
        round: the round that the first PS closed last (synchronous mode).
        pending: whether nothing was read yet, because it is worth waiting for the end of a round.
        undeclared: whether nothing was read, because the model there is another job's until it is declared again.
        torn: whether frames are of different versions where they must not be (synchronous mode).
    """

    torn: bool = False
    pending: bool = False
    undeclared: bool = False
    round: ClosedRound | None = None
    version: int = -1
    generation: str = ""
    initialised: bool = False
    dense: list[tuple[str, int, NDArray[np.generic]]] = field(default_factory=list)
    rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    _earlier: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)

    def add(self, reply: PullReply, asked: Mapping[str, NDArray[np.int64]]) -> None:
        """Adds a frame of the answer, which has rows for the ids ``asked``."""
        if self.version < 0:
            self.version = reply.version
        self.generation, self.initialised = reply.generation, reply.initialised
        self.pending, self.undeclared = reply.pending, reply.undeclared
        self.round = reply.round or self.round
        self.dense += reply.dense
        for table, rows in reply.rows.items():
            if table in self.rows:
                self._earlier.setdefault(table, []).append(self.rows[table])
            count = len(asked[table])
            self.rows[table] = rows.reshape(count, -1) if count else rows.reshape(0, 0)

    def join(self) -> None:
        """Puts rows that came in several frames together."""
        for table, earlier in self._earlier.items():
            self.rows[table] = np.concatenate([*earlier, self.rows[table]])
        self._earlier.clear()
