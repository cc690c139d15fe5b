"""The default order of records: as good as a full shuffle, and yet readable in blocks.

The records of all parts, one after the other, are cut into blocks of consecutive records, and the blocks are
permuted. Thousands of blocks that follow each other then make a *pool*, whose records are permuted one by one. So the
records at neighbouring positions are from as many places as if all had been shuffled, and yet those of a pool are
from its blocks alone. Who reaches a record by an index reads single ones; for whom it is expensive to begin reading,
or who must decode more than the record, reads the blocks of a pool whole and keeps what later positions ask for.

The share of a class in ``n`` records in a row has a variance of ``1 + n / POOL_BLOCKS`` times that of a full shuffle,
for in a pool it varies as in so many single records. Up to ``POOL_BLOCKS`` blocks this is a full shuffle.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from elasticdl_core.shard import Shard

POOL_BLOCKS = 8192
"""Blocks whose records are mixed."""
Span: TypeAlias = tuple[str, int, int]
"""A range of records: the name of its source, the first record, and one past the last."""
_SORTED = 4096
"""Up to so many numbers are permuted by sorting."""


class TablePermutation:
    """A seeded bijection of ``range(size)`` that needs memory for the square root of it only.

    A Feistel network of three rounds (Luby and Rackoff, "How to construct pseudorandom permutations from
    pseudorandom functions", SIAM J. Comput. 1988) on the digits of ``x = columns * left + right``, whose functions
    are tables of random numbers: three look-ups a number. Numbers that leave ``range(size)`` are sent on until they
    are back inside. Few numbers are sorted by random keys, which makes each order equally likely.

    Args:
        size: how many numbers there are.
        key: seeds the order.
    """

    def __init__(self, size: int, key: str) -> None:
        self._size = size
        draw = random.Random(key).random
        self._whole: Sequence[int] = ()
        if size <= _SORTED:
            keys = [draw() for _ in range(size)]
            self._whole = sorted(range(size), key=keys.__getitem__)
            return
        self._columns = math.isqrt(size)
        self._rows = -(-size // self._columns)
        sides = (self._columns, self._rows), (self._rows, self._columns), (self._columns, self._rows)
        self._tables = [[int(draw() * values) for _ in range(numbers)] for numbers, values in sides]
        # Looked up in place of a remainder: it takes half of the time, and each record of each epoch comes by.
        self._twice = self._tables[1] * 2
        self._column_of = [*range(self._columns)] * 2
        self._begin_of = [row * self._columns for row in range(self._rows)] * 3

    def __call__(self, numbers: range) -> list[int]:
        """The images of consecutive numbers of ``range(size)``."""
        if self._whole:
            return list(self._whole[numbers.start : numbers.stop])
        first, _, third = self._tables
        twice, column_of, begin_of, size = self._twice, self._column_of, self._begin_of, self._size
        found, at = list[int](), numbers.start
        while at < numbers.stop:
            left, begin = divmod(at, self._columns)
            values = first[begin : begin + numbers.stop - at]
            found += [
                begin_of[left + value + third[column := column_of[right + twice[left + value]]]] + column
                for right, value in enumerate(values, begin)
            ]
            at += len(values)
        if found and max(found) >= size:
            found = [number if number < size else self(range(number, number + 1))[0] for number in found]
        return found


@lru_cache(maxsize=16)
def _permutation(size: int, key: str) -> TablePermutation:
    return TablePermutation(size, key)


@lru_cache(maxsize=16)
def _shifts(blocks: int, key: str, block: int, first: int, last: int) -> list[int]:
    """By how much the records of each of the blocks ``[first, last)`` are moved where all blocks are permuted.

    The short block at the end keeps its place: its records are mixed into its pool all the same.
    """
    whole = range(first, min(last, blocks))
    moved = zip(whole, _permutation(blocks, key)(whole), strict=True)
    return [(there - here) * block for here, there in moved] + [0] * (last - whole.stop)


@dataclass(frozen=True, slots=True)
class MixedReading:
    """The reading of a task's positions, or of a part of one, where single records are mixed.

    Records are named by their number among all that were mixed, one source after the other.

    Attributes:
        first: the position of the first of ``numbers``.
        pool: names the pool that it is from.
        block: records that lie together in a block: those of equal ``number // block``.
        sources: ranges of records that hold those of ``numbers``, in order.
        bases: the number of the first record of each source.
        numbers: of the records at the positions from ``first`` on.
        readers: how many workers share the positions of the pool, as far as it is known.
    """

    first: int
    pool: str
    block: int
    sources: tuple[Shard, ...]
    bases: tuple[int, ...]
    numbers: tuple[int, ...]
    readers: int = 1

    @property
    def from_sources(self) -> tuple[Shard, ...]:
        """The ranges of records that the positions are from."""
        return self.sources

    def numbers_at(self, start: int, end: int) -> tuple[int, ...]:
        """The numbers of the records at the positions ``[start, end)``."""
        return self.numbers[start - self.first : end - self.first]

    def located(self, numbers: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
        """The source of sorted numbers, and where in it their records are."""
        at = 0
        for source, base in zip(self.sources, self.bases, strict=True):
            until = bisect.bisect_left(numbers, base + source.records, at)
            if until > at:
                shift = source.start - base
                yield source.name, [number + shift for number in numbers[at:until]]
            at = until

    def pieces(self, block: int) -> list[tuple[int, Shard]]:
        """The records of a block that lie in the sources known here, each range with the number of its first one."""
        found, low = list[tuple[int, Shard]](), block * self.block
        for at in range(max(bisect.bisect_right(self.bases, low) - 1, 0), len(self.bases)):
            source, base = self.sources[at], self.bases[at]
            start, end = max(low, base), min(low + self.block, base + source.records)
            if start < end:
                shift = source.start - base
                found.append((start, Shard(source.name, start + shift, end + shift)))
            elif base >= low + self.block:
                break
        return found

    def in_order(self, start: int, end: int) -> Iterator[tuple[str, int]]:
        """The source and the number in it of the record at each of the positions ``[start, end)``."""
        for number in self.numbers_at(start, end):
            at = bisect.bisect_right(self.bases, number) - 1
            yield self.sources[at].name, self.sources[at].start + number - self.bases[at]

    def example(self, records: int) -> Shard:
        """Some records that lie next to each other, at most so many."""
        at = bisect.bisect_right(self.bases, self.numbers[0]) - 1
        source, start = self.sources[at], self.sources[at].start + self.numbers[0] - self.bases[at]
        return Shard(source.name, start, min(start + records, source.end))

    def records(self, start: int, end: int) -> list[Shard]:
        """The very records at the positions ``[start, end)``, as sorted ranges."""
        return [Shard(*one) for one in self.spans(start, end)]

    def spans(self, start: int, end: int) -> list[Span]:
        """The same as plain tuples."""
        numbers = sorted(self.numbers_at(start, end))
        return joined(sorted((name, one, one + 1) for name, places in self.located(numbers) for one in places))

    @property
    def ranges(self) -> tuple[Shard, ...]:
        """All records, as sorted ranges."""
        return tuple(self.records(self.first, self.first + len(self.numbers)))


class MixedOrder:
    """The order of the records of sources that are appended one after the other.

    Args:
        seed: seeds all orders.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs: list[Shard] = []
        self._bases: list[int] = []
        self._records = 0

    def append(self, source: Shard) -> None:
        """Appends a range of records; those that continue each other are one."""
        last = self._runs[-1] if self._runs else None
        if last is not None and last.name == source.name and last.end == source.start:
            self._runs[-1] = Shard(last.name, last.start, source.end)
        elif source.records:
            self._runs.append(source)
            self._bases.append(self._records)
        self._records += source.records

    def reading(
        self,
        key: str,
        span: tuple[int, int],
        block: int,
        at: tuple[int, int, int],
        readers: int,
        pool_blocks: int = 0,
    ) -> MixedReading:
        """The reading of some positions.

        Args:
            key: tells the orders of a seed apart.
            span: the first of the records that are exchanged, and how many they are.
            block: records of a block.
            at: the first position as its part counts it; it, and one past the last one, as the span counts them.
            readers: how many workers share the positions.
            pool_blocks: blocks whose records are mixed; 0 for ``POOL_BLOCKS``.
        """
        base, records = span
        first, low, high = at
        key = f"{self._seed}:{key}"
        blocks = records // block
        pool = -(-records // max(1, round(blocks / (pool_blocks or POOL_BLOCKS))))
        numbers: list[int] = []
        for start in range(low - low % pool, high, pool):
            end = min(start + pool, records)
            inside = _permutation(end - start, f"{key}:{start}")
            found = inside(range(max(low - start, 0), min(high, end) - start))
            if pool >= records:
                numbers = found  # where all is one pool, which blocks it has makes no difference
                break
            shifts, before = _shifts(blocks, key, block, start // block, -(-end // block)), start // block
            found = [start + number for number in found]
            numbers += [number + shifts[number // block - before] for number in found]
        sources, bases = self._sources(base, records, numbers)
        return MixedReading(first, f"{key}:{low // pool}", block, sources, bases, tuple(numbers), readers)

    def _sources(self, base: int, records: int, numbers: Sequence[int]) -> tuple[tuple[Shard, ...], tuple[int, ...]]:
        """The sources of some numbers, cut to the span."""
        runs = self._bases
        single = bisect.bisect_right(runs, base) == bisect.bisect_left(runs, base + records)
        chosen = [bisect.bisect_right(runs, base) - 1]
        if not single:
            chosen = sorted({bisect.bisect_right(runs, base + number) - 1 for number in numbers})
        sources, bases = list[Shard](), list[int]()
        for index in chosen:
            run, before = self._runs[index], self._bases[index]
            low, high = max(base, before), min(base + records, before + run.records)
            sources.append(Shard(run.name, run.start + low - before, run.start + high - before))
            bases.append(low - base)
        return tuple(sources), tuple(bases)


def joined(spans: Iterable[Span]) -> list[Span]:
    """Joins adjacent spans."""
    result: list[Span] = []
    for one in spans:
        if result and result[-1][2] == one[1] and result[-1][0] == one[0]:
            result[-1] = (one[0], result[-1][1], one[2])
        else:
            result.append(one)
    return result
