"""Sees whether a Keras model's gradients grow as its loss does: only those of parts add up to those of the whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from elasticdl_worker.trainers.loss_denominators import GRADIENT_FACTORS, bent_gradients, is_bent
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import Tensor, Variable


def has_own_gradients(definition: Any) -> bool:
    """Whether something in a graph has a gradient function of its own, of the user's or of a library.

    Args:
        definition: of the graph, with its functions.
    """
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    return any(node.attr["_gradient_op_type"].s.startswith(b"CustomGradient") for node in nodes)


def require_straight_backward(
    loss_of: Callable[[], Tensor], trained: dict[str, Variable], held: Sequence[Variable]
) -> None:
    """Refuses what clips or normalises gradients within the backward pass.

    A model that cannot be run on the first records says nothing.

    Args:
        loss_of: computes the loss of the first records in training mode.
        trained: the trained variables, by name.
        held: all variables that this may change; they are put back.

    Raises:
        UserCodeError: a gradient is no multiple of what it was, where the loss is one.
    """
    found: list[list[Any]] = []
    with variables_kept(held), contextlib.suppress(Exception):  # the first step raises it again
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of()
        for factor in GRADIENT_FACTORS:
            gradients = tape.gradient(loss, list(trained.values()), output_gradients=tf.fill(loss.shape, factor))
            found.append([None if one is None else tf.convert_to_tensor(one) for one in gradients])
    if len(found) < len(GRADIENT_FACTORS):
        return
    for factor, others in zip(GRADIENT_FACTORS, found, strict=True):
        for name, plain, other in zip(trained, found[0], others, strict=True):
            if plain is None or other is None:
                continue
            wanted = plain * factor
            if is_bent(float(tf.norm(other - wanted)), float(tf.norm(wanted))):
                raise bent_gradients(name)


@contextlib.contextmanager
def variables_kept(variables: Sequence[Variable]) -> Iterator[Callable[[], None]]:
    """Gives a function that puts variables back to what they are now, and calls it at the end."""
    values = [variable.numpy() for variable in variables]

    def put_back() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    try:
        yield put_back
    finally:
        put_back()
