"""Estimates how long a worker still has to train."""

from __future__ import annotations


class RemainingSteps:
    """Estimates how many steps this worker still has to make.

    Args:
        num_epochs: passes over the training data.
        max_steps: the job's limit of updates; 0 for none.
    """

    def __init__(self, num_epochs: int, max_steps: int = 0) -> None:
        self._num_epochs = num_epochs
        self._max_steps = max_steps
        self._version = 0
        self._epoch = -1
        self._complete = False
        self._steps = 0
        self._last = 0

    def record(self, epoch: int, version: int) -> None:
        """Records a step.

        Args:
            epoch: of the step's task, from 0.
            version: model version, the number of updates so far.
        """
        self._version = max(self._version, version)
        if epoch > self._epoch:
            # A worker sees the first of its epochs only in part if it came late.
            self._last = self._steps if self._complete or self._epoch == 0 else 0
            self._complete = self._epoch >= 0
            self._epoch, self._steps = epoch, 0
        self._steps += 1

    def estimate(self) -> int | None:
        """The smallest of the known bounds; None while there is none (in the first epoch, without a limit)."""
        bounds = []
        if self._max_steps:
            bounds.append(max(0, self._max_steps - self._version))
        if self._epoch >= self._num_epochs:
            bounds.append(0)
        elif self._last:
            bounds.append(max(0, self._last * (self._num_epochs - self._epoch) - self._steps))
        return min(bounds, default=None)
