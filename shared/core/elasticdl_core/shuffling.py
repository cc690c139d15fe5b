"""The random order of records, as a pure function of the plan, the seed and the epoch.

A part of the plan keeps its name and its range of *positions*, which the queue and the ledger talk of; its reading
tells which records these are. Whoever asks for the positions ``[start, end)`` of a part gets the same records in the
same order, so a task that is done again, or the rest of one, is exact; and every record is at exactly one position of
an epoch. Nothing is stored.

The default order is that of ``mixed_order``: as good as a full shuffle. Whoever gives a length of blocks trades that
for fewer places to read: the records of all parts, one after the other, are cut into blocks of consecutive records,
the blocks are permuted, and within a window of positions their records come in a random order of their own. Plans of
the time before the mixed order have that one, with blocks of a sixteenth of a part.
"""

from __future__ import annotations

import bisect
import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from elasticdl_core.mixed_order import MixedOrder, MixedReading, Span, joined
from elasticdl_core.shard import Shard

WINDOW_RECORDS = 1024
"""Records that are held in memory to be shuffled."""
BLOCKS_PER_WINDOW = 16
SPAN_PARTS = 4096
"""Parts among which records are exchanged in epoch 0, while listing goes on; in later epochs all of them are."""
_MASK = (1 << 64) - 1
_FEISTEL_ROUNDS = 6


def cut(shards: Iterable[Shard], records_per_task: int) -> list[Shard]:
    """Cuts shards into parts of at most ``records_per_task`` records; empty shards give none."""
    return [
        Shard(shard.name, start, min(start + records_per_task, shard.end))
        for shard in shards
        for start in range(shard.start, shard.end, records_per_task)
    ]


def join(
    shards: Iterable[Shard], records_per_task: int, rest: Shard | None = None
) -> tuple[list[Shard], Shard | None]:
    """Cuts shards into parts of exactly so many records, over the ends of shards: small files make whole minibatches.

    A part is a range of positions, counted from its first record on in that record's shard. Which records these are
    only a ``RecordOrder`` knows.

    Args:
        shards: these, one after the other.
        records_per_task: records of a part.
        rest: what a call for the shards before left over.

    Returns:
        The whole parts, and what is left over; None if nothing is.
    """
    parts: list[Shard] = []
    for shard in shards:
        at = shard.start
        while at < shard.end:
            rest = rest or Shard(shard.name, at, at)
            taken = min(records_per_task - rest.records, shard.end - at)
            rest, at = Shard(rest.name, rest.start, rest.end + taken), at + taken
            if rest.records == records_per_task:
                parts.append(rest)
                rest = None
    return parts, rest


def joined_parts(shards: Iterable[Shard], records_per_task: int) -> list[Shard]:
    """All parts that ``join`` makes of all shards; only the last has fewer records."""
    parts, rest = join(shards, records_per_task)
    return parts if rest is None else [*parts, rest]


