"""Prints what every layer gives, for eager runs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import TextIO

import numpy as np

from elasticdl_worker.trainers.plain_arrays import plain_array
from elasticdl_worker.trainers.tensorflow.framework import keras, tf
from elasticdl_worker.trainers.tensorflow.types import Layer, Tensor


@contextlib.contextmanager
def print_layer_outputs(stream: TextIO | None = None) -> Iterator[None]:
    """While active, each layer that is called eagerly prints its name, output shape, dtype and value range.

    Args:
        stream: where to print; stderr by default.
    """
    out = stream or sys.stderr
    kind = keras.layers.Layer
    original = kind.__call__

    @functools.wraps(original)
    def call(self: Layer, *args: object, **kwargs: object) -> object:
        result = original(self, *args, **kwargs)
        if tf.executing_eagerly() and not isinstance(self, keras.Model | keras.layers.InputLayer):
            for value in tf.nest.flatten(result):
                if isinstance(value, tf.Tensor):
                    print(f"{type(self).__name__:<20} {self.name:<24} {summary(value)}", file=out, flush=True)
        return result

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = original


def summary(tensor: Tensor) -> str:
    """Shape, dtype, range and first values of an eager tensor."""
    values = plain_array(tensor)
    text = f"{tensor.dtype.name}{list(tensor.shape)}"
    if not values.size or values.dtype.kind not in "fiub":
        return text
    numbers = values.astype(np.float64)
    first = ", ".join(f"{v:.4g}" for v in numbers.ravel()[:4])
    text += f" min {numbers.min():.4g} mean {numbers.mean():.4g} max {numbers.max():.4g} first [{first}]"
    bad = int(values.size - np.isfinite(numbers).sum())
    return f"{text} NOT FINITE: {bad} of {values.size}" if bad else text
