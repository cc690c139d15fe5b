"""Builds the user's model and names everything in it that is trained or shared."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import structlog

from elasticdl.layers import lookup
from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import ConstraintSpec, DenseKind, DenseSpec, TableSpec
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.framework import is_legacy, keras, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model import embeddings
from elasticdl_worker.trainers.tensorflow.model.constraints import constraint_of
from elasticdl_worker.trainers.tensorflow.model.contract import check_model
from elasticdl_worker.trainers.tensorflow.model.layer_origins import layer_origins
from elasticdl_worker.trainers.tensorflow.model.loading import begin_build
from elasticdl_worker.trainers.tensorflow.model.optimizers import TABLE_WEIGHT, excludes, uses_weight_decay
from elasticdl_worker.trainers.tensorflow.model.state import ModelState
from elasticdl_worker.trainers.tensorflow.model.untracked import refuse_untracked
from elasticdl_worker.trainers.tensorflow.types import (
    Array,
    DType,
    Features,
    Graph,
    KerasModel,
    KerasOptimizer,
    KerasVariable,
    NestedSpec,
    Predictions,
    Tensor,
    Variable,
)
from elasticdl_worker.user_code import ModelModule

_WORKER_STRIDE = 7919
_log = structlog.get_logger(__name__)


class PreparedModel:
    """A built Keras model with names for its parameters.

    Args:
        keras_model: the model, built.
        registry: its embedding tables.
        features_spec: nested ``tf.TypeSpec`` of a minibatch of features.
        roots: directories whose code counts as the user's, for error messages.

    Attributes:
        outputs: names of the outputs; empty for a single one, None for a list without names.
        trainable: variables that the optimizer changes, by name.
        state: the other variables (moving averages, counters, frozen weights), by name.
        merging: how what workers make of the state becomes one.
    """

    def __init__(
        self,
        keras_model: KerasModel,
        registry: embeddings.TableRegistry,
        features_spec: NestedSpec,
        roots: Sequence[Path],
    ) -> None:
        self.keras_model = keras_model
        self.registry = registry
        self.features_spec = features_spec
        self.roots = tuple(roots)
        self.outputs: tuple[str, ...] | None = ()
        names = _unique_names(keras_model.weights)
        trained = {id(variable) for variable in keras_model.trainable_variables}
        self.trainable: dict[str, Variable] = {}
        self._keras_variables: dict[str, KerasVariable] = {}
        others: dict[str, KerasVariable] = {}
        for name, variable in names.items():
            raw = raw_variable(variable)
            if id(variable) in trained:
                if raw.dtype != tf.float32:
                    raise UserCodeError(
                        f"the trainable variable {name} is {raw.dtype.name}",
                        fix="keep weights in float32; for mixed precision use the policy mixed_bfloat16",
                    )
                self.trainable[name] = raw
            else:
                others[name] = variable
            self._keras_variables[name] = variable
        self.merging = ModelState(keras_model, others)
        self.state: dict[str, Variable] = self.merging.variables
        self._assigners: dict[tuple[str, ...], CompiledFunction[None]] = {}

    @property
    def tables(self) -> dict[str, TableSpec]:
        """The embedding tables by name."""
        return self.registry.tables

    @property
    def layers(self) -> Mapping[str, str]:
        """The meaning of layers' names in the module."""
        return layer_origins(self.keras_model)

    def trained_tables(self) -> list[str]:
        """Names of the tables whose layer is trainable."""
        return [name for name, layer in self.registry.layers.items() if layer.trainable]

    def looked_up(self) -> list[str]:
        """Names of the trainable variables that are weights of embeddings."""
        weights = {id(weight) for layer in self.registry.in_graph.values() for weight in layer.weights}
        return [name for name in self.trainable if id(self._keras_variables[name]) in weights]

    def dense_specs(self, optimizer: KerasOptimizer | None = None) -> list[DenseSpec]:
        """Specifications of all dense parameters, as the parameter servers need them."""
        specs, constraints = [], self.constraints()
        for name, variable in (self.trainable | self.state).items():
            kind = DenseKind.TRAINABLE if name in self.trainable else DenseKind.STATE
            decays = optimizer is None or uses_weight_decay(optimizer, self._keras_variables[name])
            specs.append(
                DenseSpec(
                    name,
                    tuple(size or 0 for size in variable.shape),
                    variable.dtype.name,
                    kind,
                    decays,
                    constraints.get(name),
                )
            )
        return specs

    def table_specs(self, optimizer: KerasOptimizer | None = None) -> list[TableSpec]:
        """Specifications of all embedding tables, as the parameter servers need them."""
        if optimizer is None:
            return list(self.tables.values())
        return [replace(spec, weight_decay=not excludes(optimizer, TABLE_WEIGHT)) for spec in self.tables.values()]

    def constraints(self) -> dict[str, ConstraintSpec]:
        """Constraints of trained variables by name.

        Raises:
            UserCodeError: one that the parameter servers cannot carry out.
        """
        found = {name: constraint_of(name, self._keras_variables[name]) for name in self.trainable}
        return {name: constraint for name, constraint in found.items() if constraint is not None}

    def values(self) -> dict[str, Array]:
        """Copies of all dense parameters."""
        return {name: np.array(variable.numpy()) for name, variable in (self.trainable | self.state).items()}

    def assign(self, values: Mapping[str, Array]) -> None:
        """Sets dense parameters, in one compiled call."""
        names = tuple(sorted(values))
        if not names:
            return
        if names not in self._assigners:
            variables = [(self.trainable if name in self.trainable else self.state)[name] for name in names]

            def assign(tensors: list[Tensor]) -> None:
                for variable, tensor in zip(variables, tensors, strict=True):
                    variable.assign(tensor)

            self._assigners[names] = CompiledFunction(assign, ([tf.TensorSpec(v.shape, v.dtype) for v in variables],))
        self._assigners[names]([tf.convert_to_tensor(values[name]) for name in names])

    @property
    def unset(self) -> Collection[str]:
        """Names of state that begins with numbers that are none."""
        return self.merging.unset

    def vary_randomness(self, worker_index: int) -> None:
        """Makes the dropout masks of this worker differ from those of others that built the same model."""
        weights = {id(variable) for variable in self.keras_model.weights}
        for variable in getattr(self.keras_model, "non_trainable_variables", ()):
            raw = raw_variable(variable)
            if id(variable) not in weights and is_seed(raw.dtype, raw.shape):
                raw.assign(raw + tf.constant([0, _WORKER_STRIDE * worker_index % (1 << 31)], raw.dtype))


