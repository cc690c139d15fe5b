"""Runs a user's record-by-record ``map`` functions on whole minibatches: one call in place of hundreds.

A function of one record costs TensorFlow 10 to 30 µs each time, most of it dispatch. ``tf.vectorized_map`` derives
the function of a minibatch from it. What it cannot derive, or what comes out different (random functions, say), runs
record by record as ever: in ``tf.data``, or in one compiled loop over the records of a minibatch.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from elasticdl_worker.trainers.tensorflow.drawing import operations_of
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.input.converters import register_converters
from elasticdl_worker.trainers.tensorflow.types import (
    Dataset,
    MapDataset,
    Nested,
    NestedSpec,
    ShuffleDataset,
    Tensor,
    TracedFunction,
)

_MAPS = ("_MapDataset", "_ParallelMapDataset")
_TRANSPARENT = ("_PrefetchDataset", "_OptionsDataset")


@dataclass(frozen=True)
class MapChain:
    """A dataset as a chain of maps over its source, and perhaps a shuffle at its end.

    Attributes:
        maps: the maps' traced functions of flat tensors, first one first.
        mapped: the dataset after its maps, record by record.
        shuffle: buffer size and seed of the shuffle; None without one.
    """

    maps: tuple[TracedFunction, ...]
    mapped: Dataset
    shuffle: tuple[int, int] | None = None


def find_map_chain(dataset: Dataset, source: Dataset) -> MapChain | None:
    """Takes a dataset apart; None if it holds anything but maps of plain tensors and a last shuffle."""
    maps: list[TracedFunction] = []
    shuffle: tuple[int, int] | None = None
    mapped = dataset
    while dataset is not source:
        inputs, kind = dataset._inputs(), type(dataset).__name__
        if len(inputs) != 1 or not _plain(dataset.element_spec):
            return None
        if kind in _MAPS:
            maps.append(cast(MapDataset, dataset)._map_func.function)
        elif kind == "_ShuffleDataset" and not maps and shuffle is None:
            shuffled = cast(ShuffleDataset, dataset)
            shuffle = int(shuffled._buffer_size), int(shuffled._seed2)
            mapped = inputs[0]
        elif kind not in _TRANSPARENT:
            return None
        dataset = inputs[0]
    return MapChain(tuple(reversed(maps)), mapped, shuffle) if maps and _plain(source.element_spec) else None


def vectorize(chain: MapChain) -> Callable[..., Nested]:
    """A function of a minibatch of raw records that gives the chain's elements, in the records' order.

    Args:
        chain: what to do with each record.

    Returns:
        The function, to be traced; tracing raises whatever TensorFlow says of what it cannot vectorize.
    """
    register_converters()

    def one(record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        flat: Sequence[Tensor] = record
        for function in chain.maps:
            flat = tf.nest.flatten(function(*flat))
        return tuple(flat)

    def minibatch(*parts: Nested) -> Nested:
        flat = tuple(tf.nest.flatten(parts))
        found = tf.vectorized_map(one, flat, fallback_to_while_loop=False)
        specs = tf.nest.flatten(chain.mapped.element_spec)
        shaped = [
            tf.ensure_shape(value, tf.TensorShape([None]).concatenate(spec.shape))
            for value, spec in zip(found, specs, strict=True)
        ]
        return tf.nest.pack_sequence_as(chain.mapped.element_spec, shaped)

    return minibatch


def one_by_one(chain: MapChain, threads: int) -> Callable[..., Nested]:
    """A function of a minibatch of raw records that runs the chain's maps record by record, without ``tf.data``.

    Args:
        chain: what to do with each record.
        threads: that may run it.

    Returns:
        The function, to be traced.
    """
    specs = tuple(tf.nest.flatten(chain.mapped.element_spec))
    # Functions with a state, such as those of Python, run for one record after the other, as in a dataset.
    at_once = 1 if any(map(_has_state, chain.maps)) else max(1, threads)

    def one(record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        flat: Sequence[Tensor] = record
        for function in chain.maps:
            flat = tf.nest.flatten(function(*flat))
        return tuple(tf.ensure_shape(value, spec.shape) for value, spec in zip(flat, specs, strict=True))

    def minibatch(*parts: Nested) -> Nested:
        flat = tuple(tf.nest.flatten(parts))
        found = tf.map_fn(one, flat, fn_output_signature=specs, parallel_iterations=at_once)
        return tf.nest.pack_sequence_as(chain.mapped.element_spec, list(found))

    return minibatch


@contextlib.contextmanager
def silence_tensorflow() -> Iterator[None]:
    """Keeps TensorFlow from printing the graph of what it cannot vectorize, hundreds of lines; it raises as well."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def equal_values(first: Nested, second: Nested) -> bool:
    """Whether two nested structures of arrays hold the same values, floating-point ones to rounding."""
    for one, other in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        a, b = np.asarray(one), np.asarray(other)
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.dtype.kind == "f":
            if not np.allclose(a, b, rtol=1e-5, atol=1e-7, equal_nan=True):
                return False
        elif not np.array_equal(a, b):
            return False
    return True


def _has_state(function: TracedFunction) -> bool:
    """Whether a traced function calls Python, or operations that keep a state."""
    from tensorflow.python.framework import op_def_registry

    known = map(op_def_registry.get, operations_of(function.graph.as_graph_def()))
    return any(one is not None and one.is_stateful for one in known)


def _plain(spec: NestedSpec) -> bool:
    return all(isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec))
