"""The state of a model, which no gradient changes, and how several workers' changes of it become one.

Whatever a worker did in its minibatches, the parameter servers are told it as ``x`` becomes ``keep * x + add``, so
that the changes of workers come one after the other:

- what a module says by ``state_merging`` is done; a running maximum or minimum is found by trial (``state_rules``);
- running statistics of a normalisation layer keep ``1 - momentum`` to the power of their updates;
- an integer is a counter and keeps all: the changes of all workers are added (of the parts of an update those of one,
  where it counts updates);
- what else there is keeps nothing: the last worker's value counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.parameters import StateChange
from elasticdl_worker.trainers.framework import Array
from elasticdl_worker.trainers.state_merging import DECLARED_BY, Merge, declared_merges, not_of_state
from elasticdl_worker.trainers.torch.device import HOST, arrays_of

_RUNNING = ("running_mean", "running_var")
_COUNTER = "num_batches_tracked"
_SHARED = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
}


class TorchModelState:
    """The state of a model.

    Args:
        model: the model.
        tensors: its buffers that are part of its ``state_dict``, and the parameters that are not trained, by name.
        device: where they are.

    Attributes:
        device: where they are.
        rules: how changes of each are merged.
        declared: names of those whose module says it.
        unmerged: names of those that no rule makes of several parts of an update.
        unset: names of those that begin with numbers that are none (NaN).

    Raises:
        UserCodeError: one is of a type that cannot be shared, or a module says what is no rule.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, torch.Tensor], device: torch.device = HOST) -> None:
        self.device = device
        self._homes = {name: _home(model, name) for name in tensors}
        self._kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        self._averages = dict(_running_statistics(model))
        self.rules = {name: _rule(tensor) for name, tensor in tensors.items()}
        self.rules |= {name: Merge.AVERAGE for name in self._averages if name in tensors}
        self.rules |= {name: Merge.ONCE for name in _counts_of_updates(model) if name in tensors}
        self.unmerged: set[str] = set()
        self.unset = {name for name, one in tensors.items() if one.dtype.is_floating_point and one.isnan().any()}
        declared = _declared(model, tensors)
        self.declared = frozenset(declared)
        self.rules |= declared
        for name, tensor in tensors.items():
            if tensor.dtype not in _SHARED:
                raise UserCodeError(
                    f"{name} is of {tensor.dtype}, which workers cannot share",
                    fix="register it with persistent=False if each process can make it anew, or keep it in float32",
                )

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors as the model has them now: ``self.mean = 0.9 * self.mean + ...`` makes another one each time.

        Raises:
            UserCodeError: the model gave one another shape or type.
        """
        found = {}
        for name, (home, key) in self._homes.items():
            tensor = home[key]
            dtype, shape = self._kinds[name]
            if tensor is None or tensor.dtype != dtype or tensor.shape != shape:
                now = "None" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                raise UserCodeError(
                    f"the model made {now} of {name}, which was {dtype} {list(shape)}: workers cannot share that",
                    fix="keep its shape and type, or register it with persistent=False",
                )
            found[name] = tensor
        return found

    def read(self) -> dict[str, torch.Tensor]:
        """Copies of the values now."""
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

    def restore(self, before: Mapping[str, torch.Tensor]) -> None:
        """Undoes what was done since ``read``."""
        tensors = self.tensors
        with torch.no_grad():
            for name, value in before.items():
                # Those that the model made of others may still be part of a graph.
                tensors[name].detach().copy_(value)

    def changes(self, before: Mapping[str, torch.Tensor]) -> dict[str, StateChange]:
        """The changes of the values since ``read``."""
        found, tensors = {}, self.tensors
        if self.device != HOST:
            before, tensors = self._on_host(before), self._on_host(tensors)
        for name, old in before.items():
            new = tensors[name].detach()
            if not torch.equal(old, new):
                found[name] = self._change(name, old, new, before, tensors)
        return found

    def _on_host(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        arrays = arrays_of([*tensors.values()], self.device)
        return {name: torch.from_numpy(array) for name, array in zip(tensors, arrays, strict=True)}

    def _change(
        self,
        name: str,
        old: torch.Tensor,
        new: torch.Tensor,
        before: Mapping[str, torch.Tensor],
        tensors: Mapping[str, torch.Tensor],
    ) -> StateChange:
        rule = self.rules[name]
        if rule is Merge.AVERAGE:
            momentum, counter = self._averages[name]
            updates = int(tensors[counter]) - int(before[counter]) if counter in before else 1
            keep = (1.0 - momentum) ** updates
            return StateChange(keep, _array(new.double() - keep * old.double(), new.dtype))
        return StateChange(rule.keep, _array(new - old if rule.keep == 1.0 else new, new.dtype))


def _rule(tensor: torch.Tensor) -> Merge:
    """The rule for what nobody says anything of: a whole number is a counter."""
    return Merge.MEAN if tensor.dtype.is_floating_point or tensor.dtype is torch.bool else Merge.SUM


def _declared(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, Merge]:
    """The declarations of modules about their state, by its names in the model."""
    found = {}
    for path, module in model.named_modules():
        shown = path or type(module).__name__
        for key, rule in declared_merges(module, shown).items():
            name = f"{path}.{key}" if path else key
            if name not in tensors:
                raise not_of_state(shown, key)
            whole = not tensors[name].dtype.is_floating_point and tensors[name].dtype is not torch.bool
            if (rule is Merge.MEAN and whole) or (rule is Merge.SUM and tensors[name].dtype is torch.bool):
                raise UserCodeError(
                    f"{DECLARED_BY} of {shown} says {rule} of {key}, which is of {tensors[name].dtype}",
                    fix="keep it in float32, or say max, min or last",
                )
            found[name] = rule
    return found


def _home(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The module that keeps a tensor, and the name in it."""
    path, _, key = name.rpartition(".")
    module = model.get_submodule(path)
    held: dict[str, Any] = module._buffers if key in module._buffers else module._parameters
    return held, key


def _running_statistics(model: nn.Module) -> dict[str, tuple[float, str]]:
    """For each running statistic its layer's momentum, and the counter of its updates."""
    found = {}
    for home, layer in model.named_modules():
        momentum = getattr(layer, "momentum", None)
        if not isinstance(layer, nn.modules.batchnorm._NormBase) or momentum is None:
            continue
        prefix = f"{home}." if home else ""
        for name in _RUNNING:
            found[prefix + name] = float(momentum), prefix + _COUNTER
    return found


def _counts_of_updates(model: nn.Module) -> set[str]:
    """Names of the buffers in which layers of PyTorch's own count their training steps."""
    kinds = ((nn.modules.batchnorm._NormBase, _COUNTER), (AveragedModel, "n_averaged"))
    return {
        f"{home}.{key}" if home else key
        for home, layer in model.named_modules()
        for kind, key in kinds
        if isinstance(layer, kind)
    }


def _array(values: torch.Tensor, dtype: torch.dtype) -> Array:
    return np.array(values.to(dtype).cpu().numpy())
