"""Minibatches by a ``feed`` of columns, in TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from elasticdl.data import DataReader, Shard
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.shuffling import Reading
from elasticdl_worker.trainers.column_feed import ColumnFeed
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import NestedSpec
from elasticdl_worker.user_code import ModelModule

_TRIED_RECORDS = 32


class ColumnPipeline(ColumnFeed):
    """Minibatches of tasks, for one mode, whose form the first records tell.

    Attributes:
        features_spec: nested ``tf.TypeSpec`` of a minibatch of features.
        labels_spec: the same of labels; None in prediction.

    Raises:
        DataError: the first records cannot be read.
        UserCodeError: ``feed`` raised, or gave what is no tensor.
    """

    def __init__(self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int) -> None:
        super().__init__(reader, module, mode, minibatch_size)
        self._form: tuple[NestedSpec | None, ...] = ()
        found = self.first(_TRIED_RECORDS)
        if found is None:
            raise DataError("the first records cannot be read", fix="look at them: elasticdl data inspect --verify")
        self.features_spec = tf.nest.map_structure(_open_spec, found.features)
        self.labels_spec = None if found.labels is None else tf.nest.map_structure(_open_spec, found.labels)
        self._form = self.features_spec, self.labels_spec

    def seeded_minibatches(self, shard: Shard, reading: Reading | None, seed: int) -> Iterator[Minibatch]:
        """Minibatches that follow from the records of a shard and a number alone, also of a ``feed`` that draws."""
        if self._seen.draws:
            tf.random.set_seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)
        return self.minibatches(shard, reading)

    def _given(self, columns: Any) -> tuple[Tensors, Tensors]:
        features, labels = super()._given(columns)
        for given, spec, what in zip((features, labels), self._form, ("features", "labels"), strict=False):
            if spec is not None and not _fits(given, spec):
                raise UserCodeError(
                    f"feed in {self._module.path} gives {what} {tf.nest.map_structure(_open_spec, given)}, and of "
                    f"the first records {spec}",
                    fix="give the same names, types and sizes: pad lists to one length, or give a RaggedTensor",
                )
        return features, labels

    def _as_tensors(self, given: Any) -> Tensors:
        return tf.nest.map_structure(
            lambda one: one if tf.is_tensor(one) else tf.convert_to_tensor(one), given, expand_composites=False
        )

    def _leaves(self, tensors: Tensors) -> Sequence[Any]:
        return tf.nest.flatten(tensors)

    def _values(self, tensor: Any) -> Any:
        return tensor.numpy() if isinstance(tensor, tf.Tensor) else None


def _open_spec(value: Any) -> Any:
    """The spec of a tensor of any number of records."""
    spec = tf.type_spec_from_value(value)
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, spec.dtype)
    return tf.TensorSpec(shape, spec.dtype)


def _fits(given: Any, spec: Any) -> bool:
    """Whether tensors have the structure and the form of a spec."""
    try:
        tf.nest.assert_same_structure(given, spec, expand_composites=False)
    except (TypeError, ValueError):
        return False
    return all(map(lambda one, form: form.is_compatible_with(one), tf.nest.flatten(given), tf.nest.flatten(spec)))
