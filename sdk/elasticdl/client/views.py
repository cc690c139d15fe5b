"""Views of jobs from the API, as typed and read-only Python objects.

Each keeps the JSON it was made from in ``raw``; fields that an older API lacks have their defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from elasticdl_core.best_evaluation import mark_of, marked_best
from elasticdl_core.checkpoint_manifest import BestMark, newness
from elasticdl_core.job import JobState, JobType
from elasticdl_core.json_numbers import from_json


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job.

    Attributes:
        records_done: records processed, over all epochs.
        records_total: records to process, over all epochs; 0 while shards are still being listed.
        epoch: the epoch in work, from 1; 0 before the first.
        num_epochs: epochs in all.
        tasks_done: tasks finished.
        tasks_total: tasks known.
    """

    records_done: int = 0
    records_total: int = 0
    epoch: int = 0
    num_epochs: int = 0
    tasks_done: int = 0
    tasks_total: int = 0

    @property
    def fraction(self) -> float:
        """The part of the records that is done, 0 to 1."""
        return min(1.0, self.records_done / self.records_total) if self.records_total else 0.0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The last report of a job's master.

    Attributes:
        progress: how far it is.
        samples_per_second: records a second of all workers.
        eta_seconds: seconds until the end, if known.
        eta_low_seconds: hardly fewer.
        eta_high_seconds: hardly more.
        loss: mean training loss of the last 100 minibatches of each worker, if any.
        last_loss: training loss of the latest minibatch.
        learning_rate: that it was trained with.
        training_metrics: values of ``eval_metrics_fn`` on the records of the epoch so far, of one worker.
        training_metrics_version: the model version at which the last of them was computed.
        model_version: of the model as it is: each update adds 1.
        start_version: that the job began at: of the checkpoint that it started from, or 0.
        workers: one mapping a worker: index, incarnation, state, phase, records, samples_per_second, step (where the
            seconds of a minibatch go), straggler.
        ps: one mapping a parameter server: index, state, rows, bytes, version, load.
        metrics: values of the latest evaluation.
        metrics_version: the model version that was evaluated.
        evaluation: why the latest evaluation has no metrics, if it has none.
        strategy: the distribution strategy and why it was chosen.
        skipped: one mapping for each reason that records were passed over for: of (main or validation), reason,
            records (None where nobody can know), example.
        degraded: what does not work as it should, if anything.
    """

    progress: Progress = field(default_factory=Progress)
    samples_per_second: float = 0.0
    eta_seconds: float | None = None
    eta_low_seconds: float | None = None
    eta_high_seconds: float | None = None
    loss: float | None = None
    last_loss: float | None = None
    learning_rate: float | None = None
    training_metrics: Mapping[str, float] = field(default_factory=dict)
    training_metrics_version: int = 0
    model_version: int = 0
    start_version: int = 0
    workers: Sequence[Mapping[str, Any]] = ()
    ps: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    metrics_version: int = 0
    evaluation: str = ""
    strategy: Mapping[str, Any] = field(default_factory=dict)
    skipped: Sequence[Mapping[str, Any]] = ()
    degraded: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> JobStatus:
        """Reads the ``status`` object of a job."""
        data = data or {}
        progress = data.get("progress") or {}
        known = Progress.__dataclass_fields__
        return cls(
            progress=Progress(**{key: int(value or 0) for key, value in progress.items() if key in known}),
            samples_per_second=float(data.get("samples_per_second") or 0.0),
            eta_seconds=_number(data.get("eta_seconds")),
            eta_low_seconds=_number(data.get("eta_low_seconds")),
            eta_high_seconds=_number(data.get("eta_high_seconds")),
            loss=_number(data.get("loss")),
            last_loss=_number(data.get("last_loss")),
            learning_rate=_number(data.get("learning_rate")),
            training_metrics=from_json(data.get("training_metrics") or {}),
            training_metrics_version=int(data.get("training_metrics_version") or 0),
            model_version=int(data.get("model_version") or 0),
            start_version=int(data.get("start_version") or 0),
            workers=tuple(data.get("workers") or ()),
            ps=tuple(data.get("ps") or ()),
            metrics=from_json(data.get("metrics") or {}),
            metrics_version=int(data.get("metrics_version") or 0),
            evaluation=str(data.get("evaluation") or ""),
            strategy=dict(data.get("strategy") or {}),
            skipped=tuple(data.get("skipped") or ()),
            degraded=str(data.get("degraded") or ""),
        )


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed.

    Attributes:
        message: what happened, and where.
        fix: what to do about it.
        traceback: the user's part of the traceback, if user code raised.
    """

    message: str
    fix: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or directory that a job made.

    Attributes:
        name: name to download it by.
        size: bytes.
        sha256: digest of the file in hex; empty for a directory.
        at: when it was made, UTC.
    """

    name: str
    size: int = 0
    sha256: str = ""
    at: datetime | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Artifact:
        """Reads an artifact of the API."""
        return cls(
            name=str(data.get("name", "")),
            size=int(data.get("size") or 0),
            sha256=str(data.get("sha256") or "").removeprefix("sha256:"),
            at=_time(data.get("at")),
            raw=data,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job.

    Attributes:
        id: grows with time; a stream can be resumed after it.
        kind: what sort of event, e.g. ``state``, ``plan`` or ``worker``.
        message: what happened, for people.
        detail: the same for programs.
        at: when, in UTC.
    """

    id: int
    kind: str
    message: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """Reads an event of the API."""
        return cls(
            id=int(data.get("id") or 0),
            kind=str(data.get("kind") or ""),
            message=str(data.get("message") or ""),
            detail=dict(data.get("detail") or {}),
            at=_time(data.get("at") or data.get("created_at")),
            raw=data,
        )


