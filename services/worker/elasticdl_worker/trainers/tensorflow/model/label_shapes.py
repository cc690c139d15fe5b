"""Labels of shape ``[N]`` against predictions of shape ``[N, 1]``: aligned where the feed is ours, refused where not.

TensorFlow broadcasts the two to a table of ``N x N`` differences, of which the mean is a loss that teaches nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from elasticdl_core.contract.argument_order import refuse_swapped
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import (
    Graph,
    Labels,
    LossFunction,
    Operation,
    Predictions,
    Tensor,
    TypeSpec,
)
from elasticdl_worker.user_code import ModelModule

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_PROBE = 97
"""Records in the minibatch that is followed through a function; a prime, so that no other size is likely to be it."""


def aligned_loss(module: ModelModule) -> LossFunction | None:
    """The module's loss; with labels of a feed that is not the user's, it gets them in the shape of predictions.

    Raises:
        UserCodeError: its arguments are named in the other order.
    """
    loss = cast("LossFunction | None", module.loss)
    if loss is not None:
        refuse_swapped("the loss", loss)
    if loss is None or module.feed is not None:
        return loss
    return functools.wraps(loss)(lambda labels, predictions: loss(align(labels, predictions), predictions))


def align(labels: Labels, predictions: Predictions) -> Labels:
    """Labels ``[N]`` as ``[N, 1]`` where the predictions are ``[N, 1]``; others as they are."""
    ranks = [getattr(getattr(value, "shape", None), "rank", None) for value in (labels, predictions)]
    if ranks == [1, 2] and cast(Tensor, predictions).shape[1] == 1:
        return tf.expand_dims(labels, 1)
    return labels


def refuse_outer(what: str, function: LossFunction, labels: Labels, predictions: Predictions) -> None:
    """Refuses a loss or metric in which each label meets each prediction by broadcasting.

    The function is traced with a minibatch of a size that occurs nowhere else. Only an operation is refused that has
    ``[N]`` of one side and ``[N, 1]`` of the other and gives ``[N, N]``: tables that a function makes of purpose, as
    losses of pairs do, have equal ranks or come from one side.

    Args:
        what: names the function for the message.
        function: of ``(labels, predictions)``.
        labels: a minibatch of them, or its symbols.
        predictions: the same.

    Raises:
        UserCodeError: it does; with both shapes.
    """
    found = [_shapes(labels), _shapes(predictions)]
    if not any(_suspicious(one, other) for one in found[0] for other in found[1]):
        return
    try:
        specs = [tf.nest.map_structure(_probe, side) for side in (labels, predictions)]
        graph = tf.function(lambda a, b: function(a, b), autograph=False).get_concrete_function(*specs).graph
    except Exception:
        return  # what is wrong with it shows when it is called
    given = [
        side for side, values in (("labels", labels), ("predictions", predictions)) for _ in tf.nest.flatten(values)
    ]
    if _meets(graph, [frozenset({side}) for side in given]):
        shown = [", ".join(f"[{_words(shape)}]" for shape in side) for side in found]
        raise UserCodeError(
            f"{what} compares each label with the prediction of every record: labels have the shape {shown[0]}, "
            f"predictions {shown[1]}",
            fix="give both the same shape: labels[:, None] in feed, or tf.reshape(labels, tf.shape(predictions)) in "
            "the function; Keras' own losses do so by themselves",
        )


def _shapes(value: Labels) -> list[tuple[int | None, ...]]:
    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(value)]
    return [
        tuple(shape.as_list()) for shape in shapes if isinstance(shape, tf.TensorShape) and shape.rank is not None
    ]


def _suspicious(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    low, high = sorted((one, other), key=len)
    return len(low) == 1 and len(high) == 2 and high[1] == 1


def _probe(value: Tensor) -> TypeSpec:
    shape = value.shape.as_list()
    return tf.TensorSpec([_PROBE, *shape[1:]] if shape else [], value.dtype)


def _words(shape: tuple[int | None, ...]) -> str:
    return ", ".join("N" if at == 0 else str(size) for at, size in enumerate(shape))


def _meets(graph: Graph, given: Sequence[frozenset[str]]) -> bool:
    """Whether an operation of a traced function brings the two sides together as ``[N]`` and ``[N, 1]``.

    Args:
        graph: of the function; functions that it calls, such as one under ``tf.function``, are followed.
        given: of which sides each of its first inputs is made.
    """
    sides: dict[Operation, frozenset[str]] = {}
    for number, tensor in enumerate(graph.inputs):
        sides[tensor.op] = given[number] if number < len(given) else frozenset()
    for operation in graph.get_operations():
        inputs = [sides.get(tensor.op, frozenset()) for tensor in operation.inputs]
        sides.setdefault(operation, frozenset().union(*inputs))
        if operation.type in _CALLS:
            if _meets(graph._get_function(operation.get_attr("f").name).graph, inputs):
                return True
            continue
        if len(inputs) != 2 or inputs[0] == inputs[1]:
            continue
        shapes = sorted((tensor.shape.as_list() for tensor in operation.inputs if tensor.shape.rank), key=len)
        outer = any(
            tensor.shape.rank == 2 and tensor.shape.as_list() == [_PROBE, _PROBE] for tensor in operation.outputs
        )
        if outer and shapes == [[_PROBE], [_PROBE, 1]]:
            return True
    return False
