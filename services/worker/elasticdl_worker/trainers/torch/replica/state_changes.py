"""How the state of a model (what no gradient changes) moves by a step whose microbatches were computed apart.

Each microbatch begins with the state from before the step, and contributes how it changed it. The contributions are
sums of float32, so that members can add them like gradients, and the outcome does not depend on who computed what:

- a float (a running statistic) moves by the mean of the changes, weighed by rows;
- an integer is a counter and moves by the sum of the changes;
- a flag takes the mean of the values that microbatches gave it, rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.integer_sums import LIMBS, join, split
from elasticdl_worker.trainers.torch.device import HOST
from elasticdl_worker.trainers.torch.model.state import TorchModelState


class TorchStateChanges:
    """The changes of some tensors as one flat array of float32.

    Args:
        state: of the model.
        names: of the tensors that a minibatch may change.
        leaves: where sums are made of what is taken.

    Attributes:
        length: of the flat array.
    """

    def __init__(self, state: TorchModelState, names: Sequence[str], leaves: torch.device = HOST) -> None:
        self._leaves = leaves
        self._state = state
        self._names = list(names)
        tensors = state.tensors
        self._lengths = {name: self._length(tensors[name]) for name in names}
        self.length = sum(self._lengths.values())
        self._before: dict[str, torch.Tensor] = {}
        self._others: dict[str, tuple[torch.Tensor, int]] = {}

    def begin(self) -> None:
        """Keeps the state as it is, before a microbatch."""
        tensors = self._state.tensors
        self._before = {name: tensors[name].detach().clone() for name in self._names}
        self._others = {
            name: (tensor, tensor._version) for name, tensor in tensors.items() if name not in self._lengths
        }

    def undo(self) -> None:
        """Sets the state as it was at ``begin``."""
        self._state.restore(self._before)

    def take(self, rows: int) -> torch.Tensor:
        """How the state has changed since ``begin``, by a microbatch of some rows; where sums are made.

        Raises:
            UserCodeError: something changed that none of the first records changed.
        """
        tensors = self._state.tensors
        for name, (old, version) in self._others.items():
            if tensors[name] is not old or old._version != version:
                raise UserCodeError(
                    f"the model changes {name} in some minibatches only, which members of a group cannot add up",
                    fix="change it in each training step, register it with persistent=False, or train with "
                    "--distribution_strategy ParameterServerStrategy",
                )
        parts = [_part(old, tensors[name].detach(), rows) for name, old in self._before.items()]
        return torch.cat(parts).to(self._leaves) if parts else torch.zeros(0, device=self._leaves)

    def apply(self, changes: torch.Tensor, rows: int) -> None:
        """Moves the state by the sum of changes.

        Args:
            changes: summed over the microbatches.
            rows: of all of them.
        """
        parts = torch.split(changes, list(self._lengths.values()))
        tensors = self._state.tensors
        with torch.no_grad():
            for name, part in zip(self._names, parts, strict=True):
                value = tensors[name]
                value.copy_(_moved(value, part if value.device == HOST else part.to(value.device), rows))

    def _length(self, tensor: torch.Tensor) -> int:
        if tensor.dtype.is_floating_point:
            return tensor.numel()
        return tensor.numel() * (2 if tensor.dtype is torch.bool else LIMBS)


def _part(old: torch.Tensor, new: torch.Tensor, rows: int) -> torch.Tensor:
    if new.dtype.is_floating_point:
        return (new - old).float().reshape(-1) * float(rows)
    if new.dtype is torch.bool:
        changed = new != old
        return torch.cat([changed.float().reshape(-1), (changed & new).float().reshape(-1)])
    flat = (new.long() - old.long()).reshape(-1)
    return torch.cat([limb.float() for limb in split(flat)])


def _moved(value: torch.Tensor, part: torch.Tensor, rows: int) -> torch.Tensor:
    if value.dtype.is_floating_point:
        return value + (part / float(rows)).reshape(value.shape).to(value.dtype)
    if value.dtype is torch.bool:
        changed, given = part.reshape(2, *value.shape)
        return torch.where(changed > 0, given * 2 > changed, value)
    change: torch.Tensor = join(part.long().reshape(LIMBS, *value.shape).unbind())
    return (value.long() + change).to(value.dtype)
