"""A layer that shifts and scales numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable


@serializable
class Normalizer(ValuesLayer):
    """``(x - subtractor) / divisor`` of each number, as float32.

    Args:
        subtractor: what is taken from each.
        divisor: by what the rest is divided.
        kwargs: arguments of any layer.

    Raises:
        ValueError: the divisor is 0.
    """

    output_type = tf.float32
    arguments = ("subtractor", "divisor")

    def __init__(self, subtractor: float, divisor: float, **kwargs: Any) -> None:
        if divisor == 0:
            raise ValueError("the divisor of Normalizer must not be 0")
        super().__init__(**kwargs)
        self.subtractor = subtractor
        self.divisor = divisor

    def change(self, values: Any) -> Any:
        """The numbers, shifted and scaled."""
        return (tf.cast(values, tf.float32) - self.subtractor) / self.divisor
