"""The network of ``images`` in PyTorch, as a model module; records are pixels and a label."""

import functools

import numpy as np
import torch
from torch import nn

from elasticdl.torch import Minibatches

PIXELS = 28 * 28


def forward(width=256):
    """The model: images [batch, 1, 28, 28] to ten logits.

    Args:
        width: of the layer before the last, which has most of the parameters.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def loss(labels, predictions):
    """Mean cross-entropy of the minibatch."""
    return nn.functional.cross_entropy(predictions, labels)


def optimizer():
    """Adam."""
    return functools.partial(torch.optim.Adam, lr=0.001)


def feed(dataset, mode, _):
    """A record is an image's pixels and its label, a byte each; minibatches are made of them at once."""

    def minibatches():
        values = torch.from_numpy(np.frombuffer(b"".join(dataset), np.uint8).reshape(-1, PIXELS + 1).copy())
        images = (values[:, :PIXELS].float() / 255.0).reshape(-1, 1, 28, 28)
        yield images if mode == "prediction" else (images, values[:, PIXELS].long())

    return Minibatches(minibatches())
