"""The fixed binary tree in which leaves are added, and how a group shares the work of it.

The tree stands over the microbatches, never over the members: a node over ``n`` leaves has the first ``2**k`` of
them on its left, ``2**k`` being the largest power of two below ``n``. Who owns which leaf decides only where an
addition is made, never which additions there are, nor the order of their operands (which matters to a NaN's bits).

A *partial sum* is a largest node whose leaves all have one owner: it is summed where its leaves are, and only partial
sums travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGN_BYTES = 64
_BLOCK_BYTES = 128 << 10
"""Stubs are added so much at a time: what is added and what it makes stay in the second-level cache."""

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A node whose leaves all have one owner.

    Attributes:
        first: its first microbatch.
        end: the one after its last.
        owner: the rank.
    """

    first: int
    end: int
    owner: int


def split(first: int, end: int) -> int:
    """The beginning of the right half of the node over ``[first, end)``."""
    return first + (1 << (end - first - 1).bit_length() - 1)


def partial_sums_of(owners: Sequence[int]) -> tuple[PartialSum, ...]:
    """The partial sums, from left to right."""
    found: list[PartialSum] = []

    def visit(first: int, end: int) -> None:
        if all(owner == owners[first] for owner in owners[first:end]):
            found.append(PartialSum(first, end, owners[first]))
            return
        middle = split(first, end)
        visit(first, middle)
        visit(middle, end)

    visit(0, len(owners))
    return tuple(found)


class PartialSumAdder:
    """Adds partial sums as the tree says, for any part of a bucket.

    Args:
        partial_sums: all of them, from left to right.
        dtype: of the numbers.
    """

    def __init__(self, partial_sums: Sequence[PartialSum], dtype: str) -> None:
        self._program = _program(partial_sums)
        self._block = _BLOCK_BYTES // np.dtype(dtype).itemsize
        depth = highest = 0
        for step in self._program:
            depth += 1 if step is not None else -1
            highest = max(highest, depth)
        self._scratch = [np.empty(self._block, dtype) for _ in range(highest)]

    def add(self, parts: Sequence[Array], out: Array) -> None:
        """Adds.

        Args:
            parts: of each partial sum, all of one length.
            out: of that length too; shares no memory with a part.
        """
        if len(parts) == 1:
            np.copyto(out, parts[0])
            return
        # Overflows and what is no number are the training's affair.
        with np.errstate(all="ignore"):
            for start in range(0, len(out), self._block):
                end = start + self._block
                self._add_block([part[start:end] for part in parts], out[start:end])

    def _add_block(self, parts: Sequence[Array], out: Array) -> None:
        stack: list[Array] = []
        last = len(self._program) - 1
        for at, step in enumerate(self._program):
            if step is not None:
                stack.append(parts[step])
                continue
            right, left = stack.pop(), stack.pop()
            target = out if at == last else self._scratch[len(stack)][: len(out)]
            # Left and right are never swapped: of two NaNs the first one's bits win.
            np.add(left, right, out=target)
            stack.append(target)


def _program(partial_sums: Sequence[PartialSum]) -> list[int | None]:
    """The additions in postfix order: the number of a partial sum, or None for the sum of the last two."""
    starts = {partial_sum.first: number for number, partial_sum in enumerate(partial_sums)}
    steps: list[int | None] = []

    def visit(first: int, end: int) -> None:
        number = starts.get(first)
        if number is not None and partial_sums[number].end == end:
            steps.append(number)
            return
        middle = split(first, end)
        visit(first, middle)
        visit(middle, end)
        steps.append(None)

    visit(0, partial_sums[-1].end)
    return steps


class PartialSumLeaves:
    """The leaves of one partial sum of one bucket, merged as they come, in any order.

    The partial sum ends up in the memory of its leftmost leaf; other leaves live in spare memory that is given back
    as soon as they were merged.

    Args:
        partial_sum: whose leaves.
        home: the partial sum's memory.
        spare: arrays of the same length to take from and give back to.
    """

    def __init__(self, partial_sum: PartialSum, home: Array, spare: list[Array]) -> None:
        self._partial_sum = partial_sum
        self._home = home
        self._spare = spare
        self._given: dict[int, Array] = {}
        self._whole: dict[tuple[int, int], Array] = {}
        self._missing = set(range(partial_sum.first, partial_sum.end))

    @property
    def is_whole(self) -> bool:
        """Whether all leaves were merged."""
        return not self._missing

    @property
    def missing(self) -> set[int]:
        """The microbatches that were not brought."""
        return self._missing

    @property
    def whole(self) -> Array:
        """The sum, when all leaves were merged."""
        return self._whole[self._partial_sum.first, self._partial_sum.end]

    def leaf(self, microbatch: int) -> Array:
        """Memory for a leaf that is still to be brought."""
        given = self._given.get(microbatch)
        if given is None:
            if microbatch == self._partial_sum.first:
                given = self._home
            else:
                given = self._spare.pop() if self._spare else aligned(len(self._home), self._home.dtype.name)
            self._given[microbatch] = given
        return given

    def merge(self, microbatch: int) -> None:
        """Takes a leaf whose memory was written, and adds what can be added now."""
        values = self._given.pop(microbatch)
        self._missing.remove(microbatch)
        self._whole[microbatch, microbatch + 1] = values
        self._climb(self._partial_sum.first, self._partial_sum.end, microbatch)

    def _climb(self, first: int, end: int, microbatch: int) -> None:
        """Adds the two halves of each node above a leaf that has become whole."""
        if end - first == 1:
            return
        middle = split(first, end)
        self._climb(*((first, middle) if microbatch < middle else (middle, end)), microbatch)
        left, right = self._whole.get((first, middle)), self._whole.get((middle, end))
        if left is None or right is None:
            return
        del self._whole[first, middle], self._whole[middle, end]
        with np.errstate(all="ignore"):
            np.add(left, right, out=left)
        self._whole[first, end] = left
        self._spare.append(right)


def aligned(length: int, dtype: str) -> Array:
    """An array that begins at a multiple of a cache line, so that all members add with the same instructions."""
    size = length * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGN_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + size].view(dtype)


def chunk_step(length: int, size: int, itemsize: int) -> int:
    """The part of a bucket that each member adds, in whole cache lines; the last ones may have less."""
    line = ALIGN_BYTES // itemsize
    return -(-length // (size * line)) * line


def chunk_bounds(length: int, size: int, itemsize: int) -> list[tuple[int, int]]:
    """The part of a bucket that each rank adds."""
    step = chunk_step(length, size, itemsize)
    return [(min(rank * step, length), min((rank + 1) * step, length)) for rank in range(size)]
