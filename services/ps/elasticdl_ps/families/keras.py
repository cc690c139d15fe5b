"""Optimizers with the semantics of Keras 3.

Weight decay is decoupled: ``w -= w * weight_decay * learning_rate`` before the update. The step count ``t`` of Adam
and Adamax is Keras' ``iterations``: the updates that the optimizer has made, plus one, for dense parameters and
embedding rows alike, whichever of them had a gradient; a row that was not touched neither decays nor moves ("lazy"
Adam).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from elasticdl_ps.families.family import Family, FamilyUpdate, Interval, Params, compound_decay

_NOTHING = (None, False)
_IGNORED: Mapping[str, Sequence[object] | None] = {
    "ema_momentum": None,
    "ema_overwrite_frequency": None,
    "use_ema": _NOTHING,
    "clipnorm": _NOTHING,
    "clipvalue": _NOTHING,
    "global_clipnorm": _NOTHING,
    "loss_scale_factor": _NOTHING,
    "gradient_accumulation_steps": _NOTHING,
}
"""Parameters of every Keras optimizer that the PS does not carry out, with the values that ask for nothing."""
_UP_TO_ONE = Interval(0.0, 1.0)
_BOUNDS = {
    "beta_1": _UP_TO_ONE,
    "beta_2": _UP_TO_ONE,
    "rho": _UP_TO_ONE,
    "momentum": _UP_TO_ONE,
    "learning_rate_power": Interval(-math.inf, 0.0),
}


def _adam_numbers(of: FamilyUpdate) -> list[float]:
    """As Keras does it: powers in float32, ``1 - beta`` in float64."""
    p, step, one = of.params, np.float32(of.step), np.float32(1)
    power_1, power_2 = np.float32(p["beta_1"]) ** step, np.float32(p["beta_2"]) ** step
    alpha = of.rate * np.sqrt(one - power_2) / (one - power_1)
    return [1.0 - p["beta_1"], 1.0 - p["beta_2"], p["epsilon"], float(alpha)]


def _adamax_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    correction = np.float32(1) - np.float32(p["beta_1"]) ** np.float32(of.step)
    return [1.0 - p["beta_1"], p["beta_2"], p["epsilon"], float(correction)]


def _rmsprop_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    return [p["rho"], 1.0 - p["rho"], p["epsilon"], p["momentum"], p["centered"]]


def _adadelta_numbers(of: FamilyUpdate) -> list[float]:
    return [of.params["rho"], 1.0 - of.params["rho"], of.params["epsilon"]]


def _ftrl_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    l2 = p["l2_regularization_strength"] + (p["beta"] / (2.0 * float(of.rate)) if p["beta"] else 0.0)
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


def _adam_kernel(p: Params) -> str:
    return "amsgrad" if p["amsgrad"] else "adam"


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


def _family(
    defaults: Params,
    kernel: Callable[[Params], str],
    slots: Callable[[Params], dict[str, float]],
    own: Callable[[FamilyUpdate], list[float]],
) -> Family:
    def numbers(of: FamilyUpdate) -> list[float]:
        return [compound_decay(of), *own(of)]

    return Family({"weight_decay": 0.0, **defaults}, kernel, slots, numbers, _IGNORED, _BOUNDS)


_ADAM = {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
_FTRL = {
    "learning_rate": 0.001,
    "learning_rate_power": -0.5,
    "initial_accumulator_value": 0.1,
    "l1_regularization_strength": 0.0,
    "l2_regularization_strength": 0.0,
    "l2_shrinkage_regularization_strength": 0.0,
    "beta": 0.0,
}
KERAS_FAMILIES: Mapping[str, Family] = {
    "sgd": _family(
        {"learning_rate": 0.01, "momentum": 0.0, "nesterov": 0.0},
        _sgd_kernel,
        lambda p: {"momentum": 0.0} if p["momentum"] else {},
        lambda of: [of.params["momentum"]],
    ),
    "adam": _family({**_ADAM, "amsgrad": 0.0}, _adam_kernel, _adam_slots, _adam_numbers),
    "adamw": _family({**_ADAM, "amsgrad": 0.0, "weight_decay": 0.004}, _adam_kernel, _adam_slots, _adam_numbers),
    "adagrad": _family(
        {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 1e-7},
        lambda p: "adagrad",
        lambda p: {"accumulator": p["initial_accumulator_value"]},
        lambda of: [of.params["epsilon"]],
    ),
    "rmsprop": _family(
        {"learning_rate": 0.001, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": 0.0},
        lambda p: "rmsprop",
        _rmsprop_slots,
        _rmsprop_numbers,
    ),
    "adadelta": _family(
        {"learning_rate": 0.001, "rho": 0.95, "epsilon": 1e-7},
        lambda p: "adadelta",
        lambda p: {"accumulated_grad": 0.0, "accumulated_delta_var": 0.0},
        _adadelta_numbers,
    ),
    "adamax": _family(_ADAM, lambda p: "adamax", lambda p: {"momentum": 0.0, "norm": 0.0}, _adamax_numbers),
    "ftrl": _family(
        _FTRL,
        lambda p: "ftrl",
        lambda p: {"accumulator": p["initial_accumulator_value"], "linear": 0.0},
        _ftrl_numbers,
    ),
}
