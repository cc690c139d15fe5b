"""Steps: how the records of a task become steps, steps become microbatches, and who computes which of them.

All of it follows from numbers alone, so that every member, and whoever does a step again, comes to the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl_core.task import TaskId

_ALIKE = 1.25
"""Members whose speeds differ by less are dealt alike: times of single steps vary by more than that means."""


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that the group holds.

    Attributes:
        token: of its lease.
        task: its id.
        data: what it takes to work on it, opaque here.
    """

    token: str
    task: TaskId
    data: str = ""

    def to_json(self) -> list[str]:
        """As JSON data."""
        return [self.token, str(self.task), self.data]

    @classmethod
    def from_json(cls, data: Sequence[str]) -> HeldTask:
        """Reads what ``to_json`` wrote."""
        return cls(data[0], TaskId.parse(data[1]), data[2])


@dataclass(frozen=True, slots=True)
class ComputePass:
    """Records that a member computes in one pass.

    Attributes:
        microbatch: the number of the first, or only, microbatch in it.
        start: position of the first record.
        end: one past the last; no record is in it where the task ends before.
    """

    microbatch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the records that make one update.

    Attributes:
        number: 1, 2, ... since the group began.
        entry: the task that they are of.
        start: position of the first record.
        end: one past the last.
        size: records in a full microbatch.
        dealt: by microbatch, the rank that computes it.
    """

    number: int
    entry: HeldTask
    start: int
    end: int
    size: int
    dealt: tuple[int, ...]

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of its task."""
        return self.end >= self.entry.task.end

    def bounds(self, microbatch: int) -> tuple[int, int]:
        """The positions of a microbatch; none if the task ends before."""
        start = min(self.start + microbatch * self.size, self.end)
        return start, min(start + self.size, self.end)

    def of(self, rank: int) -> list[int]:
        """The microbatches of a member."""
        return [number for number, owner in enumerate(self.dealt) if owner == rank]

    def passes(self, rank: int, *, fused: bool) -> list[ComputePass]:
        """The computations of a member: each of its microbatches by itself, or all of them at once."""
        mine = self.of(rank)
        if not mine:
            return []
        if fused:  # whoever is dealt several has neighbours
            return [ComputePass(mine[0], self.bounds(mine[0])[0], self.bounds(mine[-1])[1])]
        return [ComputePass(number, *self.bounds(number)) for number in mine]


def deal(microbatches: int, seconds: Sequence[float], without: Collection[int] = ()) -> tuple[int, ...]:
    """Deals microbatches: to each rank a run of them, shorter to slow members.

    Args:
        microbatches: how many there are.
        seconds: by rank, how long one takes there; 0 where that is not known.
        without: ranks that get none; not all of them.

    Returns:
        By microbatch, the rank that computes it.
    """
    speeds = [0.0] * len(seconds)
    able = [rank for rank in range(len(seconds)) if rank not in without]
    for rank, speed in zip(able, _speeds([seconds[rank] for rank in able]), strict=True):
        speeds[rank] = speed
    total = sum(speeds)
    shares = [microbatches * speed / total for speed in speeds]
    counts = [int(share) for share in shares]
    # The largest remainders get what is left; among equals the oldest.
    order = sorted(range(len(shares)), key=lambda rank: (counts[rank] - shares[rank], rank))
    for rank in [one for one in order if one not in without][: microbatches - sum(counts)]:
        counts[rank] += 1
    return tuple(rank for rank, count in enumerate(counts) for _ in range(count))


def _speeds(seconds: Sequence[float]) -> list[float]:
    known = [one for one in seconds if one > 0.0]
    if not known or len(known) < len(seconds) or max(known) <= _ALIKE * min(known):
        return [1.0] * len(seconds)
    return [1.0 / one for one in seconds]


class StepSchedule:
    """The past updates and the leases of a group: the same at all members between two steps.

    Args:
        microbatches: into which a full step is cut.
        records: in a full step.

    Attributes:
        steps: number of steps that count.
        entries: the tasks that are not finished, in their order.
        known: number of tasks that were ever added.
        last: token of the one that was added last.
        position: where the next step begins in the first of them.
    """

    def __init__(self, microbatches: int, records: int) -> None:
        self.microbatches = microbatches
        self.records = records
        self._size = -(-records // microbatches)
        self.steps = 0
        self.entries: list[HeldTask] = []
        self.known = 0
        self.last = ""
        self.position = 0

    def add(self, entries: Sequence[HeldTask]) -> None:
        """Takes more tasks."""
        if not entries:
            return
        if not self.entries:
            self.position = entries[0].task.start
        self.entries += entries
        self.last = entries[-1].token
        self.known += len(entries)

    def drop(self) -> None:
        """Forgets all tasks that are not finished."""
        self.entries.clear()

    def step_dealt(self, dealt: Sequence[int]) -> Step:
        """The next step, as it was dealt."""
        entry = self.entries[0]
        end = min(self.position + self.records, entry.task.end)
        return Step(self.steps + 1, entry, self.position, end, self._size, tuple(dealt))

    def after(self, step: Step) -> Step | None:
        """The step after one, if it is dealt in the same way; to read its records ahead."""
        entry, start = step.entry, step.end
        if step.is_last:
            pairs = zip(self.entries, self.entries[1:], strict=False)
            later = next((next_ for one, next_ in pairs if one.token == entry.token), None)
            if later is None:
                return None
            entry, start = later, later.task.start
        end = min(start + self.records, entry.task.end)
        return Step(step.number + 1, entry, start, end, self._size, step.dealt)

    def count(self, step: Step) -> HeldTask | None:
        """A step counts. Returns the task if that was its last one."""
        self.steps = step.number
        if not step.is_last:
            self.position = step.end
            return None
        done = self.entries.pop(0)
        self.position = self.entries[0].task.start if self.entries else 0
        return done

    def to_json(self) -> dict[str, Any]:
        """As JSON data, for a newcomer."""
        return {
            "steps": self.steps,
            "entries": [entry.to_json() for entry in self.entries],
            "known": self.known,
            "last": self.last,
            "position": self.position,
        }

    def adopt(self, data: Mapping[str, Any]) -> None:
        """Takes over what another member's ``to_json`` wrote."""
        self.steps, self.known, self.position = int(data["steps"]), int(data["known"]), int(data["position"])
        self.last = str(data["last"])
        self.entries = [HeldTask.from_json(entry) for entry in data["entries"]]
