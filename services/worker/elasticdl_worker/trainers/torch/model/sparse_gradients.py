"""Optimizers that take the gradients of ``sparse=True``: those that do in PyTorch, wherever the model trains."""

from __future__ import annotations

from typing import Any

from torch import nn, optim

from elasticdl.torch import Embedding
from elasticdl_core.contract import Subject, refusal
from elasticdl_core.errors import UserCodeError

_TAKE_SPARSE = (optim.SGD, optim.Adagrad, optim.SparseAdam)


def check_sparse_gradients(optimizer: optim.Optimizer, net: nn.Module) -> None:
    """Refuses what PyTorch refuses in a model's first step.

    Parameter servers update rows one by one and could do what it refuses. But then a file would train on a cluster
    alone.

    Args:
        optimizer: of one of PyTorch's own classes.
        net: the model.

    Raises:
        UserCodeError: an embedding's gradients are sparse and the optimizer takes dense ones, or the other way round.
    """
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse and layer.weight.requires_grad:
            _check_layer(name, layer)
    users = _users(net)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad or id(parameter) not in users:
                continue
            name, sparse = users[id(parameter)]
            if sparse is not None:
                _check_parameter(type(optimizer), group, name, sparse=sparse)


def _check_layer(name: str, layer: nn.Embedding | nn.EmbeddingBag) -> None:
    if layer.scale_grad_by_freq or (isinstance(layer, nn.EmbeddingBag) and layer.mode == "max"):
        option = "scale_grad_by_freq" if layer.scale_grad_by_freq else "mode='max'"
        shown = f"the embedding {name} has sparse=True and {option}, which"
        raise refusal(Subject.TORCH_LAYER, "sparse_scaled_or_max", shown)


def _check_parameter(kind: type[optim.Optimizer], group: dict[str, Any], name: str, *, sparse: bool) -> None:
    if sparse and kind not in _TAKE_SPARSE:
        raise refusal(
            Subject.TORCH_OPTIMIZER, "sparse_gradients", f"{kind.__name__} for {name}, an embedding with sparse=True,"
        )
    if sparse and group.get("weight_decay"):
        raise refusal(
            Subject.TORCH_OPTIMIZER,
            "sparse_weight_decay",
            f"weight_decay={group['weight_decay']} for {name}, an embedding with sparse=True,",
        )
    if not sparse and kind is optim.SparseAdam:
        raise UserCodeError(
            f"SparseAdam takes sparse gradients alone, and that of {name} is dense",
            fix="use Adam, or give the embeddings sparse=True and the optimizer their parameters alone",
        )


def _users(net: nn.Module) -> dict[int, tuple[str, bool | None]]:
    """For each parameter, by id, its name and whether its gradient is sparse; None where that follows the optimizer.

    One dense gradient among those of several users makes the sum dense.
    """
    found: dict[int, tuple[str, bool | None]] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        home, _, attribute = name.rpartition(".")
        layer = net.get_submodule(home)
        if isinstance(layer, Embedding):
            sparse = None
        else:
            sparse = attribute == "weight" and isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse
        first, before = found.get(id(parameter), (name, sparse))
        found[id(parameter)] = first, sparse and before
    return found
