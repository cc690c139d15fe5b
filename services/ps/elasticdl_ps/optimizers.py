"""Optimizers: from a specification in Keras' words to a kernel, its slots and its numbers at a step.

Semantics are those of Keras 3, weight decay included: ``w -= w * weight_decay * learning_rate`` before the update.
The step count ``t`` of Adam and Adamax is the number of updates that the partition has applied, plus one, for dense
parameters and embedding rows alike; a row that was not touched neither decays nor moves ("lazy" Adam).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import OptimizerSpec

Params = Mapping[str, float]
Own = Callable[[Params, np.float32, int], list[float]]

_IGNORED = {
    "ema_momentum": None,
    "ema_overwrite_frequency": None,
    "use_ema": False,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}
"""Parameters of every Keras optimizer that the PS does not carry out, with the value that asks for nothing."""


@dataclass(frozen=True, slots=True)
class _Family:
    defaults: Mapping[str, float]
    kernel: Callable[[Params], str]
    slots: Callable[[Params], dict[str, float]]
    own: Own


def _adam_numbers(p: Params, lr: np.float32, t: int) -> list[float]:
    """As Keras does it: powers in float32, ``1 - beta`` in float64."""
    step = np.float32(t)
    power_1, power_2 = np.float32(p["beta_1"]) ** step, np.float32(p["beta_2"]) ** step
    one = np.float32(1)
    alpha = lr * np.sqrt(one - power_2) / (one - power_1)
    return [1.0 - p["beta_1"], 1.0 - p["beta_2"], p["epsilon"], float(alpha)]


def _adamax_numbers(p: Params, lr: np.float32, t: int) -> list[float]:
    correction = np.float32(1) - np.float32(p["beta_1"]) ** np.float32(t)
    return [1.0 - p["beta_1"], p["beta_2"], p["epsilon"], float(correction)]


def _ftrl_numbers(p: Params, lr: np.float32, t: int) -> list[float]:
    l2 = p["l2_regularization_strength"] + (p["beta"] / (2.0 * float(lr)) if p["beta"] else 0.0)
    return [
        -p["learning_rate_power"],
        p["l1_regularization_strength"],
        2.0 * l2,
        2.0 * p["l2_shrinkage_regularization_strength"],
    ]


def _sgd_kernel(p: Params) -> str:
    if p["momentum"] == 0:
        return "sgd"
    return "nesterov" if p["nesterov"] else "momentum"


def _adam_slots(p: Params) -> dict[str, float]:
    slots = {"momentum": 0.0, "velocity": 0.0}
    return slots | {"velocity_hat": 0.0} if p["amsgrad"] else slots


def _rmsprop_slots(p: Params) -> dict[str, float]:
    slots = {"velocity": 0.0}
    if p["momentum"] > 0:
        slots["momentum"] = 0.0
    if p["centered"]:
        slots["average_gradient"] = 0.0
    return slots


_ADAM = {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
_FAMILIES: Mapping[str, _Family] = {
    "sgd": _Family(
        {"learning_rate": 0.01, "momentum": 0.0, "nesterov": 0.0},
        _sgd_kernel,
        lambda p: {"momentum": 0.0} if p["momentum"] else {},
        lambda p, lr, t: [p["momentum"]],
    ),
    "adam": _Family(
        {**_ADAM, "amsgrad": 0.0}, lambda p: "amsgrad" if p["amsgrad"] else "adam", _adam_slots, _adam_numbers
    ),
    "adamw": _Family(
        {**_ADAM, "amsgrad": 0.0, "weight_decay": 0.004},
        lambda p: "amsgrad" if p["amsgrad"] else "adam",
        _adam_slots,
        _adam_numbers,
    ),
    "adagrad": _Family(
        {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 1e-7},
        lambda p: "adagrad",
        lambda p: {"accumulator": p["initial_accumulator_value"]},
        lambda p, lr, t: [p["epsilon"]],
    ),
    "rmsprop": _Family(
        {"learning_rate": 0.001, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": 0.0},
        lambda p: "rmsprop",
        _rmsprop_slots,
        lambda p, lr, t: [p["rho"], 1.0 - p["rho"], p["epsilon"], p["momentum"], p["centered"]],
    ),
    "adadelta": _Family(
        {"learning_rate": 0.001, "rho": 0.95, "epsilon": 1e-7},
        lambda p: "adadelta",
        lambda p: {"accumulated_grad": 0.0, "accumulated_delta_var": 0.0},
        lambda p, lr, t: [p["rho"], 1.0 - p["rho"], p["epsilon"]],
    ),
    "adamax": _Family(_ADAM, lambda p: "adamax", lambda p: {"momentum": 0.0, "norm": 0.0}, _adamax_numbers),
    "ftrl": _Family(
        {
            "learning_rate": 0.001,
            "learning_rate_power": -0.5,
            "initial_accumulator_value": 0.1,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
            "beta": 0.0,
        },
        lambda p: "ftrl",
        lambda p: {"accumulator": p["initial_accumulator_value"], "linear": 0.0},
        _ftrl_numbers,
    ),
}
OPTIMIZER_NAMES = tuple(_FAMILIES)
NUMBERS = 8
"""What every kernel is given: scale, learning rate, weight decay, and up to five numbers of the optimizer's own."""
_RANGES: Mapping[str, tuple[float, float]] = {
    "beta_1": (0.0, 1.0),
    "beta_2": (0.0, 1.0),
    "rho": (0.0, 1.0),
    "momentum": (0.0, 1.0),
    "learning_rate_power": (-math.inf, 0.0),
}


