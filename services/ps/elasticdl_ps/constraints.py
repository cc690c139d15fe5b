"""Constraints: what trained parameters are brought back to after each update, as Keras 3 does it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import ConstraintSpec, DenseKind, DenseSpec

Floats = NDArray[np.float32]
Constrain = Callable[[Floats], None]
"""Changes the flat values of a slice where they are."""
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "non_neg": (),
    "max_norm": ("max_value", "epsilon"),
    "unit_norm": ("epsilon",),
    "min_max_norm": ("min_value", "max_value", "rate", "epsilon"),
}


def check_constraint(spec: DenseSpec, start: int, stop: int) -> None:
    """Checks the constraint of a slice that a PS is to hold.

    Raises:
        InvalidInputError: it is unknown, lacks a number, goes along an axis that is not there, or needs the elements
            of other PS.
    """
    found, what = spec.constraint, f"the dense parameter {spec.name!r}"
    if found is None:
        return
    numbers = _NUMBERS.get(found.kind)
    if numbers is None or spec.kind is not DenseKind.TRAINABLE:
        raise InvalidInputError(
            f"{what} ({spec.kind}) has the constraint {found.kind!r}",
            fix=f"constrain trained parameters, by one of {', '.join(_NUMBERS)}",
        )
    if set(found.params) != set(numbers) or not all(map(math.isfinite, found.params.values())):
        raise InvalidInputError(
            f"{what}: {found.kind} with {dict(found.params)}", fix=f"give it {numbers or 'nothing'}"
        )
    axes = found.axes
    if bool(axes) == (found.kind == "non_neg") or len(set(axes)) < len(axes):
        raise InvalidInputError(f"{what}: {found.kind} along the axes {axes}", fix="name each axis of a norm once")
    if any(not 0 <= axis < len(spec.shape) for axis in axes):
        raise InvalidInputError(f"{what} of shape {spec.shape} has no axes {axes}", fix="count axes from 0")
    if spec.whole and (start, stop) != (0, spec.size):
        raise InvalidInputError(
            f"{what} is cut at [{start}, {stop}), and its norms need all of it", fix="send it whole to one server"
        )


def make_constraint(spec: DenseSpec) -> Constrain | None:
    """The constraint on the values of a slice after each update; None if there is none. The slice was checked."""
    found = spec.constraint
    if found is None:
        return None
    if found.kind == "non_neg":
        return _clip_at_zero
    return lambda values: _rescale(values.reshape(spec.shape), found)


def _clip_at_zero(values: Floats) -> None:
    np.maximum(values, 0, out=values)


def _rescale(values: NDArray[Any], spec: ConstraintSpec) -> None:
    numbers = {name: np.float32(number) for name, number in spec.params.items()}
    norms = np.sqrt(np.sum(np.square(values), axis=spec.axes, keepdims=True))
    desired: Any = np.float32(1)
    if spec.kind == "max_norm":
        desired = np.clip(norms, 0, numbers["max_value"])
    elif spec.kind == "min_max_norm":
        rate = numbers["rate"]
        desired = rate * np.clip(norms, numbers["min_value"], numbers["max_value"]) + (np.float32(1) - rate) * norms
    values *= desired / (numbers["epsilon"] + norms)
