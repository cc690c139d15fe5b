"""Finds parameters that a model or its loss uses and the model does not know of.

PyTorch knows what is an attribute of a module: a layer in a plain list or dict, a parameter of the user's file or of
a loss that is a module itself is none of the model's parameters. No optimizer of ``model.parameters()`` moves it, no
parameter server shares it, each process begins with numbers of its own, and no export has it. So it is refused, in a
local run as on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elasticdl_core.contract import Subject, refusal
from elasticdl_worker.user_code import imported_from

_DEEPEST = 4
"""Lists in lists that are looked into for a name."""


def refuse_untracked(net: nn.Module, loss: torch.Tensor, roots: Sequence[Path]) -> None:
    """Refuses a step that computed a gradient for a parameter that is none of the model's.

    Tensors that are no ``nn.Parameter`` may ask for a gradient: inputs do, where a loss has a gradient in it.

    Args:
        net: the model.
        loss: of a step; its graph may have been used.
        roots: directories of the user's code, where a parameter is looked for to name it.

    Raises:
        UserCodeError: with the parameter's name.
    """
    known = {id(one) for one in net.parameters()}
    for leaf in _leaves(loss):
        if isinstance(leaf, nn.Parameter) and id(leaf) not in known:
            raise refusal(Subject.TORCH_LAYER, "untracked", _named(leaf, net, roots))


def _leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a graph hands gradients to."""
    waiting, seen = [loss.grad_fn], {loss.grad_fn}
    while waiting:
        node: Any = waiting.pop()
        if node is None:
            continue
        # What a part that is checkpointed used is not in the graph: that part runs in a graph of its own.
        if hasattr(node, "variable"):
            yield node.variable
        for before, _ in node.next_functions:
            if before not in seen:
                seen.add(before)
                waiting.append(before)


def _named(wanted: nn.Parameter, net: nn.Module, roots: Sequence[Path]) -> str:
    """A parameter by where the user put it."""
    for path, module in net.named_modules():
        for attribute, value in vars(module).items():
            if attribute not in {"_parameters", "_modules", "_buffers"}:
                name = _name_within(attribute, value, wanted, _DEEPEST)
                if name:
                    return f"{name} of {path or 'the model'} ({type(module).__name__})"
    for file, names in imported_from(roots):
        for attribute, value in names.items():
            name = _name_within(attribute, value, wanted, _DEEPEST)
            if name:
                return f"{name} of {file}"
    return f"a parameter of shape {list(wanted.shape)}"


def _name_within(name: str, value: object, wanted: nn.Parameter, depth: int) -> str:
    """The path from a value's own name to the parameter; empty if there is none."""
    if value is wanted:
        return f"the parameter {name}"
    if isinstance(value, nn.Module):
        inner = next((key for key, one in value.named_parameters() if one is wanted), "")
        return f"the parameter {name}.{inner}" if inner else ""
    if not depth or not isinstance(value, list | tuple | Mapping):
        return ""
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    found = (_name_within(f"{name}[{key!r}]", one, wanted, depth - 1) for key, one in items)
    return next((one for one in found if one), "")
