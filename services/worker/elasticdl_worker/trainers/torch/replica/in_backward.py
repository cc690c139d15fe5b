"""Brings buckets of gradients while the backward pass goes on: each as soon as all gradients in it are made.

The bits are those of buckets that are brought afterwards: what is summed, and in which order, does not change.
"""

from __future__ import annotations

from functools import partial

import torch

from elasticdl_worker.group.replica import LeafSink, SentTooEarlyError
from elasticdl_worker.trainers.torch.device import finite_flag, settle_flags
from elasticdl_worker.trainers.torch.model.build import as_tensor
from elasticdl_worker.trainers.torch.replica.buckets import TorchBuckets


class BackwardBuckets:
    """Watches the gradients of the trained parameters as backward passes make them.

    PyTorch tells of a gradient that was added to a parameter. It is added once in a pass, as a rule: what a model
    computes anew in the backward pass, with checkpoints that enter it again, adds to it several times. Buckets with
    such parameters are brought at the end, once that was seen.

    Args:
        buckets: where gradients lie.

    Attributes:
        weight: that the gradients of a pass are multiplied by; to be set before it.
    """

    def __init__(self, buckets: TorchBuckets) -> None:
        self._buckets = buckets
        self._sizes = [len(each) for each in buckets.parameters]
        self._late: set[int] = set()
        self._left = list(self._sizes)
        self._seen: set[int] = set()
        self._marks: dict[int, list[float]] = {}
        self.weight = 1.0
        self._sink: LeafSink | None = None
        self._wrong: Exception | None = None
        self._finite: dict[int, bool | torch.Tensor] = {}
        number = 0
        for bucket, parameters in enumerate(buckets.parameters):
            for parameter in parameters:
                hook = partial(self._made, number, bucket)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                number += 1

    def begin(self, sink: LeafSink | None) -> None:
        """Before a backward pass.

        Args:
            sink: takes the buckets; None to bring none, and only to see what is added to more than once.
        """
        self._left, self._seen, self._marks = list(self._sizes), set(), {}
        self._sink, self._wrong, self._finite = sink, None, {}

    def finish(self) -> tuple[torch.Tensor, str]:
        """After the pass: brings the other buckets.

        Returns:
            Which parameters have a gradient, and the names of gradients that are not finite, of one bucket.

        Raises:
            SentTooEarlyError: a gradient was added to after its bucket was brought.
            CollectiveError: the group is broken.
        """
        for bucket in range(len(self._sizes)):
            if bucket not in self._marks:
                self._bring(bucket)
        self._sink = None
        if self._wrong is not None:
            raise self._wrong
        flags = settle_flags(list(self._finite.values()))
        wrong = [bucket for bucket, finite in zip(self._finite, flags, strict=True) if not finite]
        bad = self._buckets.find_not_finite_gradients(wrong[0], self.weight) if wrong else ""
        return torch.tensor([mark for bucket in sorted(self._marks) for mark in self._marks[bucket]]), bad

    def _made(self, number: int, bucket: int, parameter: torch.Tensor) -> None:
        if number in self._seen:
            self._late.add(bucket)
            if bucket in self._marks and self._wrong is None:
                self._wrong = SentTooEarlyError("a gradient was added to after it was brought")
            return
        self._seen.add(number)
        self._left[bucket] -= 1
        if self._sink is not None and not self._left[bucket] and bucket not in self._late:
            self._bring(bucket)

    def _bring(self, bucket: int) -> None:
        """Nothing is raised here, in the midst of the user's code; what goes wrong is told at the end."""
        if self._sink is None or self._wrong is not None:
            return
        try:
            memory = as_tensor(self._sink.leaf(bucket))
            self._marks[bucket] = self._buckets.pack_one(bucket, self.weight, memory)
            self._finite[bucket] = finite_flag(memory)
            self._sink.add(bucket)
        except Exception as error:
            self._wrong = error
