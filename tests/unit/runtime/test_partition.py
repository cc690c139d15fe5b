from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.model import DenseSpec
from elasticdl_runtime.partition import hash_ids, place_dense, ps_of_ids

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("num_ps", [1, 2, 3, 7, 64])
@pytest.mark.parametrize(
    "ids",
    [np.arange(200_000), np.arange(200_000) * 1024, np.arange(200_000) << 40],
    ids=["consecutive", "multiples", "high"],
)
def test_any_pattern_of_ids_spreads_evenly(ids: np.ndarray, num_ps: int) -> None:  # type: ignore[type-arg]
    counts = np.bincount(ps_of_ids(ids, num_ps), minlength=num_ps)
    assert len(counts) == num_ps
    mean = len(ids) / num_ps
    assert np.abs(counts - mean).max() < 6 * np.sqrt(mean)


def test_hash_is_that_of_splitmix64() -> None:
    # First output of SplitMix64 with seed 0: the finaliser of 0x9E3779B97F4A7C15.
    golden = np.array([0x9E3779B97F4A7C15], np.uint64).view(np.int64)
    assert hash_ids(golden)[0] == 0xE220A8397B1DCDAF


@given(
    sizes=st.lists(st.integers(0, 3_000_000), max_size=12),
    num_ps=st.integers(1, 5),
)
def test_every_element_has_one_place(sizes: list[int], num_ps: int) -> None:
    specs = [DenseSpec(f"p{index}", (size,)) for index, size in enumerate(sizes)]
    slices = place_dense(specs, num_ps)
    assert slices == place_dense(specs[::-1], num_ps)
    for spec in specs:
        own = [place for place in slices if place.name == spec.name]
        assert own[0].start == 0
        assert own[-1].stop == spec.size
        assert all(a.stop == b.start for a, b in itertools.pairwise(own))
        assert len({place.ps for place in own}) == len(own)
    assert all(0 <= place.ps < num_ps for place in slices)


def test_a_model_with_one_large_kernel_is_balanced() -> None:
    specs = [DenseSpec("kernel", (4096, 4096)), *(DenseSpec(f"b{i}", (4096,)) for i in range(9))]
    load = np.zeros(3)
    for place in place_dense(specs, 3):
        load[place.ps] += place.stop - place.start
    assert load.max() / load.mean() <= 1.1
