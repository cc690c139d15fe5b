"""Protocols for the part of TensorFlow and Keras that the worker uses; neither has type annotations of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array: TypeAlias = NDArray[np.generic]
"""An array of any dtype."""


class DType(Protocol):
    """The type of a tensor's elements."""

    @property
    def name(self) -> str:
        """E.g. ``float32``."""

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer type."""

    @property
    def is_floating(self) -> bool:
        """Whether it is a floating-point type."""

    @property
    def size(self) -> int:
        """Bytes of an element."""

    @property
    def as_numpy_dtype(self) -> DTypeLike:
        """The same type in numpy."""


class Shape(Protocol):
    """The shape of a tensor; None is an open dimension."""

    @property
    def rank(self) -> int | None:
        """Number of dimensions; None if that is open."""

    def as_list(self) -> list[int | None]:
        """The dimensions."""

    def concatenate(self, other: object) -> Shape:
        """This shape and then another."""

    def is_fully_defined(self) -> bool:
        """Whether no dimension is open."""

    def num_elements(self) -> int | None:
        """Number of elements; None if a dimension is open."""

    def __getitem__(self, key: int) -> int | None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int | None]: ...


class TypeSpec(Protocol):
    """The type of a tensor: shape and dtype."""

    @property
    def shape(self) -> Shape:
        """With None for open dimensions."""

    @property
    def dtype(self) -> DType:
        """Of the elements."""


class NamedFunction(Protocol):
    """A function in the words of a graph."""

    name: str


class Operation(Protocol):
    """An operation of a graph."""

    @property
    def name(self) -> str:
        """Unique in its graph."""

    @property
    def type(self) -> str:
        """E.g. ``MatMul``."""

    @property
    def inputs(self) -> Sequence[Tensor]:
        """The tensors that it takes."""

    @property
    def outputs(self) -> Sequence[Tensor]:
        """The tensors that it gives."""

    def get_attr(self, name: str) -> NamedFunction:
        """One of its attributes that are functions."""

    @property
    def node_def(self) -> Node:
        """The operation as a message."""


class Tensor(TypeSpec, Protocol):
    """A tensor, eager or of a graph; a sparse, a ragged one or a variable may stand in its place."""

    @property
    def op(self) -> Operation:
        """The operation that gives it; graphs only."""

    @property
    def graph(self) -> object:
        """The graph that it is in; graphs only."""

    def numpy(self) -> Array:
        """The values; eager tensors only."""

    def consumers(self) -> list[Operation]:
        """The operations that take it; graphs only."""

    def set_shape(self, shape: object) -> None:
        """Adds what is known of the shape."""

    def __getitem__(self, key: object) -> Tensor: ...

    def __add__(self, other: object) -> Tensor: ...

    def __sub__(self, other: object) -> Tensor: ...

    def __rsub__(self, other: object) -> Tensor: ...

    def __mul__(self, other: object) -> Tensor: ...

    def __rmul__(self, other: object) -> Tensor: ...

    def __radd__(self, other: object) -> Tensor: ...

    def __truediv__(self, other: object) -> Tensor: ...

    def __gt__(self, other: object) -> Tensor: ...

    def __len__(self) -> int: ...

    def __float__(self) -> float: ...

    def __int__(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


Nested: TypeAlias = "Tensor | Mapping[str, Nested] | Sequence[Nested]"
"""Tensors, nested in dicts, tuples and lists as the user's ``feed`` and model like it."""
Features: TypeAlias = "Nested"
Labels: TypeAlias = "Nested | None"
Predictions: TypeAlias = "Nested"
NestedSpec: TypeAlias = "TypeSpec | Mapping[str, NestedSpec] | Sequence[NestedSpec]"
"""Types of tensors, nested as these are."""
Inverse: TypeAlias = "dict[str, list[Tensor]]"
"""For each table and each of its lookups: which of the table's unique rows each id has."""
RowTensors: TypeAlias = "Mapping[str, Tensor]"
"""For each table the rows of its unique ids."""
Batches: TypeAlias = "Sequence[tuple[Features, Labels]]"
"""Features and labels of each minibatch of a step."""
LossFunction: TypeAlias = Callable[[Labels, Predictions], Tensor]
"""Loss or metric of a minibatch, by the user."""


