"""Forecasts the next day's sales of a shop from those of four weeks, in PyTorch; a record is a window of 29 rows."""

import functools

import torch
from torch import nn

PAST = 28


class Forecast(nn.Module):
    """Sales of 28 days [batch, 28] to those of the next day [batch]: a linear model and a small network, summed."""

    def __init__(self, units=32):
        super().__init__()
        self.linear = nn.Linear(PAST, 1)
        self.network = nn.Sequential(nn.Linear(PAST, units), nn.ReLU(), nn.Linear(units, 1))

    def forward(self, past):
        mean = past.mean(1, keepdim=True)
        scaled = past / mean - 1  # shops of all sizes look alike
        return ((1 + self.linear(scaled) + self.network(scaled)) * mean).squeeze(1)


def forward(units=32):
    """The model."""
    return Forecast(units)


def loss(labels, predictions):
    """Mean absolute error, of the mean of what was sold."""
    return (predictions - labels).abs().mean() / 100


def optimizer(lr=0.003):
    """Adam."""
    return functools.partial(torch.optim.Adam, lr=lr)


def feed(dataset, mode, metadata):
    """Each record is a window: of each column the list of its values in 29 consecutive rows of one shop."""
    for window in dataset:
        sold = torch.tensor([float(value) for value in window["sold"]])
        yield sold[:PAST] if mode == "prediction" else (sold[:PAST], sold[PAST])


def eval_metrics_fn():
    """Mean absolute error."""
    return {"mae": lambda labels, predictions: (predictions - labels).abs()}
