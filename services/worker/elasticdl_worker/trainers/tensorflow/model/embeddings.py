"""Makes large Keras ``Embedding`` layers PS-backed, without a change to the model and without their weights.

``install`` wraps ``build`` and ``call`` of Keras' own layer once a process. While a ``TableRegistry`` is active, a
layer over the threshold registers a table instead of making a weight; its calls then ask the active scope for rows.

A step runs the model twice: the *collect* program, pruned to what the ids depend on, tells which rows are needed;
the *step* program gets those rows, and their gradients come out merged: one row for each id.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import structlog
from numpy.typing import NDArray

from elasticdl.layers import lookup
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.model import TableSpec
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.trainers.tensorflow.framework import is_legacy, keras, tf
from elasticdl_worker.trainers.tensorflow.model.initializers import KNOWN, initializer_spec
from elasticdl_worker.trainers.tensorflow.types import (
    EmbeddingLayer,
    Inverse,
    KerasInitializer,
    KerasModel,
    Shape,
    Tensor,
)

R = TypeVar("R")
_log = structlog.get_logger(__name__)
_FLOAT_BYTES = 4
ZEROS_NAME = "elasticdl_rows_before_lookup"
ROWS_NAME = "elasticdl_rows_of_lookup"


@dataclass
class TableRegistry:
    """The embedding layers of one model, in the order in which they are built.

    Attributes:
        threshold_bytes: Keras layers larger than this begin with the rows of a table, and are one if they can; None
            keeps all of them in the graph, with what Keras gives them.
        seed: the job's seed.
        tables: specification of each table.
        layers: the layer of each table.
        in_graph: layers that kept their weights, under the name that their table would have.
        alone: whether all layers keep their weights, as the model is trained in this process alone.
        closed: of such a model, the tables that parameter servers would have.
        keep: names of layers that keep their weights in any case.
    """

    threshold_bytes: int | None
    seed: int = 0
    tables: dict[str, TableSpec] = field(default_factory=dict)
    layers: dict[str, EmbeddingLayer] = field(default_factory=dict)
    in_graph: dict[str, EmbeddingLayer] = field(default_factory=dict)
    alone: bool = False
    closed: dict[str, TableSpec] = field(default_factory=dict)
    keep: frozenset[str] = frozenset()

    def register(self, layer: EmbeddingLayer) -> str:
        """A table for an ``elasticdl.layers.Embedding``.

        Raises:
            UserCodeError: its initializer is unknown to the parameter servers.
        """
        name = self._unique(layer)
        initializer = initializer_spec(layer.embeddings_initializer, name, self.seed)
        if initializer is None:
            raise UserCodeError(
                f"layer {layer.name}: rows cannot begin by {type(layer.embeddings_initializer).__name__}",
                fix=f"use one of {', '.join(KNOWN)}",
            )
        return self._add(layer, TableSpec(name, layer.output_dim, initializer, layer.input_dim))

    def offer(self, layer: EmbeddingLayer, make_weights: Callable[[], None]) -> str | None:
        """A table for a Keras ``Embedding``, or None if it keeps its weights.

        Args:
            layer: it is about to be built.
            make_weights: builds it as Keras does.
        """
        name = self._unique(layer)
        size = layer.input_dim * layer.output_dim * _FLOAT_BYTES
        initializer = initializer_spec(layer.embeddings_initializer, name, self.seed)
        obstacle = _obstacle(layer) or ("" if initializer else "its initializer is unknown to the parameter servers")
        large = self.threshold_bytes is not None and size > self.threshold_bytes
        if large and not obstacle and initializer is not None:
            _draw_alike(layer)
            table = TableSpec(name, layer.output_dim, initializer, layer.input_dim)
            if not self.alone and name not in self.keep:
                return self._add(layer, table)
            if self.alone:
                self.closed[name] = table
            self.in_graph[name] = layer
            with _beginning(layer, table):
                make_weights()
            return None
        if large and not self.alone:
            _log.warning("a large embedding stays in the graph", layer=layer.name, bytes=size, reason=obstacle)
        self.in_graph[name] = layer
        make_weights()
        return None

    def withdraw(self, layer: EmbeddingLayer, name: str) -> None:
        """Gives a layer that was to be a table its weights, which begin as the rows of the table would."""
        spec = self.tables.pop(name)
        self.in_graph[name] = self.layers.pop(name)
        layer.built = False
        del layer.elasticdl_table
        if not is_legacy():
            layer._tracker.unlock()  # Keras 3 lets a layer that was built have no more variables
        with lookup.registering(None), _beginning(layer, spec):
            layer.build(tf.TensorShape([None]))

    def note_use(self, layer: EmbeddingLayer) -> None:
        """Notes that the model function uses the weights of a layer, which parameter servers would keep for that."""
        name = next((name for name, one in self.in_graph.items() if one is layer), "")
        self.closed.pop(name, None)

    def adopt(self, model: KerasModel) -> None:
        """Gives tables to layers of a model that was there before this build began.

        Raises:
            UserCodeError: the model was built before for another purpose, with its weights elsewhere.
        """
        mine = [id(layer) for layer in self.layers.values()]
        for layer in model._flatten_layers():
            if not hasattr(layer, "elasticdl_table") or id(layer) in mine:
                continue
            if isinstance(layer, keras.layers.Embedding):
                raise UserCodeError(
                    f"the model function returned a model with the layer {layer.name} of an earlier call",
                    fix="make a new model in each call, or one when the module is imported",
                )
            if layer.built:
                layer.elasticdl_table = self.register(cast(EmbeddingLayer, layer))

    def _add(self, layer: EmbeddingLayer, table: TableSpec) -> str:
        self.tables[table.name] = table
        self.layers[table.name] = layer
        return table.name

    def _unique(self, layer: EmbeddingLayer) -> str:
        base = str(getattr(layer, "path", None) or layer.name)
        taken = self.tables.keys() | self.in_graph.keys()
        return base if base not in taken else next(n for k in range(2, 1 << 20) if (n := f"{base}#{k}") not in taken)


def _draw_alike(layer: EmbeddingLayer) -> None:
    """Has the initializer take what it would take of a generator, so that layers made later begin as beside weights.

    Keras seeds each call of an initializer by one draw, however many numbers are made: of Python's generator with
    the first call (Keras 2), or of the generator that it was given, which other layers may have, too.
    """
    with tf.init_scope():
        layer.embeddings_initializer((1, layer.output_dim))


@contextlib.contextmanager
def _beginning(layer: EmbeddingLayer, table: TableSpec) -> Iterator[None]:
    """A context in which a layer is built: its weights begin as the rows of a table would."""

    def rows(*_: object, **__: object) -> Tensor:
        return tf.convert_to_tensor(first_rows(table, np.arange(layer.input_dim, dtype=np.int64)))

    given, layer.embeddings_initializer = layer.embeddings_initializer, cast(KerasInitializer, rows)
    try:
        yield
    finally:
        layer.embeddings_initializer = given


def _obstacle(layer: EmbeddingLayer) -> str:
    """Why a layer must keep its weights; empty if nothing hinders."""
    kind = keras.layers.Embedding
    if type(layer).call is not kind.call or type(layer).build is not kind.build:
        return "its class has a build or call of its own"
    if getattr(layer, "embeddings_regularizer", None) or getattr(layer, "activity_regularizer", None):
        return "it has a regularizer"
    if getattr(layer, "embeddings_constraint", None):
        return "it has a constraint"
    if getattr(layer, "lora_rank", None) or getattr(layer, "quantization_mode", None):
        return "it uses LoRA or quantization"
    if getattr(layer, "sparse", False) or getattr(layer, "_use_one_hot_matmul", False):
        return "it returns sparse values or multiplies one-hot vectors"
    if getattr(layer, "_initial_weights", None):
        return "it starts from given weights"
    return "" if layer.trainable else "it is not trainable"


def install() -> None:
    """Wraps Keras' ``Embedding`` for this process; without an active registry it behaves as ever."""
    kind = keras.layers.Embedding
    if getattr(kind, "elasticdl_installed", False):
        return
    original_init, original_build, original_call = kind.__init__, kind.build, kind.call

    @functools.wraps(original_init)
    def init(self: EmbeddingLayer, *args: object, **kwargs: object) -> None:
        original_init(self, *args, **kwargs)
        # What the module made when it was imported is shared by all models that it makes: it keeps its weights.
        self.elasticdl_open = isinstance(lookup.current_registry(), TableRegistry)

    init.__signature__ = inspect.signature(original_init)  # type: ignore[attr-defined]  # Keras reads it, not wraps'

    @functools.wraps(original_build)
    def build(self: EmbeddingLayer, input_shape: Shape | None = None) -> None:
        registry = lookup.current_registry()
        if not isinstance(registry, TableRegistry) or not getattr(self, "elasticdl_open", False) or self.built:
            original_build(self, input_shape)
            return
        table = registry.offer(self, functools.partial(original_build, self, input_shape))
        if table is not None:
            self.elasticdl_table = table
        self.built = True

    @functools.wraps(original_call)
    def call(self: EmbeddingLayer, inputs: Tensor) -> object:
        table, scope = getattr(self, "elasticdl_table", None), lookup.current_scope()
        if table is None and not isinstance(scope, RangeScope):
            return original_call(self, inputs)
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        flat = inputs.flat_values if isinstance(inputs, tf.RaggedTensor) else inputs
        ids = tf.cast(flat, tf.int64)
        if table is None:
            assert isinstance(scope, RangeScope)
            rows = scope.note(self, ids)
        else:
            rows = _lookup(table, ids, self.output_dim)
        rows = tf.cast(rows, self.compute_dtype)
        return inputs.with_flat_values(rows) if isinstance(inputs, tf.RaggedTensor) else rows

    kind.__init__, kind.build, kind.call = init, build, call
    for name in ("get_weights", "set_weights", "load_own_variables"):
        if hasattr(kind, name):
            setattr(kind, name, _with_weights(getattr(kind, name)))
    if isinstance(getattr(kind, "embeddings", None), property):
        kind.embeddings = property(_with_weights(kind.embeddings.__get__))
    kind.elasticdl_installed = True


