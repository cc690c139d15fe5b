"""A model zoo module in PyTorch: a small convolutional network for handwritten digits of 8x8 pixels."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from elasticdl.data import decode_example


def forward(units: int = 64) -> nn.Module:
    """The model: images [batch, 1, 8, 8] to ten logits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 3 * 3, units),
        nn.ReLU(),
        nn.Linear(units, 10),
    )


def loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the minibatch."""
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(lr: float = 0.001) -> Any:
    """Adam, applied by the parameter servers."""
    return functools.partial(torch.optim.Adam, lr=lr)


def feed(dataset: Iterable[bytes], mode: str, metadata: Any) -> Iterator[Any]:
    """Parses serialized ``tf.train.Example`` records, one after the other."""
    for record in dataset:
        features = decode_example(record)
        image = torch.tensor(features["image"]).reshape(1, 8, 8) / 16.0
        yield image if mode == "prediction" else (image, features["label"][0])


def eval_metrics_fn() -> dict[str, Any]:
    """Share of images whose largest logit is the label's."""
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}
