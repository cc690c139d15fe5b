"""A layer that reads numbers from strings."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable


@serializable
class ToNumber(ValuesLayer):
    """Each value as a number.

    Args:
        out_type: the TensorFlow type of the numbers.
        default_value: what an empty string stands for.
        kwargs: arguments of any layer.

    Raises:
        ValueError: the type is none of numbers.
    """

    arguments = ("out_type", "default_value")

    def __init__(self, out_type: Any, default_value: float, **kwargs: Any) -> None:
        kind = tf.as_dtype(out_type)
        if not (kind.is_integer or kind.is_floating):
            raise ValueError(f"{out_type} is no type of numbers")
        super().__init__(**kwargs)
        self.out_type = kind.name
        self.output_type = kind
        self.default_value = default_value

    def change(self, values: Any) -> Any:
        """The numbers that strings say, or numbers of another type."""
        if values.dtype != tf.string:
            return tf.cast(values, self.output_type)
        text = tf.where(values == "", tf.constant(str(self.default_value)), values)
        if self.output_type in (tf.int32, tf.int64, tf.float32, tf.float64):
            return tf.strings.to_number(text, self.output_type)
        wide = tf.int64 if self.output_type.is_integer else tf.float64  # what to_number cannot make
        return tf.cast(tf.strings.to_number(text, wide), self.output_type)
