"""Models for members of a group: random layers, buffers of every kind, parameters that are not always used."""

import functools
import random

import numpy as np
import torch
from torch import nn

_OWN = torch.Generator()


class Net(nn.Module):
    """BatchNorm, dropout, a counter, a flag, an average that is made anew each time, and draws of three kinds."""

    def __init__(self, dropout=0.0, wild=False, sparse=False):
        super().__init__()
        self.rows = nn.Embedding(50, 4, sparse=sparse)
        self.hidden = nn.Linear(7, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, 1)
        self.wild = wild
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flag", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("average", torch.ones(8))
        self.register_buffer("large", torch.ones(2000))

    def forward(self, x):
        hidden = torch.cat([x, self.rows((x[:, 0].abs() * 3).long())], 1)
        hidden = self.norm(torch.relu(self.hidden(hidden)))
        if self.training:
            self.seen += 70000
            self.flag[0] = True
            self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
            if self.wild:
                hidden = hidden + random.random() + np.random.rand() + torch.rand((), generator=_OWN)
        return self.out(self.dropout(hidden)).squeeze(-1)


class Sometimes(nn.Module):
    """A branch that only some records take, and one that none takes."""

    def __init__(self):
        super().__init__()
        self.always = nn.Linear(3, 1)
        self.sometimes = nn.Linear(3, 1)
        self.never = nn.Linear(3, 1)
        self.register_buffer("large", torch.zeros(2000))

    def forward(self, x):
        out = self.always(x)
        if self.training and bool((x[:, 0] > 2.2).any()):
            out = out + self.sometimes(x)
        return out.squeeze(-1)


class Rarely(Sometimes):
    """Changes a large buffer, but not by the first records."""

    def forward(self, x):
        if self.training and bool((x[:, 0] > 2.2).any()):
            self.large += 1
        return super().forward(x)


class Rows(nn.Module):
    """Has nothing but an embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(50, 1, sparse=True)

    def forward(self, x):
        return self.rows((x[:, 0].abs() * 3).long()).squeeze(-1)


def rows():
    return Rows()


def net(dropout=0.0, wild=False, sparse=False):
    return Net(dropout, wild, sparse)


def sometimes():
    return Sometimes()


def rarely():
    return Rarely()


def plain():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def large():
    return nn.Sequential(nn.Linear(3, 2000), nn.Tanh(), nn.Linear(2000, 1000), nn.Linear(1000, 1), nn.Flatten(0))


def loss(labels, predictions):
    return nn.functional.mse_loss(predictions, labels)


def optimizer(name="Adam", **options):
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    return functools.partial(getattr(torch.optim, name), **({"lr": 0.05} | options)), schedule


def feed(dataset, mode, metadata):
    for record in dataset:
        values = torch.tensor([float(record[name]) for name in metadata.column_names])
        yield values[1:] if mode == "prediction" else (values[1:], values[0])


def drawing_feed(dataset, mode, metadata):
    for features, label in feed(dataset, mode, metadata):
        yield features + torch.rand(3) * 0.1 + random.random() + torch.tensor(np.random.rand()).float(), label


def eval_metrics_fn():
    return {"error": lambda labels, predictions: (labels - predictions).abs()}
