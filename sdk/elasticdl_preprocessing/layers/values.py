"""The base of layers that change each value of a tensor by itself."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

keras: Any = tf.keras
serializable: Any = keras.utils.register_keras_serializable(package="elasticdl_preprocessing")


def spec(shape: Any, dtype: Any, like: Any = None, **kind: bool) -> Any:
    """A Keras tensor of a shape and dtype, ragged or sparse as another one is unless ``kind`` says so."""
    for name in ("sparse", "ragged"):
        if like is not None and getattr(like, name, False):
            kind.setdefault(name, True)
    return keras.KerasTensor(tuple(shape), dtype=dtype, **kind)


class ValuesLayer(keras.layers.Layer, abc.ABC):  # type: ignore[misc]  # Keras has no types
    """Changes each value of a dense, ragged or sparse tensor; the shape stays.

    Attributes:
        output_type: the dtype of what comes out.
        arguments: names of the arguments that recreate the layer, which are its attributes.
    """

    output_type: Any = tf.int64
    arguments: tuple[str, ...] = ()

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("autocast", False)  # ids and strings are no floats
        super().__init__(**kwargs)

    @abc.abstractmethod
    def change(self, values: Any) -> Any:
        """The values for dense values of any shape."""

    def call(self, inputs: Any) -> Any:
        """A tensor of the input's kind and shape."""
        if isinstance(inputs, tf.SparseTensor):
            return tf.SparseTensor(inputs.indices, self.change(inputs.values), inputs.dense_shape)
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.change(inputs.flat_values))
        return self.change(tf.convert_to_tensor(inputs))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the input."""
        return input_shape

    def compute_output_spec(self, inputs: Any) -> Any:
        """The symbolic result of ``call``, without computing it."""
        return spec(inputs.shape, tf.as_dtype(self.output_type).name, inputs)

    def get_config(self) -> dict[str, Any]:
        """The arguments that recreate the layer."""
        return {**super().get_config(), **{name: getattr(self, name) for name in self.arguments}}


def within(ids: Any, count: int, default: int) -> Any:
    """The int64 ids in ``[0, count)``; the default for others."""
    ids = tf.cast(ids, tf.int64)
    return tf.where((ids < 0) | (ids >= count), tf.constant(default, tf.int64), ids)
