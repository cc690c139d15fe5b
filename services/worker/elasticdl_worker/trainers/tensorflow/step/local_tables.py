"""Embedding tables in this process, for training without parameter servers: they grow as ids are seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import TableSpec
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.trainers.framework import Lookups
from elasticdl_worker.trainers.tensorflow.framework import is_legacy, keras, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel
from elasticdl_worker.trainers.tensorflow.model.optimizers import TABLE_WEIGHT
from elasticdl_worker.trainers.tensorflow.types import Array, Inverse, KerasVariable, Variable

_FIRST_ROWS = 1024


class LocalTable:
    """Rows of one table.

    Args:
        spec: the table; rows begin as they do on parameter servers.

    Attributes:
        variable: the rows, ``[capacity, dim]``; replaced when the table grows.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._index: dict[int, int] = {}
        self.variable = self._make(np.zeros((_FIRST_ROWS, spec.dim), np.float32))

    def place(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], bool]:
        """Finds or makes the rows of unique ids.

        Returns:
            The index of each id's row, and whether ``variable`` was replaced by a larger one.
        """
        index, before = self._index, len(self._index)
        places = np.fromiter((index.setdefault(i, len(index)) for i in ids.tolist()), np.int32, len(ids))
        if len(index) == before:
            return places, False
        fresh = np.flatnonzero(places >= before)
        capacity = int(self.variable.shape[0])
        grown = len(index) > capacity
        while capacity < len(index):
            capacity *= 2
        if grown:
            rows = np.zeros((capacity, self.spec.dim), np.float32)
            old = raw_variable(self.variable).numpy()
            rows[: len(old)] = old
            self.variable = self._make(rows)
        self._set(places[fresh], first_rows(self.spec, ids[fresh]))
        return places, grown

    def fill(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Sets rows of unique ids."""
        self._set(self.place(ids)[0], rows)

    def ids_and_rows(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """All ids that were seen, and their rows."""
        ids = np.fromiter(self._index, np.int64, len(self._index))
        return ids, np.asarray(raw_variable(self.variable).numpy()[: len(ids)], np.float32)

    def _make(self, rows: Array) -> KerasVariable:
        if is_legacy():
            return tf.Variable(rows, name=TABLE_WEIGHT)
        return keras.Variable(rows, name=TABLE_WEIGHT)

    def _set(self, places: NDArray[np.int32], rows: NDArray[np.float32]) -> None:
        raw_variable(self.variable).scatter_update(tf.IndexedSlices(tf.constant(rows), tf.constant(places)))


class LocalTables:
    """All tables of a model.

    Args:
        model: the prepared model; its tables are those of ``elasticdl.layers.Embedding`` layers.
    """

    def __init__(self, model: PreparedModel) -> None:
        self.tables = {name: LocalTable(spec) for name, spec in model.tables.items()}

    @property
    def variables(self) -> list[KerasVariable]:
        """The tables' variables."""
        return [table.variable for table in self.tables.values()]

    def place(self, lookups: Lookups) -> tuple[Inverse, bool]:
        """Turns the inverse indices of a minibatch into indices of the tables' rows.

        Returns:
            For each table and each of its lookups, an int32 tensor; and whether a table has grown.
        """
        indices: Inverse = {}
        grown = False
        for name, ids in lookups.unique.items():
            places, larger = self.tables[name].place(ids)
            grown |= larger
            indices[name] = [tf.gather(tf.constant(places), inverse) for inverse in lookups.inverse[name]]
        return indices, grown

    def rows(self) -> dict[str, Variable]:
        """The tables' rows by name, as a scope needs them."""
        return {name: raw_variable(table.variable) for name, table in self.tables.items()}
