"""Models of three ids, for every way that rows are looked up."""

import functools

import torch
from torch import nn

from elasticdl.torch import Embedding

FIELDS, IDS = 3, 1000


class DeepFM(nn.Module):
    """Two tables of the same ids, a hidden layer with BatchNorm, rows that begin in ways of their own."""

    def __init__(self, dim=4, padding_idx=None, sparse=False):
        super().__init__()
        self.wide = nn.Embedding(IDS, 1, padding_idx=padding_idx, sparse=sparse)
        self.deep = nn.Embedding(IDS, dim, padding_idx=padding_idx, sparse=sparse, scale_grad_by_freq=not sparse)
        nn.init.uniform_(self.wide.weight, -0.1, 0.1)
        nn.init.normal_(self.deep.weight, std=0.1)
        if padding_idx is not None:
            with torch.no_grad():
                self.wide.weight[padding_idx].zero_()
                self.deep.weight[padding_idx].zero_()
        self.hidden = nn.Linear(FIELDS * dim, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 1)
        self.register_buffer("offset", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids):
        ids = ids + self.offset
        hidden = torch.relu(self.norm(self.hidden(self.deep(ids).flatten(1))))
        return (self.wide(ids).sum(1) + self.out(hidden)).squeeze(-1)


class Bags(nn.Module):
    """Bags of every mode, of which two share a weight."""

    def __init__(self):
        super().__init__()
        self.sum = nn.EmbeddingBag(IDS, 4, mode="sum")
        self.mean = nn.EmbeddingBag(IDS, 4, mode="mean", padding_idx=0)
        self.max = nn.EmbeddingBag(IDS, 4, mode="max")
        self.max.weight = self.sum.weight
        self.out = nn.Linear(12, 1)

    def forward(self, ids):
        weights = torch.linspace(0.5, 1.5, ids.shape[1]).expand(ids.shape)
        flat, offsets = ids.reshape(-1), torch.arange(0, ids.numel(), ids.shape[1])
        parts = [self.sum(ids, per_sample_weights=weights), self.mean(flat, offsets), self.max(ids)]
        return self.out(torch.cat(parts, 1)).squeeze(-1)


class Open(nn.Module):
    """Tables without a bound on their ids."""

    def __init__(self):
        super().__init__()
        self.one = Embedding(4, padding_idx=0)
        self.bag = Embedding(4, mode="sum", initializer="normal", initializer_params={"stddev": 0.1})
        self.out = nn.Linear(FIELDS * 4 + 4, 1)

    def forward(self, ids):
        far = ids * 7_000_000_000
        return self.out(torch.cat([self.one(far).flatten(1), self.bag(ids - 500)], 1)).squeeze(-1)


class Tied(nn.Module):
    """An output layer that shares the weight of its embedding, which therefore stays in the model."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(IDS, 4)
        self.out = nn.Linear(4, IDS, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids):
        return self.out(self.embedding(ids).mean(1)).mean(1)


def deepfm(dim=4, padding_idx=None, sparse=False):
    return DeepFM(dim, padding_idx, sparse)


def bags():
    return Bags()


def open_tables():
    return Open()


def tied():
    return Tied()


def loss(labels, predictions):
    return nn.functional.binary_cross_entropy_with_logits(predictions, labels)


def optimizer(lr=0.1, momentum=0.0):
    return functools.partial(torch.optim.SGD, lr=lr, momentum=momentum)


def feed(dataset, mode, metadata):
    for record in dataset:
        values = [int(record[name]) for name in metadata.column_names]
        ids = torch.tensor(values[1:])
        yield ids if mode == "prediction" else (ids, float(values[0]))


def collate(samples):
    if isinstance(samples[0], torch.Tensor):
        return torch.stack(samples)
    return torch.stack([ids for ids, _ in samples]), torch.tensor([label for _, label in samples])


def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: (predictions > 0) == (labels > 0.5)}
