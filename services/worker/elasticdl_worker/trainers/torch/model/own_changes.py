"""Notices what a model does beside its optimizer while it trains, of which no other process would learn.

Parameters belong to the job: they are pulled before a step, or are the same in all members of a group, and change by
the optimizer alone. A model that clamps a weight in ``forward``, unfreezes a layer or makes another parameter would
train in one process and, silently, otherwise on a cluster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from elasticdl_core.contract import Subject, refusal
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.untracked import refuse_untracked

_COMPARED_EVERY = 256


class OwnChanges:
    """Refuses a model that changes what only an optimizer may change, or that uses parameters it does not have.

    Each step looks at what PyTorch counts of a parameter. What goes past that (``.data``), and parameters or buffers
    that are new or elsewhere, show in a comparison of all numbers: in the steps 1, 2, 4, 8, ..., and in each 256th.
    Once that has found something it is done in each step: a task that failed is tried again, in the step after it.

    Args:
        model: the model, its optimizer's parameters known.
    """

    def __init__(self, model: BuiltModel) -> None:
        self._net = model.net
        self._roots = model.roots
        trained = model.trainable
        self._trained = [(name, *_home(model.net, name), one) for name, one in trained.items()]
        self._frozen = [(name, one) for name, one in model.net.named_parameters() if not one.requires_grad]
        self._known = {name for name, _ in model.net.named_parameters()} | set(model.state)
        self._steps = 0
        self._found = False
        self._versions: list[int] = []
        self._values: list[torch.Tensor] | None = None

    def begin(self) -> None:
        """Before a step: the parameters are as the optimizer made them."""
        self._steps += 1
        whole = self._found or not self._steps & (self._steps - 1) or self._steps % _COMPARED_EVERY == 0
        self._versions = [one._version for *_, one in self._trained]
        self._values = [one.detach().clone() for *_, one in self._trained] if whole else None

    def check(self, loss: torch.Tensor) -> None:
        """After the backward pass of the step.

        Args:
            loss: that was gone back from.

        Raises:
            UserCodeError: with the name of what changed.
        """
        for (name, held, key, one), version in zip(self._trained, self._versions, strict=True):
            if held.get(key) is not one:
                raise refusal(Subject.TORCH_LAYER, "replaced_parameter", f"the model's parameter {name}")
            if one._version != version:
                raise _changed(name)
        for name, one in self._frozen:
            if one.requires_grad:
                raise refusal(Subject.TORCH_LAYER, "unfrozen", f"the model's parameter {name}")
        if self._values is not None:
            self._found = True
            self._compare(loss, self._values)
            self._found = False

    def _compare(self, loss: torch.Tensor, values: list[torch.Tensor]) -> None:
        for (name, _, _, one), before in zip(self._trained, values, strict=True):
            # By their bits: what is no number is not equal to itself.
            if one.shape != before.shape or not torch.equal(one.detach().view(torch.int32), before.view(torch.int32)):
                raise _changed(name)
        self._check_names()
        refuse_untracked(self._net, loss, self._roots)

    def _check_names(self) -> None:
        for path, module in self._net.named_modules():
            kept = module._buffers.keys() - module._non_persistent_buffers_set
            for key, tensor in [*module._parameters.items(), *((key, module._buffers[key]) for key in kept)]:
                name = f"{path}.{key}" if path else key
                if tensor is not None and name not in self._known and not _is_shared(self._net, tensor, self._known):
                    raise refusal(Subject.TORCH_LAYER, "made_later", f"the model's {name}")


def _changed(name: str) -> Exception:
    return refusal(Subject.TORCH_LAYER, "changed_parameter", f"the model's parameter {name}")


def _home(net: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, key = name.rpartition(".")
    return net.get_submodule(path)._parameters, key


def _is_shared(net: nn.Module, tensor: torch.Tensor, known: set[str]) -> bool:
    """Whether a tensor of the model is known under another name."""
    found = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    return any(one is tensor and name in known for name, one in found)
