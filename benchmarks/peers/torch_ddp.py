"""PyTorch's DistributedDataParallel over gloo: every process holds all parameters, with dense or sparse gradients."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.training.data import Clicks
from benchmarks.training.processes import Train
from benchmarks.training.zoo.deepfm_torch import DeepFM, loss

_STEPS = 4
"""Steps between two questions whether time is left: all processes make the same number of steps."""


def start(arguments: dict[str, Any]) -> Train:
    """Builds the model, joins the group and gets the data into memory.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``rank``, ``world``, ``store``, ``rate``, ``sparse``.
    """
    torch.set_num_threads(1)
    rank, world, sparse = arguments["rank"], arguments["world"], arguments["sparse"]
    dist.init_process_group("gloo", init_method=f"file://{arguments['store']}", rank=rank, world_size=world)
    clicks = Clicks.load(arguments["data"])
    torch.manual_seed(0)
    model = DeepFM(clicks.vocabulary, arguments["dim"], sparse=sparse)
    tables = [*model.vectors.parameters(), *model.weights.parameters()]
    rest = [*model.linear.parameters(), *model.deep.parameters()]
    rate = arguments["rate"]
    optimizers: list[torch.optim.Optimizer] = (
        [torch.optim.SparseAdam(tables, lr=rate), torch.optim.Adam(rest, lr=rate)]
        if sparse
        else [torch.optim.Adam(model.parameters(), lr=rate)]
    )
    parallel = DistributedDataParallel(model)
    minibatches = [
        (torch.as_tensor(ids).long(), torch.as_tensor(labels).reshape(-1))
        for ids, labels in clicks.minibatches(arguments["batch"], rank)
    ]

    def step(number: int) -> int:
        ids, labels = minibatches[number % len(minibatches)]
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss(labels, parallel(ids)).backward()
        for optimizer in optimizers:
            optimizer.step()
        return int(arguments["batch"])

    return side_by_side(step)


def side_by_side(step: Callable[[int], int]) -> Train:
    """Calls ``step(i)``, which returns its samples, as often in all processes, until the seconds are over."""
    made = 0

    def train(seconds: float) -> int:
        nonlocal made
        samples, until = 0, time.monotonic() + seconds
        goes_on = torch.ones(())
        while bool(goes_on):
            for _ in range(_STEPS):
                samples += step(made)
                made += 1
            goes_on = torch.tensor(float(time.monotonic() < until))
            dist.all_reduce(goes_on, dist.ReduceOp.MIN)
        return samples

    return train
