"""Conditions that hinder the job without ending it, for the job's status."""

from __future__ import annotations

from elasticdl_core.ports.launcher import ProcessId
from elasticdl_master.state import events as ev
from elasticdl_master.state.instructions import Instruction, tell


class DegradedConditions:
    """Remembers what is in the way, and tells the user when it comes and goes.

    Attributes:
        queue: why the task queue is away; empty if it is not.
        traces: why no traces are written; empty if they are.
        contradictions: how often queue and machine did not agree.
        waiting: what processes wait for that have not begun, where their launcher says it.
    """

    def __init__(self) -> None:
        self.queue = ""
        self.traces = ""
        self.contradictions = 0
        self.waiting: dict[ProcessId, str] = {}

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in a trouble, or that one is over."""
        match event:
            case ev.ProcessChanged(status):
                self.waiting.pop(status.id, None)
                if status.waits_for:
                    self.waiting[status.id] = status.waits_for
            case ev.StoreChanged(reason):
                return self._store_changed(reason)
            case ev.Contradicted(why, learnt):
                self.contradictions += 1
                text = f"the task queue did not agree with its master and was made anew: {why}"
                return [tell("queue_contradiction", text, learnt=learnt)]
            case ev.TracesFailed(owner, reason):
                self.traces = reason
                return [tell("traces_failed", f"{owner} {reason}; training goes on without traces")]
        return []

    @property
    def absent(self) -> str:
        """The first process that waits, and what for; empty if none does."""
        if not self.waiting:
            return ""
        first, *others = sorted(self.waiting)
        return self.waiting[first] + (f" (and {len(others)} more)" if others else "")

    def _store_changed(self, reason: str) -> list[Instruction]:
        before, self.queue = self.queue, reason
        if reason and not before:
            return [tell("queue_away", f"the task queue is away: {reason}")]
        return [tell("queue_back", "the task queue was made anew")] if before and not reason else []
