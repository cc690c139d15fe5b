"""The memory in which a member's contributions and sums are tensors, so that sums are made where they are."""

from __future__ import annotations

from typing import Any, cast

import structlog
import torch

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job.fields import NCCL
from elasticdl_worker.collectives.endpoint import GLOO_TENSORS
from elasticdl_worker.collectives.nccl import find_cuda_device
from elasticdl_worker.group.replica import HOST_MEMORY, Flat, Memory
from elasticdl_worker.trainers.torch.device import HOST
from elasticdl_worker.trainers.torch.model.build import as_tensor

_log = structlog.get_logger(__name__)


class TensorMemory:
    """Tensors on a device.

    Args:
        device: where.
        adapter: of the collectives, that sums there.

    Attributes:
        device: where.
        adapter: of the collectives, that sums there.
    """

    def __init__(self, device: torch.device, adapter: str) -> None:
        self.device = device
        self.adapter = adapter

    def zeros(self, length: int) -> Flat:
        """A tensor of its own."""
        return as_flat(torch.zeros(length, device=self.device))

    def copy(self, target: Flat, source: Flat) -> None:
        """Copies a tensor of the device, or an array of the host."""
        cast(Any, target).copy_(as_tensor(source))

    def on_host(self, array: Flat) -> Flat:
        """An array in the host's memory."""
        found: Flat = cast(Any, array).cpu().numpy()
        return found


def choose_memory(collective: str, device: torch.device) -> Memory:
    """Chooses the memory for the contributions of a member that computes on a device.

    Args:
        collective: that the job asks for.
        device: of the member.

    Raises:
        InvalidInputError: what is asked for cannot join such devices.
    """
    if collective != NCCL:
        return HOST_MEMORY
    if device == HOST:
        # An administrator declared it: without one nobody comes here with a device.
        _log.warning("the granted device is declared, with no accelerator behind it: gloo sums instead of NCCL")
        return TensorMemory(device, GLOO_TENSORS)
    if device.type != "cuda":
        raise InvalidInputError(
            f"NCCL joins CUDA devices, and this worker computes on {device}", fix="use --collective auto"
        )
    return TensorMemory(find_cuda_device(), NCCL)


def as_flat(tensor: torch.Tensor) -> Flat:
    """A tensor as the group takes it, which does not look into it."""
    return cast(Flat, tensor)
