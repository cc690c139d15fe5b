"""The life of a process of a job: the stages that it goes through, and why it ends."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, replace
from datetime import datetime

from elasticdl_core.ports.launcher import ProcessStatus

EXIT_UNREACHABLE = 70
"""Exit code of a worker whose master or PS stayed away: no fault of the user's code."""


OVER_LIMITS = {
    "too_many_processes": (
        "was ended because it had started too many processes",
        "start fewer processes and threads in the model's code and in readers of data",
    ),
    "too_much_disk": (
        "was ended because its job has more on disk than a job may have",
        "write less (keep_checkpoint_max, checkpoint_steps, files of the model's own), or raise "
        "ELASTICDL_JOB_DISK_MIB of the agent",
    ),
    "too_much_shared_memory": (
        "was ended because its job has more in shared memory (/dev/shm) than a job may have",
        "free what the model's code makes there, or raise ELASTICDL_JOB_SHARED_MEMORY_MIB of the agent",
    ),
}
"""Reasons of launchers for the end of a process whose job took too much: in words, and what to do about it."""


class LifeStage(enum.StrEnum):
    """Stages of a process' life, in this order; each at most once counts, the first word of it."""

    LAUNCHED = "launched"
    READY = "ready"
    DRAINED = "drained"
    """It was told to leave."""
    ENDED = "ended"


class EndCause(enum.StrEnum):
    """Why a process ended."""

    FINISHED = "finished"
    """Its work is done."""
    DRAINED = "drained"
    """It gave back what it had and left, as it was told to."""
    PREEMPTED = "preempted"
    """Somebody outside of the job ended it in order (SIGTERM)."""
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    LOST = "lost"
    """Nobody saw how it ended: its launcher or its machine died."""
    STOPPED = "stopped"
    """The job was stopped, or did not need it any more."""
    SUPERSEDED = "superseded"
    """Another one has taken its place while it was still alive."""


def cause_of_exit(status: ProcessStatus) -> EndCause:
    """Why a process ended that nobody had told to leave."""
    code = status.exit_code
    if status.reason == "oom_killed":
        return EndCause.OUT_OF_MEMORY
    if status.reason == "terminated" or code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return EndCause.PREEMPTED
    if status.reason == "launcher_lost" and code == 0:
        return EndCause.STOPPED  # in order, because its launcher went down
    if status.reason == "launcher_lost" or (code is None and status.reason not in OVER_LIMITS):
        return EndCause.LOST
    return EndCause.KILLED if code in (None, -signal.SIGKILL, EXIT_UNREACHABLE) else EndCause.CRASHED


def ended_by_others(status: ProcessStatus) -> bool:
    """Whether a process did not die of itself: its machine or its launcher went away, or it was sent away in order.

    However often that happens, it says nothing against the job.
    """
    return cause_of_exit(status) in (EndCause.LOST, EndCause.PREEMPTED, EndCause.STOPPED)


def describe_exit(status: ProcessStatus) -> str:
    """Describes the end of a process, in words."""
    if status.reason == "cannot_start" and status.message:
        return f"could not be started: {status.message}"
    return _how_it_ended(status) + (f" ({status.message})" if status.message else "")


def _how_it_ended(status: ProcessStatus) -> str:
    code = status.exit_code
    if status.reason == "oom_killed":
        return "was killed because it ran out of memory"
    if status.reason in OVER_LIMITS:
        return OVER_LIMITS[status.reason][0]
    if code is None:
        return "vanished"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return "exited without finishing its work (exit code 0)" if code == 0 else f"exited with code {code}"


def cause_unseen(status: ProcessStatus) -> EndCause:
    """Why a process ended while the job had no master: whether it was told to leave, nobody knows any more."""
    cause = cause_of_exit(status)
    return EndCause.FINISHED if cause is EndCause.CRASHED and status.exit_code == 0 else cause


@dataclass(frozen=True, slots=True)
class ProcessLife:
    """The known life of a process.

    Attributes:
        launched_at: when it was launched, or first heard of.
        ready_at: when it could work: a PS answered, a worker had registered, a master had taken the job.
        drained_at: when it was told to leave.
        ended_at: when it had ended.
        exit_code: its exit code, or minus the signal that ended it; None where nobody knows.
        cause: why it ended; None while it lives.
        message: more about that, for people.
    """

    launched_at: datetime
    ready_at: datetime | None = None
    drained_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: EndCause | None = None
    message: str = ""

    @property
    def state(self) -> str:
        """In one word."""
        if self.ended_at is not None:
            return "ended"
        if self.drained_at is not None:
            return "leaving"
        return "starting" if self.ready_at is None else "ready"

    def at_stage(
        self,
        stage: LifeStage,
        at: datetime,
        cause: EndCause | None = None,
        exit_code: int | None = None,
        message: str = "",
    ) -> ProcessLife:
        """The life with a stage more; the first word of each stage counts, and none comes after the end."""
        if self.ended_at is not None:
            return self
        match stage:
            case LifeStage.READY if self.ready_at is None:
                return replace(self, ready_at=at)
            case LifeStage.DRAINED if self.drained_at is None:
                return replace(self, drained_at=at)
            case LifeStage.ENDED:
                why = cause or EndCause.LOST
                return replace(self, ended_at=at, cause=why, exit_code=exit_code, message=message)
        return self
