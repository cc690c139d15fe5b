"""The updates of a group made in one process: the same microbatches, seeds and sums, and so the same bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elasticdl_core.group.steps import HeldTask, Step, StepSchedule
from elasticdl_core.skips import Skips
from elasticdl_core.task import Task
from elasticdl_worker.collectives.tree import PartialSum, PartialSumLeaves, aligned
from elasticdl_worker.group.replica import LossFraction, Measure, Replica


@dataclass(frozen=True)
class UpdateOutcome:
    """The outcome of the records of one update.

    Attributes:
        fed: rows that came out of ``feed``.
        rows: rows that are in the model now; 0 if there was nothing to update it by.
        loss: their loss; NaN where nobody told it.
        passed_over: records that the reader or ``feed`` left out.
        left_out: rows that were not finite.
        measures: of each microbatch, where there are training metrics.
    """

    fed: int
    rows: int
    loss: float
    passed_over: Skips
    left_out: Skips
    measures: Sequence[Measure]


def steps_of(task: Task, microbatches: int, records: int) -> Iterator[Step]:
    """The steps of a task, all of whose microbatches are this process'.

    Args:
        task: of training.
        microbatches: that a step is cut into.
        records: of a full step.
    """
    schedule = StepSchedule(microbatches, records)
    schedule.add([HeldTask("", task.id)])
    while schedule.entries:
        step = schedule.step_dealt((0,) * microbatches)
        yield step
        schedule.count(step)


def make_update(replica: Replica, task: Task, step: Step) -> UpdateOutcome:
    """Computes each microbatch of a step by itself, sums in the tree of all groups, and applies the sum."""
    count, epoch = len(step.dealt), task.id.epoch
    sums = [PartialSumLeaves(PartialSum(0, count, 0), aligned(length, "float32"), []) for length in replica.lengths]
    fed, rows, loss, measures = 0, 0, LossFraction(), list[Measure]()
    passed_over = left_out = Skips()
    version = replica.version
    for number in range(count):
        start, end = step.bounds(number)
        given = None
        if start < end:
            data = replica.read(task, start, end)
            fed, passed_over = fed + data.fed, passed_over + data.skips
            given = replica.compute(version, number, data, epoch) if data.fed else None
        for at, leaves in enumerate(sums):
            # A script that trains by itself brings nothing.
            there = given is not None and given.rows and given.arrays
            leaves.leaf(number)[:] = replica.memory.on_host(given.arrays[at]) if given and there else 0.0
            leaves.merge(number)
        if given is not None:
            left_out += given.skips
            measures += [given.measure] if given.measure is not None else []
            rows += given.rows
            loss += given.fraction
    if rows:
        replica.apply([leaves.whole for leaves in sums], rows, epoch)
    return UpdateOutcome(fed, rows, loss.value if rows else math.nan, passed_over, left_out, measures)