@dataclass(frozen=True)
class BuildOptions:
    """Options for building a model.

    Attributes:
        threshold_bytes: Keras embeddings larger than this become tables, or begin with the rows of one; None leaves
            all of them to Keras.
        seed: seeds initial values.
        training: whether the model is to be trained.
        alone: whether it is trained in this process alone, where what would be tables are weights in the graph.
    """

    threshold_bytes: int | None
    seed: int = 0
    training: bool = True
    alone: bool = False


def build_model(module: ModelModule, features_spec: NestedSpec, options: BuildOptions) -> PreparedModel:
    """Builds the user's model; names are the same in every process that builds it.

    Args:
        module: the user's module.
        features_spec: nested ``tf.TypeSpec`` of a minibatch of features, with an open first dimension.
        options: see ``BuildOptions``.

    Raises:
        UserCodeError: the model function raised, returned something that is no Keras model, or a model that defines
            what is refused.
    """
    keep: frozenset[str] = frozenset()
    while True:
        begin_build(module, options.seed)
        registry = embeddings.TableRegistry(options.threshold_bytes, options.seed, alone=options.alone, keep=keep)
        with lookup.registering(registry):
            with module.guard("the model function"):
                model = module.build_model()
            if not isinstance(model, keras.Model):
                raise UserCodeError(
                    f"the model function in {module.path} returned a {type(model).__name__}",
                    fix="return a tf.keras.Model"
                    + ("" if is_legacy() else "; for a model of Keras 2 (tf_keras) set keras: legacy on the job"),
                )
            registry.adopt(model)
            predictions, nested = _trace_once(model, features_spec, module)
        if not nested:
            break
        keep = _kept_for_loops(registry, nested) | keep
    check_model(model, training=options.training)
    prepared = PreparedModel(model, registry, features_spec, module.roots)
    prepared.outputs = _output_names(model, predictions)
    if options.training and prepared.merging.unknown:
        with contextlib.suppress(Exception):  # what training raises the first step raises as well
            prepared.merging.learn(_training_graph(model, features_spec))
    return prepared


def is_seed(dtype: DType, shape: Iterable[int | None]) -> bool:
    """Whether a variable that is no weight looks like a generator's seed, which Keras keeps as uint32 or as int64."""
    return dtype in (tf.uint32, tf.int64) and list(shape) == [2]


