"""Changes by a model to its trained weights beside the optimizer: constraints, and assignments in ``call``.

The parameter servers own the weights. A constraint that they know is carried out by them after each update, as Keras
does it; what only the model knows would be undone by the next pull, and is refused, in a local run as on a cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

from elasticdl_core.contract import Subject, refusal
from elasticdl_core.model import ConstraintSpec
from elasticdl_worker.trainers.tensorflow.framework import keras
from elasticdl_worker.trainers.tensorflow.types import KerasVariable, Variable

_KINDS = {
    "NonNeg": ("non_neg", ()),
    "MaxNorm": ("max_norm", ("max_value",)),
    "UnitNorm": ("unit_norm", ()),
    "MinMaxNorm": ("min_max_norm", ("min_value", "max_value", "rate")),
}
_WRITES = ("assign", "assign_add", "assign_sub", "scatter_update", "scatter_add", "scatter_sub", "scatter_nd_update")


def constraint_of(name: str, variable: KerasVariable) -> ConstraintSpec | None:
    """The constraint of a trained variable in the words of the parameter servers.

    Raises:
        UserCodeError: it is none of Keras' own that they know.
    """
    found = getattr(variable, "constraint", None)
    if found is None:
        return None
    kind = type(found).__name__
    if kind not in _KINDS or type(found) is not getattr(keras.constraints, kind):
        what = getattr(found, "__name__", None) or kind
        raise refusal(Subject.LAYER, "constraint", f"the constraint {what} of the weight {name}")
    word, numbers = _KINDS[kind]
    if word == "non_neg":
        return ConstraintSpec(word)
    params = {number: float(getattr(found, number)) for number in numbers}
    return ConstraintSpec(word, _axes(found.axis, len(variable.shape)), params | {"epsilon": keras.backend.epsilon()})


@contextlib.contextmanager
def forbid_assignments(variables: Mapping[str, Variable]) -> Iterator[None]:
    """A context in which the model is called, and must leave its trained weights alone.

    Args:
        variables: the trained ``tf.Variable`` objects by name.

    Raises:
        UserCodeError: inside, something assigned to one of them.
    """
    for name, variable in variables.items():
        for write in _WRITES:
            setattr(variable, write, _refusal(name))
    try:
        yield
    finally:
        for variable in variables.values():
            for write in _WRITES:
                delattr(variable, write)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise refusal(Subject.LAYER, "assign", f"what the model assigns to the trained weight {name} in call")

    return refuse


def _axes(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from 0; None is all of them."""
    if axis is None:
        return tuple(range(rank))
    given = [axis] if isinstance(axis, int) else axis
    return tuple(int(one) % rank for one in given)
