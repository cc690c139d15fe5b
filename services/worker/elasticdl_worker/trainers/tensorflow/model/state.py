"""The variables of a model that no gradient changes, and how what several workers make of them becomes one.

Whatever a worker did in its minibatches, the parameter servers are told it as ``x`` becomes ``keep * x + add``, so
that the changes of workers come one after the other. What is kept follows from what the variable is (see ADR 12):

- a moving average of BatchNormalization keeps ``momentum`` to the power of its updates;
- an integer is a counter and keeps all: the changes of all workers are added;
- what else there is keeps nothing: the last worker's value counts.

A variable's ``aggregation`` overrules that: ``sum`` adds, ``only_first_replica`` lets the last worker's value count.
So does what a layer says by ``state_merging``; a running maximum or minimum is seen in the graph of a training step.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.state_merging import Merge, declared_merges, not_of_state
from elasticdl_worker.trainers.tensorflow.framework import keras, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.types import (
    Graph,
    KerasModel,
    KerasVariable,
    Layer,
    Tensor,
)

_AVERAGES = {
    "momentum": ("moving_mean", "moving_variance", "moving_stddev"),
    "renorm_momentum": ("renorm_mean", "renorm_stddev"),
}
"""Variables of BatchNormalization by the attribute that has their momentum."""
_EXTREMES = {"Maximum": Merge.MAX, "Minimum": Merge.MIN}
_WIDTHS = {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}
_SHARED = {"bool", *(f"{kind}{width}" for kind, widths in _WIDTHS.items() for width in widths)}


@dataclass(frozen=True)
class _Average:
    """A moving average: the layer that updates it, and what it keeps of the old value then."""

    layer: Layer
    momentum: float


class ModelState:
    """The state of a model.

    Args:
        keras_model: the model, built.
        variables: its Keras variables that are not trained, by name.

    Attributes:
        variables: the ``tf.Variable`` of each, by name.
        rules: how changes of each are merged.
        unmerged: names of those that no rule makes of several parts of an update.
        unset: names of those that begin with numbers that are none (NaN).

    Raises:
        UserCodeError: a variable is of a type that cannot be shared, or a layer says what is no rule.
    """

    def __init__(self, keras_model: KerasModel, variables: Mapping[str, KerasVariable]) -> None:
        self._averages = _moving_averages(keras_model)
        self._aggregated: set[str] = set()
        self.variables = {name: raw_variable(variable) for name, variable in variables.items()}
        self.rules = {name: self._rule(name, variable) for name, variable in variables.items()}
        self.unmerged: set[str] = set()
        self.unset = {
            name
            for name, one in self.variables.items()
            if one.dtype.is_floating and bool(tf.reduce_any(tf.math.is_nan(one)))
        }
        self._declare(keras_model)

    def _declare(self, keras_model: KerasModel) -> None:
        """Takes what layers say of their state."""
        names = {id(variable): name for name, variable in self.variables.items()}
        self._declared: set[str] = set()
        for layer in keras_model._flatten_layers():
            for key, rule in declared_merges(layer, str(layer.name)).items():
                held = getattr(layer, key, None)
                name = None if held is None else names.get(id(raw_variable(held)))
                if name is None:
                    raise not_of_state(str(layer.name), key)
                self.rules[name] = rule
                self._declared.add(name)

    @property
    def untold(self) -> list[str]:
        """Numbers of which no layer says how they are merged; frozen weights are none of them."""
        return [
            name
            for name, variable in self.variables.items()
            if self.rules[name] in (Merge.MEAN, Merge.SUM) and name not in self._declared
            if variable.dtype != tf.bool and not variable.trainable and name not in self._aggregated
        ]

    @property
    def unknown(self) -> list[str]:
        """Floats of which nothing is known but that no optimizer changes them; frozen weights are none of them."""
        return [
            name for name in self.untold if self.rules[name] is Merge.MEAN and self.variables[name].dtype.is_floating
        ]

    def learn(self, graph: Graph) -> None:
        """Finds running maxima and minima in the graph of a training step: ``x.assign(tf.maximum(x, ...))``."""
        inner = {id(outer): held for outer, held in graph.captures}
        for name in self.unknown:
            handle = inner.get(id(self.variables[name].handle))
            uses = [one for one in graph.get_operations() if one.inputs and one.inputs[0] is handle]
            writes = [one for one in uses if one.type != "ReadVariableOp"]
            if handle is None or len(writes) != 1 or writes[0].type != "AssignVariableOp":
                continue
            made = _source(writes[0].inputs[1]).op
            read = [_source(one).op for one in made.inputs]
            of_itself = any(one.type == "ReadVariableOp" and one.inputs[0] is handle for one in read)
            if of_itself and made.type in _EXTREMES:
                self.rules[name] = _EXTREMES[made.type]

    @contextlib.contextmanager
    def count_updates(self) -> Iterator[Callable[[], dict[str, float]]]:
        """Counts the updates of moving averages by what is run or traced inside.

        Yields:
            A function that says what each variable keeps of its value from before.
        """
        layers = {id(average.layer): average.layer for average in self._averages.values()}
        counts = {key: _Calls(layer) for key, layer in layers.items()}

        def keeps() -> dict[str, float]:
            return {name: self._keep(name, counts) for name in self.variables}

        for call in counts.values():
            call.begin()
        try:
            yield keeps
        finally:
            for call in counts.values():
                call.end()

    def read_values(self) -> list[Tensor]:
        """The values now; to be called while tracing."""
        return [tf.identity(variable) for variable in self.variables.values()]

    def compute_changes(self, before: list[Tensor], keeps: Mapping[str, float]) -> tuple[list[Tensor], Tensor]:
        """Computes the changes of the variables; to be called while tracing.

        Args:
            before: from ``before``.
            keeps: what each keeps of its old value.

        Returns:
            What is added to that, for each, and whether the variable has changed at all, for each.
        """
        added, changed = [], [tf.zeros([0], tf.bool)]
        for old, (name, variable) in zip(before, self.variables.items(), strict=True):
            new, keep = tf.identity(variable), keeps[name]
            if keep == 0 or math.isinf(keep):
                add = new
            elif keep == 1:
                add = new - old
            else:
                # In double precision: what is added is small against what is kept, and must not be its rounding.
                add = tf.cast(tf.cast(new, tf.float64) - keep * tf.cast(old, tf.float64), new.dtype)
            added.append(add)
            changed.append(tf.reshape(tf.reduce_any(tf.not_equal(new, old)), [1]))
        return added, tf.concat(changed, 0)

    def _rule(self, name: str, variable: KerasVariable) -> Merge:
        raw = raw_variable(variable)
        if raw.dtype.name not in _SHARED:
            raise UserCodeError(
                f"the variable {name} of the model is {raw.dtype.name}, which workers cannot share",
                fix="keep it in float32, in an integer type or as bool, or outside the model",
            )
        aggregation = str(getattr(variable, "aggregation", "")).lower().rpartition(".")[2]
        if id(raw) in self._averages:
            return Merge.AVERAGE
        if aggregation == "sum" and raw.dtype != tf.bool:
            self._aggregated.add(name)
            return Merge.SUM
        if aggregation.startswith("only_first"):
            self._aggregated.add(name)
            return Merge.MEAN
        return Merge.SUM if raw.dtype.is_integer else Merge.MEAN

    def _keep(self, name: str, counts: Mapping[int, _Calls]) -> float:
        if self.rules[name] is not Merge.AVERAGE:
            return self.rules[name].keep
        average = self._averages[id(self.variables[name])]
        updates = counts[id(average.layer)].count
        return float(average.momentum) ** updates if updates else 0.0


def _source(tensor: Tensor) -> Tensor:
    """The tensor before it was passed on."""
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


class _Calls:
    """Counts the calls of a layer between ``begin`` and ``end``."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._calls = 0
        self._unknown = False

    @property
    def count(self) -> int:
        """The number of calls; 0 if there may have been more, because a loop or a branch of the graph has one."""
        return 0 if self._unknown else self._calls

    def begin(self) -> None:
        """Begins to count."""
        original, graph = self._layer.call, tf.compat.v1.get_default_graph()

        @functools.wraps(original)
        def counted(*args: object, **kwargs: object) -> object:
            self._calls += 1
            self._unknown |= tf.compat.v1.get_default_graph() is not graph
            return original(*args, **kwargs)

        # Not by assignment, which Keras follows up.
        vars(self._layer)["call"] = counted

    def end(self) -> None:
        """Ends counting."""
        del vars(self._layer)["call"]


def _moving_averages(keras_model: KerasModel) -> dict[int, _Average]:
    """The moving averages of BatchNormalization layers, by the identity of their ``tf.Variable``."""
    found = {}
    for layer in keras_model._flatten_layers():
        if not _is_batch_normalization(layer):
            continue
        for attribute, names in _AVERAGES.items():
            momentum = getattr(layer, attribute, None)
            if not isinstance(momentum, float | int):
                continue
            for name in names:
                variable = getattr(layer, name, None)
                # With renormalisation the variance is made from the average of the deviation.
                derived = name == "moving_variance" and getattr(layer, "renorm", False)
                if variable is not None and not derived:
                    found[id(raw_variable(variable))] = _Average(layer, float(momentum))
    return found


def _is_batch_normalization(layer: Layer) -> bool:
    """Whether a layer updates its averages as Keras' own does: a subclass with its own ``call`` may do otherwise."""
    kinds = [kind for kind in type(layer).__mro__ if kind.__name__.startswith("BatchNormalization")]
    own = str(getattr(type(layer).call, "__module__", "")).split(".")[0]
    return any(kind in keras.layers.BatchNormalization.__mro__ for kind in kinds) and own in ("keras", "tf_keras")
