"""Simulated processes: what a PS and a worker of a simulated job have, and nothing of what they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from elasticdl_core.ports.launcher import ProcessId
from elasticdl_master.pending_requests import DispatchedTask
from tests.fakes.plain_loop import PlainLoop

JOB, OTHER_JOB = "sim-1", "sim-0"
T = TypeVar("T")
Record = tuple[int, int, int]
"""(epoch, task index, record)."""


LOOP = PlainLoop()
"""Where all that is simulated runs."""


def finish(call: Coroutine[Any, Any, T]) -> T:
    """Runs a call that waits for nothing but what it begins itself."""
    return LOOP.finish(call)


@dataclass
class SimServer:
    """A PS: what was applied to it."""

    id: ProcessId
    ready_at: float
    frozen_until: float = 0.0
    initialized: bool = False
    version: int = 0
    applied: Counter[Record] = field(default_factory=Counter)
    pins: dict[int, int] = field(default_factory=dict)
    rules_of: str = ""
    """Whose optimizer and mode it has: those of the job whose worker pushed the model, or whose checkpoint it was."""

    def tally(self) -> Counter[tuple[int, int]]:
        """Records by epoch and index of the task."""
        counts: Counter[tuple[int, int]] = Counter()
        for (epoch, index, _), times in self.applied.items():
            counts[epoch, index] += times
        return counts


@dataclass
class SimWorker:
    """A worker: what it has in hand."""

    id: ProcessId
    ready_at: float
    registered: bool = False
    work: list[DispatchedTask] = field(default_factory=list)
    position: int = 0
    records: int = 0
    steps: int = 0
    next_beat: float = 0.0
    frozen_until: float = 0.0
    generation: int = -1
    pushed: bool = False
    draining: bool = False
    last: tuple[DispatchedTask, bytes] | None = None
    unsent: DispatchedTask | None = None

    @property
    def owner(self) -> str:
        return self.id.owner
