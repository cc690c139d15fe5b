"""Gradients in a few flat arrays, so that the first is on its way while the next is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import nn

from elasticdl_worker.trainers.torch.device import HOST

_BUCKET = 1 << 20
"""Numbers in a bucket; a larger parameter is a bucket of its own."""


class TorchBuckets:
    """The place of each parameter's gradient: those that backward makes first in the first bucket.

    Args:
        parameters: those that are trained, by name.
        bucket: numbers in a bucket.
        device: where the parameters are.
        leaves: where sums are made of what is packed: on the host or on the device.

    Attributes:
        lengths: of each bucket.
        marks: how many numbers say which parameters had a gradient.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        bucket: int = _BUCKET,
        device: torch.device = HOST,
        leaves: torch.device = HOST,
    ) -> None:
        self._parameters = dict(reversed(list(parameters.items())))
        self.marks = len(self._parameters)
        self._names: list[list[str]] = []
        self.lengths: list[int] = []
        for name, parameter in self._parameters.items():
            size = parameter.numel()
            if not self.lengths or self.lengths[-1] + size > bucket:
                self._names.append([])
                self.lengths.append(0)
            self._names[-1].append(name)
            self.lengths[-1] += size
        self._flat = [torch.zeros(length, device=leaves) for length in self.lengths]
        self._device = device
        self._staged = None if device == leaves else [torch.zeros(length, device=device) for length in self.lengths]

    def pack(self, weight: float) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The gradients of the parameters, times a weight, and which have one; all there until the next call.

        A parameter without a gradient counts as 0 in the sum.
        """
        packed = self._flat if self._staged is None else self._staged
        marks = [self._pack(bucket, weight, flat) for bucket, flat in enumerate(packed)]
        if self._staged is not None:
            for flat, staged in zip(self._flat, self._staged, strict=True):
                flat.copy_(staged)
        return self._flat, torch.tensor([mark for each in marks for mark in each])

    def _pack(self, bucket: int, weight: float, flat: torch.Tensor) -> list[float]:
        names, marks = self._names[bucket], []
        for name, part in zip(names, self._split(names, flat), strict=True):
            gradient = self._parameters[name].grad
            marks.append(0.0 if gradient is None else 1.0)
            if gradient is None:
                part.zero_()
            else:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                torch.mul(dense.reshape(-1), weight, out=part)
        return marks

    def set_gradients(self, buckets: Sequence[torch.Tensor], marks: torch.Tensor) -> None:
        """Gives parameters their gradients; those that no microbatch had one of are left without."""
        if self._staged is not None:
            buckets = [flat.to(self._device) for flat in buckets]
        had = iter(marks.tolist())
        for names, flat in zip(self._names, buckets, strict=True):
            for name, part in zip(names, self._split(names, flat), strict=True):
                parameter = self._parameters[name]
                parameter.grad = part.view(parameter.shape) if next(had) else None

    def find_not_finite(self, finite: Sequence[bool]) -> str:
        """Names of the gradients in the first bucket that is not finite; empty if all are.

        Args:
            finite: of each bucket.
        """
        bad = [bucket for bucket, good in enumerate(finite) if not good]
        if not bad:
            return ""
        names = self._names[bad[0]]
        parts = zip(names, self._split(names, self._flat[bad[0]]), strict=True)
        return ", ".join(name for name, part in parts if not bool(torch.isfinite(part).all()))

    def _split(self, names: Sequence[str], flat: torch.Tensor) -> Sequence[torch.Tensor]:
        ends = list(accumulate(self._parameters[name].numel() for name in names))
        return [flat[end - self._parameters[name].numel() : end] for name, end in zip(names, ends, strict=True)]
