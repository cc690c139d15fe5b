"""The memory of an optimizer of PyTorch in the words of parameter servers, so that either strategy reads it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn, optim

from elasticdl_worker.trainers.replica_rules import slots_refusal
from elasticdl_worker.trainers.torch.device import HOST

_MOMENTS = (("exp_avg", ""), ("exp_avg_sq", ""))
_SLOTS: Mapping[type[optim.Optimizer], Sequence[tuple[str, str]]] = {
    optim.SGD: (("momentum_buffer", "momentum"),),
    optim.Adam: (*_MOMENTS, ("max_exp_avg_sq", "amsgrad")),
    optim.AdamW: (*_MOMENTS, ("max_exp_avg_sq", "amsgrad")),
    optim.Adagrad: (("sum", ""),),
    optim.RMSprop: (("square_avg", ""), ("grad_avg", "centered"), ("momentum_buffer", "momentum")),
    optim.Adadelta: (("square_avg", ""), ("acc_delta", "")),
    optim.Adamax: (("exp_avg", ""), ("exp_inf", "")),
    optim.NAdam: _MOMENTS,
    optim.RAdam: _MOMENTS,
    optim.SparseAdam: _MOMENTS,
}
"""The slots of each optimizer, named alike by PyTorch and the parameter servers, in the order of the latter; and the
option without which there is none. If one group has a slot, all have."""
_STEPS, _MU = "torch.steps", "torch.mu_product"
"""What members of groups keep besides; steps in checkpoints of before only."""
_STEPS_AT_ONCE = 1 << 16


class TorchSlots:
    """The slots of an optimizer.

    Args:
        optimizer: of one of PyTorch's own classes.
        trained: what it trains, by name.

    Attributes:
        names: of the slots, in the order of parameter servers.
    """

    def __init__(self, optimizer: optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._trained = dict(trained)
        groups = optimizer.param_groups
        self._group_of = {id(one): group for group in groups for one in group["params"]}
        self.names = tuple(
            name
            for name, option in _SLOTS[type(optimizer)]
            if not option or any(bool(group[option]) for group in groups)
        )
        # SGD has no buffer before its first step, which parameter servers say by a number that is none.
        self._nothing = math.nan if isinstance(optimizer, optim.SGD) else 0.0

    def values(self) -> dict[str, list[NDArray[np.float32]]]:
        """Copies of the slots of each trained parameter."""
        return {name: [self._slot(one, slot) for slot in self.names] for name, one in self._trained.items()}

    def steps(self) -> dict[str, int]:
        """The number of each trained parameter's updates; SGD does not count."""
        states = {name: self._optimizer.state.get(one, {}) for name, one in self._trained.items()}
        return {name: int(float(state.get("step", 0))) for name, state in states.items()}

    def extra(self) -> dict[str, NDArray[Any]]:
        """The rest of the optimizer's state."""
        if not isinstance(self._optimizer, optim.NAdam):
            return {}
        states = [self._optimizer.state.get(one, {}) for one in self._trained.values()]
        return {_MU: np.array([float(one.get("mu_product", 1.0)) for one in states], np.float32)}

    def spread(
        self, name: str, slots: Sequence[NDArray[Any]], places: NDArray[np.int64]
    ) -> list[NDArray[np.float32]]:
        """The slots of a whole table, from those of some rows: the others begin anew.

        Args:
            name: of the parameter that is the table.
            slots: of the rows.
            places: where the rows are.
        """
        made = self._fresh(self._trained[name])
        for whole, given in zip(made, slots, strict=True):
            whole[places] = given
            nothing = np.isnan(whole)
            if not nothing.all():
                # A buffer that is there has no rows without numbers, and one of zeros does what none does.
                whole[nothing] = 0.0
        return made

    def assign(
        self,
        slots: Mapping[str, Sequence[NDArray[Any]]],
        steps: Mapping[str, int],
        extra: Mapping[str, NDArray[Any]],
    ) -> None:
        """Sets the slots and the counts of steps.

        Args:
            slots: as ``values`` gives them; a parameter that has none there begins anew, and so does its count.
            steps: of each parameter that has slots.
            extra: as ``extra`` gives it, or without that.

        Raises:
            DataError: they are of another optimizer.
        """
        for name, parameter in self._trained.items():
            given, shape = slots.get(name), tuple(parameter.shape)
            if given is not None and [value.shape for value in given] != [shape] * len(self.names):
                raise slots_refusal(name, given, self.names, [shape] * len(self.names))
        before = extra.get(_STEPS)
        for number, (name, parameter) in enumerate(self._trained.items()):
            given, mu = slots.get(name), float(extra[_MU][number]) if _MU in extra else None
            if given is None:
                self._set(parameter, self._fresh(parameter), 0, None)
            else:
                self._set(parameter, given, steps[name] if before is None else max(int(before[number]), 0), mu)

    def _fresh(self, parameter: nn.Parameter) -> list[NDArray[np.float32]]:
        """The slots of a parameter that was not trained before, as parameter servers make them."""
        group = self._group_of.get(id(parameter), {})
        value = float(group.get("initial_accumulator_value", self._nothing))
        return [np.full(tuple(parameter.shape), value, np.float32) for _ in self.names]

    def _slot(self, parameter: nn.Parameter, slot: str) -> NDArray[np.float32]:
        value = self._optimizer.state.get(parameter, {}).get(slot)
        if value is None:
            return np.full(tuple(parameter.shape), self._nothing, np.float32)
        return np.array(value.detach().cpu().numpy(), np.float32)

    def _set(
        self, parameter: nn.Parameter, slots: Sequence[NDArray[Any]], steps: int, mu_product: float | None
    ) -> None:
        optimizer = self._optimizer
        optimizer.state.pop(parameter, None)
        if id(parameter) not in self._group_of:
            return
        device = parameter.device
        values = {
            name: torch.from_numpy(np.array(value)).to(device) for name, value in zip(self.names, slots, strict=True)
        }
        if isinstance(optimizer, optim.SGD):
            has = {name: value for name, value in values.items() if not bool(value.isnan().all())}
            if has:
                optimizer.state[parameter] = has
            return
        if not steps and not isinstance(optimizer, optim.Adagrad):
            return  # it makes its state with the first gradient; Adagrad before that
        group = self._group_of[id(parameter)]
        # Where PyTorch counts steps follows from these.
        counts = device if group.get("capturable") or group.get("fused") else HOST
        if isinstance(optimizer, optim.SparseAdam):  # which counts with a plain number
            optimizer.state[parameter] = {"step": steps, **values}
            return
        state: dict[str, torch.Tensor] = {"step": torch.tensor(float(steps), device=counts), **values}
        if isinstance(optimizer, optim.NAdam):
            if mu_product is None:
                mu_product = _mu_product(float(group["betas"][0]), float(group["momentum_decay"]), steps)
            state["mu_product"] = torch.tensor(mu_product, device=counts)
        optimizer.state[parameter] = state


@functools.lru_cache
def _mu_product(beta_1: float, momentum_decay: float, steps: int) -> float:
    """The product of NAdam's momenta after so many steps, rounded after each as NAdam rounds it."""
    product, before = np.float32(1.0), np.float32(math.inf)
    for at in range(0, steps, _STEPS_AT_ONCE):
        if product == before:
            break  # nor does any later momentum change it, each of which is nearer to 1
        numbers = np.arange(at + 1, min(at + _STEPS_AT_ONCE, steps) + 1)
        momenta = (beta_1 * (1.0 - 0.5 * 0.96 ** (numbers * momentum_decay))).astype(np.float32)
        products = np.multiply.accumulate(np.append(product, momenta))
        before, product = products[-2], products[-1]
    return float(product)
