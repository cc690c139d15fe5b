"""A layer that hashes strings and integers into bins."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable


@serializable
class Hashing(ValuesLayer):
    """The 64-bit FarmHash fingerprint of each value's text, modulo the number of bins, as int64.

    Args:
        num_bins: number of bins.
        kwargs: arguments of any layer.

    Raises:
        ValueError: there is no bin.
    """

    arguments = ("num_bins",)

    def __init__(self, num_bins: int, **kwargs: Any) -> None:
        if num_bins is None or num_bins <= 0:
            raise ValueError(f"num_bins must be over 0, not {num_bins}")
        super().__init__(**kwargs)
        self.num_bins = num_bins

    def change(self, values: Any) -> Any:
        """The bins of strings or integers."""
        text = tf.as_string(values) if values.dtype.is_integer else values
        return tf.strings.to_hash_bucket_fast(text, self.num_bins)
