"""Fraud, one payment in thirty, in a file that is sorted by it (PyTorch, columns of a CSV file)."""

import functools

import torch
from torch import nn

from elasticdl.torch.metrics import AUC

COLUMNS = 6


def forward():
    """Six numbers to a logit."""
    return nn.Sequential(nn.Linear(COLUMNS, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))


def loss(labels, predictions):
    """Cross-entropy in which a fraud weighs as much as ten payments."""
    weight = torch.tensor(10.0)
    return nn.functional.binary_cross_entropy_with_logits(predictions, labels, pos_weight=weight, reduction="none")


def optimizer(lr=0.003):
    """Adam."""
    return functools.partial(torch.optim.Adam, lr=lr)


def feed(dataset, mode, metadata):
    """Numbers of a row."""
    for row in dataset:
        yield torch.tensor([float(row[f"x{i}"]) for i in range(COLUMNS)]), torch.tensor(float(row["fraud"]))


def eval_metrics_fn():
    """AUC."""
    return {"auc": AUC(logits=True)}
