"""PyTorch's optimizers in the words of the parameter servers, their groups, rates and schedulers."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from elasticdl.callbacks import GradientClipping, LearningRateScheduler
from elasticdl_core.errors import UserCodeError
from elasticdl_ps.optimizers import Optimizer
from elasticdl_worker.trainers.torch.model.build import BuiltModel, TorchBuildOptions, build_model
from elasticdl_worker.trainers.torch.model.callbacks import callbacks_of
from elasticdl_worker.trainers.torch.model.optimizers import make_optimizer, translate
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit

KINDS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, {"momentum": 0.9, "dampening": 0.1, "nesterov": False}),
    (torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-3}, {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3}),
    (torch.optim.AdamW, {"weight_decay": 0.2, "amsgrad": True}, {"weight_decay": 0.2, "amsgrad": True}),
    (torch.optim.Adagrad, {"lr_decay": 0.1}, {"lr_decay": 0.1, "initial_accumulator_value": 0.0}),
    (torch.optim.RMSprop, {"alpha": 0.8, "centered": True}, {"alpha": 0.8, "centered": True}),
    (torch.optim.Adadelta, {"rho": 0.7}, {"rho": 0.7, "epsilon": 1e-6}),
    (torch.optim.Adamax, {"maximize": True}, {"maximize": True, "epsilon": 1e-8}),
    (torch.optim.NAdam, {"momentum_decay": 0.1}, {"momentum_decay": 0.1}),
    (torch.optim.RAdam, {"decoupled_weight_decay": True}, {"decoupled_weight_decay": True}),
    (torch.optim.SparseAdam, {"eps": 0.1}, {"epsilon": 0.1}),
]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def module(optimizer: Any, callbacks: Any = None) -> ModelModule:
    return ModelModule(Path("m.py"), (), net, optimizer=optimizer, callbacks=callbacks)


def plan_of(optimizer: Any, callbacks: Any = None) -> tuple[Any, BuiltModel]:
    mine = module(optimizer, callbacks)
    given = callbacks_of(mine)
    model = build_model(mine, None, TorchBuildOptions(1 << 20))
    made = make_optimizer(mine, model, given)
    model.keep_untrained(made.untrained)
    return translate(made, given, lambda _: contextlib.nullcontext()), model


@pytest.mark.parametrize(("kind", "options", "expected"), KINDS, ids=[kind.__name__ for kind, _, _ in KINDS])
def test_each_optimizer_is_one_of_the_parameter_servers(
    kind: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    plan, _ = plan_of(lambda lr=0.02: functools.partial(kind, lr=lr, **options))
    assert plan.spec.name == f"torch.{'sparse_adam' if kind is torch.optim.SparseAdam else kind.__name__.lower()}"
    assert plan.spec.params["learning_rate"] == 0.02
    assert expected.items() <= plan.spec.params.items()
    assert Optimizer(plan.spec), "the parameter servers take it"


def takes_model(model: Any) -> Any:
    first, second = model
    return torch.optim.SGD([{"params": first.parameters(), "lr": 0.1}, {"params": [second.weight]}], lr=0.01)


def test_groups_have_options_of_their_own_and_who_is_in_none_is_not_trained() -> None:
    plan, model = plan_of(takes_model)
    assert plan.spec.params["learning_rate"] == 0.1
    assert plan.spec.groups == ({"learning_rate": 0.01},)
    groups = {spec.name: spec.group for spec in model.dense_specs(plan.groups)}
    assert groups == {"0.weight": 0, "0.bias": 0, "1.weight": 1, "1.bias": 0}
    assert list(model.trainable) == ["0.weight", "0.bias", "1.weight"]
    assert list(model.state) == ["1.bias"]


FORMS = {
    "a class": lambda: torch.optim.Adam,
    "a function of the parameters": lambda: lambda params: torch.optim.Adam(params),
    "which takes them": lambda params: torch.optim.Adam(params),
    "named": lambda named_parameters: torch.optim.Adam(list(named_parameters)),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_optimizer_may_be_given_in_several_forms(form: str) -> None:
    assert plan_of(FORMS[form])[0].spec.name == "torch.adam"


def test_an_optimizer_of_the_modules_own_model_is_taken() -> None:
    model = net()
    mine = ModelModule(Path("m.py"), (), lambda: model, optimizer=lambda: torch.optim.SGD(model.parameters(), 0.3))
    built = build_model(mine, None, TorchBuildOptions(1 << 20))
    assert translate(make_optimizer(mine, built, []), [], lambda _: contextlib.nullcontext()).spec.name == "torch.sgd"


SCHEDULES = {
    "beside the optimizer": (
        lambda: (
            functools.partial(torch.optim.SGD, lr=0.1),
            functools.partial(lr_scheduler.StepLR, step_size=2, gamma=0.5),
        ),
        None,
    ),
    "among the callbacks": (
        lambda: functools.partial(torch.optim.SGD, lr=0.1),
        lambda: [functools.partial(lr_scheduler.StepLR, step_size=2, gamma=0.5)],
    ),
    "of ours": (
        lambda: functools.partial(torch.optim.SGD, lr=0.1),
        lambda: [LearningRateScheduler(lambda version: 0.1 * 0.5 ** (version // 2))],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_follow_from_the_model_version(name: str) -> None:
    plan, _ = plan_of(*SCHEDULES[name])
    assert plan.learning_rate is not None
    rates = [plan.learning_rate(version, 0) for version in (5, 0, 1, 2, 3, 4)]
    assert rates == [pytest.approx((rate,)) for rate in (0.025, 0.1, 0.1, 0.05, 0.05, 0.025)]


class OwnAdam(torch.optim.Adam):
    """A class of the user's."""


REFUSED = {
    "LBFGS": (lambda: torch.optim.LBFGS, None, "LBFGS is not among the optimizers"),
    "an own class": (lambda: OwnAdam, None, "OwnAdam has an update of its own"),
    "no optimizer": (lambda: 3, None, "returned a int"),
    "another model": (lambda: torch.optim.SGD(net().parameters(), 0.1), None, "none of the model"),
    "plateau": (
        lambda: (torch.optim.Adam, lr_scheduler.ReduceLROnPlateau),
        None,
        "ReduceLROnPlateau would change the rate by evaluations",
    ),
    "momentum": (
        lambda: (torch.optim.SGD, functools.partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9)),
        None,
        "changes the momentum|cycle_momentum|momentum",
    ),
    "two schedules": (
        lambda: (torch.optim.SGD, functools.partial(lr_scheduler.StepLR, step_size=2)),
        lambda: [LearningRateScheduler(lambda version: 0.1)],
        "keep one|besides",
    ),
    "two clippings": (
        lambda: torch.optim.SGD,
        lambda: [GradientClipping(max_norm=1.0), GradientClipping(clip_value=1.0)],
        "more than one GradientClipping",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_parameter_servers_would_do_otherwise_is_refused_by_name(name: str) -> None:
    optimizer, callbacks, said = REFUSED[name]
    with pytest.raises(UserCodeError, match=said) as raised:
        plan_of(optimizer, callbacks)
    assert raised.value.fix
