"""The user's PyTorch optimizer: made for a model, checked, and said in the words of the parameter servers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from elasticdl.callbacks import Callback, GradientClipping, LearningRateScheduler
from elasticdl_core.contract import Subject, Verdict, find, refusal
from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import OptimizerSpec, UpdateClipping
from elasticdl_worker.trainers.framework import LearningRates
from elasticdl_worker.trainers.torch.device import HOST, move_memory
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.schedules import SchedulerRates
from elasticdl_worker.trainers.torch.model.sparse_gradients import check_sparse_gradients
from elasticdl_worker.user_code import ModelModule

_PLAIN = ("weight_decay", "maximize")
_ADAM = ("betas", "eps", *_PLAIN)
_OPTIONS: Mapping[type[optim.Optimizer], tuple[str, tuple[str, ...]]] = {
    optim.SGD: ("torch.sgd", ("momentum", "dampening", "nesterov", *_PLAIN)),
    optim.Adam: ("torch.adam", ("amsgrad", "decoupled_weight_decay", *_ADAM)),
    optim.AdamW: ("torch.adamw", ("amsgrad", "decoupled_weight_decay", *_ADAM)),
    optim.Adagrad: ("torch.adagrad", ("lr_decay", "initial_accumulator_value", "eps", *_PLAIN)),
    optim.RMSprop: ("torch.rmsprop", ("alpha", "eps", "momentum", "centered", *_PLAIN)),
    optim.Adadelta: ("torch.adadelta", ("rho", "eps", *_PLAIN)),
    optim.Adamax: ("torch.adamax", _ADAM),
    optim.NAdam: ("torch.nadam", ("momentum_decay", "decoupled_weight_decay", *_ADAM)),
    optim.RAdam: ("torch.radam", ("decoupled_weight_decay", *_ADAM)),
    optim.SparseAdam: ("torch.sparse_adam", ("betas", "eps", "maximize")),
}
"""The optimizers of the parameter servers: their names there, and the options that change a result."""
NORM_SLACK = 1e-6
"""What PyTorch adds to a norm before it divides a limit by it."""
_HARMLESS = ("foreach", "fused", "capturable", "differentiable")
"""Options that change no result: ``differentiable`` if it is False, ``capturable`` on devices that have graphs."""
_NAMES = {"lr": "learning_rate", "eps": "epsilon"}
_MODEL_NAMES = ("model", "module", "net", "network")
_FORM = "return a function of the parameters, e.g. functools.partial(torch.optim.Adam, lr=0.001)"


@dataclass(frozen=True)
class MadeOptimizer:
    """The user's optimizer, made for a model.

    Attributes:
        optimizer: of one of PyTorch's own classes.
        scheduler: what the user schedules the learning rates by: makes an ``LRScheduler``; None for none.
        untrained: parameters of the model that the optimizer was not given.
    """

    optimizer: optim.Optimizer
    scheduler: Callable[[optim.Optimizer], LRScheduler] | None
    untrained: tuple[nn.Parameter, ...]


@dataclass(frozen=True)
class TorchOptimizerPlan:
    """The translation of the user's optimizer.

    Attributes:
        spec: for the parameter servers.
        learning_rate: of each group by model version and epoch; None where they are constant.
        clipping: how workers clip gradients; None for not at all.
        group_params: the options of each group.
        groups: the group of each parameter, by id.
    """

    spec: OptimizerSpec
    learning_rate: LearningRates | None
    clipping: GradientClipping | None
    group_params: tuple[Mapping[str, float | bool], ...]
    groups: Mapping[int, int]

    @property
    def clipping_of_updates(self) -> UpdateClipping:
        """The clipping as parameter servers do it."""
        asked = self.clipping
        if asked is None:
            return UpdateClipping()
        if asked.max_norm is not None:
            return UpdateClipping("global_norm", asked.max_norm, asked.norm_type, NORM_SLACK)
        assert asked.clip_value is not None
        return UpdateClipping("value", asked.clip_value)


def make_optimizer(module: ModelModule, model: BuiltModel, callbacks: Sequence[Callback]) -> MadeOptimizer:
    """Makes the user's optimizer for a model.

    ``optimizer()`` returns a function of the parameters (a class of ``torch.optim``, a partial, a lambda), or takes
    them itself, or returns an optimizer that it made with the parameters of a model that was there already. Beside it
    there may be a function of the optimizer that makes an ``LRScheduler``: ``return factory, scheduler``.

    Args:
        module: the user's module.
        model: the model.
        callbacks: of the module; a scheduler may be among them.

    Raises:
        UserCodeError: it is no optimizer, one that is refused, or one of other parameters.
    """
    entry = module.need("optimizer")
    with module.guard("optimizer"):
        made = entry(*_arguments(entry, model.net, _FORM))
        made, scheduler = _with_scheduler(made)
        if not isinstance(made, optim.Optimizer) and callable(made):
            made, later = _with_scheduler(made(*_arguments(made, model.net, _FORM)))
            scheduler = scheduler or later
    if not isinstance(made, optim.Optimizer):
        raise UserCodeError(f"optimizer() returned a {type(made).__name__}", fix=_FORM)
    check_optimizer(made, model.device)
    check_sparse_gradients(made, model.net)
    declared = [one.make for one in callbacks if isinstance(one, TorchScheduler)]
    if scheduler is not None and declared:
        raise UserCodeError("optimizer() and callbacks() both give a learning rate scheduler", fix="keep one of them")
    untrained = _untrained(made, model)
    if model.device != HOST:
        move_memory(made)
    return MadeOptimizer(made, scheduler or (declared[0] if declared else None), untrained)


@dataclass(frozen=True)
class TorchScheduler(Callback):
    """A scheduler of ``torch.optim.lr_scheduler`` among the callbacks.

    Attributes:
        make: makes it for an optimizer.
    """

    make: Callable[[optim.Optimizer], LRScheduler]


def name_of(optimizer: optim.Optimizer) -> str:
    """The name that parameter servers and checkpoints have for an optimizer."""
    return _OPTIONS[type(optimizer)][0]


def translate(made: MadeOptimizer, callbacks: Sequence[Callback], guard: Callable[[str], Any]) -> TorchOptimizerPlan:
    """Says an optimizer in the words of the parameter servers.

    Args:
        made: the user's optimizer.
        callbacks: of the module.
        guard: what the user's schedule runs in.
    """
    name, options = _OPTIONS[type(made.optimizer)]
    groups = [_params_of(group, options) for group in made.optimizer.param_groups]
    first, rest = groups[0], groups[1:]
    differing = tuple({key: value for key, value in group.items() if first.get(key) != value} for group in rest)
    members = {
        id(parameter): number
        for number, group in enumerate(made.optimizer.param_groups)
        for parameter in group["params"]
    }
    return TorchOptimizerPlan(
        OptimizerSpec(name, first, differing),
        rates_of(made, callbacks, guard),
        clipping_of(callbacks),
        tuple(groups),
        members,
    )


def rates_of(
    made: MadeOptimizer, callbacks: Sequence[Callback], guard: Callable[[str], Any]
) -> Callable[[int, int], tuple[float, ...]] | None:
    """The learning rate of each group by model version and epoch; None where they are constant.

    Raises:
        UserCodeError: a callback and a scheduler both set them, or the scheduler is none that can be asked.
    """
    own = [one for one in callbacks if isinstance(one, LearningRateScheduler)]
    if own and made.scheduler is not None:
        raise UserCodeError(
            "callbacks() has a LearningRateScheduler, and the optimizer a scheduler besides", fix="keep one of them"
        )
    groups = len(made.optimizer.param_groups)
    if own:
        schedule = own[0].schedule

        def by_version(version: int, epoch: int) -> tuple[float, ...]:
            with guard("the learning rate schedule"):
                return (float(schedule(version)),) * groups

        return by_version
    if made.scheduler is None:
        return None
    with guard("the learning rate scheduler"):
        return SchedulerRates(made.optimizer, made.scheduler, guard)


def clipping_of(callbacks: Sequence[Callback]) -> GradientClipping | None:
    """The clipping of gradients.

    Raises:
        UserCodeError: two callbacks say so.
    """
    found = [one for one in callbacks if isinstance(one, GradientClipping)]
    if len(found) > 1:
        raise UserCodeError("callbacks() gives more than one GradientClipping", fix="keep one of them")
    return found[0] if found else None


def check_optimizer(optimizer: optim.Optimizer, device: torch.device) -> None:
    """Refuses what the parameter servers would do otherwise.

    Args:
        optimizer: as the user's function made it.
        device: where the model is computed.

    Raises:
        UserCodeError: with the name of the class, or of the option.
    """
    kind = type(optimizer)
    if kind not in _OPTIONS:
        name = kind.__name__
        own = kind.__module__ == "torch.optim" or kind.__module__.startswith("torch.optim.")
        row = find(Subject.TORCH_OPTIMIZER, name) if own else None
        known = row is not None and row.verdict is Verdict.REFUSED
        raise refusal(Subject.TORCH_OPTIMIZER, name if known else "Optimizer", f"the optimizer {name}")
    name = kind.__name__
    known_options = {"params", "lr", "initial_lr", "name", "param_names", *_HARMLESS, *_OPTIONS[kind][1]}
    for group in optimizer.param_groups:
        unknown = sorted(group.keys() - known_options)
        if unknown:
            raise UserCodeError(
                f"the optimizer {name} has a group with {unknown[0]!r}, which is no option of it",
                fix="leave it out",
            )
        if group.get("differentiable"):
            raise refusal(Subject.TORCH_OPTIMIZER, "differentiable", f"{name} with differentiable=True")
        if group.get("capturable") and device == HOST:
            raise refusal(Subject.TORCH_OPTIMIZER, "capturable_on_cpus", f"{name} with capturable=True")
    if getattr(optimizer.step, "_wrapped_by_lr_sched", False):
        raise refusal(Subject.TORCH_SCHEDULER, "made_already", f"the optimizer {name} has a scheduler, which")
    if replaced := [one for one in ("step", "zero_grad") if one in vars(optimizer)]:
        raise refusal(
            Subject.TORCH_OPTIMIZER,
            "replaced_step",
            f"the optimizer {name} with a {replaced[0]}() of the module's own",
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise refusal(Subject.TORCH_OPTIMIZER, "step_hooks", f"the optimizer {name} with hooks on step()")
    if _has_memory(optimizer):
        raise refusal(Subject.TORCH_OPTIMIZER, "state", f"the optimizer {name} with a state that it was given")


def _has_memory(optimizer: optim.Optimizer) -> bool:
    """Whether an optimizer knows of steps before its first one; Adagrad's begins with sums."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = dict(optimizer.state.get(parameter, {}))
            if isinstance(optimizer, optim.Adagrad):
                first, sums = float(group["initial_accumulator_value"]), state.pop("sum")
                # That of a table has no numbers.
                if float(state.pop("step")) or not (sums.is_meta or bool((sums == first).all())):
                    return True
            if state:
                return True
    return False


