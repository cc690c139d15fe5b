"""Ids in the buffers of a message, checked against the tables that they are for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import NO_ID
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.convert.parameters import ids_of


class IdReader:
    """Reads the ids of tables. Models often ask several tables for the same ids, so those are checked once."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers
        self._last: NDArray[np.int64] = np.empty(0, np.int64)
        self._index = -1
        self._range = (0, 0)
        self._duplicates: bool | None = False

    def read(self, table: EmbeddingTable, index: int) -> NDArray[np.int64]:
        """Ids of a table, int64 ``[n]``.

        Raises:
            InvalidInputError: an id is outside a closed id space, or is ``NO_ID``.
        """
        if index != self._index or index < 0:
            ids = ids_of(self._buffers, index, f"the ids of {table.spec.name!r}")
            if ids.tobytes() != self._last.tobytes():
                self._last, self._duplicates = ids, None
                self._range = (int(np.minimum.reduce(ids)), int(np.maximum.reduce(ids))) if len(ids) else (0, 0)
            self._index = index
        low, high = self._range
        limit = table.spec.input_dim
        if low == NO_ID or (limit is not None and (low < 0 or high >= limit)):
            raise _outside(table, low if low < 0 else high)
        return self._last

    def has_duplicates(self, kernels: KernelSet) -> bool:
        """Whether an id comes twice among those read last."""
        if self._duplicates is None:
            self._duplicates = bool(kernels.has_duplicates(self._last))
        return self._duplicates


def _outside(table: EmbeddingTable, bad: int) -> InvalidInputError:
    limit = table.spec.input_dim
    space = f"other than {NO_ID}" if limit is None else f"from 0 to {limit - 1}"
    return InvalidInputError(
        f"the id {bad} is outside the table {table.spec.name!r}, which takes ids {space}",
        fix="map ids into the table's range in feed(), or give the layer a larger input_dim",
    )
