"""The job's state, and the decision to end it: the one place where two reasons to end are weighed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.job import JobState
from elasticdl_master.state.instructions import Instruction, SetState

_PAUSES = (JobState.SUSPENDED, JobState.QUEUED, None)


class Directive(enum.StrEnum):
    """Directives to a worker that asks for work or sends a heartbeat."""

    CONTINUE = "continue"
    WAIT = "wait"
    DRAIN = "drain"
    FINISHED = "finished"


@dataclass(frozen=True)
class EndDecision:
    """The decision that the job ends, or stops for now.

    Attributes:
        to: the state that the job will be in; None if it stays in its state, for the next master to go on.
        reason: why, for the user.
        detail: more for the user: traceback, fix.
        crashed: a worker whose last output belongs into the detail.
    """

    to: JobState | None
    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    crashed: str = ""

    @property
    def pauses(self) -> bool:
        """Whether the job will go on later: what is done so far is saved first."""
        return self.to in _PAUSES

    @property
    def directive(self) -> Directive:
        """The directive for workers meanwhile."""
        return Directive.DRAIN if self.pauses else Directive.FINISHED


class Lifecycle:
    """The state of the job. Every part may decide that the job fails; ``JobEnding`` carries a decision out.

    Args:
        state: the job's state as the api knows it.
    """

    def __init__(self, state: JobState) -> None:
        self.state = state
        self.decision: EndDecision | None = None
        self._announced = False

    @property
    def ending(self) -> bool:
        """Whether it was decided that the job ends, or stops for now."""
        return self.decision is not None

    def fail(
        self,
        message: str,
        *,
        fix: str = "",
        traceback: str = "",
        kind: str = "",
        where: str = "",
        crashed: str = "",
    ) -> None:
        """Decides that the job fails, unless it ends for another reason already."""
        detail = {"message": message, "fix": fix, "traceback": traceback, "kind": kind, "where": where}
        self.end(JobState.FAILED, message, {key: value for key, value in detail.items() if value}, crashed)

    def end(
        self, to: JobState | None, reason: str, detail: Mapping[str, Any] | None = None, crashed: str = ""
    ) -> bool:
        """Decides that the job ends in a state. Returns whether that counts: an earlier decision may be stronger."""
        if self.decision is not None and not self._gives_way(self.decision, to):
            return False
        self.decision = EndDecision(to, reason, detail or {}, crashed)
        return True

    def start_running(self, reason: str) -> list[Instruction]:
        """Moves a job that was starting to running."""
        if self.state is not JobState.STARTING:
            return []
        self.state = JobState.RUNNING
        return [SetState(JobState.RUNNING, reason)]

    def announce_end(self) -> list[Instruction]:
        """Posts the decided state, once; nothing if the job stays in its state."""
        decided = self.decision
        if self._announced or decided is None or decided.to is None:
            return []
        self._announced = True
        self.state = decided.to
        return [SetState(decided.to, decided.reason, decided.detail, decided.crashed)]

    def _gives_way(self, earlier: EndDecision, to: JobState | None) -> bool:
        """A cancellation outranks a pause and a success, a failure outranks a success."""
        if self._announced:
            return False
        succeeds = earlier.to is not None and earlier.to.succeeded
        return succeeds if to is JobState.FAILED else (earlier.pauses or succeeds) and to is JobState.CANCELLED
