"""The interface of what makes minibatches of tasks for the compiled functions of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from elasticdl.data import Shard
from elasticdl_core.shuffling import Reading
from elasticdl_worker.trainers.framework import MinibatchSource
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.tensorflow.types import NestedSpec


class TypedSource(MinibatchSource, Protocol):
    """Minibatches of tasks, for one mode, all of one form.

    Attributes:
        features_spec: nested ``tf.TypeSpec`` of a minibatch of features.
        labels_spec: the same of labels; None in prediction.
    """

    features_spec: NestedSpec
    labels_spec: NestedSpec | None

    def sample(self) -> Tensors:
        """The features of a few records, to run the model on."""

    def first(self, records: int, at: float = 0.0) -> Minibatch | None:
        """Records of the data from a place on, as part of it, or fewer; None if nothing is made of them."""

    def seeded_minibatches(self, shard: Shard, reading: Reading | None, seed: int) -> Iterator[Minibatch]:
        """Reads the minibatches of a shard, so that they follow from its records and a number alone."""
