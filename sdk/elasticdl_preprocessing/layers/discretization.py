"""A layer that tells in which of some ranges a number lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable


@serializable
class Discretization(ValuesLayer):
    """The number of each value's bin, as int64: 0 below the first boundary, boundaries belong to the bin above.

    Args:
        bins: boundaries in ascending order.
        kwargs: arguments of any layer.
    """

    arguments = ("bins",)

    def __init__(self, bins: Sequence[float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bins = list(bins)

    def num_bins(self) -> int:
        """The number of bins: one more than boundaries."""
        return len(self.bins) + 1

    def change(self, values: Any) -> Any:
        """The bins of numbers."""
        boundaries = [float(one) for one in self.bins]
        return tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=boundaries), tf.int64)
