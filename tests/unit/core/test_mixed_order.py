"""The default order of records is as good as a full shuffle's, and single records of it can be read in blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.harness.order_quality import OrderQuality, order_quality
from elasticdl_core import mixed_order
from elasticdl_core.mixed_order import MixedReading, TablePermutation
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import RecordOrder, cut

pytestmark = pytest.mark.unit


def quality_of(records: int, records_per_task: int, seeds: int = 1, **how: int) -> OrderQuality:
    """Of the order of the second epoch."""
    orders = []
    for seed in range(seeds):
        parts = cut([Shard("sorted", 0, records)], records_per_task)
        order = RecordOrder(seed, **how)
        order.extend(parts)
        places = [
            place
            for i, p in enumerate(parts)
            for place in order.reading(1, i, p.start, p.end).in_order(p.start, p.end)
        ]
        orders.append(np.array([number for _, number in places]))
        assert np.array_equal(np.sort(orders[-1]), np.arange(records))
    return order_quality(orders)


@pytest.mark.parametrize(
    ("records", "records_per_task", "seeds"),
    [(1500, 512, 20), (6000, 256, 5), (40_000, 64, 1), (600_000, 512, 1)],
)
def test_the_default_order_is_as_good_as_a_full_shuffle(records: int, records_per_task: int, seeds: int) -> None:
    quality = quality_of(records, records_per_task, seeds)
    assert quality.worst <= 1.2, quality
    assert abs(quality.correlation) < 0.02


def test_the_measure_tells_blocks_from_a_shuffle() -> None:
    """What it was before single records were mixed, and what asking for blocks costs."""
    assert quality_of(1500, 512, 5, mixed=False).in_256 > 2.5
    assert quality_of(40_000, 512, block=32).in_8_minibatches > 4
    assert quality_of(40_000, 512, block=1).worst <= 1.2


@settings(deadline=None)
@given(size=st.integers(1, 700), key=st.text(max_size=8))
def test_a_permutation_by_tables_sends_each_number_to_another_one(size: int, key: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for sorted_up_to in (0, 4096):
            patch.setattr(mixed_order, "_SORTED", sorted_up_to)
            assert sorted(TablePermutation(size, key)(range(size))) == list(range(size))


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    pool=st.integers(1, 20),
    epoch=st.integers(0, 2),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
def test_pools_are_read_exactly_and_in_any_pieces(sizes: list[int], pool: int, epoch: int, cuts: list[int]) -> None:
    """Also where there are many pools: every record is at one position, whoever asks for whichever positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed_order, "POOL_BLOCKS", pool)
        mixed_order._permutation.cache_clear()
        parts = cut([Shard(f"s{i}", i, i + size) for i, size in enumerate(sizes)], 48)
        order = RecordOrder(1)
        order.extend(parts)
        found = []
        for index, part in enumerate(parts):
            whole = list(order.reading(epoch, index, part.start, part.end).in_order(part.start, part.end))
            edges = sorted({part.start, part.end, *(min(part.start + at, part.end) for at in cuts)})
            pieces = [
                one
                for low, high in itertools.pairwise(edges)
                for one in order.reading(epoch, index, low, high).in_order(low, high)
            ]
            assert pieces == whole
            found += whole
        assert sorted(found) == [(f"s{i}", at) for i, size in enumerate(sizes) for at in range(i, i + size)]


def test_a_pools_records_are_from_its_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads blocks whole needs to keep those of one pool."""
    monkeypatch.setattr(mixed_order, "POOL_BLOCKS", 16)
    mixed_order._permutation.cache_clear()
    parts = cut([Shard("a", 0, 5120), Shard("b", 100, 5220)], 512)
    order = RecordOrder(1)
    order.extend(parts)
    blocks: dict[str, set[int]] = {}
    for index, part in enumerate(parts):
        reading = order.reading(1, index, part.start, part.end)
        assert isinstance(reading, MixedReading)
        blocks.setdefault(reading.pool, set()).update(number // reading.block for number in reading.numbers)
        for number in reading.numbers[:20]:
            numbers = [
                first + at for first, piece in reading.pieces(number // reading.block) for at in range(piece.records)
            ]
            assert number in numbers
            assert len(numbers) <= reading.block
    assert len(blocks) == 20
    assert all(len(one) == 16 for one in blocks.values())


def test_readings_name_only_the_sources_that_they_need() -> None:
    parts = cut([Shard(f"f{i}", 0, 100) for i in range(5000)], 50)
    order = RecordOrder(1)
    order.extend(parts)
    reading = order.reading(1, 7, 0, 50)
    assert isinstance(reading, MixedReading)
    assert len(reading.sources) <= 50
    assert {name for name, _ in reading.in_order(0, 50)} == {one.name for one in reading.sources}
    assert reading.example(8).records <= 8
