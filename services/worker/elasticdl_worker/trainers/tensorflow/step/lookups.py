"""Finds the rows that minibatches need: which ids the model asks for, each of them once, and where it goes.

The ids come from the model itself: its traced forward pass, pruned to what the ids depend on. Ids that are a feature
as it stands need no program at all, and lookups of the same ids in several tables are counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticdl.layers import lookup
from elasticdl_core.contract import Subject, refusal
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.model import NO_ID
from elasticdl_worker.trainers.framework import Lookups
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.drawing import draws, operations_of
from elasticdl_worker.trainers.tensorflow.framework import raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel, is_seed
from elasticdl_worker.trainers.tensorflow.model.embeddings import ZEROS_NAME, CollectScope, refuse_outside
from elasticdl_worker.trainers.tensorflow.types import (
    Features,
    Graph,
    Predictions,
    PrunableFunction,
    Shape,
    Tensor,
)

_Unique = Callable[[list[list[Tensor]]], list[tuple[Tensor, list[Tensor]]]]
"""Of the tensors of ids of each group of tables: their distinct ids, and an index tensor for each tensor."""


class ModelCall(Protocol):
    """Calls the model."""

    def __call__(self, features: Features, scope: lookup.Scope | None, /, *, training: bool) -> Predictions: ...


@dataclass(frozen=True)
class _Traced:
    """The lookups of a model, as tracing found them.

    Attributes:
        ids: gives the distinct tensors of ids of a minibatch.
        groups: tables that look up the same ids, and the places of these in ``ids``, one for each lookup.
        shapes: shape of each tensor of ids, with open dimensions.
    """

    ids: Callable[[Features], list[Tensor]]
    groups: list[tuple[list[str], list[int]]]
    shapes: list[Shape]


class LookupCollector:
    """Finds the rows that minibatches of a model need.

    Args:
        model: the model.
        call: calls it with features and a scope.
        eager: run without compilation.
    """

    def __init__(self, model: PreparedModel, call: ModelCall, *, eager: bool = False) -> None:
        self._model = model
        self._call = call
        self._eager = eager
        self._traced: dict[bool, _Traced] = {}
        self._uniques: dict[tuple[bool, int], _Unique] = {}

    def prepare(self, *, training: bool) -> None:
        """Traces what ``collect`` needs, so that another thread can run it.

        Raises:
            UserCodeError: ids do not follow from the features alone.
        """
        if training not in self._traced:
            self._traced[training] = self._trace(training)

    def collect(self, batches: Sequence[Features], *, training: bool) -> Lookups:
        """Finds the rows of minibatches together, from their features.

        Raises:
            DataError: an id outside the range of a closed table, or the one int64 that is none.
            UserCodeError: ids that do not follow from the features alone.
        """
        self.prepare(training=training)
        traced = self._inspect_now(batches, training) if self._eager else self._traced[training]
        ids = [traced.ids(features) for features in batches]
        wanted = [[tensors[place] for tensors in ids for place in places] for _, places in traced.groups]
        found = Lookups()
        results = self._unique(training, len(batches), traced)(wanted)
        for (tables, _), (unique, inverse) in zip(traced.groups, results, strict=True):
            array = np.asarray(memoryview(unique))
            for table in tables:
                self._check_range(table, array)
                found.unique[table], found.inverse[table] = array, inverse
        return found

    def _unique(self, training: bool, count: int, traced: _Traced) -> _Unique:
        if self._eager:
            return _merge
        if (training, count) not in self._uniques:
            specs = [
                [tf.TensorSpec(traced.shapes[place], tf.int64) for place in places] * count
                for _, places in traced.groups
            ]
            self._uniques[training, count] = CompiledFunction(_merge, (specs,))
        return self._uniques[training, count]

    def _inspect_now(self, batches: Sequence[Features], training: bool) -> _Traced:
        scopes = [CollectScope() for _ in batches]
        for scope, features in zip(scopes, batches, strict=True):
            self._call(features, scope, training=training)
        flat = [[ids for calls in scope.ids.values() for ids in calls] for scope in scopes]
        groups, at = [], 0
        for table, calls in scopes[0].ids.items():
            groups.append(([table], list(range(at, at + len(calls)))))
            at += len(calls)
        waiting = iter(flat)
        return _Traced(lambda features: next(waiting), groups, [])

    def _trace(self, training: bool) -> _Traced:
        scope = CollectScope()
        distinct: list[Tensor] = []
        flat = tf.nest.flatten(self._model.features_spec, expand_composites=True)

        def trace(*tensors: Tensor) -> list[Tensor]:
            # Keras 2 knows graphs of this kind by their name, and makes layers of version 1 in them; with the first
            # one that a user's `call` makes it turns the classes of all others as well.
            tf.compat.v1.get_default_graph().name = "collect"
            features = tf.nest.pack_sequence_as(self._model.features_spec, list(tensors), expand_composites=True)
            self._call(features, scope, training=training)
            for calls in scope.ids.values():
                distinct.extend(source for ids in calls if not _holds(distinct, source := _source(ids)))
            return list(distinct)

        whole = tf.compat.v1.wrap_function(trace, [tf.TensorSpec(s.shape, s.dtype) for s in flat])
        feeds = whole.inputs[: len(flat)]
        groups: list[tuple[list[str], list[int]]] = []
        for table, calls in scope.ids.items():
            places = [_place(distinct, _source(ids)) for ids in calls]
            same = next((tables for tables, others in groups if others == places), None)
            if same is None:
                groups.append(([table], places))
            else:
                same.append(table)
        computed = [place for place, ids in enumerate(distinct) if not _holds(feeds, ids)]
        named = sorted(table for tables, places in groups if set(places) & set(computed) for table in tables)
        program = _program(whole, feeds, distinct, f"the ids of the embedding {', '.join(named)}", self._model)
        return _Traced(program, groups, [_open_shape(ids) for ids in distinct])

    def _check_range(self, table: str, ids: NDArray[np.int64]) -> None:
        limit = self._model.tables[table].input_dim
        if limit is not None:
            refuse_outside(table, ids, limit)
        elif ids.size and int(ids.min()) == NO_ID:
            raise DataError(
                f"embedding {table}: {NO_ID} is the one int64 that is no id", fix="map it to another id in feed"
            )


def _program(
    whole: PrunableFunction, feeds: list[Tensor], distinct: list[Tensor], what: str, model: PreparedModel
) -> Callable[[Features], list[Tensor]]:
    """A function from features to the distinct tensors of ids; ``what`` they are is for errors."""
    given = [_place(feeds, ids) if _holds(feeds, ids) else None for ids in distinct]
    places = [place for place in given if place is not None]
    if len(places) == len(distinct):

        def pick(features: Features) -> list[Tensor]:
            flat = tf.nest.flatten(features, expand_composites=True)
            return [flat[place] for place in places]

        return pick
    # Only what the ids depend on is kept: no layer runs, no moving average is touched.
    pruned = whole.prune(feeds, whole.outputs)
    if any(ZEROS_NAME in operation.name for operation in pruned.graph.get_operations()):
        raise UserCodeError(
            "the ids of an embedding depend on the rows of another one",
            fix="compute ids from the features alone, or raise --embedding_threshold_bytes",
        )
    _require_repeatable(pruned.graph, what, model)
    return lambda features: list(pruned(*tf.nest.flatten(features, expand_composites=True)))


def _require_repeatable(graph: Graph, what: str, model: PreparedModel) -> None:
    """Refuses ids that the step would compute anew and find to be others than those whose rows were fetched."""
    if any(draws(operation) for operation in operations_of(graph.as_graph_def())):
        raise refusal(Subject.LAYER, "random_ids", what)
    # All that the whole model captures stays; what the ids need of it has consumers.
    captured = [external for external, internal in graph.captures if internal.consumers()]
    handles = {id(external) for external in captured}
    for name, variable in model.trainable.items():
        if id(variable.handle) in handles:
            raise refusal(Subject.LAYER, "trained_ids", f"{what}, by the weight {name},")
    # A generator of Keras keeps its seed in a variable, which each draw changes.
    weights = {id(raw_variable(variable).handle) for variable in model.keras_model.weights}
    if any(_is_seed(external) for external in captured if id(external) not in weights):
        raise refusal(Subject.LAYER, "random_ids", what)


def _is_seed(captured: Tensor) -> bool:
    data = getattr(captured, "_handle_data", None)
    shapes = getattr(data, "shape_and_type", ()) if data is not None and data.is_set else ()
    return any(is_seed(tf.as_dtype(entry.dtype), [dim.size for dim in entry.shape.dim]) for entry in shapes)


def _merge(groups: list[list[Tensor]]) -> list[tuple[Tensor, list[Tensor]]]:
    """For each list of tensors of ids: its distinct ids, and an index tensor for each of them."""
    merged = []
    for calls in groups:
        unique, index = tf.unique(tf.concat([tf.reshape(ids, [-1]) for ids in calls], 0), out_idx=tf.int32)
        parts = tf.split(index, [tf.size(ids) for ids in calls], num=len(calls))
        inverse = [tf.reshape(part, tf.shape(ids)) for part, ids in zip(parts, calls, strict=True)]
        merged.append((unique, inverse))
    return merged


def _open_shape(tensor: Tensor) -> Shape:
    rank = tensor.shape.rank
    return tf.TensorShape(None if rank is None else [None] * rank)


def _source(tensor: Tensor) -> Tensor:
    """The tensor that a chain of identities passes on."""
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def _holds(tensors: Sequence[Tensor], wanted: Tensor) -> bool:
    return any(tensor is wanted for tensor in tensors)


def _place(tensors: Sequence[Tensor], wanted: Tensor) -> int:
    return next(place for place, tensor in enumerate(tensors) if tensor is wanted)
