"""Prints what every layer gives, for eager runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import torch
from torch import nn
from torch.nn.modules import module as hooks

from elasticdl_worker.trainers.torch.nested import leaves


@contextlib.contextmanager
def print_layer_outputs(stream: TextIO | None = None) -> Iterator[None]:
    """While active, each layer without layers of its own prints its class, output shape, dtype and value range.

    Args:
        stream: where to print; stderr by default.
    """
    out = stream or sys.stderr

    def show(layer: nn.Module, _: Any, result: Any) -> None:
        if next(layer.children(), None) is None:
            for value in leaves(result):
                print(f"{type(layer).__name__:<20} {summary(value)}", file=out, flush=True)

    handle = hooks.register_module_forward_hook(show)
    try:
        yield
    finally:
        handle.remove()


def summary(tensor: torch.Tensor) -> str:
    """Shape, dtype, range and first values of a tensor."""
    values = tensor.detach() if tensor.device.type == "meta" else tensor.detach().cpu()
    text = f"{str(values.dtype).removeprefix('torch.')}{list(values.shape)}"
    if not values.numel() or values.device.type == "meta" or values.dtype.is_complex:
        return text
    numbers = values.double()
    first = ", ".join(f"{value:.4g}" for value in numbers.ravel()[:4].tolist())
    text += f" min {numbers.min():.4g} mean {numbers.mean():.4g} max {numbers.max():.4g} first [{first}]"
    bad = int(values.numel() - torch.isfinite(numbers).sum())
    return f"{text} NOT FINITE: {bad} of {values.numel()}" if bad else text
