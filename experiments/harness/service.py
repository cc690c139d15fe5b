"""A service that takes slots as its demand says, and notes how long it waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasticdl import Client
from experiments.harness.recording import Level

_LOOK_S = 0.05


@dataclass(frozen=True)
class Demand:
    """Slots wanted over time.

    Attributes:
        times: when the demand changes, in seconds; evenly spaced, from 0 or later.
        slots: what is wanted from then on.
    """

    times: Sequence[float]
    slots: Sequence[int]

    @property
    def length_s(self) -> float:
        """Seconds from the first value to the end of the last."""
        return self.times[-1] - self.times[0] + (self.times[1] - self.times[0])

    @property
    def slot_seconds(self) -> float:
        """The sum of slots over time."""
        return sum(self.slots) * (self.times[1] - self.times[0])

    def part(self, start: float, end: float) -> Demand:
        """The demand between two times."""
        chosen = [(time, slots) for time, slots in zip(self.times, self.slots, strict=True) if start <= time < end]
        return Demand([time for time, _ in chosen], [slots for _, slots in chosen])


class Service:
    """Holds a reservation.

    Args:
        client: with an administrator's token.
        name: of the reservation.
        grace_s: seconds that workers have to leave.

    Attributes:
        waits: seconds from each rise of the demand until all of it was granted.
    """

    def __init__(self, client: Client, name: str, grace_s: float) -> None:
        self._client = client
        self._name = name
        self._grace_s = grace_s
        self.waits: list[float] = []
        self._granted: list[tuple[float, int]] = []
        self._wanted: list[tuple[float, int]] = []

    def live(self, demand: Demand, scale: float, say: Callable[[str], None]) -> float:
        """Follows the demand to its end; what has not been granted at the next change goes on being waited for.

        Args:
            demand: slots over time.
            scale: real seconds a second of the demand takes.
            say: shows progress.

        Returns:
            When it began, in seconds since the epoch.
        """
        begin = time.time()
        asked_at: float | None = None
        have = 0
        for moment, slots in zip(demand.times, demand.slots, strict=True):
            end = begin + (moment - demand.times[0] + demand.times[1] - demand.times[0]) * scale
            if not self._wanted or slots != self._wanted[-1][1]:
                if not self._wanted or slots > self._wanted[-1][1]:
                    asked_at = asked_at or time.time()
                self._wanted.append((time.time(), slots))
                have = self._note(self._client.reserve(self._name, slots, grace_s=self._grace_s)["granted"], have)
            while time.time() < end:
                if have < slots:
                    have = self._note(self._look(), have)
                if asked_at is not None and have >= slots:
                    self.waits.append(self._granted[-1][0] - asked_at)
                    asked_at = None
                time.sleep(max(0.0, min(_LOOK_S, end - time.time())))
            say(f"demand {slots}, granted {have}")
        if asked_at is not None:
            self.waits.append(time.time() - asked_at)
        self._client.release(self._name)
        return begin

    def granted(self, begin: float) -> Level:
        """Slots that it had, by time since ``begin``."""
        return Level([at - begin for at, _ in self._granted], [slots for _, slots in self._granted])

    def wanted(self, begin: float) -> Level:
        """Slots that it asked for."""
        return Level([at - begin for at, _ in self._wanted], [slots for _, slots in self._wanted])

    def _look(self) -> int:
        found = self._client.reservations()["reservations"]
        return next((int(one["granted"]) for one in found if one["name"] == self._name), 0)

    def _note(self, granted: int, before: int) -> int:
        if granted != before or not self._granted:
            self._granted.append((time.time(), granted))
        return granted
