"""An embedding column with the vectors of ``elasticdl.layers.Embedding``, on parameter servers if there are any."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as columns  # the base class is not public

from elasticdl.layers.tensorflow import COMBINERS, Embedding

__all__ = ["EmbeddingColumn", "embedding_column"]


class _Fields(NamedTuple):
    categorical_column: Any
    dimension: int
    combiner: str
    initializer: Any


class EmbeddingColumn(columns.DenseColumn, _Fields):  # type: ignore[misc]  # TensorFlow has no types
    """One vector a record: the combined vectors of a categorical column's ids."""

    @property
    def _is_v2_column(self) -> bool:
        return bool(self.categorical_column._is_v2_column)

    @property
    def name(self) -> str:
        """The categorical column's name and what is made of it."""
        return f"{self.categorical_column.name}_embedding"

    @property
    def parents(self) -> list[Any]:
        """The categorical column."""
        return [self.categorical_column]

    @property
    def parse_example_spec(self) -> Any:
        """The specification for ``tf.io.parse_example`` of the column."""
        return self.categorical_column.parse_example_spec

    @property
    def variable_shape(self) -> Any:
        """The shape of a record's vector."""
        return tf.TensorShape([self.dimension])

    def create_state(self, state_manager: Any) -> None:
        """Gives the layer that holds the columns a table."""
        if hasattr(self.categorical_column, "create_state"):
            self.categorical_column.create_state(state_manager)
        table = Embedding(
            self.dimension, self.categorical_column.num_buckets, self.initializer, name=f"{self.name}_table"
        )
        setattr(state_manager._layer, self._attribute, table)

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The ids and weights of the categorical column."""
        return self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)

    def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The combined vectors, float32 ``[records, dimension]``; zeros for a record without ids."""
        ids, weights = transformation_cache.get(self, state_manager)
        kept = ids.values >= 0
        if weights is not None and self.combiner != "sum":
            kept &= weights.values > 0  # as tf.nn.safe_embedding_lookup_sparse has it
        record = tf.boolean_mask(ids.indices[:, 0], kept)
        vectors = getattr(state_manager._layer, self._attribute)(tf.boolean_mask(ids.values, kept))
        weight = tf.boolean_mask(tf.ones_like(ids.values, tf.float32) if weights is None else weights.values, kept)
        records = ids.dense_shape[0]
        total = tf.math.unsorted_segment_sum(vectors * weight[:, tf.newaxis], record, records)
        if self.combiner == "sum":
            return total
        size = tf.math.unsorted_segment_sum(weight if self.combiner == "mean" else weight**2, record, records)
        return tf.math.divide_no_nan(total, (size if self.combiner == "mean" else tf.sqrt(size))[:, tf.newaxis])

    @property
    def _attribute(self) -> str:
        return f"elasticdl_{self.name}"


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """A dense column of the vectors of a categorical column's ids.

    Args:
        categorical_column: a ``tf.feature_column`` categorical column.
        dimension: length of a vector.
        combiner: ``sum``, ``mean`` or ``sqrtn``.
        initializer: a Keras initializer; by default a truncated normal one of deviation ``1 / sqrt(dimension)``.
        max_norm: only None.
        trainable: only True.

    Raises:
        ValueError: an argument that cannot work, or asks for what parameter servers do not do.
    """
    if not dimension or dimension < 1:
        raise ValueError(f"dimension must be over 0, not {dimension}")
    if combiner not in COMBINERS:
        raise ValueError(f"combiner {combiner!r} is none of {COMBINERS}")
    if initializer is not None and not callable(initializer):
        raise ValueError(f"initializer must be one of Keras, not {initializer!r}")
    if max_norm is not None or not trainable:
        raise ValueError(
            "max_norm and trainable=False are not done on parameter servers; "
            "use tf.feature_column.embedding_column, which keeps its vectors in the model"
        )
    if initializer is None:
        initializer = tf.keras.initializers.TruncatedNormal(0.0, 1 / math.sqrt(dimension))
    return EmbeddingColumn(categorical_column, dimension, combiner, initializer)
