"""Finds by trial which tensors of the state change in training, and which are running maxima or minima."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from elasticdl.torch.lookup import finding_rows
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.state_merging import Merge
from elasticdl_worker.trainers.torch.device import place
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.calling import TorchModelCall, leaves, map_tensors
from elasticdl_worker.trainers.torch.model.repeated_memory import saved_buffers
from elasticdl_worker.trainers.torch.model.scopes import TorchCollectScope
from elasticdl_worker.trainers.torch.model.trials import generators_kept, trial_of

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
    """Finds running maxima and minima among the floats of which no module says how they are merged.

    Strictly: two halves of the records in either order give the largest of what each of them gives alone, and a half
    that comes a second time changes nothing. What cannot be tried stays as it is.
    """
    merging = model.merging
    floats = {
        name
        for name, tensor in merging.tensors.items()
        if merging.rules[name] is Merge.MEAN and name not in merging.declared and tensor.dtype.is_floating_point
    }
    held = {name for name, _ in model.net.named_parameters()}
    if sample is None or not floats - held:
        return
    with generators_kept(model.net, model.roots, model.device):
        try:
            _learn(model, _placed(model, sample), floats - held)
        except Exception:  # a model that half of the records do not suit, or one that cannot be copied
            return


def _learn(model: BuiltModel, sample: Tensors, names: set[str]) -> None:
    sizes = {len(leaf) for leaf in leaves(sample)}
    records = sizes.pop()
    if sizes or records < 2:
        return
    first = map_tensors(lambda tensor: tensor[: records // 2], sample)
    second = map_tensors(lambda tensor: tensor[records // 2 :], sample)

    def after(*parts: Tensors) -> _State:
        trial = trial_of(model.net)
        assert trial is not None
        _run(model, trial, parts)
        return _tensors(trial, names)

    old = {name: tensor.detach().clone() for name, tensor in model.merging.tensors.items() if name in names}
    one = after(first)
    moved = {name for name in names if not torch.equal(one[name], old[name])}
    if not moved:
        one_b = after(second)
        moved = {name for name in names if not torch.equal(one_b[name], old[name])}
    if not moved:
        return
    other, both, turned, twice = after(second), after(first, second), after(second, first), after(first, first)
    for name in moved:
        for rule, larger in ((Merge.MAX, torch.maximum), (Merge.MIN, torch.minimum)):
            wanted = larger(one[name], other[name])
            grows = torch.equal(larger(old[name], one[name]), one[name])
            alike = torch.equal(both[name], wanted) and torch.equal(turned[name], wanted)
            if grows and alike and torch.equal(twice[name], one[name]):
                model.merging.rules[name] = rule
                break


def _placed(model: BuiltModel, sample: Tensors) -> Tensors:
    return place(sample, model.device)


def _run(model: BuiltModel, trial: nn.Module, parts: Sequence[Tensors]) -> None:
    trial.train()
    for part in parts:
        torch.manual_seed(0)
        with torch.no_grad(), finding_rows(TorchCollectScope() if model.tables else None):
            TorchModelCall(trial)(part)


def _tensors(net: nn.Module, names: set[str]) -> _State:
    held = {**dict(net.named_parameters()), **saved_buffers(net)}
    return {name: tensor for name, tensor in held.items() if name in names}
