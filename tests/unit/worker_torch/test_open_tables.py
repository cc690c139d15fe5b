"""The rows of open tables: inside an exported program, at the ends of what an id may be, and as they grow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elasticdl_core.model import InitializerSpec, TableSpec
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.trainers.torch.export.model_files import _OpenTable
from elasticdl_worker.trainers.torch.step.local_tables import TorchLocalTables

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


def test_rows_that_are_seen_late_begin_as_the_first_ones_do_also_in_the_optimizer() -> None:
    weight = torch.nn.Parameter(torch.empty(0, 3))
    optimizer = torch.optim.Adagrad([weight], initial_accumulator_value=0.25)
    tables = TorchLocalTables({"t": SPEC}, {"t": weight})
    tables.use(optimizer)
    for ids in (torch.arange(10), torch.arange(5, 3000)):
        found = tables.find("t", ids, 3, None)
        assert found.padding is None
        np.testing.assert_array_equal(found.rows[found.positions].detach(), first_rows(SPEC, ids.numpy()))
    assert torch.equal(optimizer.state[weight]["sum"], torch.full_like(weight, 0.25))


def test_padding_reads_zeros_and_makes_no_row() -> None:
    tables = TorchLocalTables({"t": SPEC}, {"t": torch.nn.Parameter(torch.empty(0, 3))})
    found = tables.find("t", torch.tensor([[7, -1], [-1, -1]]), 3, -1)
    assert found.positions.tolist() == [[1, 0], [0, 0]] and found.padding == 0
    assert not found.rows[0].any()
    assert tables.tables["t"].ids_and_rows()[0].tolist() == [7]
