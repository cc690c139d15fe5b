"""A layer that puts the ids of several columns side by side in one space of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import keras, serializable, spec


@serializable
class ConcatenateWithOffset(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Adds a number to the ids of each tensor of a list and concatenates the tensors, all dense, ragged or sparse.

    Args:
        offsets: what is added to each; None adds nothing.
        axis: the axis that becomes longer.
        kwargs: arguments of any layer.

    Raises:
        ValueError: there are not as many offsets as tensors.
    """

    def __init__(self, offsets: Sequence[int] | None, axis: int = -1, **kwargs: Any) -> None:
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self.offsets = None if offsets is None else list(offsets)
        self.axis = axis

    def call(self, inputs: Any) -> Any:
        """The tensors in one; a tensor that is no list stays as it is."""
        if not isinstance(inputs, list | tuple):
            return inputs
        offsets = [0] * len(inputs) if self.offsets is None else self.offsets
        if len(offsets) != len(inputs):
            raise ValueError(f"layer {self.name} has {len(offsets)} offsets for {len(inputs)} tensors")
        moved = [_add(one, by) for one, by in zip(inputs, offsets, strict=True)]
        if isinstance(moved[0], tf.SparseTensor):
            return tf.sparse.concat(self.axis, moved)
        return tf.concat(moved, self.axis)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The symbolic result of ``call``, without computing it."""
        if not isinstance(inputs, list | tuple):
            return inputs
        shape = list(inputs[0].shape)
        sizes = [one.shape[self.axis] for one in inputs]
        shape[self.axis] = None if None in sizes else sum(sizes)
        return spec(shape, inputs[0].dtype, inputs[0])

    def get_config(self) -> dict[str, Any]:
        """The arguments that recreate the layer."""
        return {**super().get_config(), "offsets": self.offsets, "axis": self.axis}


def _add(ids: Any, offset: int) -> Any:
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, ids.values + tf.cast(offset, ids.dtype), ids.dense_shape)
    return ids + tf.cast(offset, ids.dtype)
