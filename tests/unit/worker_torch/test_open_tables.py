"""The rows of open tables inside an exported program, at the ends of what an id may be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elasticdl_core.model import InitializerSpec, TableSpec
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.trainers.torch.export.model_files import _OpenTable

pytestmark = pytest.mark.unit
LAST, FIRST = (1 << 63) - 1, 1 - (1 << 63)
SPEC = TableSpec("t", 3, InitializerSpec("normal", seed=3))


@pytest.mark.parametrize("known", [[], [5], [LAST], [FIRST, 7, LAST], [LAST - 1, -1]])
def test_ids_with_a_row_read_it_and_all_others_as_they_begin(known: list[int]) -> None:
    ids = np.array(known, np.int64)
    rows = np.arange(1, 3 * len(ids) + 1, dtype=np.float32).reshape(-1, 3)
    asked = np.array([LAST, LAST - 1, FIRST, FIRST + 1, 0, 5, 7, -1], np.int64)
    expected = first_rows(SPEC, asked)
    for i, row in zip(known, rows, strict=True):
        expected[asked == i] = row
    found = _OpenTable(ids, rows, SPEC).find(torch.from_numpy(asked)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
