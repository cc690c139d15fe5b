"""Says what the names of layers stand for in the user's module, so that layers which changed names are seen.

Keras names a layer by its class and its turn. What it is for shows in where the module keeps it (``tables['user']``),
or in the named inputs that it reads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from elasticdl_worker.trainers.tensorflow.framework import keras, tf
from elasticdl_worker.trainers.tensorflow.types import KerasModel, Layer

_NAMED_BY_KERAS = re.compile(r"(input|input_layer|keras_tensor)(_\d+)?")


def layer_origins(model: KerasModel) -> dict[str, str]:
    """The origins of layers with weights, by the name of each; without those of which the module says nothing.

    Args:
        model: a Keras model, built.
    """
    kept: dict[int, str] = {}
    _note_attributes("", model, kept)
    found: dict[str, str] = {}
    for layer in model._flatten_layers():
        if layer is model or not (getattr(layer, "elasticdl_table", None) or getattr(layer, "weights", ())):
            continue
        origin = kept.get(id(layer)) or _reads(layer)
        if origin:
            found[str(getattr(layer, "path", None) or layer.name)] = origin
    several = Counter(found.values())
    return {name: origin for name, origin in found.items() if several[origin] == 1}


def _note_attributes(path: str, value: object, found: dict[int, str]) -> None:
    if isinstance(value, keras.layers.Layer):
        if id(value) in found:
            return
        found[id(value)] = path
        parts = ((f"{path}.{name}".lstrip("."), one) for name, one in vars(value).items() if not name.startswith("_"))
    elif isinstance(value, Mapping):
        # Other keys may be shown by where they are in memory, which is elsewhere in each process.
        parts = ((f"{path}[{key!r}]", one) for key, one in value.items() if isinstance(key, str | int))
    elif isinstance(value, list | tuple):
        parts = ((f"{path}[{place}]", one) for place, one in enumerate(value))
    else:
        return
    for name, one in parts:
        if isinstance(one, keras.layers.Layer | Mapping | list | tuple):
            _note_attributes(name, one, found)


def _reads(layer: Layer) -> str:
    """A layer of a functional model by the inputs that it reads, where the module has named all of them."""
    names = set(_inputs_of(layer, set()))
    if not names or any(_NAMED_BY_KERAS.fullmatch(name) for name in names):
        return ""
    return f"{type(layer).__name__} of {', '.join(sorted(names))}"


def _inputs_of(layer: Layer, seen: set[int]) -> Iterator[str]:
    if id(layer) in seen:
        return
    seen.add(id(layer))
    if isinstance(layer, keras.layers.InputLayer):
        yield layer.name
    for node in getattr(layer, "_inbound_nodes", ()):
        for tensor in _tensors_of(node):
            history = getattr(tensor, "_keras_history", None)
            source = getattr(history, "operation", None) or getattr(history, "layer", None)
            if source is not None:
                yield from _inputs_of(source, seen)


def _tensors_of(node: object) -> Iterable[object]:
    return tf.nest.flatten(getattr(node, "input_tensors", ()))
