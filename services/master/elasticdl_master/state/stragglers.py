"""Finds workers that hold a job up, by the time that they take for a minibatch themselves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from elasticdl_master.state.workers import Worker

STEP_PARTS = ("data", "pull", "compute", "push", "wait")
_LEAST_WORKERS = 3
_LEAST_STEPS = 20
_FACTOR = 1.5
_OWN = ("data", "compute")
_OWN_ALONE = ("data", "pull", "compute", "push")
"""Where workers wait for each other (synchronous updates, a group) pull and push say how slow the others are."""


def find_stragglers(workers: Sequence[Worker], *, alone: bool) -> frozenset[int]:
    """The indexes of workers that take more than 1.5 times the median for a minibatch.

    Only workers that train and have made 20 steps are compared, and only if there are three of them.

    Args:
        workers: the job's.
        alone: whether no worker waits for another.
    """
    names = _OWN_ALONE if alone else _OWN
    known = {
        worker.index: sum(worker.step.get(name, 0.0) for name in names)
        for worker in workers
        if worker.step and worker.steps >= _LEAST_STEPS and worker.phase == "training"
    }
    if len(known) < _LEAST_WORKERS:
        return frozenset()
    most = _FACTOR * statistics.median(known.values())
    return frozenset(index for index, seconds in known.items() if seconds > most > 0)


def mean_step(workers: Sequence[Worker]) -> Mapping[str, float]:
    """The parts of the time of a minibatch, on the mean of the workers that tell it."""
    told = [worker.step for worker in workers if worker.step and worker.phase == "training"]
    return {name: sum(step.get(name, 0.0) for step in told) / len(told) for name in STEP_PARTS} if told else {}
