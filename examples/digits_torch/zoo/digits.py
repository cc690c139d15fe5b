"""Handwritten digits (8x8 pixels, from scikit-learn) with a small convolutional network in PyTorch."""

import functools

import torch
from torch import nn

from elasticdl.data import decode_example


def forward(units=64):
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


def loss(labels, predictions):
    """Mean cross-entropy of the minibatch."""
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(lr=0.001):
    """Adam, applied by the parameter servers; its rate halves every 500 updates, so that the end is calm."""
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5 ** (1 / 500))
    return functools.partial(torch.optim.Adam, lr=lr), schedule


def feed(dataset, mode, metadata):
    """Parses serialized ``tf.train.Example`` records, one after the other."""
    for record in dataset:
        features = decode_example(record)
        image = torch.tensor(features["image"]).reshape(1, 8, 8) / 16.0
        yield image if mode == "prediction" else (image, features["label"][0])


def eval_metrics_fn():
    """Share of images whose largest logit is the label's."""
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}
