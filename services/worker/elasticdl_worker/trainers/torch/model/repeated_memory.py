"""Gives buffers whose elements share memory, as those of ``expand``, memory of their own: they are to be filled."""

from __future__ import annotations

import torch
from torch import nn

from elasticdl_core.errors import UserCodeError


def own_memory(net: nn.Module) -> None:
    """Replaces each buffer of which several elements are one place in memory.

    Args:
        net: a model.

    Raises:
        UserCodeError: a parameter, or a buffer that is saved, is sparse or quantised; a parameter has such elements,
            or a buffer that is a view of another tensor of the model: what is written to one would show in the other
            in this process alone.
    """
    for name, parameter in net.named_parameters():
        if _repeats(parameter):
            raise UserCodeError(
                f"the parameter {name} has elements that share memory, which PyTorch refuses to update",
                fix="make it of a copy: nn.Parameter(tensor.expand(...).clone())",
            )
    parameters = {f"parameter {name}": parameter for name, parameter in net.named_parameters()}
    buffers = {f"buffer {name}": buffer for name, buffer in saved_buffers(net).items()}
    for name, tensor in {**parameters, **buffers}.items():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise UserCodeError(
                f"the {name} is {'quantised' if tensor.is_quantized else 'sparse'}, which no checkpoint holds",
                fix="register its parts (such as indices and values) and make it of them in forward; a buffer that "
                "the model makes anew may be registered with persistent=False",
            )
    dense = [tensor for tensor in [*net.parameters(), *net.buffers()] if tensor.layout is torch.strided]
    places = [tensor.untyped_storage().data_ptr() for tensor in dense]
    for path, module in net.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is None or not _repeats(buffer):
                continue
            if places.count(buffer.untyped_storage().data_ptr()) > 1:
                raise UserCodeError(
                    f"the buffer {f'{path}.{key}'.lstrip('.')} is a view of another tensor of the model",
                    fix="register one of the two, and make the other in forward; or register a copy (clone())",
                )
            module._buffers[key] = buffer.clone(memory_format=torch.contiguous_format)


def saved_buffers(net: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a model that belong to its state, by name, whatever hooks make of its ``state_dict``."""
    return {
        f"{path}.{key}" if path else key: buffer
        for path, module in net.named_modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and key not in module._non_persistent_buffers_set
    }


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor are one place in memory."""
    strided = tensor.layout is torch.strided and not tensor.is_meta
    return strided and any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
