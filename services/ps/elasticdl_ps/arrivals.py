"""Synchronous mode: who is on the way with a gradient, and so how long it is worth waiting for the end of a round.

A gradient that is computed while others fill the round is refused as stale, so a worker whose gradient counts had
better wait; but not for workers that are gone, nor where it takes its own gradients to fill the round.
"""

from __future__ import annotations

from dataclasses import dataclass

_PATIENCE = 3.0
"""After so many times what a worker usually takes it is no longer expected."""
_SHORTEST_S = 0.1
"""It is expected for this long at least: a busy machine may well stop a process for some hundredths of a second."""
_SHARE = 0.2
"""Weight of the last step in what a worker usually takes."""
_LARGEST_RATIO = 4.0
"""A step counts for at most so many times what is usual: it may have been something else."""


@dataclass(slots=True)
class _Worker:
    since: float | None = None
    usual_s: float | None = None


class ArrivalEstimator:
    """The workers that take part in rounds, by incarnation, e.g. ``worker-3.1``; a new one replaces the one before.

    Times are in seconds, of any clock that never goes back.
    """

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}

    def note_pull(self, worker: str, now: float) -> None:
        """A worker has parameters to compute on."""
        self._known(worker).since = now

    def note_push(self, worker: str, now: float) -> None:
        """A worker has come with a gradient, whatever became of it, and may come with another one."""
        known = self._known(worker)
        if known.since is not None:
            took = now - known.since
            if known.usual_s is None:
                known.usual_s = took
            else:
                known.usual_s += _SHARE * (min(took, _LARGEST_RATIO * known.usual_s) - known.usual_s)
        known.since = now

    def note_wait(self, worker: str) -> None:
        """A worker waits, or went away while it did: no gradient is to be expected of it."""
        self._known(worker).since = None

    def estimate_until(self, missing: int, now: float) -> float | None:
        """Until when so many gradients can be expected; None if they cannot be even now."""
        times = sorted((time for time in map(_expected_until, self._workers.values()) if time > now), reverse=True)
        return times[missing - 1] if len(times) >= missing else None

    def _known(self, worker: str) -> _Worker:
        if worker not in self._workers:
            name = worker.rpartition(".")[0]
            for other in [other for other in self._workers if other.rpartition(".")[0] == name]:
                del self._workers[other]
            self._workers[worker] = _Worker()
        return self._workers[worker]


def _expected_until(worker: _Worker) -> float:
    if worker.since is None or worker.usual_s is None:
        return float("-inf")
    return worker.since + max(_SHORTEST_S, _PATIENCE * worker.usual_s)
