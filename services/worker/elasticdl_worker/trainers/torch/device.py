"""The device that PyTorch computes on in this process, and the way of values to it and back.

A worker computes on an accelerator when one was granted to it, and on the CPU else. The model is built and checked on
the CPU, so that its first values are the same everywhere, and moved then. Records are read, ids are looked up, sums
are made and metrics are computed on the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import nn, optim

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.device_turns import DeviceGrant
from elasticdl_worker.trainers.replica_rules import is_finite
from elasticdl_worker.trainers.torch.nested import map_members

HOST = torch.device("cpu")
_FLOATS = {torch.float16, torch.float32, torch.float64}
_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""Without it CUDA's matrix products refuse to give the same bits each time."""
_log = structlog.get_logger(__name__)


def find_device(grant: DeviceGrant) -> torch.device:
    """The device that a worker computes on.

    Args:
        grant: what the process was given of devices.

    Raises:
        InvalidInputError: it was given one that PyTorch cannot use.
    """
    if not grant.names:
        return HOST
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None:
        device = torch.device(found.type, torch.accelerator.current_device_index())
        _log.info("computing on an accelerator", device=str(device), granted=grant.names)
        return device
    if grant.declared:
        _log.warning("the granted device is declared, with no accelerator behind it: computing on the CPU")
        return HOST
    raise InvalidInputError(
        f"this worker was given {grant.names}, and PyTorch {torch.__version__} can use no accelerator",
        fix="install the build of PyTorch for the device where the workers run, so that "
        "torch.accelerator.is_available() is true there; or leave worker_resource_request out to train on CPUs",
    )


def limit_memory(device: torch.device, share: float) -> None:
    """Limits PyTorch's allocator to a share of the memory of a device."""
    if device == HOST or share >= 1.0:
        return
    limit = getattr(torch.get_device_module(device), "set_per_process_memory_fraction", None)
    if limit is None:
        _log.warning("PyTorch cannot limit the memory that it takes of this device", device=str(device), share=share)
        return
    limit(share)


def give_the_same_bits() -> None:
    """Has PyTorch run no operation whose result may differ from run to run; before it runs anything."""
    os.environ.setdefault(*_WORKSPACE)
    torch.use_deterministic_algorithms(True)


def finish_on(device: torch.device) -> None:
    """Waits until nothing is under way on a device."""
    if device != HOST:
        torch.accelerator.synchronize(device)


def seed_of(device: torch.device) -> Callable[[int], Any]:
    """The seed for the generator of a device."""
    if device == HOST:
        return torch.default_generator.manual_seed
    seed: Callable[[int], Any] = torch.get_device_module(device).manual_seed
    return seed


def run_backward(loss: torch.Tensor) -> None:
    """Computes gradients, all of it in the calling thread.

    PyTorch has a thread of its own for each accelerator, in which neither the scope of lookups nor the order of hooks
    would be the caller's.
    """
    if loss.device == HOST:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    with torch.autograd.set_multithreading_enabled(False):
        loss.backward()  # type: ignore[no-untyped-call]


def move_model(net: nn.Module, device: torch.device) -> None:
    """Moves parameters and buffers, each of which stays the object that it is; those without numbers stay as well.

    Args:
        net: the model, before anything was computed with it.
        device: where to.
    """
    tensors = [*net.parameters(), *net.buffers()]
    with torch.no_grad():
        for tensor in {id(one): one for one in tensors}.values():
            if tensor.device == device or tensor.is_meta:
                continue
            moved = tensor.detach().to(device)
            if torch._has_compatible_shallow_copy_type(tensor, moved):
                tensor.data = moved
                continue
            _exchange(tensor, moved)


def _exchange(tensor: torch.Tensor, moved: torch.Tensor) -> None:
    """Gives a tensor another's numbers where PyTorch knows the accelerator by a plug-in, and cannot just set them."""
    held: Any = tensor
    same = nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
    same.__dict__.update(tensor.__dict__)
    before = [*(held._backward_hooks or {}).values()]
    after = [*(getattr(held, "_post_accumulate_grad_hooks", None) or {}).values()]
    torch.utils.swap_tensors(tensor, same)  # type: ignore[no-untyped-call]
    # Hooks go with the numbers.
    held._backward_hooks = held._post_accumulate_grad_hooks = None
    for hook in before:
        held.register_hook(hook)
    for hook in after:
        held.register_post_accumulate_grad_hook(hook)


