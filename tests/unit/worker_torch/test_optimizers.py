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


def rows_alone(kind: Any = nn.Embedding, **options: Any) -> nn.Module:
    return nn.Sequential(kind(20, 2, **options))


def module(optimizer: Any, callbacks: Any = None, make: Any = net) -> ModelModule:
    return ModelModule(Path("m.py"), (), make, optimizer=optimizer, callbacks=callbacks)


def plan_of(optimizer: Any, callbacks: Any = None, make: Any = net, *, tables: bool = True) -> tuple[Any, BuiltModel]:
    mine = module(optimizer, callbacks, make)
    given = callbacks_of(mine)
    model = build_model(mine, None, TorchBuildOptions(1 << 20))
    if not tables:
        model.materialise()
    made = make_optimizer(mine, model, given)
    model.keep_untrained(made.untrained)
    return translate(made, given, lambda _: contextlib.nullcontext()), model


@pytest.mark.parametrize(("kind", "options", "expected"), KINDS, ids=[kind.__name__ for kind, _, _ in KINDS])
def test_each_optimizer_is_one_of_the_parameter_servers(
    kind: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    make = functools.partial(rows_alone, sparse=True) if kind is torch.optim.SparseAdam else net
    plan, _ = plan_of(lambda lr=0.02: functools.partial(kind, lr=lr, **options), make=make)
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


class Damping(lr_scheduler.StepLR):
    """Changes an option of its optimizer that is no rate, in its third step."""

    def step(self, epoch: Any = None) -> None:
        super().step(epoch)
        if self.last_epoch == 3:
            self.optimizer.param_groups[0]["momentum"] = 0.5


def test_a_scheduler_that_changes_the_momentum_later_is_refused_then() -> None:
    plan, _ = plan_of(lambda: (functools.partial(torch.optim.SGD, lr=0.1), functools.partial(Damping, step_size=2)))
    assert plan.learning_rate is not None
    assert plan.learning_rate(2, 0) == pytest.approx((0.01,))
    with pytest.raises(UserCodeError, match="Damping changes the momentum"):
        plan.learning_rate(3, 0)


class Decaying(lr_scheduler.StepLR):
    """Schedules the weight decay as well."""

    def step(self, epoch: Any = None) -> None:
        super().step(epoch)
        self.optimizer.param_groups[0]["weight_decay"] = 0.1 * self.last_epoch


def test_a_scheduler_that_changes_another_option_is_refused_by_the_options_name() -> None:
    plan, _ = plan_of(lambda: (functools.partial(torch.optim.SGD, lr=0.1), functools.partial(Decaying, step_size=2)))
    assert plan.learning_rate is not None
    with pytest.raises(UserCodeError, match="Decaying, which changes weight_decay,"):
        plan.learning_rate(1, 0)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9, cycle_momentum=False),
        functools.partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3, cycle_momentum=False),
    ],
)
def test_schedulers_that_cycle_the_rate_alone_are_followed(make: Any) -> None:
    plan, _ = plan_of(lambda: (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), make))
    parameter = torch.nn.Parameter(torch.zeros(1))
    plain = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    schedule = make(plain)
    assert plan.learning_rate is not None
    for version in range(8):
        assert plan.learning_rate(version, 0) == pytest.approx((plain.param_groups[0]["lr"],))
        plain.step()
        schedule.step()


class OwnAdam(torch.optim.Adam):
    """A class of the user's."""


def with_state(params: Any) -> Any:
    made = torch.optim.Adam(params)
    made.state[made.param_groups[0]["params"][0]] = {"step": torch.tensor(9.0)}
    return made


def with_sums(params: Any) -> Any:
    made = torch.optim.Adagrad(params)
    made.state[made.param_groups[0]["params"][0]]["sum"] += 1.0
    return made


def with_step(params: Any) -> Any:
    made: Any = torch.optim.SGD(params, lr=0.1)
    made.step = lambda closure=None: None
    return made


def with_zero_grad(params: Any) -> Any:
    made: Any = torch.optim.SGD(params, lr=0.1)
    made.zero_grad = lambda set_to_none=True: None
    return made


def with_scheduler(params: Any) -> Any:
    made = torch.optim.SGD(params, lr=0.1)
    lr_scheduler.StepLR(made, 2)
    return made


def scheduled_itself(params: Any) -> Any:
    made = torch.optim.SGD(params, lr=0.1)
    return made, lambda _: lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 2)


