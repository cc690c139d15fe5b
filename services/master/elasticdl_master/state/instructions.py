"""Instructions of the state machine: its outputs, which the runner carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from elasticdl_core.checkpoint_manifest import BestMark, Manifest
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import EndCause, LifeStage
from elasticdl_core.series import SeriesRow
from elasticdl_core.task import TaskId
from elasticdl_master.state.accounts import RecordAccount


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    """Launch a worker."""

    index: int
    incarnation: int
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class TerminateWorker:
    """Ask a worker to leave; kill it after the grace."""

    index: int
    incarnation: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class LaunchServer:
    """Launch a PS."""

    index: int
    incarnation: int
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class TerminateServer:
    """Ask a PS to leave; kill it after the grace."""

    index: int
    incarnation: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class RestoreServers:
    """Bring all PS to a checkpoint."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class FlushRound:
    """Synchronous mode: close the present round with the gradients that it has, at the end of an epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep the present parameters readable under a number on all PS."""

    number: int


@dataclass(frozen=True, slots=True)
class Unpin:
    """Drop a pin."""

    number: int


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint and commit its manifest.

    ``done`` is the work that the checkpoint contains at least: it was recorded before the first PS is asked.
    ``best`` marks it if it turns out to be of the version that is named there.
    """

    kind: str
    done: Mapping[str, Any]
    training_epoch: int
    records_done: int
    best: BestMark | None = None


@dataclass(frozen=True, slots=True)
class ReadTallies:
    """Ask all PS how many records of each task are in their parameters."""


@dataclass(frozen=True, slots=True)
class Prune:
    """Remove a checkpoint's files, and its entry unless a new one of the same version replaced it."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class AddTasks:
    """Put tasks into the queue."""

    tasks: Sequence[TaskId]
    front: bool = False


@dataclass(frozen=True, slots=True)
class RebuildQueue:
    """Make the queue anew from what the machine knows when this is carried out."""


@dataclass(frozen=True, slots=True)
class ForgetTasks:
    """Drop done tasks that nobody asks about any more, once their marks are durable."""

    tasks: Sequence[TaskId]


@dataclass(frozen=True, slots=True)
class ReleaseOwner:
    """Take all leases of an owner back."""

    owner: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Never lease a task again."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class MarkDone:
    """Make done-marks durable; ``accounts`` are of tasks, marked now or before, of which there is more to tell."""

    tasks: Sequence[TaskId]
    accounts: Mapping[TaskId, RecordAccount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """Keep a takeover record for the next master."""

    text: str


@dataclass(frozen=True, slots=True)
class PutPlan:
    """Make the plan durable."""

    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ListShards:
    """List the shards of the job's data here, with built-in readers."""


@dataclass(frozen=True, slots=True)
class PostLosses:
    """Losses to show: (model version, loss)."""

    losses: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class PostSeries:
    """Rows of the job's series that no heartbeat could tell; of complete spans."""

    rows: Sequence[SeriesRow]


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Tell the user something."""

    kind: str
    message: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PostLife:
    """Tell of a process that it has come to a stage of its life.

    ``announce`` makes an event of it, where nothing else tells the user.
    """

    role: Role
    index: int
    incarnation: int
    stage: LifeStage
    cause: EndCause | None = None
    exit_code: int | None = None
    message: str = ""
    announce: bool = True


@dataclass(frozen=True, slots=True)
class PostLiving:
    """Tell which processes there are (role, index, incarnation): all others of the job are lost."""

    processes: Sequence[tuple[Role, int, int]]


@dataclass(frozen=True, slots=True)
class PostEvaluation:
    """Publish an evaluation."""

    number: int
    model_version: int
    training_epoch: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PostArtifact:
    """Publish a file that the job made."""

    name: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SetState:
    """Move the job to another state. ``crashed`` names a worker whose last output belongs into the detail."""

    to: JobState
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    crashed: str = ""


@dataclass(frozen=True, slots=True)
class LoseGroup:
    """No member of the group holds the model any more: tell so, as of a PS that has ended."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The master has nothing more to do: clear the queue and leave."""


@dataclass(frozen=True, slots=True)
class Depart:
    """All is saved: leave, and keep the queue for the next master."""


Instruction: TypeAlias = (
    LaunchWorker
    | TerminateWorker
    | LaunchServer
    | TerminateServer
    | RestoreServers
    | FlushRound
    | Pin
    | Unpin
    | Save
    | ReadTallies
    | Prune
    | AddTasks
    | RebuildQueue
    | ForgetTasks
    | ReleaseOwner
    | Quarantine
    | MarkDone
    | Note
    | PutPlan
    | ListShards
    | PostLosses
    | PostSeries
    | PostEvent
    | PostLife
    | PostLiving
    | PostEvaluation
    | PostArtifact
    | SetState
    | LoseGroup
    | Finish
    | Depart
)


def tell(kind: str, message: str, **detail: Any) -> PostEvent:
    """An event for the user; details that say nothing are left out."""
    return PostEvent(kind, message, {key: value for key, value in detail.items() if value not in (None, "")})
