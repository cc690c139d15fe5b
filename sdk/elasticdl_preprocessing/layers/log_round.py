"""A layer that rounds logarithms."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable, within


@serializable
class LogRound(ValuesLayer):
    """The rounded logarithm of each number, as int64.

    Args:
        num_bins: ids are in ``[0, num_bins)``.
        default_value: the id of numbers whose logarithm is elsewhere.
        base: base of the logarithm; e if not given.
        kwargs: arguments of any layer.
    """

    arguments = ("num_bins", "default_value", "base")

    def __init__(self, num_bins: int, default_value: int = 0, base: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_bins = num_bins
        self.default_value = default_value
        self.base = base

    def change(self, values: Any) -> Any:
        """The ids of numbers."""
        logarithm = tf.math.log(tf.cast(values, tf.float64))
        if self.base is not None:
            logarithm /= tf.math.log(tf.constant(self.base, tf.float64))
        return within(tf.round(logarithm), self.num_bins, self.default_value)
