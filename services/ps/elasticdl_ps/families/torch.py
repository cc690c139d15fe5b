"""Optimizers with the semantics of PyTorch: what ``torch.optim`` does to one parameter, number by number.

Weight decay is added to the gradient (L2) unless it is decoupled; epsilon stands outside of the root; the numbers of
a step are computed in float64 and rounded once. Where a sum of several minibatches' gradients comes as one update, L2
decay counts as often as there are minibatches, for each one's gradient would have had it.

What PyTorch leaves to its dense and sparse gradients is this here, for dense parameters and embedding rows alike:

- Each dense parameter and each table counts the updates that it had a gradient in, as PyTorch does. Rows have the
  count of their table, as with ``SparseAdam``: a row that is touched for the first time at the table's step 1000 is
  corrected for step 1000.
- A row that was not touched is left alone, slots included, as with ``SparseAdam`` and with ``Adagrad`` on sparse
  gradients; it neither decays nor moves by its momentum (PyTorch's ``SGD`` moves on every row that ever had a
  gradient). Optimizers that refuse sparse gradients there treat rows here as dense parameters of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.nadam import momentum_of, product_of_momenta
from elasticdl_ps.families.family import Family, FamilyUpdate, Interval, Params, compound_decay

_IGNORED: Mapping[str, Sequence[object] | None] = {
    "foreach": None,
    "fused": None,
    "capturable": None,
    "differentiable": None,
}
"""How PyTorch goes about the same arithmetic."""
_BELOW_ONE = Interval(0.0, 1.0, below=True)
_FLAG = Interval(0.0, 1.0)
_BOUNDS = {
    "beta_1": _BELOW_ONE,
    "beta_2": _BELOW_ONE,
    "rho": Interval(0.0, 1.0),
    "dampening": Interval(-math.inf, math.inf),
    **dict.fromkeys(("nesterov", "amsgrad", "centered", "maximize", "decoupled_weight_decay"), _FLAG),
}
_NO_DECAY = 1.0
"""What a weight keeps where nothing decays it directly."""


def _l2(of: FamilyUpdate) -> float:
    """The part of a weight that is added to its gradient."""
    if of.params.get("decoupled_weight_decay"):
        return 0.0
    return of.params["weight_decay"] * of.decays


def _kept(of: FamilyUpdate) -> float:
    """The part of a weight that is kept before the update, where decay is decoupled."""
    if not of.params["decoupled_weight_decay"]:
        return _NO_DECAY
    return (1.0 - float(of.rate) * of.params["weight_decay"]) ** of.decays


def _sgd_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    if not of.layout["momentum"]:
        return [compound_decay(of)]
    # A group without momentum among others with it: its buffer is its gradient.
    dampening = p["dampening"] if p["momentum"] else 0.0
    return [_l2(of), p["momentum"], 1.0 - dampening, p["nesterov"]]


def _check_sgd(p: Params) -> None:
    if p["nesterov"] and (p["momentum"] == 0 or p["dampening"] != 0):
        raise InvalidInputError(
            "torch.sgd: nesterov needs a momentum, and no dampening", fix="set momentum over 0 and dampening to 0"
        )


def _moments(p: Params) -> list[float]:
    """Weights of the new gradient in the mean, and of the old and the new in the mean of squares."""
    return [1.0 - p["beta_1"], p["beta_2"], 1.0 - p["beta_2"]]


def _adam_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    step_size = float(of.rate) / (1.0 - p["beta_1"] ** of.step)
    root_2 = math.sqrt(1.0 - p["beta_2"] ** of.step)
    return [_l2(of), _kept(of), *_moments(p), p["epsilon"], step_size, root_2, p["amsgrad"]]


def _adagrad_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    return [_l2(of), p["epsilon"], float(of.rate) / (1.0 + (of.step - 1) * p["lr_decay"])]


def _rmsprop_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    has_momentum, has_average = of.layout["momentum"] > 0, of.layout["centered"]
    own = [p["alpha"], 1.0 - p["alpha"], p["epsilon"], p["momentum"], p["centered"]]
    return [_l2(of), *own, float(has_momentum), has_average]


def _rmsprop_slots(p: Params) -> dict[str, float]:
    slots = {"square_avg": 0.0}
    if p["centered"]:
        slots["grad_avg"] = 0.0
    if p["momentum"] > 0:
        slots["momentum_buffer"] = 0.0
    return slots


def _adadelta_numbers(of: FamilyUpdate) -> list[float]:
    return [_l2(of), of.params["rho"], 1.0 - of.params["rho"], of.params["epsilon"]]


def _adamax_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    step_size = float(of.rate) / (1.0 - p["beta_1"] ** of.step)
    return [_l2(of), 1.0 - p["beta_1"], p["beta_2"], p["epsilon"], step_size]


def _nadam_numbers(of: FamilyUpdate) -> list[float]:
    p, rate = of.params, float(of.rate)
    product = product_of_momenta(of.step, p["beta_1"], p["momentum_decay"])
    mu, following = (momentum_of(step, p["beta_1"], p["momentum_decay"]) for step in (of.step, of.step + 1))
    of_gradient = rate * (1.0 - mu) / (1.0 - product)
    of_mean = rate * following / (1.0 - product * following)
    correction_2 = 1.0 - p["beta_2"] ** of.step
    return [_l2(of), _kept(of), *_moments(p), p["epsilon"], correction_2, of_gradient, of_mean]


def _radam_numbers(of: FamilyUpdate) -> list[float]:
    p, t = of.params, of.step
    correction_2 = 1.0 - p["beta_2"] ** t
    longest = 2.0 / (1.0 - p["beta_2"]) - 1.0
    length = longest - 2.0 * t * p["beta_2"] ** t / correction_2
    step_size = float(of.rate) / (1.0 - p["beta_1"] ** t)
    adapts = length > 5.0
    if adapts:
        rectified = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        step_size *= math.sqrt(rectified * correction_2)
    return [_l2(of), _kept(of), *_moments(p), p["epsilon"], step_size, float(adapts)]


def _sparse_adam_numbers(of: FamilyUpdate) -> list[float]:
    p = of.params
    step_size = float(of.rate) * math.sqrt(1.0 - p["beta_2"] ** of.step) / (1.0 - p["beta_1"] ** of.step)
    return [0.0, 1.0 - p["beta_1"], 1.0 - p["beta_2"], p["epsilon"], step_size]


def _adam_slots(p: Params) -> dict[str, float]:
    slots = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
    return slots | {"max_exp_avg_sq": 0.0} if p["amsgrad"] else slots


def _moment_slots(p: Params) -> dict[str, float]:
    return {"exp_avg": 0.0, "exp_avg_sq": 0.0}


def _family(
    defaults: Params,
    kernel: str | Callable[[Params], str],
    slots: Callable[[Params], dict[str, float]],
    numbers: Callable[[FamilyUpdate], list[float]],
    *,
    layout: Sequence[str] = (),
    shared: Sequence[str] = (),
    check: Callable[[Params], None] = lambda params: None,
) -> Family:
    name_of = (lambda params: kernel) if isinstance(kernel, str) else kernel
    return Family(
        {**defaults, "maximize": 0.0},
        name_of,
        slots,
        numbers,
        _IGNORED,
        _BOUNDS,
        layout,
        shared,
        check,
        counts_parameters=True,
    )


_BETAS = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
_ADAM = {"learning_rate": 0.001, **_BETAS, "weight_decay": 0.0, "amsgrad": 0.0, "decoupled_weight_decay": 0.0}


def _adam(**changed: float) -> Family:
    return _family(
        {**_ADAM, **changed},
        lambda p: "torch_amsgrad" if p["amsgrad"] else "torch_adam",
        _adam_slots,
        _adam_numbers,
        layout=("amsgrad",),
    )


TORCH_FAMILIES: Mapping[str, Family] = {
    "torch.sgd": _family(
        {"learning_rate": 0.001, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": 0.0},
        lambda p: "torch_momentum" if p["momentum"] else "sgd",
        # No number: the first gradient becomes the buffer, whatever the dampening.
        lambda p: {"momentum_buffer": math.nan} if p["momentum"] else {},
        _sgd_numbers,
        layout=("momentum",),
        check=_check_sgd,
    ),
    "torch.adam": _adam(),
    "torch.adamw": _adam(weight_decay=0.01, decoupled_weight_decay=1.0),
    "torch.adagrad": _family(
        {
            "learning_rate": 0.01,
            "lr_decay": 0.0,
            "weight_decay": 0.0,
            "initial_accumulator_value": 0.0,
            "epsilon": 1e-10,
        },
        "torch_adagrad",
        lambda p: {"sum": p["initial_accumulator_value"]},
        _adagrad_numbers,
        shared=("initial_accumulator_value",),
    ),
    "torch.rmsprop": _family(
        {
            "learning_rate": 0.01,
            "alpha": 0.99,
            "epsilon": 1e-8,
            "weight_decay": 0.0,
            "momentum": 0.0,
            "centered": 0.0,
        },
        "torch_rmsprop",
        _rmsprop_slots,
        _rmsprop_numbers,
        layout=("momentum", "centered"),
    ),
    "torch.adadelta": _family(
        {"learning_rate": 1.0, "rho": 0.9, "epsilon": 1e-6, "weight_decay": 0.0},
        "torch_adadelta",
        lambda p: {"square_avg": 0.0, "acc_delta": 0.0},
        _adadelta_numbers,
    ),
    "torch.adamax": _family(
        {"learning_rate": 0.002, **_BETAS, "weight_decay": 0.0},
        "torch_adamax",
        lambda p: {"exp_avg": 0.0, "exp_inf": 0.0},
        _adamax_numbers,
    ),
    "torch.nadam": _family(
        {
            "learning_rate": 0.002,
            **_BETAS,
            "weight_decay": 0.0,
            "momentum_decay": 0.004,
            "decoupled_weight_decay": 0.0,
        },
        "torch_nadam",
        _moment_slots,
        _nadam_numbers,
    ),
    "torch.radam": _family(
        {"learning_rate": 0.001, **_BETAS, "weight_decay": 0.0, "decoupled_weight_decay": 0.0},
        "torch_radam",
        _moment_slots,
        _radam_numbers,
    ),
    "torch.sparse_adam": _family({"learning_rate": 0.001, **_BETAS}, "adam", _moment_slots, _sparse_adam_numbers),
}
