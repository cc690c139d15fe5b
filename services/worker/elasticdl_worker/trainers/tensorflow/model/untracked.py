"""Finds variables that a model or its loss uses and Keras does not know of.

Keras 3 keeps what ``add_weight`` makes and the weights of layers that are attributes. A ``tf.Variable`` that is an
attribute, a global of the module or part of a closure is none of the model's weights: no optimizer moves it, no
parameter server shares it, and no export has it. So it is refused, in a local run as on a cluster.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorflow.python.framework import op_callbacks

from elasticdl_core.contract import Subject, refusal
from elasticdl_worker.trainers.tensorflow.framework import keras, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.types import KerasModel, Layer, Tensor, Variable
from elasticdl_worker.user_code import imported_from

_GENERATOR_STATES = ((2,), (3,))
_GENERATORS = (tf.random.Generator, *((keras.random.SeedGenerator,) if hasattr(keras, "random") else ()))
_OF_TABLES = "Lookup"
"""How the kinds of operations begin that use look-up tables, which have handles too but are no variables."""


@contextlib.contextmanager
def refuse_untracked(model: KerasModel, roots: Sequence[Path], rows: Sequence[Tensor] = ()) -> Iterator[None]:
    """A context in which the model is called, and its loss.

    Args:
        model: a Keras model; its layers may be built inside.
        roots: directories of the user's code.
        rows: of tables, which may be variables of ours.

    Raises:
        UserCodeError: a variable was used that is none of the model's; with its name.
    """
    before: set[int] = set()
    if tf.executing_eagerly():
        with tf.GradientTape() as tape, _noting_handles() as handles:
            yield
        ours = {id(raw_variable(variable).handle) for variable in model.variables}
        ours |= {id(one.handle) for one in rows if isinstance(one, tf.Variable)}
        others = [handle for handle in handles if id(handle) not in ours]
        used: Iterable[Variable] = [*tape.watched_variables(), *_find_variables(others)]
    else:
        graph = tf.compat.v1.get_default_graph()
        before = {id(variable) for variable in _watched(graph)}
        yield
        used = _watched(graph)
    # A metric inside a model is refused by its own name.
    tracked = [*model.variables, *getattr(model, "metrics_variables", ())]
    known = before | {id(raw_variable(variable)) for variable in tracked} | {id(one) for one in rows}
    others_used = [variable for variable in used if id(variable) not in known]
    states = _generator_states() if any(map(_may_be_of_generator, others_used)) else frozenset()
    stray = [variable for variable in others_used if id(variable) not in states]
    kept = _states_of_layers(model) if stray else {}
    for variable in stray:
        if id(variable) not in kept:
            raise refusal(Subject.LAYER, "tf.Variable", _named(variable, model, roots))
    if stray:
        layer = kept[id(stray[0])]
        shown = f"the layer {layer.name} ({type(layer).__name__}(stateful=True))"
        raise refusal(Subject.LAYER, "stateful", shown)


@contextlib.contextmanager
def _noting_handles() -> Iterator[Sequence[Tensor]]:
    """A context that fills a list with the handles that operations use, variables' among them.

    A tape notes all that is trainable, but nothing else. Operations that are given a variable where they take a
    tensor read it unnoticed; those that assign to one do not.
    """
    noted: dict[int, Tensor] = {}

    def note(kind: str | bytes, inputs: Sequence[Tensor], *_: object, graph: object = None, **__: object) -> None:
        if graph is None and not tf.compat.as_str(kind).startswith(_OF_TABLES):
            noted.update({id(one): one for one in inputs if one.dtype == tf.resource})

    handles: list[Tensor] = []
    op_callbacks.add_op_callback(note)
    try:
        yield handles
    finally:
        op_callbacks.remove_op_callback(note)
        handles += noted.values()


def _find_variables(handles: Sequence[Tensor]) -> list[Variable]:
    """The variables that have one of these handles, which may as well be of tables or iterators."""
    if not handles:
        return []
    wanted = {id(handle) for handle in handles}
    # Nothing leads from a handle to its variable. That costs a look at every object, which a sound model never makes.
    return [one for one in _all_objects() if issubclass(type(one), tf.Variable) and id(one.handle) in wanted]


def _all_objects() -> list[Any]:
    """All objects that are collected; ask for their types: those of other packages may warn when asked what they are.

    What was there when a worker froze its objects is left out of the collector's list.
    """
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    found = gc.get_objects()
    if frozen:
        gc.freeze()
    return found


def _states_of_layers(model: KerasModel) -> dict[int, Layer]:
    """The layers of Keras' own that keep a variable from one minibatch to the next, by its identity."""
    found: dict[int, Layer] = {}
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            states = [state for state in tf.nest.flatten(layer.states) if state is not None]
            found |= {id(raw_variable(state)): layer for state in states}
    return found


def _watched(graph: object) -> Iterable[Variable]:
    """The variables that operations of a graph have used so far; none for graphs that do not note them."""
    return list(getattr(graph, "_watched_variables", ()))


def _may_be_of_generator(variable: Variable) -> bool:
    """Whether a variable looks like a random generator's, which every worker has its own of."""
    return bool(variable.dtype.is_integer) and tuple(variable.shape) in _GENERATOR_STATES


def _generator_states() -> frozenset[int]:
    """The identities of the variables that random generators of this process keep their states in."""
    found = [one for one in _all_objects() if issubclass(type(one), _GENERATORS) and hasattr(one, "state")]
    return frozenset(id(raw_variable(state)) for state in (one.state for one in found))


def _named(variable: Variable, model: KerasModel, roots: Sequence[Path]) -> str:
    """A variable by where the user put it."""
    for layer in model._flatten_layers():
        # Keras and TensorFlow keep books of attributes in private ones.
        for attribute, value in sorted(vars(layer).items(), key=lambda item: item[0].startswith("_")):
            if _holds(value, variable):
                return f"the variable {attribute} of the layer {layer.name} ({type(layer).__name__})"
    for file, names in imported_from(roots):
        for name, value in names.items():
            if _holds(value, variable):
                return f"the variable {name} of {file}"
    name = str(variable.name).removesuffix(":0")
    return f"the variable {name} ({variable.dtype.name}{variable.shape.as_list()})"


def _holds(value: object, variable: Variable) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return value is variable or (isinstance(value, list | tuple) and any(one is variable for one in value))
