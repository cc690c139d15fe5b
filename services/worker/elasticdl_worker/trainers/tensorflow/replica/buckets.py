"""Gradients in a few flat arrays, so that the first is on its way while the next is copied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import Tensor, Variable

_BUCKET = 1 << 20
"""Numbers in a bucket; a larger parameter is a bucket of its own."""


class GradientBuckets:
    """The place of each variable's gradient.

    Args:
        variables: those that have gradients, by name.
        bucket: numbers in a bucket.

    Attributes:
        lengths: of each bucket.
    """

    def __init__(self, variables: Mapping[str, Variable], bucket: int = _BUCKET) -> None:
        self._shapes = {name: cast("list[int]", variable.shape.as_list()) for name, variable in variables.items()}
        self._names: list[list[str]] = []
        self.lengths: list[int] = []
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            if not self.lengths or self.lengths[-1] + size > bucket:
                self._names.append([])
                self.lengths.append(0)
            self._names[-1].append(name)
            self.lengths[-1] += size

    def pack(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """The buckets of gradients; to be called while tracing."""
        return [tf.concat([tf.reshape(gradients[name], [-1]) for name in names], 0) for names in self._names]

    def unpack(self, buckets: Sequence[Tensor]) -> dict[str, Tensor]:
        """The gradients in buckets; to be called while tracing."""
        found: dict[str, Tensor] = {}
        for names, values in zip(self._names, buckets, strict=True):
            parts = tf.split(values, [math.prod(self._shapes[name]) for name in names])
            found |= {name: tf.reshape(part, self._shapes[name]) for name, part in zip(names, parts, strict=True)}
        return found

    def finite(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Whether each bucket is finite, without packing it; to be called while tracing."""
        return [
            tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(gradients[name])) for name in names]))
            for names in self._names
        ]

    def find_not_finite(self, finite: Sequence[bool]) -> str:
        """Names of the gradients in the first bucket that is not finite; empty if all are.

        Args:
            finite: of each bucket.
        """
        return next((", ".join(names) for names, good in zip(self._names, finite, strict=True) if not good), "")