class Optimizer:
    """An optimizer made ready for a partition.

    Args:
        spec: name and hyper-parameters; those left out have Keras' defaults.

    Attributes:
        spec: as given.
        kernel: name of the update kernel.
        slots: the slots' names and first values, in the order in which they follow a row's value.

    Raises:
        InvalidInputError: the optimizer or one of its hyper-parameters is unknown or out of range.
    """

    def __init__(self, spec: OptimizerSpec) -> None:
        family = _FAMILIES.get(spec.name)
        if family is None:
            raise InvalidInputError(
                f"the optimizer {spec.name!r} is not known to the parameter server",
                fix=f"use one of {', '.join(OPTIMIZER_NAMES)}",
            )
        self.spec = spec
        self._params = _checked(spec, family)
        self._own = family.own
        self.kernel = family.kernel(self._params)
        self.slots: dict[str, float] = family.slots(self._params)
        self.check_learning_rate(self.learning_rate)

    @property
    def learning_rate(self) -> float:
        """The optimizer's own learning rate."""
        return self._params["learning_rate"]

    @property
    def decays(self) -> bool:
        """Whether there is any weight decay."""
        return self._params["weight_decay"] != 0

    @property
    def slot_values(self) -> NDArray[np.float32]:
        """First values of the slots, float32 ``[len(slots)]``."""
        return np.array(list(self.slots.values()), np.float32)

    def check_learning_rate(self, rate: float | None) -> None:
        """Refuses a rate that the optimizer cannot compute with.

        Raises:
            InvalidInputError: it divides by the rate, which is 0.
        """
        if rate == 0 and self.spec.name == "ftrl":
            raise InvalidInputError("ftrl: learning_rate=0 divides by zero", fix="choose a positive learning rate")

    def numbers(
        self, step: int, learning_rate: float | None = None, *, scale: float = 1.0, decays: int = 1
    ) -> NDArray[np.float32]:
        """The kernel's numbers for one update.

        Args:
            step: 1 for the first update.
            learning_rate: None for the optimizer's own.
            scale: what gradients are multiplied with.
            decays: how often weight decay acts; 0 where it does not apply.
        """
        lr = np.float32(self.learning_rate if learning_rate is None else learning_rate)
        decay = self._params["weight_decay"] if decays else 0.0
        if decays > 1 and decay and lr:
            # The kernels take lr times this of a weight once: as much as so many single decays.
            decay = (1.0 - (1.0 - decay * float(lr)) ** decays) / float(lr)
        given = np.array([scale, lr, decay, *self._own(self._params, lr, step)], np.float32)
        numbers = np.zeros(NUMBERS, np.float32)
        numbers[: len(given)] = given
        return numbers


def _checked(spec: OptimizerSpec, family: _Family) -> dict[str, float]:
    params = {"weight_decay": 0.0, **family.defaults}
    for name, value in spec.params.items():
        if name in _IGNORED:
            if value not in (None, False) and not name.startswith("ema_"):
                raise InvalidInputError(
                    f"{spec.name} has {name}={value}, which a parameter server cannot apply",
                    fix=f"leave {name} out of the optimizer",
                )
        elif name not in params:
            raise InvalidInputError(
                f"{spec.name} has no hyper-parameter {name!r}", fix=f"use some of {', '.join(sorted(params))}"
            )
        elif value is not None:
            params[name] = _number(spec.name, name, value)
    return params


def _number(optimizer: str, name: str, value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInputError(f"{optimizer}: {name}={value!r} is no finite number", fix=f"give {name} a number")
    low, high = _RANGES.get(name, (0.0, math.inf))
    if not low <= value <= high:
        raise InvalidInputError(
            f"{optimizer}: {name}={value} is out of range", fix=f"choose {name} between {low:g} and {high:g}"
        )
    return float(value)
