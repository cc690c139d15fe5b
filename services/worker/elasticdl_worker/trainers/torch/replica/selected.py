"""Values of which one is taken as it is, as parts of a sum: each microbatch has a place of its own in it.

A largest, smallest or last value is no sum, and members of a group exchange sums of float32. So each microbatch adds
its values where all others add zeros, as bits in halves of 16: also infinite ones come out as they went in.
"""

from __future__ import annotations

import torch

from elasticdl_worker.trainers.state_merging import Merge


def length_of(tensor: torch.Tensor) -> int:
    """Floats that one microbatch's values take."""
    return tensor.numel() * max(1, tensor.element_size() // 2)


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """Values as floats, each half of their bits one."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.element_size() == 1:
        return flat.float()
    return (flat.view(torch.int16).int() & 0xFFFF).float()


def unpacked(floats: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse of ``packed``, in the shape and type of another tensor."""
    if like.element_size() == 1:
        return floats.to(like.dtype).reshape(like.shape)
    halves = floats.int()
    return torch.where(halves > 0x7FFF, halves - 0x10000, halves).to(torch.int16).view(like.dtype).reshape(like.shape)


def choose(rule: Merge, old: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
    """The new value from those of the microbatches that there were, in their order."""
    for value in values:
        old = value if rule is Merge.LAST else (torch.maximum if rule is Merge.MAX else torch.minimum)(old, value)
    return old
