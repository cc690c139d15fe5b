from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl_core import shuffling
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import Permutation, RecordOrder, cut, described, merged

pytestmark = pytest.mark.unit

ORDERS = [
    ["s1422", "s0289", "s1504", "s1523", "s1840"],
    ["s1480", "s052", "s1232", "s1339", "s1144"],
    ["s1168", "s1626", "s069", "s1485", "s0217"],
]


def read(order: RecordOrder, epoch: int, index: int, start: int, end: int) -> list[tuple[str, int]]:
    """The records at some positions of a part, in order, as a worker reads them."""
    return list(order.reading(epoch, index, start, end).in_order(start, end))


def make(
    sizes: list[int], *, records_per_task: int, seed: int = 3, block: int = 0, mixed: bool | None = None
) -> tuple[RecordOrder, list[Shard]]:
    parts = cut([Shard(f"s{i}", i, i + size) for i, size in enumerate(sizes)], records_per_task)
    order = RecordOrder(seed, block, mixed=mixed)
    order.extend(parts)
    return order, parts


@settings(deadline=None)
@given(size=st.integers(1, 700), key=st.text(max_size=8))
def test_a_permutation_sends_each_number_to_another_one(size: int, key: str) -> None:
    assert sorted(map(Permutation(size, key), range(size))) == list(range(size))


def test_a_permutation_of_very_many_numbers_is_still_one() -> None:
    forth = Permutation(10**12, "a")
    seen = [forth(number) for number in range(20_000)]
    assert len(set(seen)) == len(seen)
    assert all(0 <= number < 10**12 for number in seen)
    tenths = Counter(number * 10 // 10**12 for number in seen)
    assert all(abs(tenths[tenth] - 2000) < 300 for tenth in range(10))


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=12).filter(any),
    records_per_task=st.integers(1, 60),
    block=st.integers(0, 40),
    epoch=st.integers(0, 2),
    seed=st.integers(0, 5),
)
def test_every_record_is_at_one_position_of_an_epoch(
    sizes: list[int], records_per_task: int, block: int, epoch: int, seed: int
) -> None:
    order, parts = make(sizes, records_per_task=records_per_task, seed=seed, block=block)
    records = [one for i, part in enumerate(parts) for one in read(order, epoch, i, part.start, part.end)]
    assert sorted(records) == sorted((f"s{i}", at) for i, size in enumerate(sizes) for at in range(i, i + size))


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 3000), max_size=6), block=st.integers(0, 300))
def test_a_task_in_pieces_reads_what_it_reads_as_a_whole(cuts: list[int], block: int) -> None:
    """A worker that drains returns the rest of its task, at any position."""
    order, parts = make([7000], records_per_task=3000, block=block)
    part = parts[1]
    edges = [part.start, *sorted(part.start + at for at in cuts), part.end]
    pieces = [one for low, high in itertools.pairwise(edges) for one in read(order, 1, 1, low, high)]
    assert pieces == read(order, 1, 1, part.start, part.end)


@pytest.mark.parametrize("block", [0, 32])
def test_seed_and_round_give_other_orders_and_equal_ones_the_same(block: int) -> None:
    first, parts = make([5000], records_per_task=512, block=block)
    same, _ = make([5000], records_per_task=512, block=block)
    other, _ = make([5000], records_per_task=512, seed=4, block=block)
    whole = parts[0].start, parts[0].end
    assert read(first, 0, 0, *whole) == read(same, 0, 0, *whole)
    assert len({tuple(read(one, r, 0, *whole)) for one in (first, other) for r in (0, 1)}) == 4


def test_plans_of_the_time_before_read_some_sixteen_blocks_from_all_over_the_data() -> None:
    order, parts = make([2000] * 10, records_per_task=512, mixed=False)
    for index, part in enumerate(parts):
        ranges = order.reading(0, index, part.start, part.end).ranges
        assert len(ranges) <= 2 * shuffling.BLOCKS_PER_WINDOW + 2
        if part.records == 512:
            assert len({one.name for one in ranges}) >= 4


@pytest.mark.parametrize("block", [0, 32])
def test_each_pass_cuts_its_tasks_from_other_blocks(block: int) -> None:
    order, parts = make([5000], records_per_task=512, block=block)
    whole = parts[0].start, parts[0].end
    first, second = (set(read(order, number, 0, *whole)) for number in (1, 2))
    assert len(first & second) < 256


def test_records_next_to_each_other_do_not_stay_so() -> None:
    order, parts = make([5120], records_per_task=512)
    numbers = [at for i, part in enumerate(parts) for _, at in read(order, 0, i, part.start, part.end)]
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(numbers))
    assert neighbours < len(numbers) / 10


def test_parts_of_the_first_round_can_be_read_before_all_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a complete span reads does not depend on what is listed after it; later rounds mix everything."""
    monkeypatch.setattr(shuffling, "SPAN_PARTS", 4)
    parts = cut([Shard("a", 0, 1000)], 100)
    early, late = RecordOrder(1), RecordOrder(1)
    early.extend(parts[:4])
    late.extend(parts[:4])
    late.extend(parts[4:])
    assert [read(early, 0, i, p.start, p.end) for i, p in enumerate(parts[:4])] == [
        read(late, 0, i, p.start, p.end) for i, p in enumerate(parts[:4])
    ]
    assert {at // 400 for _, at in read(late, 0, 0, 0, 100)} == {0}
    assert {at // 400 for _, at in read(late, 1, 0, 0, 100)} == {0, 1, 2}


def test_the_records_of_some_positions_are_known_by_place() -> None:
    order, parts = make([900], records_per_task=512)
    reading = order.reading(0, 0, 100, 300)
    named = {(one.name, at) for one in reading.records(100, 300) for at in range(one.start, one.end)}
    assert named == set(read(order, 0, 0, 100, 300))
    assert parts[0].records == 512


@pytest.mark.parametrize("block", [0, 1, 40])
def test_the_records_of_microbatches_are_sorted_ranges_that_do_not_touch(block: int) -> None:
    order, parts = make([2500, 1100, 30], records_per_task=2048, block=block)
    for index, part in enumerate(parts):
        for start in range(part.start, part.end, 96):
            end = min(start + 96, part.end)
            ranges = order.reading(1, index, part.start, part.end).records(start, end)
            named = [(one.name, at) for one in ranges for at in range(one.start, one.end)]
            assert named == sorted(read(order, 1, index, start, end))
            assert ranges == merged(ranges), "neighbours are one range"


def test_orders_are_what_they_were() -> None:
    """Plans are durable: a task that is done again after an update of the software reads the same records."""
    sizes = [300, 900]
    found = [
        [f"{name}{at}" for name, at in read(make(sizes, records_per_task=512, **how)[0], 1, 1, 1, 6)]
        for how in ({"mixed": False}, {"block": 8}, {})
    ]
    assert found == ORDERS


def test_ranges_in_words() -> None:
    ranges = merged([Shard("a", 0, 3), Shard("a", 3, 5), Shard("b", 1, 2), Shard("c", 0, 9), Shard("d", 0, 1)])
    assert described(ranges) == ("records 0 to 5 of a, records 1 to 2 of b, records 0 to 9 of c and 1 other ranges")
