"""Variations, and models that are refused."""

import torch
from clicks import IDS, DeepFM, collate, eval_metrics_fn, feed, loss, optimizer  # noqa: F401
from torch import nn

from elasticdl.callbacks import GradientClipping


def clipping():
    return [GradientClipping(max_norm=0.05)]


class _Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embedding = nn.Embedding(IDS, 4, **options)
        self.out = nn.Linear(4, 1)

    def ids(self, ids):
        return ids

    def forward(self, ids):
        return self.out(self.embedding(self.ids(ids)).mean(1)).squeeze(-1)


class RandomIds(_Net):
    def ids(self, ids):
        return torch.randint(0, IDS, ids.shape)


class UsesWeight(_Net):
    """Not with the few records that a model is tried with."""

    def forward(self, ids):
        found = super().forward(ids)
        return found + self.embedding.weight.sum() if len(ids) > 4 else found


class Sometimes(_Net):
    """Looks up by what the ids are: in one table or in two, of ids as they are or others."""

    def __init__(self):
        super().__init__()
        self.other = nn.Embedding(IDS, 4)

    def forward(self, ids):
        kind = int(ids.sum()) % 3
        found = self.other(ids) if kind == 1 else self.embedding(IDS - 1 - ids if kind else ids)
        return self.out((found + self.other(ids) if kind == 2 else found).mean(1)).squeeze(-1)


def sometimes():
    return Sometimes()


def renorm():
    return _Net(max_norm=1.0)


def random_ids():
    return RandomIds()


def uses_weight():
    return UsesWeight()


def no_module():
    return renorm
