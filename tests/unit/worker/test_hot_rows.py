"""Rows that a worker keeps: of the right ids, never older than the bound, and never older than what came before."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl_runtime.partition import hash_ids
from elasticdl_worker.parameters.hot_rows import HotRows

pytestmark = pytest.mark.unit
IDS = np.array([3, 900, -7])


def rows(value: float, count: int = len(IDS)) -> NDArray[np.float32]:
    return np.full((count, 2), value, np.float32)


def kept(pushes: int, value: float = 1.0, staleness: int = 2) -> HotRows:
    """Rows that were missed twice, and so are kept."""
    hot = HotRows(staleness, 1 << 12)
    for _ in range(2):
        assert len(hot.find("t", IDS, 2, pushes).missing) == len(IDS)
        hot.keep("t", IDS, rows(value), pushes)
    return hot


def test_a_row_is_pulled_again_when_it_misses_more_updates_than_the_bound() -> None:
    hot = kept(5)
    for pushes, missing in ((5, 0), (7, 0), (8, len(IDS))):
        found = hot.find("t", IDS, 2, pushes)
        assert len(found.missing) == missing
        if not missing:
            np.testing.assert_array_equal(found.rows, rows(1.0))


def test_a_pull_that_comes_late_does_not_put_older_rows_over_younger_ones() -> None:
    hot = kept(5)
    hot.keep("t", IDS, rows(0.5), 4)
    np.testing.assert_array_equal(hot.find("t", IDS, 2, 5).rows, rows(1.0))
    hot.keep("t", IDS, rows(2.0), 6)
    np.testing.assert_array_equal(hot.find("t", IDS, 2, 6).rows, rows(2.0))


def test_ids_that_share_a_place_do_not_read_each_others_rows() -> None:
    many = np.arange(10_000)
    places = hash_ids(many) & np.uint64(1)
    one, other = many[places == 0][:1], many[places == 0][1:2]
    hot = HotRows(100, 2)
    for _ in range(2):
        hot.keep("t", one, rows(1.0, 1), 0)
    assert len(hot.find("t", one, 2, 0).missing) == 0
    assert hot.find("t", other, 2, 0).missing.tolist() == [0]
    for _ in range(2):
        hot.keep("t", other, rows(2.0, 1), 0)
    assert hot.find("t", one, 2, 0).missing.tolist() == [0], "a later id takes the place over"
    np.testing.assert_array_equal(hot.find("t", other, 2, 0).rows, rows(2.0, 1))
    hot.forget()
    assert len(hot.find("t", other, 2, 0).missing) == 1