@dataclass(frozen=True)
class Job(Mapping[str, Any]):
    """A job as the API tells it: typed attributes, and by key whatever the API's answer holds.

    ``job.status.progress.records_done`` and ``job["status"]["progress"]["records_done"]`` are the same number.

    Attributes:
        id: names the job in every call.
        name: the name that its user gave.
        type: training, evaluation or prediction.
        state: where it stands.
        reason: why it stands there.
        priority: higher goes first.
        min_workers: it starts only when this many fit.
        max_workers: it never has more.
        target_workers: how many workers the scheduler wants it to have now.
        target_reason: why that many.
        status: what its master last reported.
        error: why it failed, if it did.
        created_at: when it was submitted, UTC.
        started_at: when it first ran, UTC.
        finished_at: when it ended, UTC.
        artifacts: what it made.
        spec: the specification as JSON data.
        raw: the API's whole answer.
    """

    id: str
    name: str
    type: JobType
    state: JobState
    reason: str = ""
    priority: int = 0
    min_workers: int = 1
    max_workers: int = 1
    target_workers: int = 0
    target_reason: str = ""
    status: JobStatus = field(default_factory=JobStatus)
    error: JobFailure | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    artifacts: Sequence[Artifact] = ()
    spec: Mapping[str, Any] = field(default_factory=dict, repr=False)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def why(self) -> str:
        """Why it stands where it does: its failure, what the scheduler says of a job in the queue, or the reason."""
        if self.error is not None:
            return self.error.message
        return self.target_reason if self.state is JobState.QUEUED and self.target_reason else self.reason

    @property
    def best(self) -> BestMark | None:
        """The evaluation whose model is kept as the best, if the job keeps one."""
        manifests = [one["manifest"] for one in self.raw.get("checkpoints") or ()]
        return mark_of(marked_best(sorted(manifests, key=newness)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Reads a job of the API."""
        error = data.get("error")
        return cls(
            id=str(data["id"]),
            name=str(data.get("name") or data["id"]),
            type=JobType(data.get("type") or JobType.TRAINING),
            state=JobState(data["state"]),
            reason=str(data.get("reason") or ""),
            priority=int(data.get("priority") or 0),
            min_workers=int(data.get("min_workers") or 1),
            max_workers=int(data.get("max_workers") or 1),
            target_workers=int(data.get("target_workers") or 0),
            target_reason=str(data.get("target_reason") or ""),
            status=JobStatus.from_json(data.get("status")),
            error=_failure(error) if error else None,
            created_at=_time(data.get("created_at")),
            started_at=_time(data.get("started_at")),
            finished_at=_time(data.get("finished_at")),
            artifacts=tuple(Artifact.from_json(item) for item in data.get("artifacts") or ()),
            spec=dict(data.get("spec") or {}),
            raw=data,
        )

    def __getitem__(self, key: str) -> Any:
        return self.raw[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list of jobs.

    Attributes:
        jobs: the jobs of this page, newest first.
        next_page_token: gives the next page; empty on the last.
    """

    jobs: Sequence[Job]
    next_page_token: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """Something new about a job that is being followed: an event, a fresh view of the job, or both.

    Attributes:
        event: what happened, if this is an event.
        job: the job as it is now, if this is a view of it.
        ended: whether this is the last update.
    """

    event: Event | None = None
    job: Job | None = None
    ended: bool = False


def _failure(data: Mapping[str, Any] | str) -> JobFailure:
    if isinstance(data, str):
        return JobFailure(data)
    return JobFailure(str(data.get("message") or ""), str(data.get("fix") or ""), str(data.get("traceback") or ""))


def _number(value: Any) -> float | None:
    return None if value is None else float(from_json(value))


def _time(value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    moment = datetime.fromisoformat(str(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
