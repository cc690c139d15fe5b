"""The tree in which leaves are added stands over microbatches: who owns which changes no bit of a sum."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_worker.collectives.sums import OwnLeaves, SumShape
from elasticdl_worker.collectives.tree import (
    Array,
    PartialSumAdder,
    PartialSumLeaves,
    aligned,
    chunk_bounds,
    partial_sums_of,
)

pytestmark = pytest.mark.unit
LENGTH = 5


def by_hand(leaves: list[Array]) -> Array:
    """The sum as documents say it: the largest power of two below their number is on the left."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while 2 * left < len(leaves):
        left *= 2
    return by_hand(leaves[:left]) + by_hand(leaves[left:])


@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 6, 8, 13])
def test_the_bits_of_a_sum_are_those_of_the_documented_tree_whoever_adds(microbatches: int) -> None:
    draw = np.random.default_rng(microbatches)
    for members in (1, 2, 3):
        leaves = list((10.0 ** draw.integers(-6, 7, (microbatches, LENGTH))).astype(np.float32))
        owners = draw.integers(0, members, microbatches).tolist()
        partial_sums, spare, parts = partial_sums_of(owners), list[Array](), []
        for partial_sum in partial_sums:
            own = PartialSumLeaves(partial_sum, aligned(LENGTH, "float32"), spare)
            for microbatch in draw.permutation(np.arange(partial_sum.first, partial_sum.end)).tolist():
                np.copyto(own.leaf(microbatch), leaves[microbatch])
                own.merge(microbatch)
            parts.append(own.whole)
        out = np.empty(LENGTH, np.float32)
        PartialSumAdder(partial_sums, "float32").add(parts, out)
        assert out.tobytes() == by_hand(leaves).tobytes()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [0, 1, 16, 17, 1000])
def test_each_element_is_added_by_one_member(length: int, size: int) -> None:
    ends = chunk_bounds(length, size, 4)
    assert [at for start, end in ends for at in range(start, end)] == list(range(length))


def test_a_leaf_is_brought_once_and_none_is_missing() -> None:
    shape = SumShape.of([LENGTH], [0, 1, 0], "float32", 2)
    own = OwnLeaves(shape, 0, [[aligned(LENGTH, "float32") for _ in range(2)]], {})
    ones = np.ones(LENGTH, np.float32)
    assert not own.add(0, 0, ones)
    with pytest.raises(InvalidInputError, match="microbatch 0 of bucket 0 was brought before"):
        own.add(0, 0, ones)
    with pytest.raises(InvalidInputError, match=r"microbatches \[2\] of bucket 0 were not brought"):
        own.require_all()
    with pytest.raises(InvalidInputError, match="microbatch 1 is not rank 0's"):
        own.add(1, 0, ones)
    assert own.add(2, 0, ones)
    own.require_all()