def copies_on_host(net: nn.Module) -> dict[int, Any]:
    """A copy of each parameter and buffer, by its id: what ``copy.deepcopy`` is to take instead of them."""
    copies: dict[int, Any] = {}
    for tensor in (*net.parameters(), *net.buffers()):
        if not tensor.is_meta:
            moved = tensor.detach().to(HOST, copy=True)
            copies[id(tensor)] = (
                nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
            )
    return copies


def move_memory(optimizer: optim.Optimizer) -> None:
    """Moves what an optimizer already remembers of its parameters to where these are."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.ndim:
                state[name] = value.to(parameter.device)


def place(values: Any, device: torch.device, placed: MutableMapping[int, torch.Tensor] | None = None) -> Any:
    """Nested tensors on a device, each tensor once: dicts, lists, tuples with or without names, dataclasses.

    Args:
        values: as ``feed`` gives them.
        device: where to.
        placed: what was moved so far, by the id of what it was; taken note of.
    """
    placed = {} if placed is None else placed
    if isinstance(values, torch.Tensor):
        if id(values) not in placed:
            placed[id(values)] = values.to(device)
        return placed[id(values)]
    if not isinstance(values, type) and callable(getattr(values, "to", None)):
        return values.to(device)  # a PackedSequence, or a minibatch with a method of its own
    return map_members(lambda one: place(one, device, placed), values)


def finite_flag(tensor: torch.Tensor) -> bool | torch.Tensor:
    """Whether all numbers are finite: the answer, or a tensor of it that the device has still to make."""
    return is_finite(tensor.numpy()) if tensor.device == HOST else torch.isfinite(tensor).all()


def settle_flags(flags: Sequence[bool | torch.Tensor]) -> list[bool]:
    """The answers; those of a device all at once."""
    asked = [flag for flag in flags if isinstance(flag, torch.Tensor)]
    answers = iter(torch.stack(asked).tolist() if asked else [])
    return [bool(next(answers)) if isinstance(flag, torch.Tensor) else flag for flag in flags]


def host_array(tensor: torch.Tensor) -> NDArray[Any]:
    """The numbers of any tensor on the host, in a type that numpy has.

    bfloat16 and float8 become float32, quantised ones the numbers that they stand for.
    """
    tensor = tensor.detach()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    elif tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        tensor = tensor.float()
    found: NDArray[Any] = tensor.numpy(force=True)
    return found


def arrays_of(tensors: Sequence[torch.Tensor], device: torch.device) -> list[NDArray[Any]]:
    """The numbers of tensors on the host: from a device, in one copy for each type; from the host, as they are."""
    if device == HOST:
        return [one.numpy(force=True) if one.requires_grad else one.numpy() for one in tensors]
    found: dict[int, NDArray[Any]] = {}
    for dtype in dict.fromkeys(one.dtype for one in tensors):
        numbers = [number for number, one in enumerate(tensors) if one.dtype is dtype]
        flat = torch.cat([tensors[number].detach().reshape(-1) for number in numbers]).cpu().numpy()
        at = 0
        for number in numbers:
            end = at + tensors[number].numel()
            found[number] = flat[at:end].reshape(tuple(tensors[number].shape))
            at = end
    return [found[number] for number in range(len(tensors))]


def fill(tensors: Sequence[torch.Tensor], arrays: Sequence[NDArray[Any]]) -> None:
    """Sets tensors of a device to the numbers of arrays, in one copy for each type."""
    device = tensors[0].device if tensors else HOST
    with torch.no_grad():
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            pairs = [pair for pair in zip(tensors, arrays, strict=True) if pair[1].dtype == dtype]
            flat = torch.from_numpy(np.concatenate([array.reshape(-1) for _, array in pairs])).to(device)
            parts = torch.split(flat, [array.size for _, array in pairs])
            for (tensor, _), part in zip(pairs, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))
