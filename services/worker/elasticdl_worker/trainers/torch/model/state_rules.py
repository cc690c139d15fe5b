"""Finds by trial which tensors of the state change in training, and how they are merged where no module says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elasticdl.torch.lookup import finding_rows
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.state_merging import Merge
from elasticdl_worker.trainers.state_trials import learn_by_trial
from elasticdl_worker.trainers.torch.device import host_array, place
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.calling import TorchModelCall
from elasticdl_worker.trainers.torch.model.repeated_memory import saved_buffers
from elasticdl_worker.trainers.torch.model.scopes import TorchCollectScope
from elasticdl_worker.trainers.torch.model.trials import generators_kept, trial_of
from elasticdl_worker.trainers.torch.nested import leaves, map_tensors

_State = dict[str, torch.Tensor]


def changing_state(model: BuiltModel, sample: Tensors) -> set[str]:
    """Names of the tensors that a training step writes, whatever it writes; all where no copy can be run.

    By PyTorch's counts of changes, and by the objects: values that are equal to the old ones on the first records are
    others later. By the values as well, since what goes through ``.data`` is not counted.
    """
    names = set(model.merging.tensors)
    trial = trial_of(model.net)
    if trial is None:
        return names
    before = _tensors(trial, names)
    known = {name: (tensor._version, tensor.detach().clone()) for name, tensor in before.items()}
    with generators_kept(model.net, model.roots, model.device):
        _run(model, trial, [_placed(model, sample)])
    after = _tensors(trial, names)
    return {
        name
        for name, (version, value) in known.items()
        if after[name] is not before[name] or after[name]._version != version or not torch.equal(after[name], value)
    }


def learn_rules(model: BuiltModel, sample: Tensors) -> None:
    """Finds by trial how state is merged of which no module says it; what cannot be tried stays as it is."""
    merging = model.merging
    held = {name for name, _ in model.net.named_parameters()}
    names = {
        name
        for name, tensor in merging.tensors.items()
        if merging.rules[name] in (Merge.MEAN, Merge.SUM) and tensor.dtype is not torch.bool
    }
    names -= merging.declared | held
    if sample is None or not names:
        return
    with generators_kept(model.net, model.roots, model.device):
        try:
            rules, merging.unmerged = _learn(model, _placed(model, sample), names)
        except Exception:  # a model that half of the records do not suit, or one that cannot be copied
            return
    merging.rules |= rules


def _learn(model: BuiltModel, sample: Tensors, names: set[str]) -> tuple[dict[str, Merge], set[str]]:
    sizes = {len(leaf) for leaf in leaves(sample)}
    records = sizes.pop()
    if sizes:
        return {}, set()

    def after(*parts: Tensors, seed: int = 0) -> dict[str, NDArray[Any]]:
        trial = trial_of(model.net)
        assert trial is not None
        _run(model, trial, parts, seed)
        return {name: host_array(tensor.detach()).copy() for name, tensor in _tensors(trial, names).items()}

    def cut(start: int, end: int) -> Tensors:
        return map_tensors(lambda tensor: tensor[start:end], sample)

    def repeat(times: int) -> Tensors:
        return map_tensors(lambda tensor: torch.cat([tensor] * times), sample)

    whole, again = after(sample), after(sample, seed=1)
    draws = any(not np.array_equal(whole[name], again[name]) for name in names)
    return learn_by_trial(after, cut, repeat, records, draws=draws)


def _placed(model: BuiltModel, sample: Tensors) -> Tensors:
    return place(sample, model.device)


def _run(model: BuiltModel, trial: nn.Module, parts: Sequence[Tensors], seed: int = 0) -> None:
    trial.train()
    for part in parts:
        torch.manual_seed(seed)
        with torch.no_grad(), finding_rows(TorchCollectScope() if model.tables else None):
            TorchModelCall(trial)(part)


def _tensors(net: nn.Module, names: set[str]) -> _State:
    held = {**dict(net.named_parameters()), **saved_buffers(net)}
    return {name: tensor for name, tensor in held.items() if name in names}
