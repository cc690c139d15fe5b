"""The Keras embedding layer with an unbounded vocabulary."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl.layers import lookup

keras: Any = tf.keras

COMBINERS = ("sum", "mean", "sqrtn")


@keras.utils.register_keras_serializable(package="elasticdl")
class Embedding(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Turns int64 ids into vectors that live on the parameter servers, one row for each id that occurs.

    The layer has no weights of its own: rows come into being, by the initializer, when their id is first seen.
    Outside ElasticDL (in a unit test of the model, say) it works eagerly and gives each id a fixed vector.

    Args:
        output_dim: length of a vector.
        input_dim: number of ids if that is known: ids must then be in ``[0, input_dim)``.
        embeddings_initializer: how a row begins: a Keras initializer or its name.
        mask_zero: whether id 0 means padding: a combiner passes over it.
        input_length: ids in each record if that is fixed; only checked against the input.
        combiner: ``sum``, ``mean`` or ``sqrtn``: how the vectors of a record's ids become one, for sparse and
            ragged ids. A record without ids gets zeros.

    Input:
        Integer ids of any shape, dense, ragged or sparse.

    Output:
        float32 ``[..., output_dim]``; with a combiner and sparse or ragged ids ``[records, output_dim]``.

    Raises:
        ValueError: an argument that cannot work, or sparse ids without a combiner.
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        input_length: int | None = None,
        combiner: str | None = None,
        **kwargs: Any,
    ) -> None:
        if output_dim < 1 or (input_dim is not None and input_dim < 1):
            raise ValueError(f"output_dim and input_dim must be over 0, not {output_dim} and {input_dim}")
        if combiner is not None and combiner not in COMBINERS:
            raise ValueError(f"combiner {combiner!r} is none of {COMBINERS}")
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self.output_dim = output_dim
        self.input_dim = input_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.input_length = input_length
        self.combiner = combiner
        self.supports_masking = True
        self.elasticdl_table: str | None = None

    def build(self, input_shape: Any = None) -> None:
        """Registers a table with the trainer that runs the model."""
        registry = lookup.current_registry()
        if registry is not None and self.elasticdl_table is None:
            self.elasticdl_table = registry.register(self)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The vectors of the ids."""
        if isinstance(inputs, tf.RaggedTensor):
            vectors = inputs.with_flat_values(self._rows(inputs.flat_values))
            if self.combiner is None:
                return vectors
            return self._combine(vectors.values, inputs.values, inputs.value_rowids(), inputs.nrows())
        if isinstance(inputs, tf.SparseTensor):
            if self.combiner is None:
                raise ValueError(f"layer {self.name}: sparse ids need a combiner, one of {COMBINERS}")
            rows = self._rows(inputs.values)
            return self._combine(rows, inputs.values, inputs.indices[:, 0], inputs.dense_shape[0])
        return self._rows(inputs)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """True where the id is not 0, if ``mask_zero``."""
        return tf.not_equal(inputs, 0) if self.mask_zero and isinstance(inputs, tf.Tensor) else None

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the vectors for dense ids of a shape."""
        return (*tuple(input_shape), self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The symbolic result of ``call``, without computing it."""
        ragged = bool(getattr(inputs, "ragged", False))
        if self.combiner is not None and (ragged or getattr(inputs, "sparse", False)):
            return keras.KerasTensor((inputs.shape[0], self.output_dim), dtype=self.compute_dtype)
        shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype, **({"ragged": True} if ragged else {}))

    def get_config(self) -> dict[str, Any]:
        """The arguments that recreate the layer."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "input_dim": self.input_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "input_length": self.input_length,
            "combiner": self.combiner,
        }

    def _rows(self, ids: Any) -> Any:
        ids = tf.cast(ids, tf.int64)
        scope = lookup.current_scope()
        if scope is not None and self.elasticdl_table is not None:
            rows = scope.lookup(self.elasticdl_table, ids, self.output_dim)
        else:
            rows = self._standalone(ids)
        return tf.cast(rows, self.compute_dtype)

    def _standalone(self, ids: Any) -> Any:
        """A fixed vector for each id in [-0.05, 0.05), so that a model can be tried out without ElasticDL."""
        columns = tf.range(self.output_dim, dtype=tf.int64)
        mixed = ids[..., tf.newaxis] * tf.constant(2654435761, tf.int64) + columns * tf.constant(40503, tf.int64)
        return (tf.cast(tf.math.floormod(mixed, 1 << 20), tf.float32) / float(1 << 20) - 0.5) / 10.0

    def _combine(self, vectors: Any, ids: Any, record: Any, records: Any) -> Any:
        record = tf.cast(record, tf.int64)
        records = tf.cast(records, tf.int64)
        counted = tf.ones_like(record, vectors.dtype)
        if self.mask_zero:
            counted = tf.cast(tf.not_equal(ids, 0), vectors.dtype)
            vectors *= counted[:, tf.newaxis]
        total = tf.math.unsorted_segment_sum(vectors, record, records)
        if self.combiner != "sum":
            count = tf.math.unsorted_segment_sum(counted, record, records)
            divisor = tf.sqrt(count) if self.combiner == "sqrtn" else count
            total = tf.math.divide_no_nan(total, divisor[:, tf.newaxis])
        return tf.ensure_shape(total, [None, self.output_dim])
