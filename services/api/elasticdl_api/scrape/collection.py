"""Asks all processes for their numbers: once for all who scrape at a time, and never for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.meters import MeterKey, read_meters
from elasticdl_core.ports.launcher import Inquiry, InspectedProcess, Launcher, ProcessId

ASK_S = 5.0
"""How long the agent may take; Prometheus itself waits for ten seconds."""
FRESH_S = 1.0
"""What was collected so long ago is told again."""
MOST_PROCESSES = 2000
"""Processes of a scrape; of those beyond that only the number is told."""


@dataclass(frozen=True)
class Collected:
    """The metrics of processes.

    Attributes:
        processes: by id, the numbers of each; None of one that did not answer.
        agent: the agent's own numbers; None where it does not answer.
        left_out: how many processes are not among them, for they are too many.
        took_s: how long it took.
    """

    processes: Mapping[ProcessId, Mapping[MeterKey, float] | None] = field(default_factory=dict)
    agent: Mapping[MeterKey, float] | None = None
    left_out: int = 0
    took_s: float = 0.0


class MeterCollection:
    """Collects the numbers of all processes of jobs, and of the agent.

    Args:
        launcher: asks them; None when there is no agent.
        clock: seconds that only grow.
    """

    def __init__(self, launcher: Launcher | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._launcher = launcher
        self._clock = clock
        self._asking = asyncio.Lock()
        self._last: tuple[float, Collected] | None = None

    async def read(self) -> Collected:
        """Collects metrics now, or returns those of a moment ago; raises nothing for processes that do not answer."""
        async with self._asking:
            if self._last is None or self._clock() - self._last[0] > FRESH_S:
                collected = await self._collect()
                self._last = (self._clock(), collected)
            return self._last[1]

    async def _collect(self) -> Collected:
        began = self._clock()
        if self._launcher is None:
            return Collected()
        try:
            async with asyncio.timeout(ASK_S):
                agent, found = await asyncio.gather(
                    self._launcher.meters(), self._launcher.inspect(None, Inquiry.METRICS)
                )
        except (ElasticDLError, TimeoutError):
            return Collected(took_s=self._clock() - began)
        newest = _newest(found)
        processes = await asyncio.to_thread(
            lambda: {one.id: read_meters(one.answer) for one in newest[:MOST_PROCESSES]}
        )
        return Collected(processes, agent, len(newest[MOST_PROCESSES:]), self._clock() - began)


def _newest(found: Sequence[InspectedProcess]) -> list[InspectedProcess]:
    """The running processes, of each place its newest incarnation; masters first, then PS."""
    by_place: dict[tuple[str, str, int], InspectedProcess] = {}
    for one in found:
        place = (one.id.job_id, one.id.role, one.id.index)
        if one.state != "pending" and (place not in by_place or one.id.incarnation > by_place[place].id.incarnation):
            by_place[place] = one
    return sorted(by_place.values(), key=lambda one: (str(one.id.role), one.id.job_id, one.id.index))