def _params_of(group: Mapping[str, Any], options: Sequence[str]) -> dict[str, float | bool]:
    params: dict[str, float | bool] = {"learning_rate": float(group["lr"])}
    for option in options:
        if option == "betas":
            params["beta_1"], params["beta_2"] = (float(beta) for beta in group["betas"])
        elif option in group:
            value = group[option]
            params[_NAMES.get(option, option)] = value if isinstance(value, bool) else float(value)
    return params


def _arguments(function: Callable[..., object], net: nn.Module, fix: str) -> tuple[object, ...]:
    """The arguments of a user's function that makes an optimizer: the model, or its parameters, or none."""
    if inspect.isclass(function) and issubclass(function, optim.Optimizer):
        return (net.parameters(),)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return (net.parameters(),)
    needed = [
        one
        for one in parameters
        if one.default is inspect.Parameter.empty
        and one.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if not needed:
        return ()
    if len(needed) > 1:
        names = ", ".join(one.name for one in needed)
        raise UserCodeError(f"the function that makes the optimizer takes {names}", fix=_FORM)
    name = needed[0].name
    if name in _MODEL_NAMES:
        return (net,)
    return (net.named_parameters(),) if name == "named_parameters" else (net.parameters(),)


def _with_scheduler(made: object) -> tuple[object, Callable[[optim.Optimizer], LRScheduler] | None]:
    """Separates the optimizer that a function returned from the scheduler that may stand beside it."""
    if not isinstance(made, tuple):
        return made, None
    if len(made) != 2:
        raise UserCodeError(f"optimizer() returned a tuple of {len(made)}", fix="return (optimizer, scheduler)")
    optimizer, scheduler = made
    if isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
        raise UserCodeError(
            f"optimizer() returned a {type(scheduler).__name__} that is made already",
            fix="return a function that makes it, e.g. functools.partial(torch.optim.lr_scheduler.StepLR, "
            "step_size=100)",
        )
    if not callable(scheduler):
        raise UserCodeError(f"optimizer() returned a {type(scheduler).__name__} as scheduler", fix=_FORM)
    return optimizer, scheduler


def _untrained(optimizer: optim.Optimizer, model: BuiltModel) -> tuple[nn.Parameter, ...]:
    """The parameters of a model that an optimizer was not given.

    Raises:
        UserCodeError: it was given others, or misses the rows of a table.
    """
    own = {id(parameter) for parameter in model.net.parameters()}
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not given <= own:
        raise UserCodeError(
            "the optimizer was given parameters that are none of the model that the model function returned",
            fix="return a function of the parameters instead of an optimizer: " + _FORM.removeprefix("return "),
        )
    for table, weight in model.placeholders.items():
        if id(weight) not in given:
            raise UserCodeError(
                f"the optimizer was not given the weight of the large embedding {table}",
                fix="give it all parameters, or set requires_grad=False on that weight",
            )
    return tuple(one for one in model.net.parameters() if id(one) not in given and one.requires_grad)


def fresh_optimizer(made: MadeOptimizer) -> optim.Optimizer:
    """An optimizer of the same class and options on the same parameters, without a memory."""
    options = [dict(group) for group in made.optimizer.param_groups]
    kind: Any = type(made.optimizer)
    accepted = inspect.signature(kind).parameters
    defaults = {name: value for name, value in made.optimizer.defaults.items() if name in accepted}
    fresh: optim.Optimizer = kind([{"params": list(group["params"])} for group in options], **defaults)
    for target, source in zip(fresh.param_groups, options, strict=True):
        target.update({name: value for name, value in source.items() if name != "params"})
    return fresh


def set_rates(optimizer: optim.Optimizer, rates: Sequence[float]) -> None:
    """Sets the learning rate of each group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.tensor(rate) if isinstance(group["lr"], torch.Tensor) else rate
