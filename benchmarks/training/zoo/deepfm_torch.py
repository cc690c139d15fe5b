"""DeepFM (Guo et al. 2017) in PyTorch as a model module; ids and labels come as fixed-width binary records."""

import functools

import numpy as np
import torch
from torch import nn

from elasticdl.torch import Minibatches

FIELDS = 10


class DeepFM(nn.Module):
    """Ids [batch, 10] to the logit of a click [batch]."""

    def __init__(self, ids, dim=64, hidden=(64, 32), sparse=False):
        super().__init__()
        self.vectors = nn.Embedding(ids, dim, sparse=sparse)
        self.weights = nn.Embedding(ids, 1, sparse=sparse)
        nn.init.uniform_(self.vectors.weight, -0.05, 0.05)
        nn.init.zeros_(self.weights.weight)
        self.linear = nn.Linear(FIELDS, 1)
        nn.init.ones_(self.linear.weight)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * dim, hidden[0]),
            nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
            nn.Linear(hidden[1], 1),
        )

    def forward(self, ids):
        """The sum of the weights, of all pairs' dot products, and of the hidden layers."""
        vectors = self.vectors(ids)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        rest = self.linear(self.weights(ids).squeeze(-1)) + self.deep(vectors.flatten(1))
        return rest.squeeze(-1) + pairs


def forward(ids, dim=64, dense_seed=None):
    """The model; with a seed its dense parameters begin as those of ``deepfm.forward`` with the same seed."""
    net = DeepFM(ids, dim)
    if dense_seed is not None:
        from first_values import dense_values  # type: ignore[import-not-found]  # in the same zoo

        layers = [net.linear, *(layer for layer in net.deep if isinstance(layer, nn.Linear))]
        pairs = dense_values(FIELDS, dim, dense_seed)
        with torch.no_grad():
            for layer, (kernel, bias) in zip(layers, pairs, strict=True):
                layer.weight.copy_(torch.from_numpy(kernel.T.copy()))
                layer.bias.copy_(torch.from_numpy(bias))
    return net


def loss(labels, predictions):
    """Mean binary cross-entropy of the minibatch."""
    return nn.functional.binary_cross_entropy_with_logits(predictions, labels.float())


def optimizer(kind="SGD", lr=0.1):
    """An optimizer of PyTorch by its class's name."""
    return functools.partial(getattr(torch.optim, kind), lr=lr)


def feed(dataset, mode, _, size=512):
    """A record is ten ids and a label, int64 each; whole minibatches are made of them at once."""

    def minibatches():
        held = []
        for record in dataset:
            held.append(record)
            if len(held) == size:
                yield made(held)
                held.clear()
        if held:
            yield made(held)

    def made(records):
        values = torch.from_numpy(np.frombuffer(b"".join(records), np.int64).reshape(-1, FIELDS + 1).copy())
        ids = values[:, :FIELDS].contiguous()
        return ids if mode == "prediction" else (ids, values[:, FIELDS])

    return Minibatches(minibatches())


class Auc:
    """Area under the ROC curve, of counts in bins of the probability: sums, so that workers can add them up."""

    bins = 2000

    def __init__(self):
        self.hits = torch.zeros(self.bins, dtype=torch.float64)
        self.misses = torch.zeros(self.bins, dtype=torch.float64)

    def update(self, predictions, labels):
        """Takes a minibatch."""
        places = (torch.sigmoid(predictions) * self.bins).long().clamp(0, self.bins - 1)
        self.hits += torch.bincount(places[labels > 0], minlength=self.bins)
        self.misses += torch.bincount(places[labels <= 0], minlength=self.bins)

    def compute(self):
        """The share of pairs in the right order; pairs in one bin count half."""
        below = torch.cumsum(self.misses, 0) - self.misses
        return (self.hits * (below + 0.5 * self.misses)).sum() / (self.hits.sum() * self.misses.sum())


def eval_metrics_fn():
    """Area under the ROC curve."""
    return {"auc": Auc()}
