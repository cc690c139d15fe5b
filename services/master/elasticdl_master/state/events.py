"""Events of a job: the inputs of the state machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.group.rendezvous import Meeting
from elasticdl_core.model_description import ModelDescription
from elasticdl_core.ports.launcher import ProcessStatus
from elasticdl_core.shard import Shard
from elasticdl_core.task import Lease, TaskId, TaskType
from elasticdl_master.state.tally import Tallied


@dataclass(frozen=True, slots=True)
class Started:
    """The runner has told the machine all that it found; decisions may begin."""


@dataclass(frozen=True, slots=True)
class ShardsListed:
    """A piece of the list of shards of one type of work; ``last`` closes the list."""

    type: TaskType
    shards: Sequence[Shard]
    last: bool
    damaged: Mapping[str, str] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    grain: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class JobFailed:
    """Listing the shards, unpacking the code or finding a checkpoint showed that the job cannot go on."""

    message: str
    fix: str = ""
    traceback: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRegistered:
    """A worker has registered."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class ModelDescribed:
    """A worker built the model and describes it."""

    owner: str
    description: ModelDescription


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """A worker lives; numbers count since the start of that incarnation."""

    index: int
    incarnation: int
    positions: Mapping[str, int] = field(default_factory=dict)
    records: int = 0
    steps: int = 0
    samples_per_second: float = 0.0
    model_version: int = 0
    losses: Sequence[tuple[int, float]] = ()
    phase: str = ""
    step_p95_s: float = 0.0
    loss: float | None = None
    last_loss: float | None = None
    learning_rate: float | None = None
    training_metrics: Mapping[str, float] = field(default_factory=dict)
    step: Mapping[str, float] = field(default_factory=dict)
    training_metrics_version: int = 0


@dataclass(frozen=True, slots=True)
class TasksLeased:
    """The queue handed out tasks."""

    leases: Sequence[Lease]


@dataclass(frozen=True, slots=True)
class TaskReported:
    """A task is done: the queue accepted the report for the first time."""

    task: TaskId
    owner: str
    token: str
    result: bytes = b""
    model_version: int = 0


@dataclass(frozen=True, slots=True)
class TaskReturned:
    """A task came back from ``position`` on."""

    task: TaskId
    owner: str
    token: str
    position: int
    result: bytes = b""
    model_version: int = 0


@dataclass(frozen=True, slots=True)
class LeasesTaken:
    """The queue took leases back: they expired, or their owner is gone."""

    leases: Sequence[Lease]


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker says that it cannot go on with a task, or at all when there is none."""

    owner: str
    kind: str
    message: str
    fix: str = ""
    traceback: str = ""
    task: TaskId | None = None
    token: str = ""


@dataclass(frozen=True, slots=True)
class ProcessChanged:
    """The launcher says how a process of the job stands."""

    status: ProcessStatus


@dataclass(frozen=True, slots=True)
class Directed:
    """The api says what is wanted of the job."""

    desired: str
    target_workers: int


@dataclass(frozen=True, slots=True)
class GoingDown:
    """The launcher is being stopped, and all processes with it; the job goes on when it is back."""


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A PS answered its status call."""

    index: int
    incarnation: int
    initialized: bool
    version: int
    rows: int = 0
    bytes: int = 0
    records: int = 0
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerSilent:
    """A PS did not answer its status call."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class ServersRestored:
    """All PS hold the content of one checkpoint."""

    directory: str
    version: int


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """A checkpoint was refused: truncated, flipped, missing or of another model."""

    directory: str
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class GroupPaused:
    """A group makes no more updates before the model was evaluated at this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """All PS keep their parameters readable under the number of an evaluation."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class RoundFlushed:
    """All PS have closed the last round of an epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is committed: files, manifest on disk, manifest in the api."""

    kind: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A checkpoint was not written; the ones before are intact."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class TalliesRead:
    """All PS said how many records of each task are in their parameters."""

    tallies: Sequence[Tallied]


@dataclass(frozen=True, slots=True)
class TracesFailed:
    """A worker cannot write down what it processed; nothing depends on it."""

    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """The queue's store does not answer (``reason``), or does again (empty)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Queue and machine did not agree; each has learnt what the other knew.

    Attributes:
        why: in what.
        learnt: tasks of which the machine had missed that they are done.
    """

    why: str
    learnt: int


@dataclass(frozen=True, slots=True)
class MemberMet:
    """A member of the group, or who wants to be one, says how it is."""

    meeting: Meeting
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupLooked:
    """A moment has passed in which members might have been heard of.

    Attributes:
        wanted: training tasks that the group has work for: what it shall hold, so that it goes on without a master.
    """

    wanted: int = 0


@dataclass(frozen=True, slots=True)
class GroupAllowed:
    """The group may be founded: it is known on what."""


@dataclass(frozen=True, slots=True)
class GroupVoided:
    """The model that members of the group hold is void."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes."""


Event: TypeAlias = (
    Started
    | ShardsListed
    | JobFailed
    | WorkerRegistered
    | ModelDescribed
    | WorkerHeartbeat
    | TasksLeased
    | TaskReported
    | TaskReturned
    | LeasesTaken
    | WorkerFailed
    | ProcessChanged
    | Directed
    | GoingDown
    | ServerSeen
    | ServerSilent
    | ServersRestored
    | RestoreFailed
    | GroupPaused
    | Pinned
    | RoundFlushed
    | Saved
    | SaveFailed
    | TalliesRead
    | TracesFailed
    | StoreChanged
    | Contradicted
    | MemberMet
    | GroupLooked
    | GroupAllowed
    | GroupVoided
    | Tick
)
