"""A layer that turns the ids of each record into one vector."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import keras, serializable, spec


@serializable
class SparseEmbedding(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """The combined vectors of each record's ids, float32 ``[records, output_dim]``; zeros for a record without ids.

    Args:
        input_dim: number of ids.
        output_dim: length of a vector.
        embeddings_initializer: how the vectors begin.
        combiner: ``sum``, ``mean`` or ``sqrtn``.
        kwargs: arguments of any layer.

    Input:
        Integer ids ``[records, n]``, sparse or ragged; of dense ones those that are not 0.

    Raises:
        ValueError: the combiner is none of these.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str = "mean",
        **kwargs: Any,
    ) -> None:
        if combiner not in ("sum", "mean", "sqrtn"):
            raise ValueError(f"combiner {combiner!r} is none of sum, mean and sqrtn")
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.combiner = combiner

    def build(self, input_shape: Any = None) -> None:
        """Makes the vectors."""
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim), initializer=self.embeddings_initializer, name="embeddings"
        )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """One vector a record."""
        ids = inputs.to_sparse() if isinstance(inputs, tf.RaggedTensor) else inputs
        if not isinstance(ids, tf.SparseTensor):
            ids = tf.sparse.from_dense(ids)
        vectors = tf.convert_to_tensor(self.embeddings)
        combined = tf.nn.safe_embedding_lookup_sparse(vectors, tf.cast(ids, tf.int64), combiner=self.combiner)
        return tf.ensure_shape(combined, [None, self.output_dim])

    def compute_output_spec(self, inputs: Any) -> Any:
        """The symbolic result of ``call``, without computing it."""
        return spec((inputs.shape[0], self.output_dim), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments that recreate the layer."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "combiner": self.combiner,
        }
