"""Refuses models of which PyTorch, not ElasticDL, would decide where and how they are computed."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elasticdl_core.contract import Subject, refusal
from elasticdl_core.errors import UserCodeError

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_modules(net: nn.Module) -> None:
    """Refuses modules that spread, compile or convert what they hold.

    Args:
        net: as the model function returned it.

    Raises:
        UserCodeError: with the name of one.
    """
    for path, module in net.named_modules():
        name = type(module).__name__
        where = f"{path}, a {name}," if path else f"the model, a {name},"
        if isinstance(module, torch.jit.ScriptModule):
            raise refusal(Subject.TORCH_LAYER, "ScriptModule", where)
        if isinstance(module, _WRAPPERS):
            raise refusal(Subject.TORCH_LAYER, "DataParallel", where)
        if isinstance(module, nn.SyncBatchNorm):
            raise refusal(Subject.TORCH_LAYER, "SyncBatchNorm", where)
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise refusal(Subject.TORCH_LAYER, "torch.compile", where)


def check_tensors(net: nn.Module, placeholders: set[int]) -> None:
    """Refuses parameters and buffers that are not in this machine's memory.

    Args:
        net: after it ran once.
        placeholders: ids of the weights whose rows lie elsewhere.

    Raises:
        UserCodeError: with the name of one.
    """
    for name, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        if id(tensor) in placeholders:
            continue
        if is_lazy(tensor):
            raise UserCodeError(
                f"{name} of a lazy layer was not made when the model ran on the first records",
                fix="call each lazy layer in forward, also in inference mode, or give the layer its sizes",
            )
        if tensor.device.type != "cpu":
            raise refusal(Subject.TORCH_LAYER, "device", f"{name} is on the device {tensor.device}, which")
