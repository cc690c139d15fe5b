"""Changes of a model's state (what no gradient changes) by a step whose microbatches were computed apart.

Each microbatch begins with the state from before the step, and contributes how it changed it. The contributions are
sums of float32, so that members can add them like gradients, and the outcome does not depend on who computed what:

- what is said or found to be a largest, smallest or last value is that of all microbatches (``selected``);
- what is known or found to count updates moves by the mean of the changes, which are all the same;
- what is said or found to be a sum moves by the sum of the changes;
- a float (a running statistic) moves by the mean of the changes, weighed by rows;
- another integer is a counter and moves by the sum of the changes;
- a flag takes the mean of the values that microbatches gave it, rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.integer_sums import LIMBS, join, split
from elasticdl_worker.trainers.state_merging import Merge, infinite_state, nothing_merges
from elasticdl_worker.trainers.torch.device import HOST
from elasticdl_worker.trainers.torch.model.state import TorchModelState
from elasticdl_worker.trainers.torch.replica.selected import choose, length_of, packed, unpacked


class TorchStateChanges:
    """The changes of some tensors as one flat array of float32.

    Args:
        state: of the model.
        names: of the tensors that a minibatch may change.
        leaves: where sums are made of what is taken.
        microbatches: of an update.

    Raises:
        UserCodeError: a tensor that moves by differences has infinite numbers, or there is no rule for one.
    """

    def __init__(
        self, state: TorchModelState, names: Sequence[str], leaves: torch.device = HOST, microbatches: int = 1
    ) -> None:
        self._leaves = leaves
        self._microbatches = microbatches
        self._state = state
        self._names = list(names)
        tensors = state.tensors
        for name in names:
            of_floats = tensors[name].dtype.is_floating_point and not state.rules[name].selects
            if of_floats and not bool(tensors[name].isfinite().all()):
                if microbatches > 1:
                    raise infinite_state(name)
                state.rules[name] = Merge.LAST
            if name in state.unmerged and microbatches > 1:
                raise nothing_merges(name)
        self._lengths = {name: self._length(name, tensors[name]) for name in names}
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

    def take(self, rows: int, microbatch: int = 0) -> torch.Tensor:
        """Takes the changes of the state since ``begin``, by a microbatch of some rows; where sums are made.

        Args:
            rows: of the microbatch.
            microbatch: its number within the update.

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
        parts = [
            self._placed(tensors[name], microbatch, unset=name in self._state.unset)
            if self._state.rules[name].selects
            else _part(old, tensors[name].detach(), rows, self._state.rules[name])
            for name, old in self._before.items()
        ]
        return torch.cat(parts).to(self._leaves) if parts else torch.zeros(0, device=self._leaves)

    def apply(self, changes: torch.Tensor, rows: int) -> None:
        """Moves the state by the sum of changes.

        Args:
            changes: summed over the microbatches.
            rows: of all of them.
        """
        parts = torch.split(changes, list(self._lengths.values()))
        tensors = self._state.tensors
        made = []
        with torch.no_grad():
            for name, part in zip(self._names, parts, strict=True):
                value = tensors[name]
                rule, part = self._state.rules[name], part if value.device == HOST else part.to(value.device)
                made.append(self._chosen(value, part, rule) if rule.selects else _moved(value, part, rows, rule))
            for name, new in zip(self._names, made, strict=True):  # some may share memory
                tensors[name].copy_(new)

    def _placed(self, value: torch.Tensor, microbatch: int, *, unset: bool) -> torch.Tensor:
        """A mark that there are values, NaN if one of them newly is, and the values, at the place of a microbatch."""
        given = packed(value)
        places = given.new_zeros(self._microbatches, 1 + len(given))
        places[microbatch, 0] = 1.0 if unset else torch.where(value.isnan().any(), torch.nan, 1.0)
        places[microbatch, 1:] = given
        return places.reshape(-1)

    def _chosen(self, value: torch.Tensor, part: torch.Tensor, rule: Merge) -> torch.Tensor:
        places = part.reshape(self._microbatches, -1)
        return choose(rule, value, [unpacked(row[1:], value) for row in places if row[0] > 0])

    def _length(self, name: str, tensor: torch.Tensor) -> int:
        if self._state.rules[name].selects:
            return self._microbatches * (1 + length_of(tensor))
        if tensor.dtype.is_floating_point:
            return tensor.numel()
        counts = self._state.rules[name] is Merge.ONCE
        return tensor.numel() * (2 if tensor.dtype is torch.bool else LIMBS) + counts


def _part(old: torch.Tensor, new: torch.Tensor, rows: int, rule: Merge) -> torch.Tensor:
    if new.dtype.is_floating_point:
        change = (new - old).float().reshape(-1)
        return change if rule is Merge.SUM else change * float(rows)
    if new.dtype is torch.bool:
        changed = new != old
        return torch.cat([changed.float().reshape(-1), (changed & new).float().reshape(-1)])
    flat = (new.long() - old.long()).reshape(-1)
    limbs = [limb.float() for limb in split(flat)]
    return torch.cat([*limbs, limbs[0].new_ones(1)] if rule is Merge.ONCE else limbs)


def _moved(value: torch.Tensor, part: torch.Tensor, rows: int, rule: Merge) -> torch.Tensor:
    if value.dtype.is_floating_point:
        return value + (part if rule is Merge.SUM else part / float(rows)).reshape(value.shape).to(value.dtype)
    if value.dtype is torch.bool:
        changed, given = part.reshape(2, *value.shape)
        return torch.where(changed > 0, given * 2 > changed, value)
    whole = part.long()
    times = whole[-1:].clamp(min=1).squeeze(0) if rule is Merge.ONCE else 1
    change: torch.Tensor = join(whole[: value.numel() * LIMBS].reshape(LIMBS, *value.shape).unbind())
    return (value.long() + change // times).to(value.dtype)
