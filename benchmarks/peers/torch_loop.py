"""The limit for PyTorch: a plain loop in one process that holds all parameters, with dense or sparse gradients."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.training.data import LEARNING_RATE, Clicks
from benchmarks.training.processes import Train, for_a_while
from benchmarks.training.zoo.deepfm_torch import DeepFM, loss


def start(arguments: dict[str, Any]) -> Train:
    """Builds the model and gets the data into memory.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``seed``, ``sparse``, and ``threads``, 1 by default.
    """
    torch.set_num_threads(arguments.get("threads", 1))
    clicks = Clicks.load(arguments["data"])
    model = DeepFM(clicks.vocabulary, arguments["dim"], sparse=arguments["sparse"])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    minibatches = [
        (torch.as_tensor(ids).long(), torch.as_tensor(labels).reshape(-1))
        for ids, labels in clicks.minibatches(arguments["batch"], arguments["seed"])
    ]

    def one(i: int) -> int:
        ids, labels = minibatches[i % len(minibatches)]
        optimizer.zero_grad(set_to_none=True)
        loss(labels, model(ids)).backward()
        optimizer.step()
        return int(arguments["batch"])

    return for_a_while(one)
