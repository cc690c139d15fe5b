"""DeepFM (Guo et al. 2017) in PyTorch on click data with ten fields and a million ids.

The embeddings are plain ``nn.Embedding`` layers: at this size they live on the parameter servers, without a change
here.
"""

import functools
import itertools

import numpy as np
import torch
from torch import nn

from elasticdl.data import decode_example

FIELDS = 10
_THRESHOLDS = 2000


class DeepFM(nn.Module):
    """Ids [batch, 10] to the logit of a click [batch]."""

    def __init__(self, ids=1_000_000, dim=16, hidden=(64, 32)):
        super().__init__()
        self.vectors = nn.Embedding(ids, dim)
        self.weights = nn.Embedding(ids, 1)
        nn.init.uniform_(self.vectors.weight, -0.05, 0.05)
        nn.init.zeros_(self.weights.weight)
        self.linear = nn.Linear(FIELDS, 1)
        nn.init.ones_(self.linear.weight)
        widths = [FIELDS * dim, *hidden]
        layers = []
        for width, following in itertools.pairwise(widths):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, ids):
        """The sum of the weights, of all pairs' dot products (Rendle 2010), and of the hidden layers."""
        vectors = self.vectors(ids)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        return (
            self.linear(self.weights(ids).squeeze(-1)).squeeze(-1) + pairs + self.deep(vectors.flatten(1)).squeeze(-1)
        )


def forward(ids=1_000_000, dim=16):
    """The model."""
    return DeepFM(ids, dim)


def loss(labels, predictions):
    """Mean binary cross-entropy of the minibatch."""
    return nn.functional.binary_cross_entropy_with_logits(predictions, labels.float())


def optimizer(lr=0.005):
    """Adam, applied by the parameter servers to the touched rows only."""
    return functools.partial(torch.optim.Adam, lr=lr)


def feed(dataset, mode, _):
    """Parses serialized ``tf.train.Example`` records."""
    for record in dataset:
        features = decode_example(record)
        ids = np.array(features["ids"], np.int64)
        yield ids if mode == "prediction" else (ids, features["label"][0])


class AUC:
    """Area under the ROC curve, from counts of chances by threshold: counts of several workers add up."""

    def __init__(self):
        self.positives = torch.zeros(_THRESHOLDS, dtype=torch.float64)
        self.negatives = torch.zeros(_THRESHOLDS, dtype=torch.float64)

    def update(self, predictions, labels):
        """Counts the records of a minibatch."""
        places = (predictions.sigmoid() * _THRESHOLDS).long().clamp(max=_THRESHOLDS - 1)
        self.positives += torch.bincount(places[labels > 0], minlength=_THRESHOLDS)
        self.negatives += torch.bincount(places[labels <= 0], minlength=_THRESHOLDS)

    def compute(self):
        """The area, by trapezoids."""
        hits = torch.cat([torch.zeros(1), self.positives.flip(0).cumsum(0) / self.positives.sum()])
        alarms = torch.cat([torch.zeros(1), self.negatives.flip(0).cumsum(0) / self.negatives.sum()])
        return torch.trapezoid(hits, alarms)


def eval_metrics_fn():
    """Area under the ROC curve."""
    return {"auc": AUC()}
