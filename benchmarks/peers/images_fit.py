"""Keras on its own: ``fit`` in one process with a small convolutional network, the data in memory."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from benchmarks.peers.keras_fit import StopAt
from benchmarks.training.images import pixels_and_labels
from benchmarks.training.models import use_threads
from benchmarks.training.processes import Train
from benchmarks.training.zoo import images

_HELD: dict[str, Any] = {}


def start(arguments: dict[str, Any]) -> Train:
    """Compiles the model of the zoo, as a user would.

    Args:
        arguments: ``batch``, and ``threads`` of TensorFlow.
    """
    use_threads(arguments["threads"])
    batch = int(arguments["batch"])
    pixels, labels = pixels_and_labels()
    data = tf.data.Dataset.from_tensor_slices((pixels[..., None], labels))
    data = data.shuffle(len(labels), reshuffle_each_iteration=True).batch(batch, drop_remainder=True).prefetch(4)
    data = data.repeat()
    model = images.forward()
    model.compile(optimizer=images.optimizer(), loss=images.loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    _HELD.update(variables=variables, values=[variable.numpy() for variable in variables])

    def train(seconds: float) -> int:
        stop = StopAt(model, time.monotonic() + seconds)
        model.fit(data, steps_per_epoch=1_000_000, epochs=1, verbose=0, callbacks=[stop])
        return stop.batches * batch

    return train


def begin_anew() -> None:
    """The model and the optimizer are as they were at first."""
    for variable, value in zip(_HELD["variables"], _HELD["values"], strict=True):
        variable.assign(value)
