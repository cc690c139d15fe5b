"""An optimizer whose steps are those of all workers of a job."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from elasticdl.own_loop import Buffer, LoopFeed, current_feed
from elasticdl_core.errors import UserCodeError

_HOST = torch.device("cpu")


def distributed_optimizer(
    optimizer: Optimizer, global_batch_size: int | None = None, *, model: nn.Module | None = None
) -> DistributedOptimizer:
    """Makes the steps of an optimizer steps of all workers, with the mean of the gradients of all their records.

    A step is one update once the gradients of ``global_batch_size`` records are there, whatever the number of
    workers: before, it takes the gradients and changes nothing. The gradients must be those of a batch's mean loss,
    and the batch one of an ``ElasticDataset``, whose records the step commits.

    Args:
        optimizer: of ``torch.optim``, or one's own that works like these.
        global_batch_size: records of an update; it must be what the job says (``--minibatch_size``),
            which it is without one. With one the batches of the loop may be smaller: several make an update.
        model: what the parameters are of; its buffers go along to workers that come later, and into checkpoints.

    Raises:
        UserCodeError: the job has another global batch, or the optimizer cannot be handled.
    """
    feed = current_feed("distributed_optimizer")
    size = feed.records_per_update
    if global_batch_size is not None and global_batch_size != size:
        raise UserCodeError(
            f"distributed_optimizer asks for a global batch of {global_batch_size} records, and the job's updates "
            f"have {size} (--minibatch_size)",
            fix=f"give `elasticdl run` --minibatch_size {global_batch_size}, or leave global_batch_size out",
        )
    feed.accumulates = global_batch_size is not None
    return DistributedOptimizer(optimizer, feed, model)


class DistributedOptimizer(Optimizer):
    """See ``distributed_optimizer``; takes the place of the optimizer, also for schedulers.

    Args:
        optimizer: the optimizer.
        feed: of the records.
        model: what the parameters are of, if that is known.
    """

    def __init__(self, optimizer: Optimizer, feed: LoopFeed, model: nn.Module | None) -> None:
        self._feed = feed
        self._state = OptimizedState(optimizer, model)
        self._inner = optimizer
        # Not the base class's way: the groups and the state are those of the optimizer itself.
        own = {*vars(self), "step"}  # which a scheduler may have set there
        vars(self).update({name: value for name, value in vars(optimizer).items() if name not in own})
        feed.use(self._state)

    def __repr__(self) -> str:
        return f"distributed {self._inner!r}"

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state: that of the optimizer."""
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Brings the gradients of the batch that was taken last; an update follows when those of all are there.

        Args:
            closure: computes the loss, and the gradients.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._feed.commit()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to zero, or to nothing."""
        self._state.has_refused()  # which is not to be seen any more
        self._inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: what is trained is known before the loop.

        Raises:
            UserCodeError: always.
        """
        raise _group_added()

    def keep_model(self, model: nn.Module) -> None:
        """Has the buffers of the model go along; before the loop."""
        self._state.keep(model)

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimizer; before the loop."""
        self._inner.load_state_dict(state_dict)
        self.state, self.param_groups = self._inner.state, self._inner.param_groups


class OptimizedState:
    """Parameters, buffers and the state of an optimizer, as arrays.

    A parameter that no record of an update had a gradient for is left alone by the optimizer, decay and momentum
    included; one that some had gets the mean over all.

    The rate of an update is the mean of those at which its records were computed, so that it is the same at all
    workers, whatever their schedulers did meanwhile; so are its momentum and the other options that are numbers.

    Args:
        optimizer: the optimizer.
        model: for names and buffers; None where it is not known.

    Raises:
        UserCodeError: the optimizer needs a closure, or parameters that are no plain floats.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module | None) -> None:
        self._optimizer = optimizer
        self._parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._names = [str(number) for number in range(len(self._parameters))]
        self._buffers: dict[str, torch.Tensor] = {}
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if parameter.is_sparse or not parameter.dtype.is_floating_point:
                raise UserCodeError(f"{name} is no dense tensor of floats", fix="train it with another optimizer")
        if model is not None:
            self.keep(model)
        self._size = sum(one.numel() for one in self._parameters)
        self._mean = torch.zeros(self._size)
        self._rates = self._present_rates()
        self._updates = 0
        self._refused = False
        self._note_gradients()
        # The state that comes to be with the first step: its names and shapes.
        self._initial = _state_of(optimizer)
        self._slots = _probed(optimizer)

    def keep(self, model: nn.Module) -> None:
        """Takes names and buffers from the model.

        Raises:
            UserCodeError: some of its parameters are trained by nobody.
        """
        _refuse_forgotten(model, self._parameters)
        known = {id(one): name for name, one in model.named_parameters()}
        self._names = [known.get(id(one), str(number)) for number, one in enumerate(self._parameters)]
        self._buffers = _kept_buffers(model)

    @property
    def lengths(self) -> Sequence[int]:
        """All gradients, how far the rates are from those of the last update, and records with a gradient of each."""
        return (self._size, len(self._rates), len(self._parameters))

    def contribute(self, arrays: Sequence[Buffer], rows: int) -> None:
        """Adds the present gradients, times rows."""
        flat, at = torch.from_numpy(arrays[0]), 0
        for number, parameter in enumerate(self._parameters):
            until = at + parameter.numel()
            if parameter.grad is not None:
                arrays[2][number] += rows
                gradient = parameter.grad
                gradient = gradient.to_dense() if gradient.is_sparse else gradient
                flat[at:until].add_(gradient.detach().reshape(-1).to("cpu", torch.float32), alpha=rows)
            at = until
        arrays[1][:] += (rows * (self._present_rates() - self._rates)).astype(np.float32)
        self._note_gradients()

    def has_gradients(self) -> bool:
        """Whether there are new gradients, and they are finite and not all zero."""
        new = self._new_gradients()
        return all(bool(one.isfinite().all()) for one in new) and any(bool(one.any()) for one in new)

    def has_refused(self) -> bool:
        """Whether there are, or were before they were set to zero, new gradients that are not finite."""
        self._refused = self._refused or not all(bool(one.isfinite().all()) for one in self._new_gradients())
        return self._refused

    def _new_gradients(self) -> list[torch.Tensor]:
        pairs = zip(self._parameters, self._noted, strict=True)
        new = [
            one.grad
            for one, (old, version) in pairs
            if one.grad is not None and not (one.grad is old and one.grad._version == version)
        ]
        return [one.coalesce().values() if one.is_sparse else one for one in new]

    def _note_gradients(self) -> None:
        self._refused = False
        self._noted = [(one.grad, one.grad._version if one.grad is not None else 0) for one in self._parameters]

    @torch.no_grad()
    def apply(self, sums: Sequence[Buffer], rows: int) -> None:
        """Makes one update with the mean gradients; nothing is under way on a device when it returns."""
        torch.div(torch.from_numpy(np.asarray(sums[0])), rows, out=self._mean)
        at = 0
        for parameter, used in zip(self._parameters, np.asarray(sums[2]) > 0, strict=True):
            until = at + parameter.numel()
            mean = self._mean[at:until].view(parameter.shape)
            parameter.grad = mean.to(parameter.device, parameter.dtype) if used else None
            at = until
        self._rates = self._rates + np.asarray(sums[1], np.float64) / rows
        self._set_rates()
        self._optimizer.step()
        for device in {one.device for one in self._parameters} - {_HOST}:
            torch.accelerator.synchronize(device)
        self._updates += 1
        self._note_gradients()

    def values(self) -> Mapping[str, NDArray[Any]]:
        """Parameters, buffers, the optimizer's state, and the rates."""
        found = {f"parameter.{name}": _array(one) for name, one in zip(self._names, self._parameters, strict=True)}
        found |= {f"buffer.{name}": _array(one) for name, one in self._buffers.items()}
        kept = [self._optimizer.state.get(one, {}) for one in self._parameters]
        for number, slots in self._slots.items():
            present = kept[number]
            for key, like in slots.items():
                value = present.get(key)
                found[f"optimizer.{self._names[number]}.{key}"] = _array(like if value is None else value)
        return found | {
            "rates": self._rates.copy(),
            "updates": np.array([self._updates], np.int64),
            # An optimizer begins to count the steps of a parameter with its first gradient.
            "begun": np.array([bool(one) for one in kept], np.int64),
        }

    @torch.no_grad()
    def load(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Takes them over."""
        for name, one in zip(self._names, self._parameters, strict=True):
            _copy_into(one, values[f"parameter.{name}"])
        for name, one in self._buffers.items():
            _copy_into(one, values[f"buffer.{name}"])
        self._updates = int(values["updates"][0])
        self._rates = np.array(values["rates"], np.float64)
        self._set_rates()
        self._optimizer.state.clear()
        for number, parameter in enumerate(self._parameters):
            if not self._updates or not values["begun"][number]:
                if number in self._initial:
                    self._optimizer.state[parameter] = copy.deepcopy(self._initial[number])
                continue
            for key, like in self._slots.get(number, {}).items():
                given = values[f"optimizer.{self._names[number]}.{key}"]
                if not isinstance(like, torch.Tensor):  # a number of Python's stays one
                    self._optimizer.state[parameter][key] = type(like)(given.item())
                    continue
                tensor = torch.empty_like(like, device=like.device)
                _copy_into(tensor, given)
                self._optimizer.state[parameter][key] = tensor

    def parameters(self) -> Sequence[NDArray[Any]]:
        """The parameters; buffers such as running means are each worker's own."""
        return [_array(one) for one in self._parameters]

    def begin(self, seed: int) -> None:
        """Seeds PyTorch: dropout and the like do not depend on who computes a minibatch."""
        torch.manual_seed(seed)

    def _present_rates(self) -> NDArray[np.float64]:
        groups = self._optimizer.param_groups
        if sum(len(group["params"]) for group in groups) != len(self._parameters):
            raise _group_added()
        found = [float(number) for group, name in self._options() for number in _numbers(group[name])]
        return np.array(found, np.float64)

    def _set_rates(self) -> None:
        left = iter(self._rates)
        for group, name in self._options():
            present = group[name]
            if isinstance(present, torch.Tensor):
                present.fill_(float(next(left)))
            elif isinstance(present, tuple | list):
                group[name] = type(present)(float(next(left)) if _is_number(one) else one for one in present)
            elif (rate := float(next(left))) != present:
                group[name] = rate

    def _options(self) -> Iterator[tuple[dict[str, Any], str]]:
        """The options that schedules change: the rates of all groups, momenta and the like."""
        for group in self._optimizer.param_groups:
            yield from ((group, name) for name in sorted(self._optimizer.defaults) if _numbers(group.get(name)))


def _numbers(option: Any) -> list[Any]:
    """The numbers of an option of an optimizer, which may be a tuple of them."""
    return [one for one in (option if isinstance(option, tuple | list) else (option,)) if _is_number(one)]


def _is_number(option: Any) -> bool:
    if isinstance(option, torch.Tensor):
        return option.numel() == 1
    return isinstance(option, int | float) and not isinstance(option, bool)


def _group_added() -> UserCodeError:
    return UserCodeError(
        "a group of parameters was added to an optimizer that is wrapped already",
        fix="give the optimizer all groups before distributed_optimizer; what has requires_grad=False is left alone",
    )


def _kept_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    kept = model.state_dict()
    return {name: one for name, one in model.named_buffers() if name in kept}


def _refuse_forgotten(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Refuses a parameter that is trained by no optimizer, so that workers would not agree on it."""
    held = {id(one) for one in parameters}
    for name, one in model.named_parameters():
        if one.requires_grad and id(one) not in held:
            raise UserCodeError(
                f"{name} of the model is not among the optimizer's parameters",
                fix="give it to the optimizer, or requires_grad_(False)",
            )


def _state_of(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return {
        number: copy.deepcopy(optimizer.state[one]) for number, one in enumerate(parameters) if one in optimizer.state
    }


def _probed(optimizer: Optimizer) -> dict[int, dict[str, torch.Tensor | float]]:
    """The state that an optimizer keeps for each parameter, after a step without gradients: made on a copy.

    Raises:
        UserCodeError: a step cannot be tried, or keeps something that is neither a tensor nor a number.
    """
    try:
        copied = copy.deepcopy(optimizer)
        parameters = [one for group in copied.param_groups for one in group["params"]]
        for one in parameters:
            one.grad = torch.zeros_like(one)
        type(copied).step(copied)
    except Exception as error:
        raise UserCodeError(
            f"a step of {type(optimizer).__name__} could not be tried: {error}",
            fix="take an optimizer whose step() needs no closure and no sparse gradients",
        ) from error
    found: dict[int, dict[str, torch.Tensor | float]] = {}
    for number, one in enumerate(parameters):
        kept = {key: value for key, value in copied.state.get(one, {}).items() if value is not None}
        for key, value in kept.items():
            if not isinstance(value, torch.Tensor | int | float):
                raise UserCodeError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} as the state {key!r}, which cannot "
                    "go to other workers",
                    fix="keep tensors, numbers and booleans in the state of each parameter",
                )
        found[number] = {
            key: value.detach() if isinstance(value, torch.Tensor) else value for key, value in sorted(kept.items())
        }
    return found


def _array(given: torch.Tensor | float) -> NDArray[Any]:
    if not isinstance(given, torch.Tensor):
        return np.array([given])  # a float of Python's has 64 bits
    value = given.detach().cpu()
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    return np.atleast_1d(value.numpy())


def _copy_into(tensor: torch.Tensor, value: NDArray[Any]) -> None:
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(value)).view(tensor.shape))
