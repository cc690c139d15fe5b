"""A layer that rounds numbers to ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable, within


@serializable
class RoundIdentity(ValuesLayer):
    """The nearest integer of each number, as int64.

    Args:
        num_buckets: ids are in ``[0, num_buckets)``.
        default_value: the id of numbers elsewhere.
        kwargs: arguments of any layer.
    """

    arguments = ("num_buckets", "default_value")

    def __init__(self, num_buckets: int, default_value: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_buckets = num_buckets
        self.default_value = default_value

    def change(self, values: Any) -> Any:
        """The ids of numbers."""
        return within(tf.round(values), self.num_buckets, self.default_value)
