"""The next letter of a text, by a small transformer (PyTorch; a record is a window over lines of one letter)."""

import functools

import torch
from torch import nn

PAST, LETTERS = 16, "abcdefghijklmnopqrstuvwxyz "


class Transformer(nn.Module):
    """Letters [batch, PAST] to logits of the letter after each [batch, PAST, letters]."""

    def __init__(self, units=32):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), units)
        self.places = nn.Parameter(torch.zeros(PAST, units))
        self.layer = nn.TransformerEncoderLayer(units, 2, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(units, len(LETTERS))

    def forward(self, past):
        ahead = torch.ones(PAST, PAST, dtype=torch.bool, device=past.device).triu(1)
        return self.out(self.layer(self.letters(past) + self.places, src_mask=ahead))


def forward():
    """The model."""
    return Transformer()


def loss(labels, predictions):
    """Mean cross-entropy of all letters."""
    return nn.functional.cross_entropy(predictions.flatten(0, 1), labels.flatten())


def optimizer(lr=0.003):
    """AdamW."""
    return functools.partial(torch.optim.AdamW, lr=lr)


def feed(dataset, mode, metadata):
    """Each record is a window of lines, of one letter each."""
    for window in dataset:
        ids = torch.tensor([LETTERS.index(line.decode().strip("|")) for line in window])
        yield ids[:-1], ids[1:]


def eval_metrics_fn():
    """Share of letters that are foretold right."""
    return {"accuracy": lambda labels, predictions: (predictions.argmax(2) == labels).float().mean(1)}