def _with_weights(original: Callable[..., R]) -> Callable[..., R]:
    """A method of a layer that uses its weights: a table is given some, as long as the model function runs."""

    @functools.wraps(original)
    def method(self: EmbeddingLayer, *args: object) -> R:
        table, registry = getattr(self, "elasticdl_table", None), lookup.current_registry()
        if table is not None:
            if not isinstance(registry, TableRegistry) or lookup.current_scope() is not None:
                raise UserCodeError(
                    f"layer {self.name}: its weights are used directly, but they live on the parameter servers",
                    fix="raise --embedding_threshold_bytes so that the layer keeps its weights in the graph",
                )
            _log.warning("a large embedding stays in the graph", layer=self.name, reason="its weights are used")
            registry.withdraw(self, table)
        elif isinstance(registry, TableRegistry) and original.__name__ != "__get__":  # which Keras' own call is
            registry.note_use(self)
        return original(self, *args)

    return method


def _lookup(table: str, ids: Tensor, dim: int) -> Tensor:
    scope = lookup.current_scope()
    return _zeros(ids, dim) if scope is None else scope.lookup(table, ids, dim)


def _zeros(ids: Tensor, dim: int) -> Tensor:
    zeros = tf.zeros(tf.concat([tf.shape(ids), [dim]], 0), name=ZEROS_NAME)
    zeros.set_shape(ids.shape.concatenate([dim]))
    return zeros


