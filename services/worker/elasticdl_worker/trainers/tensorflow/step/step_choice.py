"""Decides whether minibatches run the plain compiled step or the one compiled by XLA; knows nothing of TensorFlow."""

from __future__ import annotations

import enum
import statistics
from collections import deque
from collections.abc import Callable

import structlog

_log = structlog.get_logger(__name__)
WATCHED_STEPS = 300
WATCHED_S = 10.0
LEAST_REMAINING_S = 20.0
TRIAL_STEPS = 15
# XLA must win by more than the timings' noise: it costs memory, and another compilation when minibatches grow.
LEAST_GAIN = 0.05
_RECENT = 50


class StepKind(enum.StrEnum):
    """Kinds of a minibatch's computation."""

    PLAIN = "plain"
    XLA = "XLA"


class StepChoice:
    """Chooses the step of each full-size minibatch.

    ``off`` is always plain and ``on`` always XLA. ``auto`` watches plain steps for a while, then times both steps by
    turns on the minibatches that come, and keeps the faster one. It tries XLA only after ``WATCHED_STEPS`` steps and
    ``WATCHED_S`` seconds of computation, so that a short job never pays for a compilation, and only if what is known
    to remain takes ``LEAST_REMAINING_S`` at least.

    Args:
        mode: ``auto``, ``on`` or ``off``.
        remaining: number of steps that this worker is still expected to make; None if nobody knows.

    Attributes:
        mode: as given.
        settled: the step to which the choice has come for good; None while it is open.
    """

    def __init__(self, mode: str, remaining: Callable[[], int | None] = lambda: None) -> None:
        self.mode = mode
        self.settled: StepKind | None = {"on": StepKind.XLA, "off": StepKind.PLAIN}.get(mode)
        self._remaining = remaining
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._steps = 0
        self._seconds = 0.0
        self._trial: dict[StepKind, list[float]] | None = None

    def choose(self) -> StepKind:
        """The step that the next full-size minibatch is to run."""
        if self.settled is not None:
            return self.settled
        if self._trial is None:
            return StepKind.PLAIN
        behind = len(self._trial[StepKind.XLA]) <= len(self._trial[StepKind.PLAIN])
        return StepKind.XLA if behind else StepKind.PLAIN

    def record(self, kind: StepKind, seconds: float) -> None:
        """Records how long a full-size minibatch took, in seconds; not to be called if something was compiled."""
        if self.settled is not None:
            return
        if self._trial is not None:
            self._trial[kind].append(seconds)
            self._judge(self._trial)
            return
        self._steps += 1
        self._seconds += seconds
        self._recent.append(seconds)
        if self._steps >= WATCHED_STEPS and self._seconds >= WATCHED_S:
            self._begin_trial()

    def disable_xla(self, reason: str) -> None:
        """Settles on the plain step, because XLA cannot run this model."""
        if self.settled is not StepKind.PLAIN:
            self.settled = StepKind.PLAIN
            # Whoever asked for XLA is to hear that it is not used; otherwise it is news of no consequence.
            log = _log.warning if self.mode == "on" else _log.info
            log("compiled step: XLA cannot be used: plain", reason=reason)

    def _begin_trial(self) -> None:
        remaining = self._remaining()
        if remaining is not None and remaining * statistics.median(self._recent) < LEAST_REMAINING_S:
            self.settled = StepKind.PLAIN
            _log.info("compiled step: too few steps remain to try XLA: plain", remaining=remaining)
            return
        self._trial = {StepKind.PLAIN: [], StepKind.XLA: []}

    def _judge(self, trial: dict[StepKind, list[float]]) -> None:
        if min(len(timings) for timings in trial.values()) < TRIAL_STEPS:
            return
        plain, xla = statistics.median(trial[StepKind.PLAIN]), statistics.median(trial[StepKind.XLA])
        self.settled = StepKind.XLA if xla < plain * (1 - LEAST_GAIN) else StepKind.PLAIN
        _log.info(f"compiled step: plain {plain * 1e3:.1f} ms, XLA {xla * 1e3:.1f} ms: {self.settled}")
