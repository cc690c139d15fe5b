"""The time that members are waited for, and how a thread waits."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Limits on the silence of a member.

    Attributes:
        beat_s: each member writes to each at least so often.
        silence_s: a member that nothing came from for so long is lost, ...
        busy_s: ... unless it can be seen on this machine that it runs: then only after so long.
    """

    beat_s: float = 0.2
    silence_s: float = 0.9
    busy_s: float = 15.0


class Waiter:
    """Something that a thread waits for.

    Attributes:
        owed: by rank, how many messages are still to come from it.
        came: whether it came.
    """

    __slots__ = ("_event", "came", "owed")

    def __init__(self) -> None:
        self._event = threading.Event()
        self.owed: dict[int, int] = {}
        self.came = False

    def owe(self, rank: int) -> None:
        """Notes that a message is to come."""
        self.owed[rank] = self.owed.get(rank, 0) + 1

    def pay(self, rank: int) -> None:
        """Notes that it came."""
        left = self.owed[rank] - 1
        if left:
            self.owed[rank] = left
        else:
            del self.owed[rank]

    def end(self) -> None:
        """It came."""
        self.came = True
        self._event.set()

    def release(self) -> None:
        """Lets go who waits: it will not come."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Waits; returns False when the time passed."""
        return self._event.wait(timeout_s)
