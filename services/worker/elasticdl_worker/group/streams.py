"""The state on its way to newcomers, while the others make updates and the newcomers keep their sums."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from elasticdl_worker.collectives import Collective, CollectiveError
from elasticdl_worker.group.replica import Flat, Replica, ReplicaState, copied, copies
from elasticdl_worker.group.state_files import pack_state, unpack_state

_KEPT_BYTES = 512 << 20
"""Of sums that a newcomer keeps; when they are more, the others wait for it."""
_AT_ONCE = 2
"""Sums that a newcomer applies in one step: as the others compute in that time, more than one gets it nearer."""


class OutgoingState:
    """Sends a copy of the state to newcomers, one after the other, in a thread of its own.

    Args:
        collective: the group.
        targets: ranks.
        replica: whose state of this moment is sent.
        timeout_s: how long a target that lives may take.
    """

    def __init__(self, collective: Collective, targets: Collection[int], replica: Replica, timeout_s: float) -> None:
        self._collective, self._targets = collective, list(targets)
        self._state = copied(replica.state())
        self._timeout_s = timeout_s
        self._thread = threading.Thread(target=self._send, name="send state", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits until the targets have it, or the group is broken."""
        self._thread.join()

    def _send(self) -> None:
        note, buffers = pack_state(self._state)
        with contextlib.suppress(CollectiveError):  # the member's own operations fail with the same
            for target in self._targets:
                self._collective.send(target, json.dumps(note).encode(), buffers, timeout_s=self._timeout_s)


class _Kept(NamedTuple):
    sums: Sequence[Flat]
    rows: int
    epoch: int


class IncomingState:
    """The state that is received in a thread of its own, and the sums of the updates that were made since.

    Args:
        collective: the group.
        source: rank that sends it.
        replica: that it is for.
        timeout_s: how long a source that lives may take.
    """

    def __init__(self, collective: Collective, source: int, replica: Replica, timeout_s: float) -> None:
        self._replica = replica
        self._most = max(2, _KEPT_BYTES // max(1, 4 * sum(replica.lengths)))
        self._kept: deque[_Kept] = deque()
        self._state: ReplicaState | None = None
        self._error: CollectiveError | None = None

        def receive() -> None:
            try:
                text, buffers = collective.receive(source, timeout_s=timeout_s)
                self._state = unpack_state(json.loads(text), buffers)
            except CollectiveError as error:
                self._error = error

        self._loaded = False
        self._thread = threading.Thread(target=receive, name="receive state", daemon=True)
        self._thread.start()

    def keep(self, sums: Sequence[Flat], rows: int, epoch: int) -> None:
        """Keeps a copy of what is to be applied later."""
        self._kept.append(_Kept(copies(self._replica.memory, sums) if rows else (), rows, epoch))

    def take_some(self) -> bool:
        """Takes over what has come, but not so much that others would wait; returns whether that is all.

        Raises:
            CollectiveError: the group is broken.
        """
        if not self._loaded:
            if self._thread.is_alive() and len(self._kept) < self._most:
                return False
            self._load()
        else:
            self._apply(_AT_ONCE)
        return not self._kept

    def take_all(self) -> None:
        """Waits for the rest, and takes over all.

        Raises:
            CollectiveError: the group is broken.
        """
        if not self._loaded:
            self._load()
        self._apply(len(self._kept))

    def finish(self) -> None:
        """Waits for the end of receiving; the group is broken, or all was received."""
        self._thread.join()

    def _load(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._state is not None
        self._replica.load(self._state)
        self._state, self._loaded = None, True

    def _apply(self, most: int) -> None:
        for _ in range(min(most, len(self._kept))):
            sums, rows, epoch = self._kept.popleft()
            if rows:
                self._replica.apply(sums, rows, epoch)
