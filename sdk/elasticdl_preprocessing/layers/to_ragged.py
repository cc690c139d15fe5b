"""A layer that makes rows of unequal length."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.to_sparse import ignored
from elasticdl_preprocessing.layers.values import ValuesLayer, serializable, spec


@serializable
class ToRagged(ValuesLayer):
    """The ragged tensor ``[records, (values)]`` of what is not ignored; strings are split.

    Args:
        sep: what strings are split at.
        ignore_value: what is left out: by default ``""`` and -1 of integers, nothing of floats.
        kwargs: arguments of any layer.

    Raises:
        TypeError: the input is sparse.
    """

    arguments = ("sep", "ignore_value")

    def __init__(self, sep: str = ",", ignore_value: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sep = sep
        self.ignore_value = ignore_value

    def change(self, values: Any) -> Any:
        """The ragged tensor of dense or ragged values of rank 2."""
        rows = values if isinstance(values, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(values)
        if rows.dtype == tf.string:
            rows = tf.strings.split(rows, self.sep).merge_dims(1, 2)
        if self.ignore_value is None and rows.dtype.is_floating:
            return rows
        return tf.ragged.boolean_mask(rows, rows != ignored(self.ignore_value, rows.dtype))

    def call(self, inputs: Any) -> Any:
        """The ragged tensor of a dense or ragged one."""
        if isinstance(inputs, tf.SparseTensor):
            raise TypeError("ToRagged takes a dense or a ragged tensor, not a sparse one")
        return self.change(inputs if isinstance(inputs, tf.RaggedTensor) else tf.convert_to_tensor(inputs))

    def compute_output_spec(self, inputs: Any) -> Any:
        """The symbolic result of ``call``, without computing it."""
        return spec((inputs.shape[0], None), inputs.dtype, ragged=True)