class Permutation:
    """A seeded bijection of ``range(size)`` that needs no memory.

    A Feistel network on the digits of ``x = a * left + right`` with modular addition, which is a bijection of
    ``range(rows * columns)``; numbers that leave ``range(size)`` are sent on until they are back inside ("cycle
    walking": Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

    Args:
        size: how many numbers there are.
        key: seeds the order.
    """

    def __init__(self, size: int, key: str) -> None:
        self._size = size
        self._columns = max(1, round(size**0.5))
        self._rows = -(-size // self._columns)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _FEISTEL_ROUNDS).digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_FEISTEL_ROUNDS)]

    def __call__(self, number: int) -> int:
        """The image of a number of ``range(size)``."""
        rows, columns = self._rows, self._columns
        while True:
            left, right = divmod(number, columns)
            for i in range(0, _FEISTEL_ROUNDS, 2):
                left = (left + _mixed(right ^ self._keys[i])) % rows
                right = (right + _mixed(left ^ self._keys[i + 1])) % columns
            number = left * columns + right
            if number < self._size:
                return number


def _mixed(x: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): each bit depends on all bits."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@lru_cache(maxsize=16)
def _permutation(size: int, key: str) -> Permutation:
    return Permutation(size, key)


@dataclass(frozen=True, slots=True)
class Window:
    """Records that are shuffled together.

    Attributes:
        ranges: the records, as they lie.
        order: which of them to take, one after the other, as indexes into the ranges' records.
    """

    ranges: tuple[Shard, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockReading:
    """The reading of a task's positions, or of a part of one, where blocks of records stay together.

    Attributes:
        first: the position of the first record of ``ranges``; a window begins there.
        key: seeds the order within windows.
        ranges: the records from ``first`` on, in whole windows.
    """

    first: int
    key: str
    ranges: tuple[Shard, ...]

    @property
    def from_sources(self) -> tuple[Shard, ...]:
        """The ranges of records that the positions are from."""
        return self.ranges

    def windows(self, start: int, end: int) -> Iterator[Window]:
        """The reads for the positions ``[start, end)``, window by window."""
        for at, held, ranges in self._cut(start, end):
            wanted = _shuffled(held, f"{self.key}:{at}")[max(start - at, 0) : end - at]
            yield Window(ranges, tuple(wanted))

    def in_order(self, start: int, end: int) -> Iterator[tuple[str, int]]:
        """The source and the number of the record at each of the positions ``[start, end)``."""
        for window in self.windows(start, end):
            found = [(one.name, number) for one in window.ranges for number in range(one.start, one.end)]
            yield from (found[at] for at in window.order)

    def example(self, records: int) -> Shard:
        """Some records that lie next to each other, at most so many."""
        one = self.ranges[0]
        return Shard(one.name, one.start, min(one.start + records, one.end))

    def records(self, start: int, end: int) -> list[Shard]:
        """The very records at the positions ``[start, end)``, as sorted ranges."""
        return [Shard(*one) for one in self.spans(start, end)]

    def spans(self, start: int, end: int) -> list[Span]:
        """The same as plain tuples: who notes the records of each step wants a range of nearly each of them."""
        found: list[Span] = []
        for at, held, ranges in self._cut(start, end):
            if start <= at and at + held <= end:
                found += map(_span, ranges)  # all of them, in whatever order
                continue
            found += _picked(ranges, sorted(_shuffled(held, f"{self.key}:{at}")[max(start - at, 0) : end - at]))
        return joined(sorted(found))

    def _cut(self, start: int, end: int) -> Iterator[tuple[int, int, tuple[Shard, ...]]]:
        """The windows that hold positions of ``[start, end)``: first position, number of records, and ranges."""
        at, held, taken = self.first, 0, list[Shard]()
        for one in self.ranges:
            low = one.start
            while low < one.end and at < end:
                high = min(one.end, low + WINDOW_RECORDS - held)
                taken.append(one if high - low == one.records else Shard(one.name, low, high))
                held, low = held + high - low, high
                if held == WINDOW_RECORDS:
                    if max(start, at) < min(end, at + held):
                        yield at, held, tuple(taken)
                    at, held, taken = at + held, 0, []
        if held and max(start, at) < min(end, at + held):
            yield at, held, tuple(taken)


Reading: TypeAlias = BlockReading | MixedReading
"""How positions are read, in either order."""


@lru_cache(maxsize=8)
def _shuffled(count: int, key: str) -> tuple[int, ...]:
    """A random order; by sorting, for Python promises the same numbers in every release but not the same shuffle.

    Who takes a window in small parts, reads them and says which they were asks for the same order many times.
    """
    draw = random.Random(key).random
    keys = [draw() for _ in range(count)]
    return tuple(sorted(range(count), key=keys.__getitem__))


def _picked(ranges: Iterable[Shard], indexes: Sequence[int]) -> Iterator[Span]:
    """Some of the records of ranges, by their ascending indexes, as ranges: what a member did in a step."""
    base, at, count = 0, 0, len(indexes)
    for one in ranges:
        shift, until = one.start - base, base + one.end - one.start
        while at < count and (first := indexes[at]) < until:
            last = first + 1
            at += 1
            while at < count and last < until and indexes[at] == last:
                last += 1
                at += 1
            yield one.name, first + shift, last + shift
        base = until


def _span(one: Shard) -> Span:
    return one.name, one.start, one.end


def merged(ranges: Iterable[Shard]) -> list[Shard]:
    """Merges adjacent ranges."""
    return [Shard(*one) for one in joined(map(_span, ranges))]


def described(ranges: Sequence[Shard], limit: int = 3) -> str:
    """Ranges of records as text for messages; a long list is shortened."""
    shown = [f"records {one.start} to {one.end} of {one.name}" for one in ranges[:limit]]
    more = f" and {len(ranges) - limit} other ranges" if len(ranges) > limit else ""
    return ", ".join(shown) + more


class RecordOrder:
    """The order of the records of a plan's parts.

    Args:
        seed: seeds all orders.
        block: records that stay together; 0 for none. Where single records are not mixed all the same, 0 is for a
            sixteenth of a part, or of a window if that is less.
        mixed: whether single records are mixed; None if no block is given.
        grain: where the source is read in large groups: records of a group, and groups whose records are mixed.
    """

    def __init__(
        self, seed: int, block: int = 0, *, mixed: bool | None = None, grain: tuple[int, int] | None = None
    ) -> None:
        self._seed = seed
        self._block = block
        self._grain = grain
        self._parts: list[Shard] = []
        self._offsets = [0]
        self._sources: list[Shard] = []
        self._places_from = [0]
        self._mixed = MixedOrder(seed) if (block == 0 if mixed is None else mixed) else None

    def extend(self, parts: Sequence[Shard], sources: Iterable[Shard] | None = None) -> None:
        """Appends parts.

        Args:
            parts: of the positions.
            sources: where the records are, in the same order; the parts themselves if they were not joined. They may
                be more than those of the parts so far.
        """
        for part in parts:
            self._parts.append(part)
            self._offsets.append(self._offsets[-1] + part.records)
        for source in parts if sources is None else sources:
            self._sources.append(source)
            self._places_from.append(self._places_from[-1] + source.records)
            if self._mixed is not None:
                self._mixed.append(source)

    def reading(self, epoch: int, index: int, start: int, end: int, readers: int = 1) -> Reading:
        """The reading of the positions ``[start, end)`` of a part.

        Args:
            epoch: each has an order of its own.
            index: the part.
            start: first position, from ``part.start`` on.
            end: one past the last one, at most ``part.end``.
            readers: how many share the positions; no order follows from that.
        """
        part = self._parts[index]
        first, last = self._span(epoch, index)
        base, records = self._offsets[first], self._offsets[last] - self._offsets[first]
        at = self._offsets[index] - base - part.start
        if self._mixed is not None:
            block, key = _default_block(records, last - first), f"{epoch}:{first}"
            block, pool = (min(self._grain[0], records), self._grain[1]) if self._grain else (block, 0)
            return self._mixed.reading(key, (base, records), block, (start, start + at, end + at), readers, pool)
        low = (start - part.start) // WINDOW_RECORDS * WINDOW_RECORDS
        high = min(-(-(end - part.start) // WINDOW_RECORDS) * WINDOW_RECORDS, part.records)
        at += part.start
        ranges = self._ranges(epoch, first, last, at + low, at + high)
        return BlockReading(part.start + low, f"{self._seed}:{epoch}:{index}", tuple(merged(ranges)))

    def _span(self, epoch: int, index: int) -> tuple[int, int]:
        if epoch > 0:
            return 0, len(self._parts)
        first = index // SPAN_PARTS * SPAN_PARTS
        return first, min(first + SPAN_PARTS, len(self._parts))

    def _ranges(self, epoch: int, first: int, last: int, low: int, high: int) -> Iterator[Shard]:
        """The records at the positions ``[low, high)`` of a span, in the order of its blocks."""
        base, records = self._offsets[first], self._offsets[last] - self._offsets[first]
        block = self._block or _default_block(records, last - first)
        whole, rest = divmod(records, block)
        permutation = _permutation(whole, f"{self._seed}:{epoch}:{first}")
        # The short block at the end of the data has a place of its own among the others.
        gap = permutation(0) * block if rest and whole else 0
        at = low
        while at < high:
            if rest and gap <= at < gap + rest:
                begin, source, size = gap, whole * block, rest
            else:
                shift = rest if at >= gap else 0
                number = (at - shift) // block
                begin, source, size = number * block + shift, permutation(number) * block, block
            until = min(begin + size, high)
            yield from self._places(base + source + at - begin, base + source + until - begin)
            at = until

    def _places(self, start: int, end: int) -> Iterator[Shard]:
        """The records ``[start, end)`` of all sources one after the other."""
        index = bisect.bisect_right(self._places_from, start) - 1
        while start < end:
            source, offset = self._sources[index], self._places_from[index]
            until = min(end, self._places_from[index + 1])
            if until > start:
                yield Shard(source.name, source.start + start - offset, source.start + until - offset)
            start = until
            index += 1


def _default_block(records: int, parts: int) -> int:
    """Records of a block where nobody says how many."""
    return max(1, min(WINDOW_RECORDS, records // parts) // BLOCKS_PER_WINDOW)
