"""Reads the records of a member's steps before they are computed."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl_core.group.member import GroupMember
from elasticdl_core.group.rendezvous import Orders
from elasticdl_core.group.steps import ComputePass, Step
from elasticdl_core.task import Task
from elasticdl_worker.bursts import SHORT_S
from elasticdl_worker.group.reader import MicrobatchReader
from elasticdl_worker.group.replica import MicrobatchData

_MOST_AHEAD = 6


class StepsAhead:
    """Has the records of a member's coming passes read while it forms a group, receives or computes.

    Args:
        read: reads the records at positions of a task; called from one thread.
        member: what it has to do next.
        fused: whether it computes the microbatches of a step in one pass.
    """

    def __init__(self, read: Callable[[Task, int, int], MicrobatchData], member: GroupMember, *, fused: bool) -> None:
        self._reader = MicrobatchReader(read)
        self._member = member
        self._fused = fused

    def begin(self, orders: Orders, rank: int) -> None:
        """Has the records of a generation's first step read while it is on its way: nobody is to wait for them."""
        step = self._member.first_step(orders)
        if step is not None:
            self._reader.prepare([(step, self._passes(step, rank))])

    def go_on(self, step: Step, rank: int, elapsed_s: float) -> list[ComputePass]:
        """Has the records of a step and of those after it read; of several if they are short (``bursts``).

        Args:
            step: to be computed now.
            rank: this member's.
            elapsed_s: how long the step before it took.

        Returns:
            The passes of the step.
        """
        passes = self._passes(step, rank)
        wanted = [(step, passes)]
        most = _MOST_AHEAD if elapsed_s < SHORT_S else 1
        while len(wanted) <= most and (following := self._member.metadata.schedule.after(wanted[-1][0])) is not None:
            wanted.append((following, self._passes(following, rank)))
            if len(wanted) == 2 and all(self._reader.has(*one) for one in wanted):
                return passes
        self._reader.prepare(wanted)
        return passes

    def take(self, step: Step, one: ComputePass) -> MicrobatchData:
        """The records of a pass; waits for them.

        Raises:
            Exception: what reading them raised.
        """
        return self._reader.take(step, one)

    def task(self, step: Step) -> Task:
        """The task of a step."""
        return self._reader.task(step)

    def describe(self, step: Step, start: int, end: int) -> str:
        """Describes the records at some positions of a step, as traces say it."""
        return self._reader.describe(step, start, end)

    def close(self) -> None:
        """Ends the reading."""
        self._reader.close()

    def _passes(self, step: Step, rank: int) -> list[ComputePass]:
        return step.passes(rank, fused=self._fused)
