"""The progress that each heartbeat carries: written by the training thread, read by the event loop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from elasticdl_core.meters import MeterKey
from elasticdl_worker.reporting.loss_window import LossWindow, TrainingSummary

_WINDOW_S = 10.0
_MAX_STEPS = 256


@dataclass(frozen=True)
class StepParts:
    """Parts of the time of a minibatch, in seconds.

    Attributes:
        data: waiting for records that are being read.
        pull: waiting for parameters.
        compute: computing.
        push: waiting until gradients are taken; in a group, for the sum.
        wait: without a task.
    """

    data: float = 0.0
    pull: float = 0.0
    compute: float = 0.0
    push: float = 0.0
    wait: float = 0.0


@dataclass(frozen=True)
class ProgressSnapshot:
    """The progress at one moment.

    Attributes:
        positions: by lease token, the record of its task up to which all are processed.
        records: training records processed by this incarnation.
        steps: minibatches trained by this incarnation.
        samples_per_second: over the last ten seconds.
        model_version: the highest seen.
        losses: (model version, mean loss since the point before) since the last snapshot.
        summary: the loss, rate and metrics to show; None before the first minibatch.
        phase: what the worker is doing.
        step_p95_s: 95th percentile of the duration of a step.
        step: where the time of recent minibatches went, on the mean; None before the first.
    """

    positions: dict[str, int] = field(default_factory=dict)
    records: int = 0
    steps: int = 0
    samples_per_second: float = 0.0
    model_version: int = 0
    losses: tuple[tuple[int, float], ...] = ()
    summary: TrainingSummary | None = None
    phase: str = "starting"
    step_p95_s: float = 0.0
    step: StepParts | None = None


class WorkerProgress:
    """Collects the progress; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[str, int] = {}
        self._records = 0
        self._steps = 0
        self._version = 0
        self._phase = "starting"
        self._losses = LossWindow()
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=_MAX_STEPS)
        self._parts: deque[tuple[int, StepParts]] = deque(maxlen=_MAX_STEPS)
        self._step_ended: float | None = None
        self._idle_since: float | None = None
        self._idle_s = 0.0

    def set_phase(self, name: str) -> None:
        """Sets what the worker is doing."""
        with self._lock:
            self._phase = name

    def set_version(self, version: int) -> None:
        """Sets the version of a model that is not trained here."""
        with self._lock:
            self._version = version

    def set_idle(self) -> None:
        """Sets the phase to waiting, if the worker holds no task."""
        with self._lock:
            if not self._positions:
                self._phase = "waiting"
                if self._idle_since is None:
                    self._idle_since = time.monotonic()

    def add_task(self, token: str, position: int) -> None:
        """Adds a task that the worker holds."""
        with self._lock:
            if not self._positions and self._phase in ("starting", "waiting"):
                self._phase = "reading"
            self._positions[token] = position
            if self._idle_since is not None:
                self._idle_s += time.monotonic() - self._idle_since
                self._idle_since = None

    def advance(self, token: str, position: int) -> None:
        """Moves the position of a task, if the worker still holds it."""
        with self._lock:
            if token in self._positions:
                self._positions[token] = position

    def remove_task(self, token: str) -> None:
        """Removes a task."""
        with self._lock:
            self._positions.pop(token, None)

    def record_step(
        self, records: int, seconds: float, version: int, minibatches: int = 1, parts: StepParts | None = None
    ) -> None:
        """Records a training step of one or more minibatches that has just ended.

        Args:
            records: trained on.
            seconds: that it took.
            version: the model version that is known by now.
            minibatches: in it.
            parts: where these seconds went; what passed since the step before is added here.
        """
        with self._lock:
            self._record_parts(seconds, minibatches, parts or StepParts(compute=seconds))
            self._records += records
            self._steps += minibatches
            self._version = max(self._version, version)
            self._recent.append((time.monotonic(), records, seconds / minibatches))

    def _record_parts(self, seconds: float, minibatches: int, parts: StepParts) -> None:
        now = time.monotonic()
        between = 0.0 if self._step_ended is None else max(now - seconds - self._step_ended, 0.0)
        wait = min(self._idle_s, between)
        self._step_ended, self._idle_s = now, 0.0
        whole = replace(parts, data=parts.data + between - wait, wait=parts.wait + wait)
        self._parts.append((minibatches, whole))

    def set_loss_interval(self, minibatches: int) -> None:
        """Sets how many minibatches make one reported loss."""
        with self._lock:
            self._losses = LossWindow(minibatches)

    def record_loss(self, version: int, loss: float, learning_rate: float | None = None) -> None:
        """Notes the loss of a minibatch."""
        with self._lock:
            self._losses.add(version, loss, learning_rate)

    @property
    def metrics_due(self) -> bool:
        """Whether the metrics of a training minibatch are to be computed."""
        with self._lock:
            return self._losses.metrics_due

    def record_metrics(self, metrics: Mapping[str, float]) -> None:
        """Notes the metrics of a training minibatch."""
        with self._lock:
            self._losses.set_metrics(metrics)

    def restore_losses(self, snapshot: ProgressSnapshot) -> None:
        """Puts back the losses of a snapshot that did not reach the master."""
        with self._lock:
            self._losses.restore_points(snapshot.losses)

    def mean_step_s(self) -> float:
        """Mean duration of the recent minibatches in seconds; 0 before the first."""
        with self._lock:
            return sum(s for _, _, s in self._recent) / len(self._recent) if self._recent else 0.0

    def meters(self) -> dict[MeterKey, float | None]:
        """The numbers that are shown to whoever watches this process; nothing is taken."""
        with self._lock:
            parts = _mean_parts(self._parts)
            seconds = {} if parts is None else asdict(parts)
            return {
                ("elasticdl_worker_records_total", ""): self._records,
                ("elasticdl_worker_steps_total", ""): self._steps,
                ("elasticdl_worker_samples_per_second", ""): self._speed(),
                ("elasticdl_worker_step_p95_seconds", ""): self._step_p95_s() if self._recent else None,
                ("elasticdl_worker_model_version", ""): self._version,
                ("elasticdl_worker_tasks", ""): len(self._positions),
                **{("elasticdl_worker_step_seconds", part): value for part, value in seconds.items()},
            }

    def _speed(self) -> float:
        now = time.monotonic()
        recent = [(at, n) for at, n, _ in self._recent if now - at <= _WINDOW_S]
        span = now - recent[0][0] if len(recent) > 1 else 0.0
        return sum(n for _, n in recent[1:]) / span if span > 0 else 0.0

    def _step_p95_s(self) -> float:
        durations = sorted(seconds for _, _, seconds in self._recent)
        return durations[min(len(durations) - 1, int(0.95 * len(durations)))] if durations else 0.0

    def take_snapshot(self, *, last: bool = False) -> ProgressSnapshot:
        """The present progress; takes the new losses, also of an unfinished point when no training goes on."""
        with self._lock:
            if last or self._phase != "training":
                self._losses.close()
            return ProgressSnapshot(
                positions=dict(self._positions),
                records=self._records,
                steps=self._steps,
                samples_per_second=self._speed(),
                model_version=self._version,
                losses=self._losses.take_points(),
                summary=self._losses.summary,
                phase=self._phase,
                step_p95_s=self._step_p95_s(),
                step=_mean_parts(self._parts),
            )


def _mean_parts(steps: Iterable[tuple[int, StepParts]]) -> StepParts | None:
    """The mean of a minibatch."""
    known = list(steps)
    count = sum(minibatches for minibatches, _ in known)
    if not count:
        return None
    return StepParts(*(sum(getattr(parts, one.name) for _, parts in known) / count for one in fields(StepParts)))
