"""A layer that leaves cells of a dense tensor out."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable, spec


def ignored(value: Any, dtype: Any) -> Any:
    """The value that stands for an absent one: as given, or else ``""``, -1 for integers, 0 for floats."""
    if value is None:
        value = "" if dtype == tf.string else -1 if dtype.is_integer else 0.0
    return tf.cast(value, dtype)


@serializable
class ToSparse(ValuesLayer):
    """The sparse tensor of what is not ignored; a sparse tensor stays as it is.

    Args:
        ignore_value: what is left out: by default ``""``, -1 of integers, 0 of floats.
        kwargs: arguments of any layer.
    """

    arguments = ("ignore_value",)

    def __init__(self, ignore_value: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_value = ignore_value

    def change(self, values: Any) -> Any:
        """The sparse tensor of dense values."""
        places = tf.where(values != ignored(self.ignore_value, values.dtype))
        return tf.SparseTensor(places, tf.gather_nd(values, places), tf.shape(values, out_type=tf.int64))

    def call(self, inputs: Any) -> Any:
        """The sparse tensor of a dense, ragged or sparse one."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs
        return (
            inputs.to_sparse() if isinstance(inputs, tf.RaggedTensor) else self.change(tf.convert_to_tensor(inputs))
        )

    def compute_output_spec(self, inputs: Any) -> Any:
        """The symbolic result of ``call``, without computing it."""
        return spec(inputs.shape, inputs.dtype, sparse=True)
