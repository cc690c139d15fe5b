"""A categorical column made of several, whose ids are side by side."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as columns  # the base class is not public


class _Fields(NamedTuple):
    categorical_columns: tuple[Any, ...]


class ConcatenatedCategoricalColumn(columns.CategoricalColumn, _Fields):  # type: ignore[misc]  # TensorFlow has no types
    """The ids of several categorical columns, those of each behind those of the columns before it."""

    @property
    def _is_v2_column(self) -> bool:
        return all(column._is_v2_column for column in self.categorical_columns)

    @property
    def name(self) -> str:
        """The columns' names in alphabetical order."""
        return "_C_".join(sorted(column.name for column in self.categorical_columns))

    @property
    def num_buckets(self) -> int:
        """The number of ids of all columns."""
        return int(sum(column.num_buckets for column in self.categorical_columns))

    @property
    def parents(self) -> list[Any]:
        """The columns."""
        return list(self.categorical_columns)

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """The specification for ``tf.io.parse_example`` of all columns."""
        return {name: kind for column in self.categorical_columns for name, kind in column.parse_example_spec.items()}

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The sparse int64 ids, side by side."""
        sizes = [column.num_buckets for column in self.categorical_columns]
        moved = []
        for column, offset in zip(self.categorical_columns, itertools.accumulate([0, *sizes[:-1]]), strict=True):
            ids = column.get_sparse_tensors(transformation_cache, state_manager).id_tensor
            moved.append(tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64) + offset, ids.dense_shape))
        return tf.sparse.concat(-1, moved)

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The ids, without weights."""
        return columns.CategoricalColumn.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def get_config(self) -> dict[str, Any]:
        """The arguments that recreate the column."""
        from tensorflow.python.feature_column.serialization import serialize_feature_column

        return {"categorical_columns": tuple(serialize_feature_column(one) for one in self.categorical_columns)}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> Any:
        """The column that ``get_config`` described."""
        from tensorflow.python.feature_column.serialization import deserialize_feature_column

        made = (
            deserialize_feature_column(one, custom_objects, columns_by_name) for one in config["categorical_columns"]
        )
        return cls(categorical_columns=tuple(made))


def concatenated_categorical_column(categorical_columns: list[Any]) -> ConcatenatedCategoricalColumn:
    """A categorical column whose ids are those of several, so that they can share one embedding.

    Args:
        categorical_columns: ``tf.feature_column`` categorical columns.

    Raises:
        ValueError: it is no list, empty, or holds other columns.
    """
    if not isinstance(categorical_columns, list) or not categorical_columns:
        raise ValueError(f"categorical_columns must be a list of at least one column, not {categorical_columns!r}")
    for column in categorical_columns:
        if not isinstance(column, columns.CategoricalColumn):
            raise ValueError(f"categorical_columns must hold categorical columns, not {column!r}")
    return ConcatenatedCategoricalColumn(tuple(categorical_columns))
