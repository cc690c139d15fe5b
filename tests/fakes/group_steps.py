"""Steps of a group without a group: its members compute and sum in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

RECORDS, MICROBATCH = 64, 8
"""In the data, and in a microbatch."""


def make_step(
    members: Sequence[Any], read: Callable[[Any, int, int], Any], step: int, microbatches: int = 4, fused: int = 1
) -> None:
    """One step of a group: microbatches dealt to the members in turn, summed in the order of their numbers.

    Args:
        members: the replicas.
        read: reads records for one of them, from a position to one past the last.
        step: its number.
        microbatches: of the step.
        fused: how many of them a member computes in one pass.
    """
    sums, rows = [np.zeros(length, np.float32) for length in members[0].lengths], 0
    for number in range(0, microbatches, fused):
        member = members[number // fused % len(members)]
        start = (step * microbatches + number) * MICROBATCH % RECORDS
        part = member.compute(step, number, read(member, start, start + fused * MICROBATCH), 0)
        assert [len(array) for array in part.arrays] == list(member.lengths)
        rows += part.rows
        for total, array in zip(sums, part.arrays, strict=True):
            total += member.memory.on_host(array)
    for member in members:
        member.apply([total.copy() for total in sums], rows, 0)
