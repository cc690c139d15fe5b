"""Embedding tables in this process, for training without parameter servers: they grow as ids are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_worker.trainers.tensorflow.framework import is_legacy, keras, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.lookups import Lookups
from elasticdl_worker.trainers.tensorflow.model import PreparedModel

_FIRST_ROWS = 1024


class LocalTable:
    """Rows of one table.

    Args:
        name: the table's name.
        dim: length of a row.
        initializer: the layer's Keras initializer.

    Attributes:
        variable: the rows, ``[capacity, dim]``; replaced when the table grows.
    """

    def __init__(self, name: str, dim: int, initializer: Callable[..., Any]) -> None:
        self.name = name
        self._dim = dim
        self._initializer = initializer
        self._index: dict[int, int] = {}
        self.variable = self._make(np.asarray(initializer((_FIRST_ROWS, dim))))

    def place(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], bool]:
        """Finds or makes the rows of unique ids.

        Returns:
            The index of each id's row, and whether ``variable`` was replaced by a larger one.
        """
        index = self._index
        places = np.fromiter((index.setdefault(i, len(index)) for i in ids.tolist()), np.int32, len(ids))
        capacity = int(self.variable.shape[0])
        if len(index) <= capacity:
            return places, False
        while capacity < len(index):
            capacity *= 2
        rows = np.array(self._initializer((capacity, self._dim)))
        old = raw_variable(self.variable).numpy()
        rows[: len(old)] = old
        self.variable = self._make(rows)
        return places, True

    def ids_and_rows(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """All ids that were seen, and their rows."""
        ids = np.fromiter(self._index, np.int64, len(self._index))
        return ids, raw_variable(self.variable).numpy()[: len(ids)]

    def _make(self, rows: NDArray[Any]) -> Any:
        if is_legacy():
            return tf.Variable(rows, name=self.name)
        return keras.Variable(rows, name=self.name.replace("/", "_"))


class LocalTables:
    """All tables of a model.

    Args:
        model: the prepared model; its tables are those of ``elasticdl.layers.Embedding`` layers.
    """

    def __init__(self, model: PreparedModel) -> None:
        self.tables = {
            name: LocalTable(name, model.tables[name].dim, layer.embeddings_initializer)
            for name, layer in model.registry.layers.items()
        }

    def fill(self, name: str, rows: tuple[NDArray[np.int64], NDArray[np.float32]]) -> None:
        """Sets rows of a table, before training begins."""
        ids, vectors = rows
        table = self.tables[name]
        places, _ = table.place(ids)
        raw = raw_variable(table.variable)
        raw.scatter_update(tf.IndexedSlices(tf.constant(vectors), tf.constant(places)))

    @property
    def variables(self) -> list[Any]:
        """The tables' variables."""
        return [table.variable for table in self.tables.values()]

    def place(self, lookups: Lookups) -> tuple[dict[str, list[Any]], bool]:
        """Turns the inverse indices of a minibatch into indices of the tables' rows.

        Returns:
            For each table and each of its lookups, an int32 tensor; and whether a table has grown.
        """
        indices: dict[str, list[Any]] = {}
        grown = False
        for name, ids in lookups.unique.items():
            places, larger = self.tables[name].place(ids)
            grown |= larger
            indices[name] = [tf.gather(tf.constant(places), inverse) for inverse in lookups.inverse[name]]
        return indices, grown

    def rows(self) -> dict[str, Any]:
        """The tables' rows by name, as a scope needs them."""
        return {name: raw_variable(table.variable) for name, table in self.tables.items()}