class CollectScope:
    """Notes the ids of each lookup and answers with zeros.

    Attributes:
        ids: of each table, of one lookup after the other.
    """

    def __init__(self) -> None:
        self.ids: Inverse = {}

    def lookup(self, table: str, ids: Tensor, dim: int) -> Tensor:
        """Zeros in the shape of the rows."""
        self.ids.setdefault(table, []).append(ids)
        return _zeros(ids, dim)

    def nested(self, graph: object) -> list[str]:
        """Tables with a lookup within a function of the graph that the model was called in: a loop or a branch."""
        return [table for table, calls in self.ids.items() if any(ids.graph is not graph for ids in calls)]


class RangeScope(CollectScope):
    """Also notes the ids of layers that keep their weights, to find one that is out of range after a step failed.

    Args:
        in_graph: these layers, under the names that their tables would have.
    """

    def __init__(self, in_graph: Mapping[str, EmbeddingLayer]) -> None:
        super().__init__()
        self._names = {id(layer): name for name, layer in in_graph.items()}
        self._noted: dict[str, tuple[int, list[Tensor]]] = {}

    def note(self, layer: EmbeddingLayer, ids: Tensor) -> Tensor:
        """Zeros in the shape of the rows."""
        name = self._names.get(id(layer), str(getattr(layer, "path", None) or layer.name))
        self._noted.setdefault(name, (int(layer.input_dim), []))[1].append(tf.reshape(ids, [-1]))
        return _zeros(ids, layer.output_dim)

    def check(self) -> None:
        """Raises a DataError if ids are out of range."""
        for name, (limit, ids) in self._noted.items():
            refuse_outside(name, tf.concat(ids, 0).numpy(), limit)


def refuse_outside(name: str, ids: NDArray[np.int64], limit: int) -> None:
    """Checks the ids of an embedding.

    Raises:
        DataError: one is not from 0 to the limit.
    """
    if not ids.size:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= limit:
        raise DataError(
            f"embedding {name}: the id {low if low < 0 else high} is outside [0, {limit})",
            fix="raise the layer's input_dim, or map the ids in feed; elasticdl.layers.Embedding takes any id",
        )


class RowsScope:
    """Answers each lookup from the rows of the step.

    Args:
        rows: for each table the rows of its unique ids, ``[unique ids (and padding), dim]``.
        inverse: for each table and each of its lookups in order, the index of each id's row, in the ids' shape.
    """

    def __init__(self, rows: Mapping[str, Tensor], inverse: Inverse) -> None:
        self._rows = rows
        self._inverse = inverse
        self._calls: dict[str, int] = {}

    @property
    def rows(self) -> list[Tensor]:
        """The rows of each table; in a local run they are variables."""
        return list(self._rows.values())

    def lookup(self, table: str, ids: Tensor, dim: int) -> Tensor:
        """The rows, by the lookup's place in the order of the table's lookups."""
        number = self._calls.get(table, 0)
        self._calls[table] = number + 1
        if number >= len(self._inverse.get(table, ())):
            raise UserCodeError(
                f"table {table}: the model looks up more often than when it was inspected",
                fix="let the model call its embedding layers equally often each time, whatever `training` is",
            )
        indices = self._inverse[table][number]
        rows = tf.gather(self._rows[table], indices, name=ROWS_NAME)
        rows.set_shape(ids.shape.concatenate([dim]))
        return rows