REFUSED = {
    "LBFGS": (lambda: torch.optim.LBFGS, None, "LBFGS is not among the optimizers"),
    "Adafactor": (lambda: torch.optim.Adafactor, None, "Adafactor is not among the optimizers"),
    "Rprop": (lambda: torch.optim.Rprop, None, "Rprop is not among the optimizers"),
    "capturable": (lambda: functools.partial(torch.optim.Adam, capturable=True), None, "Adam with capturable=True"),
    "a state": (with_state, None, "Adam with a state that it was given"),
    "sums": (with_sums, None, "Adagrad with a state that it was given"),
    "another step": (with_step, None, r"SGD with a step\(\) of the module's own"),
    "gradients that are kept": (with_zero_grad, None, r"SGD with a zero_grad\(\) of the module's own"),
    "a scheduler that is made": (with_scheduler, None, "SGD has a scheduler, which nobody would step"),
    "a scheduler of another": (scheduled_itself, None, "makes it of another optimizer than it is given"),
    "an own class": (lambda: OwnAdam, None, "OwnAdam has an update of its own"),
    "differentiable": (
        lambda: functools.partial(torch.optim.SGD, lr=0.1, differentiable=True),
        None,
        "SGD with differentiable=True is what PyTorch refuses",
    ),
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
        "OneCycleLR changes the momentum",
    ),
    "momentum that begins as it is": (
        lambda: (
            functools.partial(torch.optim.SGD, lr=0.1, momentum=0.95),
            functools.partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9),
        ),
        None,
        "OneCycleLR changes the momentum",
    ),
    "momentum of a part": (
        lambda: (
            functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            lambda made: lr_scheduler.ChainedScheduler(
                [lr_scheduler.CyclicLR(made, 0.1, 0.2, base_momentum=0.9, max_momentum=0.9)]
            ),
        ),
        None,
        "ChainedScheduler changes the momentum",
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


SPARSE: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    **{
        f"{kind.__name__} and sparse rows": (
            functools.partial(kind, lr=0.1),
            {"sparse": True},
            None if kind in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam) else "sparse gradients",
        )
        for kind, _, _ in KINDS
    },
    "SparseAdam and dense rows": (torch.optim.SparseAdam, {}, "sparse gradients alone"),
    "decay in SGD": (functools.partial(torch.optim.SGD, weight_decay=0.1), {"sparse": True}, "have no decay"),
    "decay in Adagrad": (functools.partial(torch.optim.Adagrad, weight_decay=0.1), {"sparse": True}, "have no decay"),
    "scaled": (torch.optim.SGD, {"sparse": True, "scale_grad_by_freq": True}, "neither scaled by frequency"),
    "maximum": (
        torch.optim.SGD,
        {"sparse": True, "mode": "max", "kind": nn.EmbeddingBag},
        "nor those of a maximum",
    ),
    "mean": (torch.optim.SGD, {"sparse": True, "mode": "mean", "kind": nn.EmbeddingBag}, None),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of Adagrad in PyTorch itself
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients_are_taken_and_refused_wherever_pytorch_does(name: str) -> None:
    """As tables of parameter servers, in the model, and by PyTorch itself."""
    optimizer, options, said = SPARSE[name]
    for tables in (True, False):
        with contextlib.nullcontext() if said is None else pytest.raises(UserCodeError, match=said) as raised:
            plan_of(lambda: optimizer, make=functools.partial(rows_alone, **options), tables=tables)
        assert said is None or raised.value.fix
    model = rows_alone(**options)
    own = optimizer(model.parameters())
    with contextlib.nullcontext() if said is None else pytest.raises((RuntimeError, ValueError)):
        model(torch.tensor([[1, 2], [2, 3]])).sum().backward()
        own.step()


def test_a_weight_that_something_else_uses_as_well_has_dense_gradients() -> None:
    def tied() -> nn.Module:
        layers = nn.Sequential(nn.Embedding(20, 2, sparse=True), nn.Linear(2, 20, bias=False))
        layers[1].weight = layers[0].weight
        return layers

    assert plan_of(lambda: torch.optim.Adam, make=tied)[0].spec.name == "torch.adam"
    with pytest.raises(UserCodeError, match="sparse gradients alone"):
        plan_of(lambda: torch.optim.SparseAdam, make=tied)