class Variable(Tensor, Protocol):
    """A ``tf.Variable``."""

    @property
    def trainable(self) -> bool:
        """Whether it was made to be trained."""

    @property
    def name(self) -> str:
        """As it was made."""

    @property
    def handle(self) -> Tensor:
        """The resource."""

    def assign(self, value: object) -> object:
        """Sets the value."""

    def scatter_update(self, value: object) -> object:
        """Sets some rows."""

    def read_value(self) -> Tensor:
        """The value as a tensor."""


class KerasVariable(Protocol):
    """A variable of Keras 3, or a ``tf.Variable`` in Keras 2."""

    @property
    def name(self) -> str:
        """Without the layer's name, in Keras 3."""

    @property
    def shape(self) -> Sequence[int]:
        """Always defined."""

    @property
    def value(self) -> Variable:
        """The ``tf.Variable`` behind it; Keras 3 only."""


class Layer(Protocol):
    """A Keras layer."""

    name: str
    built: bool
    trainable: bool
    compute_dtype: str
    dtype_policy: object

    @property
    def trainable_variables(self) -> list[KerasVariable]:
        """The variables that gradients change."""

    def build(self, input_shape: Shape | None = None) -> None:
        """Makes the weights."""

    def call(self, *arguments: object, **options: object) -> Nested:
        """Computes the layer."""

    def get_weights(self) -> list[NDArray[np.float32]]:
        """Copies of the weights."""

    def set_weights(self, weights: Sequence[Array]) -> None:
        """Sets all weights."""


class Tracker(Protocol):
    """The keeper of a layer's variables in Keras 3."""

    def unlock(self) -> None:
        """Lets it take more."""


class EmbeddingLayer(Layer, Protocol):
    """Keras' ``Embedding`` or ``elasticdl.layers.Embedding``.

    Attributes:
        elasticdl_table: name of the table that stands for its weights; None if it has them.
        elasticdl_open: whether it was made while a model was built, so that it may become a table.
    """

    input_dim: int
    output_dim: int
    embeddings_initializer: KerasInitializer
    elasticdl_table: str | None
    elasticdl_open: bool
    _tracker: Tracker

    @property
    def weights(self) -> list[KerasVariable]:
        """The weights that it has: none where a table stands for them."""


class KerasMetric(Protocol):
    """A Keras metric."""

    @property
    def name(self) -> str:
        """As the user gave it."""

    @property
    def variables(self) -> list[KerasVariable]:
        """Its state."""

    def update_state(self, labels: Labels, predictions: Predictions) -> object:
        """Takes a minibatch."""

    def reset_state(self) -> None:
        """Begins anew."""

    def result(self) -> object:
        """The value of the state."""


class KerasEarlyStopping(Protocol):
    """Keras' callback ``EarlyStopping``."""

    monitor: str
    monitor_op: Callable[..., object]
    patience: int
    min_delta: float
    baseline: float | None
    restore_best_weights: bool
    start_from_epoch: int


class KerasModelCheckpoint(Protocol):
    """Keras' callback ``ModelCheckpoint``; ``best`` is its ``initial_value_threshold`` until it has seen a value."""

    monitor: str
    monitor_op: Callable[..., object]
    save_best_only: bool
    save_weights_only: bool
    save_freq: str | int
    best: float | None


class KerasLearningRateScheduler(Protocol):
    """Keras' callback ``LearningRateScheduler``."""

    schedule: Callable[..., float]


class KerasInitializer(Protocol):
    """A Keras initializer."""

    def __call__(self, shape: Sequence[int]) -> Tensor:
        """First values of a shape."""

    def get_config(self) -> dict[str, object]:
        """The arguments that it was made with."""


class KerasMean(KerasMetric, Protocol):
    """Keras' metric ``Mean`` and those derived from it."""

    @property
    def total(self) -> KerasVariable:
        """Weighted sum of the values."""

    @property
    def count(self) -> KerasVariable:
        """Sum of the weights."""


class KerasModel(Layer, Protocol):
    """A Keras model, built."""

    @property
    def weights(self) -> list[KerasVariable]:
        """All weights."""

    @property
    def variables(self) -> list[KerasVariable]:
        """All weights, and the seeds of random layers."""

    @property
    def losses(self) -> list[Tensor]:
        """The terms that regularizers add to the loss."""

    @property
    def metrics(self) -> list[KerasMetric]:
        """Metrics that the model itself has."""

    @property
    def input(self) -> object:
        """Symbolic inputs; raises where the model is a subclass of ``Model``."""

    def __call__(self, features: Features, *, training: bool) -> Predictions: ...

    def _flatten_layers(self) -> Iterable[Layer]: ...

    def save(self, path: PathLike[str]) -> None:
        """Writes a ``.keras`` file."""