def _kept_for_loops(registry: embeddings.TableRegistry, nested: Sequence[str]) -> frozenset[str]:
    """Embeddings that keep their weights because a loop of the model looks up in them.

    Raises:
        UserCodeError: one of them has no bound on its ids.
    """
    for name in nested:
        layer = registry.layers[name]
        if not isinstance(layer, keras.layers.Embedding):
            raise UserCodeError(
                f"the layer {layer.name} is called within a loop or a branch (RNN, tf.map_fn, tf.cond, tf.function), "
                "whose ids nobody knows before it runs",
                fix="look up before the loop, in all ids at once, and give it the vectors",
            )
        _log.warning("a large embedding stays in the graph", layer=layer.name, reason="a loop or a branch calls it")
    return frozenset(nested)


def _output_names(model: KerasModel, predictions: Predictions) -> tuple[str, ...] | None:
    if isinstance(predictions, Mapping):
        return tuple(str(name) for name in predictions)
    if not isinstance(predictions, list | tuple):
        return ()
    names = tuple(getattr(model, "output_names", None) or ())
    return names if len(names) == len(predictions) else None


def _training_graph(model: KerasModel, features_spec: NestedSpec) -> Graph:
    """The graph of the model in training mode."""
    graph: Graph = tf.__internal__.FuncGraph("training")
    with graph.as_default(), lookup.looking_up(embeddings.CollectScope()):
        call_model(model, _placeholders(features_spec), training=True)
    return graph


def _placeholders(features_spec: NestedSpec) -> Features:
    flat = tf.nest.flatten(features_spec, expand_composites=True)
    inputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in flat]
    return tf.nest.pack_sequence_as(features_spec, inputs, expand_composites=True)


def _trace_once(
    model: KerasModel, features_spec: NestedSpec, module: ModelModule
) -> tuple[Predictions, Sequence[str]]:
    """Calls the model on placeholders, so that layers are built and wrong shapes show at once.

    Returns:
        Its outputs, and the tables that a loop or a branch looks up in.
    """
    scope = embeddings.CollectScope()
    with tf.__internal__.FuncGraph("build").as_default() as graph:
        features = _placeholders(features_spec)
        fix = f"the features that feed gives are {describe(features_spec)}; make them what the model takes"
        looking_up, tracked = lookup.looking_up(scope), refuse_untracked(model, module.roots)
        with module.guard("calling the model on the features", fix), looking_up, tracked:
            predictions = call_model(model, features, training=False)
        nested = scope.nested(graph)
        if nested:  # or Keras 3 looked at its outputs in a graph of its own, as it does with the first call
            scope = embeddings.CollectScope()
            with module.guard("calling the model on the features", fix), lookup.looking_up(scope):
                call_model(model, features, training=False)
            nested = scope.nested(graph)
        return predictions, nested


def call_model(model: KerasModel, features: Features, *, training: bool) -> Predictions:
    """Calls a model; the only feature of a dict goes in by itself where the model has one unnamed input."""
    if isinstance(features, Mapping) and len(features) == 1 and _takes_one_tensor(model):
        (features,) = features.values()
    return model(features, training=training)


def _takes_one_tensor(model: KerasModel) -> bool:
    try:
        given = model.input
    except (AttributeError, ValueError):
        return False  # a subclassed model: its own call says what it takes
    return given is not None and not isinstance(given, Mapping | list | tuple)


def describe(spec: NestedSpec) -> str:
    """A nested spec in short, e.g. ``{image: float32[None, 28, 28]}``."""
    if isinstance(spec, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in spec.items()) + "}"
    if isinstance(spec, tuple | list):
        return "(" + ", ".join(describe(value) for value in spec) + ")"
    shape = getattr(spec, "shape", None)
    dims = "?" if shape is None or shape.rank is None else list(shape)
    kind = {"SparseTensorSpec": "sparse ", "RaggedTensorSpec": "ragged "}.get(type(spec).__name__, "")
    return f"{kind}{spec.dtype.name}{dims}" if hasattr(spec, "dtype") else str(spec)


def _unique_names(variables: Sequence[KerasVariable]) -> dict[str, KerasVariable]:
    names: dict[str, KerasVariable] = {}
    for variable in variables:
        base = str(getattr(variable, "path", None) or variable.name).removesuffix(":0")
        name = base if base not in names else next(n for k in range(2, 1 << 20) if (n := f"{base}#{k}") not in names)
        names[name] = variable
    return names