class KerasOptimizer(Protocol):
    """A Keras optimizer."""

    learning_rate: object
    variables: list[KerasVariable] | Callable[[], list[KerasVariable]]

    def build(self, variables: Sequence[KerasVariable]) -> object:
        """Makes the slots."""

    def apply_gradients(self, pairs: Iterable[tuple[object, KerasVariable]]) -> object:
        """Updates variables by their gradients."""

    def get_config(self) -> dict[str, object]:
        """The arguments that it was made with."""

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Makes one from a configuration."""


class Options(Protocol):
    """Options of running a dataset."""

    deterministic: bool | None


class Dataset(Protocol):
    """A ``tf.data.Dataset``."""

    @property
    def element_spec(self) -> NestedSpec:
        """The type of an element."""

    def __iter__(self) -> Iterator[Nested]: ...

    def _inputs(self) -> list[Dataset]: ...

    def _as_serialized_graph(self, *, external_state_policy: object) -> Tensor: ...

    def batch(self, size: int) -> Dataset:
        """Elements together."""

    def prefetch(self, elements: int) -> Dataset:
        """Makes elements ahead."""

    def with_options(self, options: object) -> Dataset:
        """With other options."""

    def options(self) -> Options:
        """The options that it is run with."""

    def cardinality(self) -> Tensor:
        """Number of elements, or a negative number."""


class Graph(Protocol):
    """A traced function's graph."""

    @property
    def inputs(self) -> Sequence[Tensor]:
        """Placeholders of the arguments, and then those of what it captures."""

    @property
    def captures(self) -> Iterable[tuple[Tensor, Tensor]]:
        """The tensors that it uses from outside, and the placeholder of each."""

    def as_default(self) -> AbstractContextManager[object]:
        """A context in which operations are added to it."""

    def get_operations(self) -> Sequence[Operation]:
        """All operations."""

    def as_graph_def(self) -> GraphDef:
        """The protocol message."""

    def _get_function(self, name: str) -> TracedFunction:
        """A function that an operation calls, by its name."""


class TracedFunction(Protocol):
    """A function that was traced, of tensors."""

    @property
    def graph(self) -> Graph:
        """The graph that it consists of."""

    def __call__(self, *tensors: Tensor) -> Nested: ...


class MapFunction(Protocol):
    """The function of a map."""

    function: TracedFunction


class MapDataset(Dataset, Protocol):
    """The result of ``Dataset.map``."""

    _map_func: MapFunction


class ShuffleDataset(Dataset, Protocol):
    """The result of ``Dataset.shuffle``."""

    _buffer_size: Tensor
    _seed2: Tensor


class VectorizedOperation(Protocol):
    """An operation that ``tf.vectorized_map`` asks a converter for."""

    op: Operation

    def stacked_input(self, index: int) -> Tensor:
        """An input of all records."""

    def unstacked_input(self, index: int) -> Tensor:
        """An input that all records share."""


class PrunableFunction(Protocol):
    """A function of a graph, of which a part can be taken: from ``tf.compat.v1.wrap_function``."""

    @property
    def graph(self) -> Graph:
        """The graph that it consists of."""

    @property
    def inputs(self) -> list[Tensor]:
        """Its arguments."""

    @property
    def outputs(self) -> list[Tensor]:
        """Its results."""

    def prune(self, feeds: Sequence[Tensor], fetches: Sequence[Tensor]) -> PrunableFunction:
        """The part that leads from some tensors to others."""

    def __call__(self, *tensors: Tensor) -> Iterable[Tensor]: ...


class Node(Protocol):
    """An operation of a ``GraphDef``."""

    name: str
    op: str
    input: Sequence[str]
    attr: Mapping[str, object]


class FunctionDef(Protocol):
    """A function of a ``GraphDef``."""

    node_def: Sequence[Node]


class FunctionLibrary(Protocol):
    """The functions of a ``GraphDef``."""

    function: Sequence[FunctionDef]


class GraphDef(Protocol):
    """A graph as a protocol message."""

    node: Sequence[Node]
    library: FunctionLibrary
